"""Pulls that find something: from a header to records of the log.

Who may read what is decided by ``broker.processors.pull``; for a pull that brings its own
subscription the decision is kept until topics or groups change. A pull that finds nothing, or what
may have left memory, is answered, or parked, by that module too.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from broker.store.limits import MAX_PULL_BYTES, MAX_PULL_MESSAGES
from remoting.flow import GATHER_BYTES

from broker.fast_path.gather cimport COLD, HEAVY, Gathered
from remoting.protocol.core.answer cimport AnswerTemplate, Fill
from remoting.protocol.core.buffer cimport Buffer
from remoting.protocol.core.build cimport FIXED_BYTES
from remoting.protocol.core.header cimport (
    PULL_COMMIT_OFFSET, QUEUE_OFFSET, Header, key_of, number_of,
)
from remoting.protocol.core.octets cimport get32, get64

cdef enum:
    ENTRY_BYTES = 20

# The slots by which a pull's plan is known: all but the two offsets and the broker's and the
# proxy's names.
cdef uint32_t KEY = 0x3FFF & ~(1 << 3 | 1 << 6 | 1 << 11)

cdef int64_t MOST_BYTES = MAX_PULL_BYTES
cdef int64_t MOST_MESSAGES = MAX_PULL_MESSAGES
cdef Py_ssize_t GATHERED = GATHER_BYTES


cdef class Plan:
    """What all pulls of one kind have in common; see ``Host.plan_pull``."""

    def __cinit__(self, plan):
        self.plan = plan
        self.max_count = max(1, min(plan.max_count, MOST_MESSAGES))
        self.max_bytes = min(plan.max_bytes, MOST_BYTES)


cdef class Pulls:
    """Serves pulls.

    Args:
        host: a ``Host``.
        gathered: takes answers.
        max_plans: kinds of pulls that are remembered.
    """

    def __cinit__(self, host, Gathered gathered, Py_ssize_t max_plans):
        self._host = host
        self._gathered = gathered
        self._max_plans = max_plans
        self._plans = {}
        self._found = host.found
        self._runs = Buffer()

    cdef int forget(self) except -1:
        """Topics or groups have changed."""
        self._plans.clear()
        return 0

    cdef int serve(
        self, const Header *header, const uint8_t *at, Py_ssize_t header_length, connection
    ) except -1:
        """Serve a pull whose header lies at ``at``; COLD: the general path has to."""
        cdef int64_t offset = 0, commit_offset = 0
        cdef Plan plan
        if header.flag != 0 or not number_of(header, QUEUE_OFFSET, &offset):
            return COLD
        if not number_of(header, PULL_COMMIT_OFFSET, &commit_offset):
            return COLD
        plan = self._find(header, at, header_length, connection)
        if plan is None:
            return COLD
        if not self._host.begin_pull(plan.plan, offset, commit_offset, connection):
            return COLD
        # It may ask for what has just been sent.
        self._gathered.store()
        window = self._host.window(plan.plan)
        if window is None or not self._take(plan, header, window, offset):
            pieces = self._host.pull(<int>header.codec, plan.plan, header.opaque, connection)
            if pieces is None:
                return COLD
            self._gathered.add_pieces(pieces)
        return HEAVY

    cdef Plan _find(
        self, const Header *header, const uint8_t *at, Py_ssize_t header_length, connection
    ):
        """The plan of a pull; None: the general path decides."""
        key = key_of(header, KEY)
        if key is None:
            return None
        found = self._plans.get(key)
        if found is not None:
            return <Plan>found
        text = PyBytes_FromStringAndSize(<const char *>at, header_length)
        plan = self._host.plan_pull(<int>header.codec, text, connection)
        if plan is None:
            return None
        if len(self._plans) >= self._max_plans:
            self._plans.clear()
        made = self._plans[key] = Plan(plan)
        return made

    cdef bint _take(self, Plan plan, const Header *header, window, int64_t offset) except -1:
        """Answer a pull from a window; False: the general get has to look at it."""
        cdef int64_t total = 0
        cdef int64_t scanned = self._choose(plan, window, len(window.log), &total)
        cdef const int64_t *run = <const int64_t *>self._runs.data
        cdef int64_t begin, end
        cdef Py_ssize_t index
        if scanned == 0:
            return False
        if window.is_old:
            begin, end = run[0], run[1]
            for index in range(2, self._runs.length // 8, 2):
                end = max(end, run[index + 1])
            begin, end = begin + <int64_t>window.base, end + <int64_t>window.base
            if not self._host.may_take(window, scanned, begin, end):
                return False
        self._answer(header, window, offset + scanned, total)
        self._pulls += 1
        self._messages += self._matched
        self._bytes += total
        return True

    cdef int64_t _choose(self, Plan plan, window, Py_ssize_t log_bytes, int64_t *total) except -1:
        """Choose messages, as runs of adjacent records; how many entries were looked at, or 0.

        The one place where entries are checked: a record begins where the first one does, or
        behind it, and ends within the log's file.
        """
        cdef Py_buffer view
        cdef const uint8_t *entry
        cdef const uint8_t *end
        cdef int64_t base = window.base
        cdef int64_t first, place, size, matched = 0, scanned = 0, run_end = -1
        cdef int64_t *run = NULL
        accept = plan.plan.accept
        self._runs.length = 0
        PyObject_GetBuffer(window.entries, &view, PyBUF_SIMPLE)
        try:
            entry = <const uint8_t *>view.buf
            end = entry + view.len
            first = <int64_t>get64(entry) - base if view.len >= ENTRY_BYTES else -1
            while end - entry >= ENTRY_BYTES and matched < plan.max_count:
                place = <int64_t>get64(entry) - base
                size = <int32_t>get32(entry + 8)
                if matched and total[0] + size > plan.max_bytes:
                    break
                if first < 0 or place < first or size < FIXED_BYTES or place > log_bytes - size:
                    return 0
                scanned += 1
                if accept is None or accept(<int64_t>get64(entry + 12)):
                    if place != run_end:
                        run = <int64_t *>self._runs.room(16)
                        self._runs.length += 16
                        run[0] = place
                    run_end = run[1] = place + size
                    matched += 1
                    total[0] += size
                entry += ENTRY_BYTES
        finally:
            PyBuffer_Release(&view)
        self._matched = matched
        return scanned if matched else 0

    cdef int _answer(
        self, const Header *header, window, int64_t following, int64_t total
    ) except -1:
        """Answer with the runs chosen: copied behind the header, or handed on if they are large."""
        cdef Buffer answers = self._gathered.answers
        cdef Py_buffer view
        cdef Fill fill
        cdef const int64_t *run = <const int64_t *>self._runs.data
        cdef const int64_t *end = run + self._runs.length // 8
        cdef uint8_t *out
        fill.opaque = header.opaque
        fill.numbers[0] = following
        fill.numbers[1] = window.low
        fill.numbers[2] = window.high
        fill.count = 0
        fill.body_length = total
        (<AnswerTemplate>self._found[<int>header.codec]).write(answers, &fill)
        log = window.log
        if total >= GATHERED * ((end - run) // 2):
            pieces = []
            while run < end:
                pieces.append(log[run[0]:run[1]])
                run += 2
            return self._gathered.add_pieces(pieces)
        out = answers.room(total)
        PyObject_GetBuffer(log, &view, PyBUF_SIMPLE)
        try:
            while run < end:
                memcpy(out, <const uint8_t *>view.buf + run[0], run[1] - run[0])
                out += run[1] - run[0]
                run += 2
        finally:
            PyBuffer_Release(&view)
        answers.length += total
        return 0

    cdef int tell(self) except -1:
        """Have the pulls answered from windows counted."""
        if self._pulls:
            self._host.pulled(self._pulls, self._messages, self._bytes)
            self._pulls = self._messages = self._bytes = 0
        return 0
