from libc.stdint cimport int32_t, int64_t, uint8_t

from broker.fast_path.gather cimport Gathered, Run
from remoting.protocol.core.answer cimport AnswerTemplate, Fill
from remoting.protocol.core.buffer cimport Buffer
from remoting.protocol.core.build cimport Head, Properties
from remoting.protocol.core.header cimport Header


cdef class Plan:
    cdef Run run
    cdef AnswerTemplate answer
    cdef AnswerTemplate late_answer
    cdef int32_t flag
    cdef int32_t sys_flag
    cdef int32_t reconsume_times
    cdef bint batch


cdef class Sends:
    cdef object _host
    cdef Gathered _gathered
    cdef Py_ssize_t _max_plans
    cdef dict _plans, _runs
    cdef Buffer _text, _positions
    cdef bytes _cluster
    cdef int64_t _max_body
    cdef int forget(self) except -1
    cdef int serve(
        self, const Header *header, const uint8_t *at, Py_ssize_t header_length,
        const uint8_t *body, Py_ssize_t length, connection,
    ) except -1
    cdef Plan _find(
        self, const Header *header, const uint8_t *at, Py_ssize_t header_length, connection
    )
    cdef Py_ssize_t _with_cluster(self, uint8_t *text, Py_ssize_t length) noexcept
    cdef int _one(
        self, Plan plan, const Header *header, Head *head, uint8_t *text, Py_ssize_t text_length,
        const uint8_t *body, Py_ssize_t length,
    ) except -1
    cdef int _answer(
        self, Plan plan, const Header *header, bint waits, int64_t number,
        const int64_t *positions, Py_ssize_t count,
    ) except -1
    cdef int _batch(
        self, Plan plan, const Header *header, Head *head, uint8_t *text, Py_ssize_t text_length,
        const uint8_t *body, Py_ssize_t length,
    ) except -1
    cdef int _put_elements(
        self, Plan plan, Head *head, const Properties *common, const uint8_t *body,
        Py_ssize_t count,
    ) except -1
