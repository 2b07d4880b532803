from libc.stdint cimport int32_t, int64_t, uint8_t

from remoting.protocol.core.answer cimport AnswerTemplate, Fill
from remoting.protocol.core.buffer cimport Buffer
from remoting.protocol.core.build cimport Head

cdef enum:
    # What became of a frame: left to the general path; done; done, and it took long, or its answer
    # is large: see whether there is time left, and room for more.
    COLD = 0
    LIGHT = 1
    HEAVY = 2


cdef class Run:
    cdef object queue
    cdef object place
    cdef int32_t queue_id
    cdef int64_t next_offset
    cdef Py_ssize_t room
    cdef Buffer entries
    cdef bytes topic
    cdef list codes


cdef class Gathered:
    cdef readonly bint syncs
    cdef object _host, _appender, _peer
    cdef bytes _born_host, _store_host
    cdef list _runs, _pieces
    cdef Buffer answers, _records, _late, _less
    cdef int64_t position, sent_bytes, _begin, _limit, _store_ms
    cdef Py_ssize_t _staged, _held
    cdef int begin(self, peer, bytes born_host) except -1
    cdef bint make_room(self, Run run, Py_ssize_t count, int64_t size) except -1
    cdef bint _open(self, Run run, Py_ssize_t count) except -1
    cdef int put(
        self, Run run, Head *head, int64_t code, const uint8_t *body, const uint8_t *text,
        Py_ssize_t text_length,
    ) except -1
    cdef int answer_late(
        self, AnswerTemplate durable, AnswerTemplate late, const Fill *fill
    ) except -1
    cdef int add_pieces(self, list pieces) except -1
    cdef int _store_staged(self) except -1
    cdef int store(self) except -1
    cdef int post(self) except -1
    cdef int flush(self) except -1
