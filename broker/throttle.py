"""Warnings that clients can cause must not flood the log."""

from __future__ import annotations


class Throttle:
    """Lets one event through per interval and counts the others.

    Args:
        interval: seconds between two events that are let through.
    """

    __slots__ = ("_interval", "_next", "_suppressed")

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._next = float("-inf")
        self._suppressed = 0

    def allow(self, now: float) -> int | None:
        """None if the event is to be kept quiet, else how many were since the last one."""
        if now < self._next:
            self._suppressed += 1
            return None
        suppressed, self._suppressed = self._suppressed, 0
        self._next = now + self._interval
        return suppressed
