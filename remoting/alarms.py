"""One timer for all deadlines of an endpoint.

Each connection owns one ``Alarm``. It is set to the earliest of the connection's deadlines
(requests, idle, frame, unsent bytes), and only moved when an earlier one comes up or when it rings:
a request with a timeout costs one comparison, no timer handle. Alarms of one tick (10 ms) share a
bucket; one handle of the loop waits for the next bucket. An alarm never rings early.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from math import ceil
from typing import Final

from remoting.clock import Clock
from remoting.log import Log

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
