"""A clock for tests."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until the test advances it."""

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
        """Advance the wall clock and the monotonic clock by ``seconds``."""
        if seconds < 0:
            raise ValueError(f"a clock can't go back by {-seconds} s")
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)

    def jump(self, milliseconds: int) -> None:
        """Change only the wall clock, as when an administrator sets it."""
        self._now_ms += milliseconds
