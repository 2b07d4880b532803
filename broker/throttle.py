"""Lines that clients can cause must not flood the log."""

from __future__ import annotations


class Throttle:
    """Lets some events through per interval and counts the others.

    Args:
        interval: seconds.
        burst: events of an interval that are let through.
    """

    __slots__ = ("_burst", "_interval", "_left", "_next", "_suppressed")

    def __init__(self, interval: float = 10.0, *, burst: int = 1) -> None:
        self._interval = interval
        self._burst = burst
        self._left = 0
        self._next = float("-inf")
        self._suppressed = 0

    def allow(self, now: float) -> int | None:
        """None if the event is to be kept quiet, else how many were since the last one."""
        if now >= self._next:
            self._next = now + self._interval
            self._left = self._burst
        if not self._left:
            self._suppressed += 1
            return None
        self._left -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
