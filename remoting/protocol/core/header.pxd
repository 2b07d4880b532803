from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum Kind:
    ABSENT = 0
    TEXT = 1
    ESCAPED = 2
    NUMBER = 3
    BOOLEAN = 4

cdef enum Codec:
    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 2

# The slots of sends, in the order of the letters of SEND_MESSAGE_V2.
cdef enum:
    TOPIC = 1
    BORN_TIMESTAMP = 6
    PROPERTIES = 8

# The slots of pulls and of commits, in the order of their header classes.
cdef enum:
    QUEUE_OFFSET = 3
    PULL_COMMIT_OFFSET = 6

cdef enum:
    COMMIT_OFFSET = 3

cdef enum:
    SLOTS = 15
    MAX_FIELDS = 24


cdef struct Text:
    const uint8_t *at
    Py_ssize_t length
    int64_t number
    Kind kind


cdef struct Field:
    const uint8_t *name
    Py_ssize_t name_length
    Text value


cdef struct Header:
    Codec codec
    int32_t code
    int32_t flag
    int32_t opaque
    uint64_t kinds
    Text slots[SLOTS]
    # The account whose signature was checked; ABSENT without one.
    Text account
    Field fields[MAX_FIELDS]
    int field_count


cdef bint scan(Header *header, Codec codec, const uint8_t *at, Py_ssize_t length)
cdef bint number_of(const Header *header, int slot, int64_t *number) noexcept nogil
cdef bytes key_of(const Header *header, uint32_t slots)
cdef Py_ssize_t unescape(const uint8_t *at, Py_ssize_t length, uint8_t *out) noexcept nogil
