"""What a pass over a read gathers, and how it is brought out: all at once.

Records go into one buffer, the entries of each queue into one of its own, answers into one.
``flush`` brings them out in the order that the general path has: records, then entries, then
answers. Until then nothing of a pass can be seen. What a pass could fail of is done before a
message is taken: ``make_room`` has room for its record and its entry, or says no.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from functools import partial

from remoting.protocol.core.answer cimport AnswerTemplate, Fill
from remoting.protocol.core.buffer cimport Buffer
from remoting.protocol.core.build cimport Head, put_head
from remoting.protocol.core.octets cimport put16, put32, put64

cdef extern from "Python.h":
    int PyBUF_READ

cdef enum:
    ENTRY_BYTES = 20
    # Records are stored when so many bytes of them are there: while the processor's cache has them.
    STAGED = 256 * 1024


cdef class Run:
    """The messages that one queue gets in this pass."""

    def __cinit__(self, queue):
        self.queue = queue
        self.queue_id = queue.queue_id
        self.entries = Buffer()
        self.topic = bytes((len(queue.topic_bytes),)) + queue.topic_bytes
        self.codes = []


cdef class Gathered:
    """The pass being made.

    Attributes:
        answers: frames that may go out; what was gathered before is stored first.
        position: physical offset of the next record.
        sent_bytes: of the bodies of the requests whose messages were put; for the counters.
        syncs: answers wait for the disk unless a message says otherwise.
    """

    def __cinit__(self, host):
        self._host = host
        self._appender = host.appender
        self._store_host = host.packed_host
        self.syncs = host.appender.syncs
        self._runs = []
        self._pieces = []
        self.answers = Buffer()
        self._records = Buffer()
        self._late = Buffer()
        self._less = Buffer()
        self._limit = -1

    cdef int begin(self, peer, bytes born_host) except -1:
        """Gather for ``peer`` from now on; None: for nobody."""
        self._peer = peer
        self._born_host = born_host
        return 0

    # --- records and entries

    cdef bint make_room(self, Run run, Py_ssize_t count, int64_t size) except -1:
        """Whether ``count`` more messages of ``size`` bytes in all may be put; may store."""
        try:
            if run.room < count or self.position + size > self._limit:
                if not self._appender.takes(size):
                    return False
                if run.room < count and not self._open(run, count):
                    return False
                if self.position + size > self._limit:
                    self._store_staged()
                    self._limit = -1
                    self.position, self._limit, self._store_ms = self._appender.reserve(size)
                    self._begin = self.position
            elif self._records.length + size > STAGED:
                self._store_staged()
        except OSError:
            return False
        return True

    cdef bint _open(self, Run run, Py_ssize_t count) except -1:
        if run.room or run.entries.length:
            self.store()
        run.next_offset, run.room, run.place = self._appender.open(run.queue, count)
        self._runs.append(run)
        return run.room >= count

    cdef int put(
        self, Run run, Head *head, int64_t code, const uint8_t *body, const uint8_t *text,
        Py_ssize_t text_length,
    ) except -1:
        """Add a message for which there is room: its record and its entry."""
        cdef uint8_t *at = self._records.room(head.size)
        cdef uint8_t *entry = run.entries.room(ENTRY_BYTES)
        cdef Py_ssize_t topic_length = PyBytes_GET_SIZE(run.topic)
        run.codes.append(code)
        head.queue_id = run.queue_id
        head.queue_offset = run.next_offset
        head.position = self.position
        head.born_host = <const uint8_t *>PyBytes_AS_STRING(self._born_host)
        head.store_ms = self._store_ms
        head.store_host = <const uint8_t *>PyBytes_AS_STRING(self._store_host)
        at = put_head(at, head)
        memcpy(at, body, head.body_length)
        at += head.body_length
        memcpy(at, PyBytes_AS_STRING(run.topic), topic_length)
        at += topic_length
        put16(at, text_length)
        memcpy(at + 2, text, text_length)
        self._records.length += head.size
        put64(entry, self.position)
        put32(entry + 8, head.size)
        put64(entry + 12, code)
        run.entries.length += ENTRY_BYTES
        run.next_offset += 1
        run.room -= 1
        self.position += head.size
        self._staged += 1
        return 0

    cdef int _store_staged(self) except -1:
        """Store the records so far; more may follow at the place reserved."""
        cdef Py_ssize_t count = self._staged
        cdef int64_t body_bytes = self.sent_bytes
        if count:
            self._staged = self.sent_bytes = 0
            records = PyMemoryView_FromMemory(
                <char *>self._records.data, self._records.length, PyBUF_READ
            )
            self._appender.store(self._begin, records, count)
            self._records.clear()
            self._begin = self.position
            self._host.stored(count, body_bytes)
        return 0

    cdef int store(self) except -1:
        """Store what was gathered and make it visible; room must be made anew afterwards."""
        cdef Run run
        if not self._runs:
            return 0
        self._limit = -1
        self._store_staged()
        runs, self._runs = self._runs, []
        for run in runs:
            run.room = 0
            place, run.place = run.place, None
            if run.entries.length:
                codes, run.codes = run.codes, []
                self._appender.publish(run.queue, place, run.entries.take(), codes, self.position)
        return 0

    # --- answers

    cdef int answer_late(
        self, AnswerTemplate durable, AnswerTemplate late, const Fill *fill
    ) except -1:
        """Answer when the disk has what was put: with the one, or with the other if it is late."""
        durable.write(self._late, fill)
        late.write(self._less, fill)
        self._held += 1
        return 0

    cdef int add_pieces(self, list pieces) except -1:
        """Answer with these, behind the answers so far."""
        if self.answers.length:
            self._pieces.append(self.answers.take())
        self._pieces += pieces
        return 0

    cdef int post(self) except -1:
        """Send the answers that are ready; nothing may wait to be stored."""
        self.add_pieces([])
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._peer.post(pieces)
        return 0

    cdef int flush(self) except -1:
        """Bring out what was gathered."""
        self.store()
        self.post()
        if self._held:
            held, self._held = self._held, 0
            self._peer.hold(held)
            late = partial(_answer, self._peer, held, self._late.take(), self._less.take())
            self._host.when_durable(self.position, late)
        return 0


def _answer(peer, answers, durable_frames, late_frames, durable):
    """Send answers that waited: the disk has their messages, or is late."""
    peer.post([durable_frames if durable else late_frames])
    peer.release(answers)
