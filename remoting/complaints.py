"""Warnings about what peers do, at a bounded rate: a hostile peer must not fill a disk with log."""

from __future__ import annotations

from typing import Any, Final

from remoting.clock import Clock
from remoting.log import Log

MAX_PER_SECOND: Final = 20
"""Lines of one endpoint; enough to see what goes on, 2 MB an hour at worst."""

_log = Log("remoting")


class Complaints:
    """Writes warnings, counts what it leaves out and says so with the next one."""

    __slots__ = ("_clock", "_left_out", "_second", "_written")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def write(self, event: str, **facts: Any) -> bool:
        """Log ``event`` unless this second has had its share; says whether it did."""
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second = second
            self._written = 0
        if self._written >= MAX_PER_SECOND:
            self._left_out += 1
            return False
        self._written += 1
        if self._left_out:
            facts["left_out_before"] = self._left_out
            self._left_out = 0
        _log.warning(event, **facts)
        return True
