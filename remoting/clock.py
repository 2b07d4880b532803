"""Time as a parameter: whoever needs it is given a clock, so that a test can turn the hands."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the servers and clients know of time."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch: for stamps that others read."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps: for deadlines and durations."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    # The bare function: it is called for every frame, and a wrapper would double its cost.
    monotonic = staticmethod(time.monotonic)


class ManualClock:
    """A clock that stands still until it is told to move."""

    __slots__ = ("_monotonic", "_now_ms")

    def __init__(self, *, now_ms: int = 1_700_000_000_000, monotonic: float = 1000.0) -> None:
        self._now_ms = now_ms
        self._monotonic = monotonic

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""
        return self._now_ms

    def monotonic(self) -> float:
        """Seconds since this clock's own beginning."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both hands forward by ``seconds``."""
        if seconds < 0:
            raise ValueError(f"a clock can't go back by {-seconds} s")
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)
