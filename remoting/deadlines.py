"""The deadlines of a connection, and a timer wheel for all connections of an endpoint.

``ConnectionDeadlines`` computes deadlines from timestamps, without a timer or a socket. Each
connection owns one ``Alarm``, set to the earliest of its deadlines (requests, idle, frame, unsent
bytes). The alarm is set again only for an earlier deadline or after it has fired, so a request with
a timeout costs one comparison and no timer handle. Alarms of one tick (10 ms) share a bucket; one
timer handle of the loop waits for the next bucket. An alarm never fires early.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from math import ceil, inf
from typing import Final

from remoting.counters import CloseReason
from remoting.limits import ConnectionLimits
from remoting.runtime.clock import Clock
from remoting.runtime.log import Log


class ConnectionDeadlines:
    """The times from which a connection's deadlines are computed, in monotonic seconds."""

    __slots__ = (
        "_limits",
        "blocked_since",
        "closing_since",
        "frame_since",
        "last_in",
        "last_out",
        "opened_at",
    )

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self._limits = limits
        self.opened_at = now
        self.last_in = now
        self.last_out = now
        self.frame_since = inf
        """When the incomplete frame began to arrive; inf if there is none."""
        self.blocked_since = inf
        """Since when more than the high-water mark is unsent; inf if it is not."""
        self.closing_since = inf
        """When the connection began to close; inf while it is open."""

    def verdict(self, now: float, *, busy: bool) -> CloseReason | None:
        """Return why the connection has to be dropped now, or None.

        Args:
            now: monotonic seconds.
            busy: whether requests of either end are in progress, so it is not idle.
        """
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
        """Return when to call ``verdict`` again if nothing else happens."""
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
    """A callback whose time can be changed. It is set with ``Alarms.set``."""

    __slots__ = ("ring", "tick")

    def __init__(self, ring: Callable[[], None]) -> None:
        self.ring = ring
        self.tick: int | None = None


class Wheel:
    """The buckets of the timer wheel. It has no clock: times are parameters."""

    __slots__ = ("_buckets", "_ticks")

    def __init__(self) -> None:
        self._buckets: dict[int, set[Alarm]] = {}
        self._ticks: list[int] = []

    def set(self, alarm: Alarm, when: float) -> None:
        """Set or move ``alarm`` to ``when``."""
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
        """Remove ``alarm``."""
        if alarm.tick is not None:
            self._buckets[alarm.tick].discard(alarm)
            alarm.tick = None

    def due(self, now: float) -> list[Alarm]:
        """Remove and return all alarms that are due."""
        ripe: list[Alarm] = []
        while self._ticks and self._ticks[0] * TICK_SECONDS <= now:
            for alarm in self._buckets.pop(heapq.heappop(self._ticks)):
                alarm.tick = None
                ripe.append(alarm)
        return ripe

    def next_at(self) -> float | None:
        """Return when the next alarm is due, None if none is set. Removes empty buckets."""
        while self._ticks:
            if self._buckets[self._ticks[0]]:
                return self._ticks[0] * TICK_SECONDS
            del self._buckets[heapq.heappop(self._ticks)]
        return None


class Alarms:
    """The wheel, driven by one timer handle of the event loop."""

    __slots__ = ("_clock", "_handle", "_handle_at", "_wheel")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = Wheel()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at = 0.0

    def set(self, alarm: Alarm, when: float) -> None:
        """Call ``alarm.ring`` at ``when`` (monotonic seconds), at most one tick late."""
        self._wheel.set(alarm, when)
        if self._handle is None or when < self._handle_at:
            self._wait()

    def clear(self, alarm: Alarm) -> None:
        """Remove ``alarm``."""
        self._wheel.clear(alarm)

    def ring_due(self) -> None:
        """Call all alarms that are due. Called by the loop, and by tests with their own clock."""
        for alarm in self._wheel.due(self._clock.monotonic()):
            try:
                alarm.ring()
            except Exception:  # noqa: BLE001 - the other alarms must still ring
                _log.exception("alarm failed")
        self._wait()

    def close(self) -> None:
        """Cancel the timer handle: no alarm fires until one is set again."""
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
