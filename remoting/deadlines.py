"""The deadlines of a connection, and one timer for all connections of an endpoint.

``ConnectionDeadlines`` computes deadlines from the time alone, without timer or socket. Each
connection owns one ``Alarm``, set to the earliest of its deadlines (requests, idle, frame, unsent
bytes). It moves only when an earlier one appears or when it rings, so a request with a timeout
costs one comparison and no timer handle. Alarms of one tick (10 ms) share a bucket; one handle of
the loop waits for the next bucket. An alarm never rings early.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from enum import Enum
from math import ceil, inf
from typing import Final

from remoting.clock import Clock
from remoting.counters import Counters
from remoting.limits import ConnectionLimits
from remoting.log import Log


class CloseReason(Enum):
    """Why a connection has to end; the value is the text for people."""

    IDLE = "idle for too long"
    SLOW_FRAME = "a frame did not arrive whole in time"
    SLOW_READER = "the peer does not take its answers"
    OVER_MEMORY_SHARE = "all connections together hold too much, and this one more than its share"
    SLOW_CLOSE = "the peer did not take the last bytes"

    def count(self, counters: Counters) -> None:
        """Count a connection that ends for this reason."""
        match self:
            case CloseReason.IDLE:
                counters.dropped_idle += 1
            case CloseReason.SLOW_FRAME:
                counters.dropped_slow_frame += 1
            case CloseReason.SLOW_READER:
                counters.dropped_slow_reader += 1
            case CloseReason.OVER_MEMORY_SHARE:
                counters.dropped_hoarding += 1
            case CloseReason.SLOW_CLOSE:
                counters.dropped_slow_close += 1


class ConnectionDeadlines:
    """When a connection was last seen doing what it should."""

    __slots__ = ("_limits", "blocked_since", "closing_since", "frame_since", "last_in", "last_out")

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self._limits = limits
        self.last_in = now
        self.last_out = now
        self.frame_since = inf
        """Since when a frame has been arriving; inf: none is."""
        self.blocked_since = inf
        """Since when the peer has left more than the high-water mark unread; inf: it has not."""
        self.closing_since = inf
        """Since when the last bytes have been leaving; inf: the connection is open."""

    def verdict(self, now: float, *, busy: bool) -> CloseReason | None:
        """Whether it has to end now. ``busy``: requests wait for an answer, so it is not idle."""
        limits = self._limits
        if self.closing_since != inf:
            late = self.closing_since + limits.close_timeout <= now
            return CloseReason.SLOW_CLOSE if late else None
        if self.blocked_since + limits.unsent_timeout <= now:
            return CloseReason.SLOW_READER
        if self.frame_since + limits.frame_timeout <= now:
            return CloseReason.SLOW_FRAME
        if not busy and self._active() + limits.idle_timeout <= now:
            return CloseReason.IDLE
        return None

    def next_at(self, now: float) -> float:
        """When to look again, if nothing else happens."""
        limits = self._limits
        if self.closing_since != inf:
            return self.closing_since + limits.close_timeout
        idle_at = self._active() + limits.idle_timeout
        return min(
            self.blocked_since + limits.unsent_timeout,
            self.frame_since + limits.frame_timeout,
            idle_at if idle_at > now else now + limits.idle_timeout,
        )

    def _active(self) -> float:
        return max(self.last_in, self.last_out)


_log = Log("remoting")

TICK_SECONDS: Final = 0.01


class Alarm:
    """A call to make at a time that may still move. It is set through ``Alarms``."""

    __slots__ = ("ring", "tick")

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring
        self.tick: int | None = None


class Wheel:
    """The buckets, without a clock: times come in as parameters."""

    __slots__ = ("_buckets", "_ticks")

    def __init__(self) -> None:
        self._buckets: dict[int, set[Alarm]] = {}
        self._ticks: list[int] = []

    def set(self, alarm: Alarm, when: float) -> None:
        """Let ``alarm`` ring at ``when`` and at no other time."""
        tick = ceil(when / TICK_SECONDS)
        if alarm.tick == tick:
            return
        self.clear(alarm)
        alarm.tick = tick
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = {alarm}
            heapq.heappush(self._ticks, tick)
        else:
            bucket.add(alarm)

    def clear(self, alarm: Alarm) -> None:
        """Let ``alarm`` not ring."""
        if alarm.tick is not None:
            self._buckets[alarm.tick].discard(alarm)
            alarm.tick = None

    def due(self, now: float) -> list[Alarm]:
        """Take out all alarms whose time has come."""
        ripe: list[Alarm] = []
        while self._ticks and self._ticks[0] * TICK_SECONDS <= now:
            for alarm in self._buckets.pop(heapq.heappop(self._ticks)):
                alarm.tick = None
                ripe.append(alarm)
        return ripe

    def next_at(self) -> float | None:
        """When to look again; None when nothing is set. Buckets left empty are skipped."""
        while self._ticks:
            if self._buckets[self._ticks[0]]:
                return self._ticks[0] * TICK_SECONDS
            del self._buckets[heapq.heappop(self._ticks)]
        return None


class Alarms:
    """The wheel on a loop: one timer handle for all alarms."""

    __slots__ = ("_clock", "_handle", "_handle_at", "_wheel")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = Wheel()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at = 0.0

    def set(self, alarm: Alarm, when: float) -> None:
        """Let ``alarm`` ring at ``when`` (the clock's monotonic seconds), within one tick."""
        self._wheel.set(alarm, when)
        if self._handle is None or when < self._handle_at:
            self._wait()

    def clear(self, alarm: Alarm) -> None:
        """Let ``alarm`` not ring."""
        self._wheel.clear(alarm)

    def ring_due(self) -> None:
        """Ring what is due now; the loop calls it, and a test with a clock of its own."""
        for alarm in self._wheel.due(self._clock.monotonic()):
            try:
                alarm.ring()
            except Exception:  # noqa: BLE001 - the other alarms must still ring
                _log.exception("alarm failed")
        self._wait()

    def close(self) -> None:
        """Stop waiting. Alarms that are set stay silent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self) -> None:
        self.close()
        when = self._wheel.next_at()
        if when is not None:
            delay = max(0.0, when - self._clock.monotonic())
            self._handle = asyncio.get_running_loop().call_later(delay, self.ring_due)
            self._handle_at = when
