from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum Hole:
    OPAQUE = 0
    FIRST = 1
    SECOND = 2
    THIRD = 3
    IDS = 4
    FIELDS_LENGTH = 5
    TEXT = 6


cdef struct Fill:
    int32_t opaque
    int64_t numbers[3]
    const int64_t *positions
    Py_ssize_t count
    const uint8_t *text
    Py_ssize_t text_length
    Py_ssize_t body_length


cdef class Buffer:
    cdef uint8_t *data
    cdef Py_ssize_t length
    cdef Py_ssize_t capacity
    cdef uint8_t *room(self, Py_ssize_t count) except NULL
    cdef bytes take(self)
    cdef int clear(self) except -1


cdef class AnswerTemplate:
    cdef int _codec
    cdef list _literals
    cdef list _holes
    cdef bytes _id_prefix
    cdef Py_ssize_t _fixed
    cdef int write(self, Buffer out, const Fill *fill) except -1
    cdef uint8_t *_number(self, uint8_t *at, int64_t value) noexcept
    cdef uint8_t *_text_length(self, uint8_t *at, Py_ssize_t size) noexcept
    cdef uint8_t *_ids(self, uint8_t *at, const int64_t *positions, Py_ssize_t count) noexcept
