"""The clock, which tests can replace."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The clocks used by servers and clients."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the epoch: for timestamps."""
        ...

    def monotonic(self) -> float:
        """Return seconds of a clock that never jumps: for deadlines and durations."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    # Not wrapped: it is called for every frame, and a wrapper would double its cost.
    monotonic = staticmethod(time.monotonic)


def monotonic_ms(clock: Clock) -> int:
    """Return the monotonic time in ms: for leases and expiries."""
    return int(clock.monotonic() * 1000)


def epoch_ms(clock: Clock) -> int:
    """Return the time since 1970, by the wall clock of now, at which the monotonic clock was 0."""
    return clock.now_ms() - monotonic_ms(clock)
