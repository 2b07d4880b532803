"""The C interface of ``record`` for other compiled modules."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    FIXED_BYTES = 91


cdef struct Span:
    # A range of bytes, relative to the beginning of the record or text.
    Py_ssize_t at
    Py_ssize_t length


cdef struct Record:
    Py_ssize_t size
    uint32_t magic
    uint32_t crc
    int32_t queue_id
    int64_t queue_offset
    int64_t physical_offset
    int32_t sys_flag
    Py_ssize_t born_host_bytes
    Py_ssize_t store_host_bytes
    int64_t store_ms
    Span body
    Span topic
    Span properties


cdef bint check_layout(const uint8_t *at, Py_ssize_t limit, Record *record) noexcept nogil
cdef Span find_property(
    const uint8_t *text, Py_ssize_t length, const uint8_t *name, Py_ssize_t name_length
) noexcept nogil
cdef uint32_t java_hash(
    const uint8_t *text, Py_ssize_t length, uint32_t before
) except? 0xFFFFFFFF
cdef int64_t tags_code(const uint8_t *text, Py_ssize_t length) except? -1


cdef struct Properties:
    Py_ssize_t length
    bint waits
    const uint8_t *tag
    Py_ssize_t tag_length
    const uint8_t *unique_id
    Py_ssize_t unique_id_length


cdef struct Head:
    uint32_t size
    uint32_t crc
    int32_t queue_id
    int32_t flag
    int64_t queue_offset
    int64_t position
    int32_t sys_flag
    int64_t born_ms
    const uint8_t *born_host
    int64_t store_ms
    const uint8_t *store_host
    int32_t reconsume_times
    uint32_t body_length


cdef bint read_properties(
    uint8_t *text, Py_ssize_t length, bint keep_wait, Properties *properties
) noexcept nogil
cdef uint32_t body_crc(const uint8_t *body, Py_ssize_t length) except? 0
cdef uint8_t *put_head(uint8_t *at, const Head *head) noexcept nogil
