"""The bytes of one connection: reads in slices, writes in one piece, back-pressure, deadlines.

In: each read goes to a feed, which says how far it came. It works one slice at a time; what is left
goes on in the loop's next turn, so that a busy peer does not starve the others. Out: whatever is
sent during a read, or during one turn of the loop, leaves as one write, at its end or at ``flush``.
One alarm serves all deadlines. What the bytes mean is the business of ``remoting.connection``.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from math import inf
from typing import Any, cast

from remoting.addresses import address_text
from remoting.deadlines import Alarm, Verdict, Watch
from remoting.endpoint import Endpoint, Feed
from remoting.errors import ConnectionLost
from remoting.framing import (
    BEGIN_BYTES,
    LARGE_REST_BYTES,
    Buffer,
    DrainWaiters,
    Gate,
    Inbox,
    Landing,
    Outbox,
    Reason,
)
from remoting.limits import READ_AHEAD_BYTES
from remoting.log import Log
from remoting.protocol.errors import FrameError

_log = Log("remoting")


class Link(asyncio.Protocol, ABC):
    """Bytes to and from one peer; ``Connection`` makes commands of them."""

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_alarm_at",
        "_clock_now",
        "_continuing",
        "_counters",
        "_drain_waiters",
        "_eof",
        "_feed",
        "_flush_scheduled",
        "_gate",
        "_held",
        "_in_turn",
        "_inbox",
        "_landing",
        "_loop",
        "_lost",
        "_outbox",
        "_transport",
        "_watch",
        "close_reason",
        "closed",
        "endpoint",
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
        self._loop = asyncio.get_running_loop()
        self._clock_now = endpoint.clock.monotonic
        self._counters = endpoint.counters
        self._watch = Watch(endpoint.limits, self._clock_now())
        self._alarm = Alarm(self._ring)
        self._alarm_at = inf
        self._inbox = Inbox(endpoint.limits.max_frame_bytes)
        self._landing = Landing(self)
        self._outbox = Outbox()
        self._drain_waiters = DrainWaiters()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._continuing = False
        self._in_turn = False
        self._flush_scheduled = False
        self._eof = False
        self._held = 0
        self._feed: Feed = self.feed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.remote_text}{' closed' if self.closed else ''}>"

    # What the commands add

    @abstractmethod
    def feed(self, buffer: bytes, position: int) -> int:
        """Work ``buffer`` from ``position`` on; see ``endpoint.Feed``."""

    @abstractmethod
    def _on_open(self) -> None:
        """The connection was admitted."""

    @abstractmethod
    def _on_lost(self) -> None:
        """The connection is gone."""

    @abstractmethod
    def _expire(self, now: float) -> float:
        """End what is overdue; returns the next deadline, inf without one."""

    @abstractmethod
    def _is_busy(self) -> bool:
        """Whether a request waits for its answer, at either end."""

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is there."""
        self._transport = cast(asyncio.Transport, transport)
        self.remote = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.remote_text = address_text(self.remote)
        self._gate = Gate(self._transport)
        endpoint = self.endpoint
        self.close_reason = endpoint.reason_to_refuse()
        if self.close_reason:
            self._counters.connections_refused += 1
            endpoint.complaints.write(
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
        self._watch = Watch(limits, self._clock_now())
        self._arm(self._watch.next_at(self._clock_now()))
        self._on_open()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone, at whichever end's wish."""
        if not self.close_reason:
            self.close_reason = f"connection failed: {exc}" if exc else "closed by the peer"
        self.closed = True
        self.endpoint.alarms.clear(self._alarm)
        self._inbox.clear()
        self._landing.clear()
        self._outbox.clear()
        self._counters.bytes_held -= self._held
        self._held = 0
        self._drain_waiters.fail(self.remote_text, self.close_reason)
        self._on_lost()
        if not self._lost.done():
            self._lost.set_result(None)

    def data_received(self, data: bytes, landed: int = 0) -> None:
        """A read, or a large frame that has landed and was counted as it did."""
        if self.closed:
            return
        self._watch.last_in = self._clock_now()
        self._counters.bytes_in += len(data) - landed
        try:
            self._inbox.add(data)
        except FrameError as problem:
            self._drop_bad_frame(problem)
            return
        if not self._continuing:
            self._work()

    def eof_received(self) -> bool:
        """The peer sends nothing more; what it sent is still worked. True: keep the transport."""
        self._eof = True
        return not self.closed and self._inbox.ready

    def pause_writing(self) -> None:
        """The transport holds more than the high-water mark."""
        self._watch.blocked_since = self._clock_now()
        self._arm(self._watch.next_at(self._watch.blocked_since))
        # A client goes on reading, or two peers that both wait for the other would wait for ever.
        if self.endpoint.serving:
            self._gate.bar(Reason.UNSENT)

    def resume_writing(self) -> None:
        """The transport holds less than the low-water mark."""
        self._watch.blocked_since = inf
        self._drain_waiters.release()
        self._account()
        self._lift(Reason.UNSENT)

    # Reading

    @property
    def crowded(self) -> bool:
        """Whether a feed has to stop here: the peer must first take its answers, or is gone."""
        return self.closed or not self._gate.works

    def _work(self) -> None:
        """Work one slice of what was read, write the answers, and see how to go on."""
        self._continuing = False
        if self.closed:
            return
        inbox = self._inbox
        if inbox.ready and self._gate.works:
            position = inbox.position
            self._in_turn = True
            try:
                end = self._feed(inbox.buffer, position)
                assert end > position, "a feed works at least the frame it was given"
                inbox.advance(end)
            except FrameError as problem:
                self._drop_bad_frame(problem)
                return
            except Exception:  # noqa: BLE001 - a feed's fault ends its connection, not the server
                _log.exception("feed failed", remote=self.remote_text)
                self.close("its feed failed")
                return
            finally:
                self._in_turn = False
            self._watch.frame_since = inf
            self.flush()
        self._go_on()

    def _go_on(self) -> None:
        inbox = self._inbox
        if inbox.ready:
            if self._gate.works:
                self._schedule_work()
            self._count_held()
            most = self.endpoint.limits.max_total_held_bytes
            if len(inbox) > READ_AHEAD_BYTES or self._counters.bytes_held > most // 2:
                self._gate.bar(Reason.BACKLOG)
            return
        if self._gate.bars:
            self._gate.lift(Reason.BACKLOG)
        if self._eof:
            self.close("closed by the peer")
            return
        if inbox.empty:
            if not self._landing.filled:
                self._watch.frame_since = inf
            if self._held:
                self._account()
            return
        if inbox.missing >= LARGE_REST_BYTES and len(inbox) >= BEGIN_BYTES:
            self._landing.begin(*inbox.take_rest())
        self._await_rest()

    def _await_rest(self) -> None:
        """There is the beginning of a frame: its rest has a deadline."""
        if self._watch.frame_since == inf:
            self._watch.frame_since = self._watch.last_in
            self._arm(self._watch.next_at(self._watch.last_in))
        self._account()

    def read_by(self, protocol: asyncio.BaseProtocol) -> None:
        """Have the transport give what it reads to another protocol."""
        self._transport.set_protocol(protocol)

    def landed(self, count: int) -> None:
        """A part of a large frame was read."""
        self._watch.last_in = self._clock_now()
        self._counters.bytes_in += count
        self._await_rest()

    def _schedule_work(self) -> None:
        if not self._continuing:
            self._continuing = True
            self._loop.call_soon(self._work)

    def _lift(self, reason: Reason) -> None:
        if not self.closed and self._gate.lift(reason) and self._inbox.ready:
            self._schedule_work()

    # Sending

    def send_bytes(self, data: Buffer) -> None:
        """Send whole frames that are encoded already. Dropped when the connection is gone."""
        if not self.closed:
            self._outbox.add(data)
            self._posted()

    @property
    def unsent_bytes(self) -> int:
        """What was sent and the system has not taken yet."""
        if self.closed:
            return 0
        return self._outbox.size + self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the peer has taken enough of what was sent.

        Raises:
            ConnectionLost: the connection is gone.
        """
        self.flush()
        if self.closed:
            raise ConnectionLost(self.remote_text, self.close_reason)
        if self._watch.blocked_since != inf:
            await self._drain_waiters.wait()

    def _posted(self) -> None:
        """Something is in the outbox: see that it leaves."""
        if self._outbox.size >= self.endpoint.limits.unsent_high_water_bytes:
            self.flush()
        elif not self._in_turn and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write now what was sent in this turn of the loop: somebody waits for it."""
        if self.closed or not self._outbox.size:
            return
        self._counters.bytes_out += self._outbox.size
        parts = self._outbox.take()
        self._watch.last_out = self._clock_now()
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)
        if self._watch.blocked_since != inf:
            if self._transport.get_write_buffer_size() > self.endpoint.limits.max_unsent_bytes:
                self._drop(Verdict.SLOW_READER)
            else:
                self._account()

    def _count_held(self) -> int:
        """What is held for this peer, in bytes."""
        unworked = len(self._inbox) + self._landing.held
        held = unworked + self._transport.get_write_buffer_size()
        self._counters.bytes_held += held - self._held
        self._held = held
        return held

    def _account(self) -> None:
        """Count what is held for this peer; above the limit of all, the greedy ones have to go."""
        held = self._count_held()
        limit = self.endpoint.limits.max_total_held_bytes
        if (
            self._counters.bytes_held > limit
            and held * len(self.endpoint.connections) > limit
            and not self.closed
        ):
            self._drop(Verdict.HOARDING)

    # The end

    def close(self, reason: str = "closed by us") -> None:
        """Send what is left, then close; cut off after the close timeout. Returns at once."""
        self.flush()
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        self._gate.bar(Reason.CLOSING)
        self._watch.closing_since = self._clock_now()
        self._arm(self._watch.next_at(self._watch.closing_since))
        self._transport.close()

    def abort(self, reason: str = "cut off by us") -> None:
        """Close without sending what is left."""
        if not self.closed:
            self.closed = True
            self.close_reason = reason
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone and its owner was told."""
        await asyncio.shield(self._lost)

    def _drop_bad_frame(self, problem: FrameError) -> None:
        self._counters.dropped_bad_frame += 1
        self.endpoint.complaints.write(
            "connection dropped", remote=self.remote_text, reason=str(problem)
        )
        self.close(f"it sent what can't be understood: {problem}")

    def _drop(self, verdict: Verdict) -> None:
        verdict.count(self._counters)
        if verdict is not Verdict.IDLE:
            self.endpoint.complaints.write(
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
        watch = self._watch
        if self._gate.bars and watch.frame_since != inf:
            # We do not read: that a frame is late is our doing.
            watch.frame_since = now
        next_deadline = self._expire(now)
        verdict = watch.verdict(now, busy=self._is_busy())
        if verdict is not None:
            self._drop(verdict)
        else:
            self._arm(min(watch.next_at(now), next_deadline))


def _address(name: Any) -> tuple[str, int]:
    """The first two parts of a socket's name: that of IPv6 has four, a lost peer has none."""
    if isinstance(name, tuple):
        return str(name[0]), int(name[1])
    return "", 0
