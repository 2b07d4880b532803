from libc.stdint cimport uint8_t

from remoting.protocol.core.header cimport Header, Reader


cdef bint scan_json(Header *header, Reader *reader) noexcept nogil
cdef Py_ssize_t unescape(const uint8_t *at, Py_ssize_t length, uint8_t *out) noexcept nogil
