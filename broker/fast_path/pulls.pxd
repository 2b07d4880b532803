from libc.stdint cimport int32_t, int64_t, uint8_t

from broker.fast_path.gather cimport Gathered
from remoting.protocol.core.buffer cimport Buffer
from remoting.protocol.core.header cimport Header


cdef class Plan:
    cdef object plan
    cdef int64_t max_count
    cdef int64_t max_bytes


cdef class Pulls:
    cdef object _host
    cdef Gathered _gathered
    cdef Py_ssize_t _max_plans
    cdef dict _plans
    cdef list _found
    cdef Buffer _runs
    cdef Py_ssize_t _pulls, _messages
    cdef int64_t _bytes, _matched
    cdef int forget(self) except -1
    cdef int serve(
        self, const Header *header, const uint8_t *at, Py_ssize_t header_length, connection
    ) except -1
    cdef Plan _find(
        self, const Header *header, const uint8_t *at, Py_ssize_t header_length, connection
    )
    cdef bint _take(self, Plan plan, const Header *header, window, int64_t offset) except -1
    cdef int64_t _choose(self, Plan plan, window, Py_ssize_t log_bytes, int64_t *total) except -1
    cdef int _answer(
        self, const Header *header, window, int64_t following, int64_t total
    ) except -1
    cdef int tell(self) except -1
