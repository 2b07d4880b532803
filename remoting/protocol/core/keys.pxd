from remoting.protocol.core.buffer cimport Buffer


cdef class KeyBatch:
    cdef Buffer _keys
    cdef Py_ssize_t _count


cdef class KeyLinks:
    cdef readonly bytes entries
    cdef readonly object header
    cdef object _buffer
    cdef Buffer _slots
