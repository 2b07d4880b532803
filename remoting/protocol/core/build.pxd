from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    FIXED_BYTES = 91


cdef struct Properties:
    Py_ssize_t length
    bint waits
    const uint8_t *tag
    Py_ssize_t tag_length


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
