"""The stored record for other compiled modules."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef struct Span:
    # Bytes from a place in a record on.
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
