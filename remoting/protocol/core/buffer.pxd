from libc.stdint cimport uint8_t


cdef class Buffer:
    cdef uint8_t *data
    cdef Py_ssize_t length
    cdef Py_ssize_t capacity
    cdef uint8_t *room(self, Py_ssize_t count) except NULL
    cdef bytes take(self)
    cdef int clear(self) except -1
