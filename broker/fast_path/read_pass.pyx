"""One pass over a read: frames in; records, queue entries and answers out.

What is usual is served here, in any of the three codecs; each other frame goes to the peer, which
has the general path work it, after all that came before it was brought out.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t

from time import perf_counter

from remoting.protocol import limits
from remoting.protocol.codes import RequestCode

from broker.fast_path.gather cimport COLD, HEAVY, LIGHT, Gathered
from broker.fast_path.pulls cimport Pulls
from broker.fast_path.sends cimport Sends
from remoting.protocol.core.answer cimport AnswerTemplate, Fill
from remoting.protocol.core.header cimport COMMIT_OFFSET, Codec, Header, key_of, number_of, scan
from remoting.protocol.core.octets cimport get32

cdef enum:
    PULL_MESSAGE = 11
    UPDATE_CONSUMER_OFFSET = 15
    LITE_PULL_MESSAGE = 361
    PREFIX_BYTES = 8
    HOST_BYTES_V4 = 8
    FLAG_ONEWAY = 2
    FRAMES_BETWEEN_LOOKS = 16

# The slots by which a commit's plan is known: group, topic and queue.
cdef uint32_t COMMIT_KEY = 0b0111

cdef Py_ssize_t MAX_HEADER_BYTES = limits.MAX_HEADER_BYTES

MAX_PLANS = 16_384
"""Kinds of requests remembered, of about 1 KiB each: a client's for ten thousand queues. More are a
stream of odd headers, for which it starts anew."""


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
    cdef object _host, _peer, _connection
    cdef Gathered _gathered
    cdef Sends _sends
    cdef Pulls _pulls
    cdef dict _commits
    cdef list _committed
    cdef bint _stores_v4, _takes_sends, _takes_msgpack
    cdef bytes _born_host
    cdef Py_ssize_t _longest, _max_plans, _pulls_served, _commits_served
    cdef double _cold_seconds
    cdef Header _header

    def __init__(self, host, *, max_frame_bytes, max_plans=MAX_PLANS):
        self._host = host
        self._stores_v4 = host.stores_v4
        self._gathered = Gathered(host)
        self._sends = Sends(host, self._gathered, max_plans)
        self._pulls = Pulls(host, self._gathered, max_plans)
        self._commits = {}
        self._committed = host.committed
        self._longest = max_frame_bytes - 4
        self._max_plans = max_plans

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
        cdef const uint8_t *data = <const uint8_t *>view.buf
        cdef Py_ssize_t end
        cdef Py_ssize_t count = 0
        cdef int done
        self._peer = peer
        self._connection = peer.connection
        self._born_host = peer.born_host
        self._gathered.begin(peer, self._born_host)
        self._look()
        try:
            while position < stop and view.len - position >= PREFIX_BYTES:
                end = position + 4 + <Py_ssize_t>get32(data + position)
                done = self._serve(data + position, end - position, view.len - position)
                if done == LIGHT:
                    count += 1
                    position = end
                    if count % FRAMES_BETWEEN_LOOKS == 0 and not may_go_on():
                        break
                    continue
                if done == HEAVY:
                    position = end
                    self._gathered.store()
                    self._gathered.post()
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
            self._gathered.begin(None, None)
            self._peer = self._connection = None

    cdef int _look(self) except -1:
        """See what holds now: at the beginning, and after each frame that went the general way."""
        if not self._host.is_current():
            self._sends.forget()
            self._pulls.forget()
        self._takes_sends = (
            len(self._born_host) == HOST_BYTES_V4
            and self._stores_v4
            and (not self._gathered.syncs or self._peer.may_hold)
        )
        self._takes_msgpack = self._connection.speaks_msgpack
        return 0

    cdef int _flush(self) except -1:
        self._gathered.flush()
        return self._pulls.tell()

    cdef Py_ssize_t _work_cold(self, buffer, Py_ssize_t position) except -1:
        cdef Py_ssize_t end
        self._flush()
        started = perf_counter()
        end = self._peer.work_cold(buffer, position)
        self._cold_seconds += perf_counter() - started
        self._look()
        return end

    cdef int _serve(
        self, const uint8_t *frame, Py_ssize_t length, Py_ssize_t available
    ) except -1:
        """Work a frame of so many bytes, of which ``available`` are there, if it is a usual one.

        The one place where a frame's lengths are checked; as in ``remoting.protocol.frame``.
        """
        cdef uint32_t mark = get32(frame + 4)
        cdef Py_ssize_t header_length = mark & 0xFFFFFF
        cdef const uint8_t *at = frame + PREFIX_BYTES
        cdef const uint8_t *body = at + header_length
        cdef int codec = mark >> 24
        cdef int done = COLD
        cdef Header *header = &self._header
        if codec > Codec.MSGPACK or (codec == Codec.MSGPACK and not self._takes_msgpack):
            return COLD
        if length > available or length - 4 > self._longest:
            return COLD
        if header_length > length - PREFIX_BYTES or header_length > MAX_HEADER_BYTES:
            return COLD
        if not scan(header, <Codec>codec, at, header_length):
            return COLD
        if header.flag != 0 and header.flag != FLAG_ONEWAY:
            return COLD
        if header.code == PULL_MESSAGE or header.code == LITE_PULL_MESSAGE:
            done = self._pulls.serve(header, at, header_length, self._connection)
            self._pulls_served += done != COLD
        elif header.code == UPDATE_CONSUMER_OFFSET:
            done = self._commit(at, header_length)
            self._commits_served += done != COLD
        elif self._takes_sends:
            done = self._sends.serve(
                header, at, header_length, body, frame + length - body, self._connection
            )
        self.frames += done != COLD
        return done

    cdef int _commit(self, const uint8_t *at, Py_ssize_t header_length) except -1:
        """Serve a commit of an offset."""
        cdef Header *header = &self._header
        cdef int64_t offset = 0
        cdef Fill fill
        key = key_of(header, COMMIT_KEY)
        if key is None or not number_of(header, COMMIT_OFFSET, &offset):
            return COLD
        plan = self._commits.get(key)
        if plan is None:
            text = PyBytes_FromStringAndSize(<const char *>at, header_length)
            plan = self._host.plan_commit(<int>header.codec, text)
            if plan is None:
                return COLD
            if len(self._commits) >= self._max_plans:
                self._commits.clear()
            self._commits[key] = plan
        if not self._host.commit(plan, offset):
            return COLD
        if header.flag == 0:
            fill.opaque = header.opaque
            fill.count = fill.body_length = 0
            (<AnswerTemplate>self._committed[<int>header.codec]).write(
                self._gathered.answers, &fill
            )
        return LIGHT
