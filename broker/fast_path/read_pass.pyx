"""One pass over a read: frames in, records, queue entries and answers out.

A pass gathers: records in one buffer, entries in one for each queue, answers in one. ``_flush``
brings them out in the order that the general path has: records, then entries, then answers. It
comes before every frame that goes the general way, and at the end. Until then nothing of a pass can
be seen, and what a pass could fail of was done before a message was taken: there is room for its
record and its entry.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from functools import partial
from time import perf_counter

from remoting.flow import GATHER_BYTES
from remoting.protocol import limits
from remoting.protocol.codes import RequestCode

from broker.store.limits import MAX_PULL_BYTES, MAX_PULL_MESSAGES

from remoting.protocol.core.answer cimport AnswerTemplate, Fill
from remoting.protocol.core.buffer cimport Buffer
from remoting.protocol.core.build cimport (
    FIXED_BYTES, Head, Properties, body_crc, put_head, read_properties, read_tags,
    tags_code,
)
from remoting.protocol.core.header cimport (
    BORN_TIMESTAMP, COMMIT_OFFSET, PROPERTIES, PULL_COMMIT_OFFSET, QUEUE_OFFSET, SLOTS,
    Codec, Header, Kind, Text, number_of, scan, unescape,
)
from remoting.protocol.core.octets cimport get16, get32, get64, put16, put32, put64

cdef extern from "Python.h":
    int PyBUF_READ

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <string.h>
    void *memmem(const void *, size_t, const void *, size_t);
    """
    void *memmem(const void *, size_t, const void *, size_t) noexcept nogil

cdef enum:
    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    UPDATE_CONSUMER_OFFSET = 15
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    LITE_PULL_MESSAGE = 361
    PREFIX_BYTES = 8
    ENTRY_BYTES = 20
    ELEMENT_BYTES = 22
    FLAG_ONEWAY = 2
    LONGEST_KEY = 640
    STAGED = 256 * 1024
    FRAMES_BETWEEN_LOOKS = 16

# What became of a frame.
cdef enum Done:
    COLD = 0
    LIGHT = 1
    HEAVY = 2

# The slots by which a send's plan is known: all but the producer group, the default topic, the
# time, the properties and the broker's name.
cdef uint32_t SEND_KEY = 0x1FFF & ~(1 | 1 << 2 | 1 << 6 | 1 << 8)
# All of a pull's but the two offsets and the broker's and the proxy's names.
cdef uint32_t PULL_KEY = 0x3FFF & ~(1 << 3 | 1 << 6 | 1 << 11)
cdef uint32_t COMMIT_KEY = 0b0111

cdef Py_ssize_t MAX_HEADER_BYTES = limits.MAX_HEADER_BYTES
cdef Py_ssize_t MAX_PROPERTIES_BYTES = limits.MAX_PROPERTIES_BYTES
cdef Py_ssize_t MAX_BATCH_MESSAGES = limits.MAX_BATCH_MESSAGES
cdef int64_t MOST_PULL_BYTES = MAX_PULL_BYTES
cdef int64_t MOST_PULL_MESSAGES = MAX_PULL_MESSAGES
cdef Py_ssize_t GATHERED = GATHER_BYTES

MAX_PLANS = 16_384
"""Kinds of requests remembered, of about 1 KiB each: a client's for ten thousand queues. More are a
stream of odd headers, for which it starts anew."""


cdef class Run:
    """The messages that one queue gets in this pass."""

    cdef object queue
    cdef object place
    cdef int64_t next_offset
    cdef Py_ssize_t room
    cdef Buffer entries
    cdef bytes topic
    cdef list codes

    def __cinit__(self, queue):
        self.queue = queue
        self.entries = Buffer()
        self.topic = bytes((len(queue.topic_bytes),)) + queue.topic_bytes
        self.codes = []


cdef class Kept:
    """A send's plan in C."""

    cdef Run run
    cdef AnswerTemplate answer
    cdef AnswerTemplate late_answer
    cdef int32_t queue_id
    cdef int32_t flag
    cdef int32_t sys_flag
    cdef int32_t reconsume_times
    cdef bint batch


cdef class KeptPull:
    """A pull's plan in C."""

    cdef object plan
    cdef int64_t max_count
    cdef int64_t max_bytes


cdef class ReadPass:
    """The fast path of one broker.

    Args:
        host: a ``Host``.
        max_frame_bytes: of a frame with its length.
        max_plans: kinds of requests of one family that are remembered.

    Attributes:
        frames: how many it has worked.
        on_served: told, once per pass, of the code of a family of requests, how many of them there
            were, and the seconds they took together; for metrics.
    """

    cdef readonly Py_ssize_t frames
    cdef public object on_served
    cdef object _host, _appender, _peer, _connection
    cdef dict _sends, _pulls, _commits, _runs_of
    cdef list _runs, _pieces, _found, _committed
    cdef Buffer _records, _answers, _late, _less, _text, _positions
    cdef bytes _cluster, _packed_host, _born_host
    cdef Py_ssize_t _longest, _max_plans
    cdef int64_t _begin, _position, _limit, _store_ms, _max_body
    cdef Py_ssize_t _staged, _messages, _held
    cdef int64_t _message_bytes
    cdef Py_ssize_t _pulls_served, _commits_served, _took_pulls, _took_messages
    cdef int64_t _took_bytes
    cdef bint _syncs, _takes_sends, _msgpack
    cdef double _cold_seconds
    cdef const uint8_t *_buffer
    cdef uint8_t _key[LONGEST_KEY]
    cdef Header _header

    def __init__(self, host, *, max_frame_bytes, max_plans=MAX_PLANS):
        self._host = host
        self._appender = host.appender
        self._syncs = host.appender.syncs
        self._packed_host = host.packed_host
        self._cluster = host.cluster
        self._max_body = host.max_body
        self._found = host.found
        self._committed = host.committed
        self._longest = max_frame_bytes - 4
        self._max_plans = max_plans
        self._sends, self._pulls, self._commits, self._runs_of = {}, {}, {}, {}
        self._runs, self._pieces = [], []
        self._records, self._answers, self._text = Buffer(), Buffer(), Buffer()
        self._late, self._less, self._positions = Buffer(), Buffer(), Buffer()
        self._limit = -1

    def work(self, peer, buffer, Py_ssize_t position, Py_ssize_t stop, may_go_on):
        """Work the frames of ``buffer`` from ``position`` on; the position behind the last one.

        Args:
            peer: who they came from; see ``FastPathFeed``.
            buffer: of whole frames, and perhaps the beginning of one more.
            position: of a frame.
            stop: the position from which on it ends.
            may_go_on: asked now and then whether there is time left.

        Raises:
            FrameError: by the peer's ``work_cold``; what came before is done.
        """
        cdef Py_buffer view
        if self.on_served is not None:
            return self._measured(peer, buffer, position, stop, may_go_on)
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            return self._work(peer, buffer, &view, position, stop, may_go_on)
        finally:
            PyBuffer_Release(&view)

    def _measured(self, peer, buffer, position, stop, may_go_on):
        """The same; the time is told by equal shares, without that of cold frames."""
        pulls, commits, frames = self._pulls_served, self._commits_served, self.frames
        on_served, self.on_served = self.on_served, None
        self._cold_seconds = 0.0
        started = perf_counter()
        try:
            return self.work(peer, buffer, position, stop, may_go_on)
        finally:
            self.on_served = on_served
            frames = self.frames - frames
            share = (perf_counter() - started - self._cold_seconds) / max(frames, 1)
            pulls = self._pulls_served - pulls
            commits = self._commits_served - commits
            for code, count in (
                (RequestCode.SEND_MESSAGE_V2, frames - pulls - commits),
                (RequestCode.PULL_MESSAGE, pulls),
                (RequestCode.UPDATE_CONSUMER_OFFSET, commits),
            ):
                if count:
                    on_served(code, count, count * share)

    cdef Py_ssize_t _work(
        self, peer, buffer, Py_buffer *view, Py_ssize_t position, Py_ssize_t stop, may_go_on
    ) except -1:
        cdef Py_ssize_t end
        cdef Py_ssize_t count = 0
        cdef Done done
        self._buffer = <const uint8_t *>view.buf
        self._peer = peer
        self._connection = peer.connection
        self._born_host = peer.born_host
        self._look()
        try:
            while position < stop and view.len - position >= PREFIX_BYTES:
                end = position + 4 + <Py_ssize_t>get32(self._buffer + position)
                done = self._serve(position, end, view.len)
                if done == Done.LIGHT:
                    count += 1
                    position = end
                    if count % FRAMES_BETWEEN_LOOKS == 0 and not may_go_on():
                        break
                    continue
                if done == Done.HEAVY:
                    position = end
                    self._store()
                    self._post()
                else:
                    end = self._work_cold(buffer, position)
                    if end == position:
                        break
                    position = end
                if peer.crowded or not may_go_on():
                    break
            return position
        finally:
            self._flush()
            self._peer = self._connection = None

    cdef int _look(self) except -1:
        """See what holds now: at the beginning, and after each frame that went the general way."""
        if not self._host.is_current():
            self._sends.clear()
            self._pulls.clear()
            self._runs_of.clear()
        self._takes_sends = (
            len(self._born_host) == 8
            and len(self._packed_host) == 8
            and (not self._syncs or self._peer.may_hold)
        )
        self._msgpack = self._connection.speaks_msgpack
        return 0

    cdef Py_ssize_t _work_cold(self, buffer, Py_ssize_t position) except -1:
        cdef Py_ssize_t end
        self._flush()
        started = perf_counter()
        end = self._peer.work_cold(buffer, position)
        self._cold_seconds += perf_counter() - started
        self._look()
        return end

    cdef Done _serve(self, Py_ssize_t position, Py_ssize_t end, Py_ssize_t available) except *:
        """Work the frame between two positions, if it is a usual one.

        The one place where a frame's lengths are checked; as in ``remoting.protocol.frame``.
        """
        cdef uint32_t mark = get32(self._buffer + position + 4)
        cdef Py_ssize_t header_length = mark & 0xFFFFFF
        cdef Py_ssize_t body_at = position + PREFIX_BYTES + header_length
        cdef int codec = mark >> 24
        cdef Header *header = &self._header
        cdef const uint8_t *at = self._buffer + position + PREFIX_BYTES
        cdef Done done = Done.COLD
        if codec > Codec.MSGPACK or (codec == Codec.MSGPACK and not self._msgpack):
            return Done.COLD
        if end > available or end - position - 4 > self._longest or body_at > end:
            return Done.COLD
        if header_length > MAX_HEADER_BYTES or not scan(header, <Codec>codec, at, header_length):
            return Done.COLD
        if header.flag != 0 and header.flag != FLAG_ONEWAY:
            return Done.COLD
        if header.code == PULL_MESSAGE or header.code == LITE_PULL_MESSAGE:
            done = self._pull(at, header_length)
        elif header.code == UPDATE_CONSUMER_OFFSET:
            done = self._commit(at, header_length)
        elif self._takes_sends:
            done = self._send(at, header_length, self._buffer + body_at, end - body_at)
        if done != Done.COLD:
            self.frames += 1
        return done

    cdef bytes _key_of(self, uint32_t slots):
        """The bytes of a header that tell its kind; None: they are too many."""
        cdef Header *header = &self._header
        cdef uint8_t *at = self._key
        cdef uint8_t *end = at + LONGEST_KEY
        cdef Py_ssize_t length
        cdef int slot
        at[0] = header.codec
        put16(at + 1, header.code)
        put64(at + 3, header.kinds)
        at += 11
        for slot in range(SLOTS):
            if slots >> slot & 1:
                length = header.slots[slot].length
                if length + 2 > end - at:
                    return None
                put16(at, length)
                memcpy(at + 2, header.slots[slot].at, length)
                at += length + 2
        return PyBytes_FromStringAndSize(<char *>self._key, at - self._key)

    # --- sends

    cdef Done _send(
        self, const uint8_t *at, Py_ssize_t header_length, const uint8_t *body, Py_ssize_t length
    ) except *:
        cdef Header *header = &self._header
        cdef int64_t born_ms = 0
        cdef const Text *sent = &header.slots[PROPERTIES]
        cdef Py_ssize_t text_length = sent.length
        cdef uint8_t *text
        cdef Kept plan
        key = self._key_of(SEND_KEY)
        if key is None or not number_of(header, BORN_TIMESTAMP, &born_ms):
            return Done.COLD
        plan = <Kept>self._sends.get(key)
        if plan is None:
            plan = self._plan_send(key, at, header_length)
            if plan is None:
                return Done.COLD
        # With room for the broker's own entry and the separator before it.
        self._text.length = 0
        text = self._text.room(text_length + PyBytes_GET_SIZE(self._cluster) + 1)
        if sent.kind == Kind.ESCAPED:
            text_length = unescape(sent.at, text_length, text)
            if text_length < 0:
                return Done.COLD
        elif sent.kind == Kind.TEXT:
            memcpy(text, sent.at, text_length)
        elif sent.kind != Kind.ABSENT:
            return Done.COLD
        if plan.batch:
            return self._batch(plan, born_ms, text, text_length, body, length)
        return self._one(plan, born_ms, text, text_length, body, length)

    cdef Kept _plan_send(self, bytes key, const uint8_t *at, Py_ssize_t header_length):
        cdef Kept kept
        text = PyBytes_FromStringAndSize(<const char *>at, header_length)
        plan = self._host.plan_send(<int>self._header.codec, text, self._connection)
        if plan is None:
            return None
        if len(self._sends) >= self._max_plans:
            self._sends.clear()
        kept = Kept()
        queue = plan.queue
        run = self._runs_of.get(queue)
        if run is None:
            if len(self._runs_of) >= self._max_plans and not self._runs:
                self._runs_of.clear()
            run = self._runs_of[queue] = Run(queue)
        kept.run = run
        kept.answer, kept.late_answer = plan.answer, plan.late_answer
        kept.queue_id, kept.flag, kept.sys_flag = plan.queue_id, plan.flag, plan.sys_flag
        kept.reconsume_times, kept.batch = plan.reconsume_times, plan.batch
        self._sends[key] = kept
        return kept

    cdef Py_ssize_t _with_cluster(self, uint8_t *text, Py_ssize_t length) noexcept:
        """Append the broker's entry to a properties text; its new length."""
        cdef Py_ssize_t more = PyBytes_GET_SIZE(self._cluster)
        if length and text[length - 1] != 2:
            text[length] = 2
            length += 1
        memcpy(text + length, PyBytes_AS_STRING(self._cluster), more)
        return length + more

    cdef Done _one(
        self, Kept plan, int64_t born_ms, uint8_t *text, Py_ssize_t text_length,
        const uint8_t *body, Py_ssize_t length,
    ) except *:
        cdef Run run = plan.run
        cdef Properties properties
        cdef Head head
        cdef int64_t number, code, position
        if length > self._max_body or length > STAGED:
            return Done.COLD
        if not read_properties(text, text_length, False, &properties):
            return Done.COLD
        text_length = self._with_cluster(text, properties.length)
        if text_length > MAX_PROPERTIES_BYTES:
            return Done.COLD
        head.size = FIXED_BYTES - 1 + length + PyBytes_GET_SIZE(run.topic) + text_length
        if not self._make_room(run, 1, head.size):
            return Done.COLD
        code = tags_code(properties.tag, properties.tag_length)
        head.crc = body_crc(body, length)
        head.flag = plan.flag
        head.body_length = length
        position, number = self._position, run.next_offset
        self._put(plan, &head, born_ms, code, body, text, text_length)
        self._messages += 1
        self._message_bytes += length
        if self._header.flag == 0:
            self._answer(plan, properties.waits, number, &position, 1)
        return Done.LIGHT

    cdef int _put(
        self, Kept plan, Head *head, int64_t born_ms, int64_t code, const uint8_t *body,
        const uint8_t *text, Py_ssize_t text_length,
    ) except -1:
        """Add a message for which there is room: its record and its entry."""
        cdef Run run = plan.run
        cdef uint8_t *at = self._records.room(head.size)
        cdef uint8_t *entry = run.entries.room(ENTRY_BYTES)
        cdef Py_ssize_t topic_length = PyBytes_GET_SIZE(run.topic)
        run.codes.append(code)
        head.queue_id = plan.queue_id
        head.queue_offset = run.next_offset
        head.position = self._position
        head.sys_flag = plan.sys_flag
        head.born_ms = born_ms
        head.born_host = <const uint8_t *>PyBytes_AS_STRING(self._born_host)
        head.store_ms = self._store_ms
        head.store_host = <const uint8_t *>PyBytes_AS_STRING(self._packed_host)
        head.reconsume_times = plan.reconsume_times
        at = put_head(at, head)
        memcpy(at, body, head.body_length)
        at += head.body_length
        memcpy(at, PyBytes_AS_STRING(run.topic), topic_length)
        at += topic_length
        put16(at, text_length)
        memcpy(at + 2, text, text_length)
        self._records.length += head.size
        put64(entry, self._position)
        put32(entry + 8, head.size)
        put64(entry + 12, code)
        run.entries.length += ENTRY_BYTES
        run.next_offset += 1
        run.room -= 1
        self._position += head.size
        self._staged += 1
        return 0

    cdef int _answer(
        self, Kept plan, bint waits, int64_t number, const int64_t *positions, Py_ssize_t count
    ) except -1:
        cdef Fill fill
        fill.opaque = self._header.opaque
        fill.numbers[0] = number
        fill.positions = positions
        fill.count = count
        fill.body_length = 0
        if waits and self._syncs:
            plan.answer.write(self._late, &fill)
            plan.late_answer.write(self._less, &fill)
            self._held += 1
        else:
            plan.answer.write(self._answers, &fill)
        return 0

    # --- batches

    cdef Done _batch(
        self, Kept plan, int64_t born_ms, uint8_t *text, Py_ssize_t text_length,
        const uint8_t *body, Py_ssize_t length,
    ) except *:
        cdef Properties properties
        cdef Py_ssize_t count
        cdef int64_t size = 0, number
        # The bodies take less than the whole; so near the limit they are counted elsewhere.
        if length > self._max_body:
            return Done.COLD
        if not read_properties(text, text_length, True, &properties):
            return Done.COLD
        # A message of the batch may ask for a timer.
        if memmem(body, length, b"TIMER_DEL", 9) != NULL:
            return Done.COLD
        text_length = self._with_cluster(text, text_length)
        count = self._measure(plan.run, text_length, body, length, &size)
        if count <= 0 or not self._make_room(plan.run, count, size):
            return Done.COLD
        number = plan.run.next_offset
        self._text.length = text_length
        self._put_elements(plan, born_ms, &properties, body, count)
        self._messages += count
        self._message_bytes += length
        if self._header.flag == 0:
            self._answer(
                plan, properties.waits, number, <const int64_t *>self._positions.data, count
            )
        return Done.HEAVY

    cdef Py_ssize_t _measure(
        self, Run run, Py_ssize_t text_length, const uint8_t *body, Py_ssize_t length,
        int64_t *size,
    ) noexcept:
        """How many messages a batch has, and the bytes of their records.

        The one place where a batch's lengths are checked; -1: the general path has to refuse it.
        """
        cdef Py_ssize_t count = 0, at = 0
        cdef Py_ssize_t body_length, properties_length, joined
        while at < length:
            if length - at < ELEMENT_BYTES or count == MAX_BATCH_MESSAGES:
                return -1
            body_length = get32(body + at + 16)
            if body_length > length - at - ELEMENT_BYTES:
                return -1
            at += 20 + body_length
            properties_length = get16(body + at)
            at += 2
            if properties_length > length - at:
                return -1
            at += properties_length
            joined = properties_length + text_length
            joined += properties_length > 0 and body[at - 1] != 2
            if joined > MAX_PROPERTIES_BYTES:
                return -1
            size[0] += FIXED_BYTES - 1 + body_length + PyBytes_GET_SIZE(run.topic) + joined
            count += 1
        return count

    cdef int _put_elements(
        self, Kept plan, int64_t born_ms, const Properties *common, const uint8_t *body,
        Py_ssize_t count,
    ) except -1:
        """Add the messages of a batch that was measured; all get its own text behind theirs."""
        cdef Properties own
        cdef Head head
        cdef Py_ssize_t index, body_length, own_length, text_length
        cdef Py_ssize_t common_length = self._text.length
        cdef Py_ssize_t topic_length = PyBytes_GET_SIZE(plan.run.topic)
        cdef uint8_t *text
        cdef int64_t code
        cdef int64_t common_code = tags_code(common.tag, common.tag_length)
        self._positions.length = 0
        self._positions.room(8 * count)
        for index in range(count):
            body_length = get32(body + 16)
            own_length = get16(body + 20 + body_length)
            # Behind the batch's own text, joined as ``properties.join`` does.
            text = self._text.room(own_length + 1 + common_length)
            memcpy(text, body + ELEMENT_BYTES + body_length, own_length)
            text_length = own_length
            if own_length and text[own_length - 1] != 2:
                text[own_length] = 2
                text_length += 1
            memcpy(text + text_length, self._text.data, common_length)
            text_length += common_length
            code = common_code
            if common.tag_length == 0:
                code = self._own_code(text, own_length, &own)
            head.size = FIXED_BYTES - 1 + body_length + topic_length + text_length
            head.crc = body_crc(body + 20, body_length)
            head.flag = <int32_t>get32(body + 12)
            head.body_length = body_length
            (<int64_t *>self._positions.data)[index] = self._position
            self._put(plan, &head, born_ms, code, body + 20, text, text_length)
            body += ELEMENT_BYTES + body_length + own_length
        return 0

    cdef int64_t _own_code(self, uint8_t *text, Py_ssize_t length, Properties *own) except? -1:
        """The tags code of a batch's message, whatever else its text asks for."""
        read_tags(text, length, own)
        return tags_code(own.tag, own.tag_length)

    # --- commits

    cdef Done _commit(self, const uint8_t *at, Py_ssize_t header_length) except *:
        cdef Header *header = &self._header
        cdef int64_t offset = 0
        cdef Fill fill
        key = self._key_of(COMMIT_KEY)
        if key is None or not number_of(header, COMMIT_OFFSET, &offset):
            return Done.COLD
        plan = self._commits.get(key)
        if plan is None:
            text = PyBytes_FromStringAndSize(<const char *>at, header_length)
            plan = self._host.plan_commit(<int>header.codec, text)
            if plan is None:
                return Done.COLD
            if len(self._commits) >= self._max_plans:
                self._commits.clear()
            self._commits[key] = plan
        if not self._host.commit(plan, offset):
            return Done.COLD
        if header.flag == 0:
            fill.opaque = header.opaque
            fill.count = fill.body_length = 0
            (<AnswerTemplate>self._committed[<int>header.codec]).write(self._answers, &fill)
        self._commits_served += 1
        return Done.LIGHT

    # --- pulls

    cdef Done _pull(self, const uint8_t *at, Py_ssize_t header_length) except *:
        cdef Header *header = &self._header
        cdef int64_t offset = 0, commit_offset = 0
        cdef KeptPull kept
        key = self._key_of(PULL_KEY)
        if key is None or header.flag != 0:
            return Done.COLD
        if not number_of(header, QUEUE_OFFSET, &offset):
            return Done.COLD
        if not number_of(header, PULL_COMMIT_OFFSET, &commit_offset):
            return Done.COLD
        kept = <KeptPull>self._pulls.get(key)
        if kept is None:
            kept = self._plan_pull(key, at, header_length)
            if kept is None:
                return Done.COLD
        if not self._host.begin_pull(kept.plan, offset, commit_offset, self._connection):
            return Done.COLD
        # It may ask for what has just been sent.
        self._store()
        window = self._host.window(kept.plan)
        if window is None or not self._take(kept, window, offset):
            pieces = self._host.pull(
                <int>header.codec, kept.plan, header.opaque, self._connection
            )
            if pieces is None:
                return Done.COLD
            self._gather()
            self._pieces += pieces
        self._pulls_served += 1
        return Done.HEAVY

    cdef KeptPull _plan_pull(self, bytes key, const uint8_t *at, Py_ssize_t header_length):
        cdef KeptPull kept
        text = PyBytes_FromStringAndSize(<const char *>at, header_length)
        plan = self._host.plan_pull(<int>self._header.codec, text, self._connection)
        if plan is None:
            return None
        if len(self._pulls) >= self._max_plans:
            self._pulls.clear()
        kept = KeptPull()
        kept.plan = plan
        kept.max_count = max(1, min(plan.max_count, MOST_PULL_MESSAGES))
        kept.max_bytes = min(plan.max_bytes, MOST_PULL_BYTES)
        self._pulls[key] = kept
        return kept

    cdef bint _take(self, KeptPull kept, window, int64_t offset) except -1:
        """Answer a pull from a window; False: the general get has to look at it."""
        cdef Py_buffer entries, log
        PyObject_GetBuffer(window.entries, &entries, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(window.log, &log, PyBUF_SIMPLE)
            try:
                return self._take_records(kept, window, offset, &entries, &log)
            finally:
                PyBuffer_Release(&log)
        finally:
            PyBuffer_Release(&entries)

    cdef bint _take_records(
        self, KeptPull kept, window, int64_t offset, Py_buffer *entries, Py_buffer *log
    ) except -1:
        """Choose records, then copy them behind the answer's header, or hand them on if large.

        The one place where entries are checked: a record begins where the first one does, or
        behind it, and ends within the log's file.
        """
        cdef const uint8_t *entry = <const uint8_t *>entries.buf
        cdef const uint8_t *end = entry + entries.len - ENTRY_BYTES
        cdef int64_t base = window.base
        cdef int64_t first = <int64_t>get64(entry) - base
        cdef int64_t place, size, total = 0, matched = 0, scanned = 0, run_end = -1
        cdef int64_t *runs
        cdef Py_ssize_t run_count = 0
        accept = kept.plan.accept
        self._positions.length = 0
        while entry <= end and matched < kept.max_count:
            place = <int64_t>get64(entry) - base
            size = <int32_t>get32(entry + 8)
            if matched and total + size > kept.max_bytes:
                break
            if size < FIXED_BYTES or place < first or first < 0 or place > log.len - size:
                return False
            scanned += 1
            if accept is not None and not accept(<int64_t>get64(entry + 12)):
                entry += ENTRY_BYTES
                continue
            if place != run_end:
                runs = <int64_t *>self._positions.room(16)
                runs[0] = place
                self._positions.length += 16
                run_count += 1
                runs[1] = 0
            runs = <int64_t *>self._positions.data + 2 * (run_count - 1)
            runs[1] += size
            run_end = place + size
            matched += 1
            total += size
            entry += ENTRY_BYTES
        if matched == 0:
            return False
        self._answer_pull(window, offset + scanned, total, run_count, log)
        self._took_pulls += 1
        self._took_messages += matched
        self._took_bytes += total
        return True

    cdef int _answer_pull(
        self, window, int64_t following, int64_t total, Py_ssize_t run_count, Py_buffer *log
    ) except -1:
        cdef Fill fill
        cdef const int64_t *runs = <const int64_t *>self._positions.data
        cdef uint8_t *out
        cdef Py_ssize_t index
        fill.opaque = self._header.opaque
        fill.numbers[0] = following
        fill.numbers[1] = window.low
        fill.numbers[2] = window.high
        fill.count = 0
        fill.body_length = total
        (<AnswerTemplate>self._found[<int>self._header.codec]).write(self._answers, &fill)
        if total >= GATHERED * run_count:
            # Large pieces are written as they are.
            self._gather()
            for index in range(run_count):
                self._pieces.append(
                    window.log[runs[2 * index] : runs[2 * index] + runs[2 * index + 1]]
                )
            return 0
        out = self._answers.room(total)
        for index in range(run_count):
            memcpy(out, <const uint8_t *>log.buf + runs[2 * index], runs[2 * index + 1])
            out += runs[2 * index + 1]
        self._answers.length += total
        return 0

    # --- what a pass gathers

    cdef bint _make_room(self, Run run, Py_ssize_t count, int64_t size) except -1:
        """Whether ``count`` more messages of ``size`` bytes in all may be added; may store."""
        try:
            if run.room < count or self._position + size > self._limit:
                if not self._appender.takes(size):
                    return False
                if run.room < count and not self._open(run, count):
                    return False
                if self._position + size > self._limit:
                    self._store_records()
                    self._position, self._limit, self._store_ms = self._appender.reserve(size)
                    self._begin = self._position
            elif self._records.length + size > STAGED:
                self._store_staged()
        except OSError:
            return False
        return True

    cdef bint _open(self, Run run, Py_ssize_t count) except -1:
        if run.room or run.entries.length:
            self._store()
        run.next_offset, run.room, run.place = self._appender.open(run.queue, count)
        self._runs.append(run)
        return run.room >= count

    cdef int _store_staged(self) except -1:
        """Store the records so far; more may follow at the place reserved."""
        cdef Py_ssize_t count = self._staged
        if count:
            self._staged = 0
            records = PyMemoryView_FromMemory(
                <char *>self._records.data, self._records.length, PyBUF_READ
            )
            self._appender.store(self._begin, records, count)
            self._records.clear()
            self._begin = self._position
        return 0

    cdef int _store_records(self) except -1:
        self._limit = -1
        return self._store_staged()

    cdef int _store(self) except -1:
        """Store what was gathered and make it visible; room must be made anew afterwards."""
        cdef Run run
        if not self._runs:
            return 0
        self._store_records()
        runs, self._runs = self._runs, []
        for run in runs:
            run.room = 0
            place, run.place = run.place, None
            if run.entries.length:
                codes, run.codes = run.codes, []
                self._appender.publish(run.queue, place, run.entries.take(), codes, self._position)
        if self._messages:
            messages, size = self._messages, self._message_bytes
            self._messages = self._message_bytes = 0
            self._host.stored(messages, size)
        return 0

    cdef int _gather(self) except -1:
        if self._answers.length:
            self._pieces.append(self._answers.take())
        return 0

    cdef int _post(self) except -1:
        """Send the answers that are ready; nothing may wait to be stored."""
        self._gather()
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._peer.post(pieces)
        return 0

    cdef int _flush(self) except -1:
        """Bring out what was gathered."""
        self._store()
        self._post()
        if self._took_pulls:
            self._host.pulled(self._took_pulls, self._took_messages, self._took_bytes)
            self._took_pulls = self._took_messages = self._took_bytes = 0
        if self._held:
            held, self._held = self._held, 0
            self._peer.hold(held)
            late = partial(answer_late, self._peer, held, self._late.take(), self._less.take())
            self._host.when_durable(self._position, late)
        return 0


def answer_late(peer, answers, success, less_durable, durable):
    """Send answers that waited for the disk, which has their messages, or is late."""
    peer.post([success if durable else less_durable])
    peer.release(answers)
