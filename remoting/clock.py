"""Injectable clock."""

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
