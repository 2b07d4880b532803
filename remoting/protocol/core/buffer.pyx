"""Memory that grows, for what is put together byte by byte."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport uint8_t

cdef enum:
    SMALLEST = 1024
    KEPT = 1 << 20


cdef class Buffer:
    """Bytes that are appended to: ``room`` makes place, and who fills it moves ``length``."""

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef uint8_t *room(self, Py_ssize_t count) except NULL:
        """Where the next ``count`` bytes may go; good until the next call."""
        cdef Py_ssize_t wanted = self.length + count
        cdef Py_ssize_t capacity = self.capacity
        cdef uint8_t *data
        if wanted > capacity:
            capacity = max(2 * capacity, wanted, SMALLEST)
            data = <uint8_t *>PyMem_Realloc(self.data, capacity)
            if data == NULL:
                raise MemoryError
            self.data = data
            self.capacity = capacity
        return self.data + self.length

    cdef bytes take(self):
        """What was appended, which is gone from here."""
        cdef bytes taken = PyBytes_FromStringAndSize(<char *>self.data, self.length)
        self.clear()
        return taken

    cdef int clear(self) except -1:
        """Forget what was appended; memory beyond what a usual read takes is given back."""
        self.length = 0
        if self.capacity > KEPT:
            PyMem_Free(self.data)
            self.data = NULL
            self.capacity = 0
        return 0
