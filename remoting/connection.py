"""One TCP connection of a server or a client: its frames, commands, back-pressure and deadlines.

Reading: the bytes of each read are passed to a feed, which returns the position up to which it
processed them. A feed processes one slice at a time and continues in the next iteration of the
event loop, so that a busy peer does not starve the others.

Writing: everything sent while one read is processed, or within one iteration of the loop, is
written with one call, at the end of it or at ``flush``.

Deadlines: one alarm serves all of them. There is no task and no timer handle per request.

Responses resolve the futures of their requests, matched by opaque; requests are passed to the
endpoint's handler. A command's body is a view of the read it arrived in. The view stays valid while
it is referenced and keeps the whole read in memory: code that stores a body takes ``bytes(body)``.

No method is thread-safe: call all of them from the event loop's thread.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final, NamedTuple, cast

from remoting.addresses import address_text
from remoting.counters import CloseReason
from remoting.deadlines import Alarm, ConnectionDeadlines
from remoting.endpoint import Endpoint, Feed, InFlightRequests
from remoting.errors import AnswerTimeout, CommandTooLarge, ConnectionLost, TooManyRequests
from remoting.limits import (
    END_OF_TLS_SECONDS,
    MAX_EXPIRY_CHECKS,
    PAUSE_SHARE,
    SLICE_SECONDS,
    STALL_SECONDS,
)
from remoting.protocol.codes import SerializeType
from remoting.protocol.command import Command, free_opaque
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import (
    PREFIX_BYTES,
    Buffer,
    CodecNegotiation,
    Frame,
    Inbox,
    Outbox,
    cut,
    decode,
    encode_head,
)
from remoting.reading import LargeFrameReader, ReadPause, Reason
from remoting.security.tls import loss_reason

_SIOCOUTQ: Final = 0x5411
"""Linux's request for the number of bytes in a socket's send queue (cf. tcp(7))."""


class Connection(asyncio.Protocol):
    """A connection over which commands are sent to and received from one peer.

    Attributes:
        remote, local: ``(ip, port)`` of the two ends; ``remote_text`` is ``ip:port``.
        context: the owner's state for this peer; not used here.
        is_tls: whether the connection is one with TLS.
        closed: whether nothing can be sent any more; ``close_reason`` is the reason as text.
    """

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_alarm_at",
        "_clock_now",
        "_codecs",
        "_continuing",
        "_counters",
        "_deadlines",
        "_drained",
        "_eof",
        "_expire_at",
        "_expiry_scheduled",
        "_feed",
        "_flush_scheduled",
        "_held",
        "_in_flight",
        "_in_slice",
        "_inbox",
        "_large_frame",
        "_loop",
        "_lost",
        "_outbox",
        "_pending",
        "_read_pause",
        "_transport",
        "close_reason",
        "closed",
        "context",
        "endpoint",
        "is_tls",
        "local",
        "remote",
        "remote_text",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.closed = True
        self.close_reason = ""
        self.remote: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.remote_text = ""
        self.is_tls = False
        self._loop = asyncio.get_running_loop()
        self._clock_now = endpoint.clock.monotonic
        self._counters = endpoint.counters
        self._deadlines = ConnectionDeadlines(endpoint.limits, self._clock_now())
        self._alarm = Alarm(self._ring)
        self._alarm_at = inf
        self._inbox = Inbox(endpoint.limits.max_frame_bytes)
        self._large_frame = LargeFrameReader(self)
        self._outbox = Outbox()
        self._drained: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._continuing = False
        self._in_slice = False
        self._flush_scheduled = False
        self._eof = False
        self._held = 0
        self._feed: Feed = self.feed
        self.context: Any = None
        self._codecs = CodecNegotiation(
            offers=endpoint.offer_msgpack, accepts=endpoint.accept_msgpack
        )
        self._pending = PendingRequests(endpoint.limits.max_pending_requests)
        self._expire_at = inf
        self._expiry_scheduled = False
        self._in_flight = InFlightRequests(self, endpoint)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.remote_text}{' closed' if self.closed else ''}>"

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options and open the connection, or refuse it."""
        self._transport = cast(asyncio.Transport, transport)
        self.remote = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.remote_text = address_text(self.remote)
        self.is_tls = transport.get_extra_info("ssl_object") is not None
        self._read_pause = ReadPause(self._transport)
        endpoint = self.endpoint
        self.close_reason = endpoint.reason_to_refuse(self.remote[0])
        if self.close_reason:
            self._counters.connections_refused += 1
            self._counters.connections_refused_address += endpoint.address_is_full(self.remote[0])
            endpoint.peer_log.write(
                "connection refused", remote=self.remote_text, reason=self.close_reason
            )
            self._transport.abort()
            return
        limits = endpoint.limits
        self._transport.set_write_buffer_limits(
            high=limits.unsent_high_water_bytes, low=limits.unsent_low_water_bytes
        )
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self._deadlines = ConnectionDeadlines(limits, self._clock_now())
        self._arm(self._deadlines.next_at(self._clock_now()))
        self._on_open()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything the connection holds and fail its pending requests."""
        if not self.close_reason:
            self.close_reason = self._why_lost(exc)
        self.closed = True
        self.endpoint.alarms.clear(self._alarm)
        self._inbox.clear()
        self._large_frame.clear()
        self._outbox.clear()
        self._counters.bytes_held -= self._held
        self._held = 0
        self._release_drain()
        self._pending.fail_all(self.remote_text, self.close_reason)
        if self in self.endpoint.connections:
            self.endpoint.ended(self)
        if not self._lost.done():
            self._lost.set_result(None)

    def data_received(self, data: bytes, counted: int = 0) -> None:
        """Process a read, or a large frame, ``counted`` bytes of which are in ``bytes_in``."""
        if self.closed:
            return
        self._deadlines.last_in = self._clock_now()
        self._counters.bytes_in += len(data) - counted
        try:
            self._inbox.add(data)
        except FrameError as problem:
            self._drop_bad_frame(problem)
            return
        if not self._continuing:
            self._process_slice()

    def eof_received(self) -> bool:
        """Process what the peer sent before it stopped sending.

        Returns:
            True, which keeps the transport open, while there are whole frames to process.
        """
        self._eof = True
        if not self.is_tls:
            return not self.closed and self._inbox.ready
        # A transport with TLS closes now, whatever is returned.
        while not self.crowded and self._inbox.ready:
            self._process_slice()
        return False

    def pause_writing(self) -> None:
        """Note that the transport's buffer exceeds the high-water mark."""
        self._deadlines.blocked_since = self._clock_now()
        self._arm(self._deadlines.next_at(self._deadlines.blocked_since))
        # Only a server stops reading. If the client did too, each could wait for the other to read.
        if self.endpoint.serving:
            self._read_pause.pause(Reason.UNSENT)

    def resume_writing(self) -> None:
        """Note that the transport's buffer fell below the low-water mark."""
        self._deadlines.blocked_since = inf
        self._release_drain()
        self._account()
        self._resume(Reason.UNSENT)

    # Reading

    @property
    def crowded(self) -> bool:
        """Whether a feed has to stop: requests may not be processed, or the connection closed."""
        return self.closed or not self._read_pause.allows_work

    def _process_slice(self) -> None:
        """Process one slice of what was read, write the answers, and schedule what follows."""
        self._continuing = False
        if self.closed:
            return
        inbox = self._inbox
        if inbox.ready and self._read_pause.allows_work:
            position = inbox.position
            self._in_slice = True
            try:
                end = self._feed(inbox.buffer, position)
                assert end > position, "a feed processes at least the frame it was given"
                inbox.advance(end)
            except FrameError as problem:
                self._drop_bad_frame(problem)
                return
            except Exception as fault:  # noqa: BLE001 - it ends the connection, not the server
                self.endpoint.peer_log.write("feed failed", remote=self.remote_text, exc_info=fault)
                self.close("its feed failed")
                return
            finally:
                self._in_slice = False
            self._deadlines.frame_since = inf
            self.flush()
        self._after_slice()

    def _after_slice(self) -> None:
        """Schedule the next slice, pause or resume reading, or wait for the rest of a frame."""
        inbox = self._inbox
        if inbox.ready:
            if self._read_pause.allows_work:
                self._schedule_slice()
            self._count_held()
            limits = self.endpoint.limits
            if (
                len(inbox) > limits.read_ahead_bytes
                or self._counters.bytes_held > limits.max_total_held_bytes * PAUSE_SHARE
            ):
                self._read_pause.pause(Reason.BACKLOG)
            return
        if self._read_pause.reasons:
            self._read_pause.resume(Reason.BACKLOG)
        if self._eof:
            self.close(self._why_lost(None))
            return
        if inbox.empty:
            if not self._large_frame.filled:
                self._deadlines.frame_since = inf
            if self._held:
                self._account()
            return
        limits = self.endpoint.limits
        if inbox.missing >= limits.large_rest_bytes and len(inbox) >= limits.begin_bytes:
            self._large_frame.begin(*inbox.take_rest())
        self._await_rest()

    def _await_rest(self) -> None:
        """Set the deadline for the rest of an incomplete frame."""
        if self._deadlines.frame_since == inf:
            self._deadlines.frame_since = self._deadlines.last_in
            self._arm(self._deadlines.next_at(self._deadlines.last_in))
        self._account()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Make the transport pass what it reads to ``protocol``."""
        self._transport.set_protocol(protocol)

    def on_partial_frame(self, count: int) -> None:
        """Count a part of a large frame, ``count`` bytes long."""
        self._deadlines.last_in = self._clock_now()
        self._counters.bytes_in += count
        self._await_rest()

    def _schedule_slice(self) -> None:
        if not self._continuing:
            self._continuing = True
            self._loop.call_soon(self._process_slice)

    def _resume(self, reason: Reason) -> None:
        if not self.closed and self._read_pause.resume(reason) and self._inbox.ready:
            self._schedule_slice()

    # Sending

    def send_bytes(self, data: Buffer) -> None:
        """Send whole, encoded frames. On a closed connection they are dropped."""
        if not self.closed:
            self._outbox.add(data)
            self._schedule_flush()

    @property
    def unsent_bytes(self) -> int:
        """The bytes sent and not yet accepted by the operating system."""
        if self.closed:
            return 0
        return self._outbox.size + self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the transport's buffer is below the low-water mark.

        Raises:
            ConnectionLost: the connection is closed.
        """
        self.flush()
        if self.closed:
            raise ConnectionLost(self.remote_text, self.close_reason)
        if self._deadlines.blocked_since == inf:
            return
        if self._drained is None:
            self._drained = self._loop.create_future()
        # All callers share one future: cancelling one caller must not cancel it.
        await asyncio.shield(self._drained)
        if self._lost.done():
            raise ConnectionLost(self.remote_text, self.close_reason)

    def _release_drain(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    def _schedule_flush(self) -> None:
        """Flush the outbox when it is large, else at the end of the slice or the iteration."""
        if self._outbox.size >= self.endpoint.limits.unsent_high_water_bytes:
            self.flush()
        elif not self._in_slice and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write what was sent in this iteration of the loop now, for a caller that waits for it."""
        if self.closed or not self._outbox.size:
            return
        self._counters.bytes_out += self._outbox.size
        parts = self._outbox.take()
        self._deadlines.last_out = self._clock_now()
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)
        if self._deadlines.blocked_since != inf:
            if self._transport.get_write_buffer_size() > self.endpoint.limits.max_unsent_bytes:
                self._drop(CloseReason.SLOW_READER)
            else:
                self._account()

    def _count_held(self) -> int:
        """Update the counter of held bytes; return how many are held for this peer."""
        unworked = len(self._inbox) + self._large_frame.held
        held = unworked + self._transport.get_write_buffer_size()
        self._counters.bytes_held += held - self._held
        self._held = held
        return held

    def _account(self) -> None:
        """Count what is held for this peer, and drop it when it holds too much.

        That is: all connections together are above ``max_total_held_bytes``, and this one is above
        its share of it.
        """
        held = self._count_held()
        limit = self.endpoint.limits.max_total_held_bytes
        if (
            self._counters.bytes_held > limit
            and held * len(self.endpoint.connections) > limit
            and not self.closed
        ):
            self._drop(CloseReason.HOARDING)

    # Closing

    def close(self, reason: str = "closed by us") -> None:
        """Send what is queued, then close; abort after the close timeout. Returns at once."""
        self.flush()
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self._read_pause.pause(Reason.CLOSING)
        self._deadlines.closing_since = self._clock_now()
        self._arm(self._deadlines.next_at(self._deadlines.closing_since))
        self._transport.close()
        if self.is_tls:
            self._loop.call_later(END_OF_TLS_SECONDS, self._end_tls, False)

    def _end_tls(self, had_arrived: bool) -> None:
        """Close when the peer has everything, without waiting for it to end its stream as well.

        RocketMQ's servers never do so in TLS 1.3, which does not ask for it.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is None:  # ended
            return
        # Twice: the transport may be about to write more.
        arrived = _all_acknowledged(sock)
        if arrived and had_arrived:
            self._transport.abort()
        else:
            self._loop.call_later(END_OF_TLS_SECONDS, self._end_tls, arrived)

    def abort(self, reason: str = "aborted by us") -> None:
        """Close without sending what is queued."""
        if not self.closed:
            self.closed = True
            self.close_reason = reason
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed and ``on_close`` has run."""
        await asyncio.shield(self._lost)

    def _why_lost(self, failure: Exception | None) -> str:
        if self.endpoint.serving:
            return f"connection failed: {failure}" if failure else "closed by the peer"
        silent = self._deadlines.last_in == self._deadlines.opened_at
        return loss_reason(failure, silent=silent, tls=self.is_tls)

    def _drop_bad_frame(self, problem: FrameError) -> None:
        self._counters.dropped[CloseReason.BAD_FRAME] += 1
        self.endpoint.peer_log.write(
            "connection dropped", remote=self.remote_text, reason=str(problem)
        )
        self.close(f"invalid frame: {problem}")

    def _drop(self, verdict: CloseReason) -> None:
        self._counters.dropped[verdict] += 1
        if verdict is not CloseReason.IDLE:
            self.endpoint.peer_log.write(
                "connection dropped", remote=self.remote_text, reason=verdict.value
            )
        self.abort(verdict.value)

    # Deadlines

    def _arm(self, when: float) -> None:
        if when < self._alarm_at:
            self._alarm_at = when
            self.endpoint.alarms.set(self._alarm, when)

    def _ring(self) -> None:
        self._alarm_at = inf
        now = self._clock_now()
        deadlines = self._deadlines
        if self._read_pause.reasons and deadlines.frame_since != inf:
            # We are not reading, so the peer is not to blame for a late frame.
            deadlines.frame_since = now
        next_deadline = self._expire(now)
        busy = bool(len(self._pending) or self._in_flight.requests)
        verdict = deadlines.verdict(now, busy=busy)
        if verdict is not None:
            self._drop(verdict)
        else:
            self._arm(min(deadlines.next_at(now), next_deadline))

    # Incoming commands

    def feed(self, buffer: bytes, position: int) -> int:
        """Pass each whole frame to ``receive``; the default ``Feed``."""
        until = self._clock_now() + SLICE_SECONDS
        limits = self.endpoint.limits
        stop = position + limits.slice_bytes
        max_frame_bytes = limits.max_frame_bytes
        while frame := cut(buffer, position, max_frame_bytes=max_frame_bytes):
            position = frame.end
            self.receive(frame)
            if position >= stop or self.crowded or self._clock_now() >= until:
                break
        return position

    def receive(self, frame: Frame) -> None:
        """Decode one frame and dispatch its command.

        Raises:
            FrameError: its header is undecodable, or of a codec that was not agreed on.
        """
        if frame.serialize == SerializeType.MSGPACK and not self._codecs.agreed:
            raise FrameError("a msgpack header without an agreement on it")
        command = decode(frame)
        self._counters.frames_in += 1
        if command.is_response:
            self._codecs.see_response(command)
            if not self._pending.resolve(command):
                self._counters.responses_unknown += 1
        elif not self.endpoint.draining:
            self._codecs.see_request(command)
            self._in_flight.serve(command, PREFIX_BYTES + len(frame.header) + len(frame.body))
            if self.endpoint.serving and self._in_flight.full:
                self._pause_requests()

    def _pause_requests(self) -> None:
        if not self._read_pause.reasons & Reason.IN_PROGRESS:
            self._counters.requests_paused += 1
            self._read_pause.pause(Reason.IN_PROGRESS)

    def request_served(self) -> None:
        """Note that a request has ended: reading may resume."""
        if not self._in_flight.full:
            self._resume(Reason.IN_PROGRESS)

    @property
    def speaks_msgpack(self) -> bool:
        """Whether the peer may send msgpack headers: both ends agreed on them."""
        return self._codecs.agreed

    @property
    def may_defer(self) -> bool:
        """Whether a custom feed may begin requests that it answers later."""
        return self._in_flight.may_defer

    def defer_answers(self, count: int) -> None:
        """Count ``count`` requests that a custom feed answers later; see ``complete_answers``."""
        self._in_flight.defer(count)
        if self.endpoint.serving and self._in_flight.full:
            self._pause_requests()

    def complete_answers(self, count: int) -> None:
        """Count ``count`` requests of ``defer_answers`` as answered."""
        self._in_flight.defer(-count)
        self.request_served()

    def stop_requests(self) -> None:
        """Replace a custom feed by the default one, which begins no requests while draining."""
        self._feed = self.feed

    # Outgoing commands

    def send(self, command: Command) -> None:
        """Send an answer, or any command unchanged. On a closed connection it is dropped.

        Raises:
            ValueError: the command does not fit into a frame.
        """
        if not self.closed:
            data = self._codecs.encode_answer(command)
            self._checked(len(data))
            self.send_bytes(data)

    def send_with_body(self, command: Command, body: Iterable[Buffer]) -> None:
        """Send an answer whose body is in several pieces, without joining them here.

        On a closed connection it is dropped. It accepts no codec: only routes and heartbeats carry
        an offer, and their answers take ``send``.
        """
        if not self.closed:
            pieces = list(body)
            self._outbox.add(encode_head(command, sum(map(len, pieces))))
            self._outbox.extend(pieces)
            self._schedule_flush()

    def send_pieces(self, pieces: Sequence[Buffer]) -> None:
        """Send whole, encoded frames in several pieces; dropped on a closed connection."""
        if not self.closed:
            self._outbox.extend(pieces)
            self._schedule_flush()

    def send_oneway(self, command: Command) -> None:
        """Send a request without waiting for an answer.

        Raises:
            CommandTooLarge: it exceeds the frame limit.
            ConnectionLost: the connection is closed.
            TooManyRequests: the peer does not read, and ``max_unsent_bytes`` would be exceeded.
        """
        if self.closed:
            raise ConnectionLost(self.remote_text, self.close_reason)
        command.opaque = self._pending.next_opaque()
        head = self._codecs.encode_request(command, self.endpoint.signer)
        size = self._checked(len(head) + len(command.body))
        if self._deadlines.blocked_since != inf:
            limit = self.endpoint.limits.max_unsent_bytes
            if self.unsent_bytes + size > limit:
                raise TooManyRequests(self.remote_text, "unsent bytes", limit)
        self._outbox.add(head)
        self._outbox.add(command.body)
        self._schedule_flush()

    async def request(self, command: Command, *, timeout: float) -> Command:
        """Send a request and return its answer, whatever the response code.

        After a cancellation the answer is dropped when it arrives.

        Raises:
            AnswerTimeout: no answer within ``timeout`` seconds.
            CommandTooLarge: the request exceeds the frame limit; nothing was sent.
            ConnectionLost: the connection closed, before or after the request was sent.
            TooManyRequests: too many requests or bytes wait on this connection; nothing was sent.
        """
        future = self.request_nowait(command, timeout=timeout)
        opaque = command.opaque
        try:
            return await future
        except asyncio.CancelledError:
            self._pending.forget(opaque)
            raise

    def request_nowait(self, command: Command, *, timeout: float) -> asyncio.Future[Command]:
        """Send a request and return a future for its answer. Raises as ``request`` does."""
        if not self._pending.has_room:
            raise TooManyRequests(self.remote_text, "requests", self._pending.limit)
        self.send_oneway(command)
        deadline = self._clock_now() + timeout
        future: asyncio.Future[Command] = self._loop.create_future()
        self._pending.add(command.opaque, Pending(future, command.code, timeout, deadline))
        self._arm(deadline)
        return future

    def _checked(self, size: int) -> int:
        limit = self.endpoint.limits.max_frame_bytes
        if size > limit:
            raise CommandTooLarge(size, limit)
        return size

    # Opening, and the deadlines of requests

    def _on_open(self) -> None:
        endpoint = self.endpoint
        if endpoint.serving:
            self._counters.connections_accepted += 1
            self._counters.tls_accepted += self.is_tls
            self._counters.tls_connections += self.is_tls
        else:
            self._counters.connections_opened += 1
        endpoint.began(self)
        if endpoint.feed_factory is not None:
            self._feed = endpoint.feed_factory(self)

    def _expire(self, now: float) -> float:
        """Schedule the failure of overdue requests; return when to check again, inf for never."""
        deadline = self._pending.next_deadline()
        if deadline > now:
            return deadline
        if self._expiry_scheduled:
            return inf
        if self._expire_at == inf:
            late = now - deadline
            # The application blocked the loop, so we could neither write nor read. Extend the
            # peer's deadline by that time, once.
            self._expire_at = now + late if late > STALL_SECONDS else now
        if now < self._expire_at:
            return self._expire_at
        self._expiry_scheduled = True
        self._loop.call_soon(self._fail_overdue, MAX_EXPIRY_CHECKS, 0, self._deadlines.last_in)
        return inf

    def _fail_overdue(self, checks_left: int, quiet: int, last_in: float) -> None:
        """Fail overdue requests after two successive iterations of the loop that read nothing.

        Their answers may be in the socket's buffer, unread because the loop was busy. One iteration
        is not enough: a ``call_soon`` callback may run before the reads of its iteration.
        """
        if self._lost.done():
            return
        unworked = self._inbox.ready and self._read_pause.allows_work
        quiet = 0 if unworked or self._deadlines.last_in != last_in else quiet + 1
        if quiet < 2 and checks_left:
            self._loop.call_soon(
                self._fail_overdue, checks_left - 1, quiet, self._deadlines.last_in
            )
            return
        self._expiry_scheduled = False
        self._expire_at = inf
        self._counters.requests_timed_out += self._pending.expire(
            self._clock_now(), self.remote_text
        )
        self._arm(self._pending.next_deadline())


class Pending(NamedTuple):
    """A request that awaits its answer: ``timeout`` in seconds, ``deadline`` in monotonic time."""

    future: asyncio.Future[Command]
    code: int
    timeout: float
    deadline: float


class PendingRequests:
    """The requests of one connection that await their answers, by opaque.

    A deadline is a number in the table, not a timer: when the earliest deadline passes, the
    connection's alarm searches the table.
    """

    __slots__ = ("_next", "_table", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._next = 0
        self._table: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._table)

    def next_opaque(self) -> int:
        """Return an opaque (correlation id) that no pending request uses."""
        opaque = free_opaque(self._next, self._table)
        self._next = opaque + 1
        return opaque

    @property
    def has_room(self) -> bool:
        """Whether the limit allows one more request."""
        return len(self._table) < self.limit

    def add(self, opaque: int, pending: Pending) -> None:
        """Add the request with this opaque."""
        self._table[opaque] = pending

    def forget(self, opaque: int) -> None:
        """Remove the request with this opaque; its answer will be dropped."""
        self._table.pop(opaque, None)

    def resolve(self, response: Command) -> bool:
        """Set ``response`` as the answer of its request. False: no request awaits it."""
        pending = self._table.pop(response.opaque, None)
        if pending is None or pending.future.done():
            return False
        pending.future.set_result(response)
        return True

    def expire(self, now: float, address: str) -> int:
        """Fail overdue requests with ``AnswerTimeout``; return their number."""
        overdue = 0
        for opaque, pending in list(self._table.items()):
            if pending.deadline <= now:
                del self._table[opaque]
                if pending.future.done():
                    continue
                overdue += 1
                pending.future.set_exception(AnswerTimeout(address, pending.code, pending.timeout))
        return overdue

    def next_deadline(self) -> float:
        """Remove cancelled requests; return the earliest deadline, inf if there is none."""
        earliest = inf
        for opaque, pending in list(self._table.items()):
            if pending.future.done():
                del self._table[opaque]
            elif pending.deadline < earliest:
                earliest = pending.deadline
        return earliest

    def fail_all(self, address: str, reason: str) -> None:
        """Fail all requests with ``ConnectionLost``."""
        table, self._table = self._table, {}
        for pending in table.values():
            if not pending.future.done():
                pending.future.set_exception(ConnectionLost(address, reason))


def _address(name: Any) -> tuple[str, int]:
    """Return IP and port of a socket name: IPv6 names have four parts, a lost peer has no name."""
    if isinstance(name, tuple):
        return str(name[0]), int(name[1])
    return "", 0


def _all_acknowledged(sock: socket.socket) -> bool:
    """Return whether the peer has acknowledged all bytes of a socket; False if unknown."""
    if sys.platform != "linux":
        return False
    import fcntl  # noqa: PLC0415 - missing on Windows

    try:
        return not any(fcntl.ioctl(sock.fileno(), _SIOCOUTQ, bytes(4)))
    except OSError:
        return False
