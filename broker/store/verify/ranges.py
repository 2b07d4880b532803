"""Places of the log in which nothing can be trusted."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

MAX_RANGES: Final = 65_536
"""More are taken together, with what lies between them: half a megabyte each way."""


class Ranges:
    """Ranges of physical offsets, added in order."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """One more; it begins behind those before it."""
        if self._ends and (begin == self._ends[-1] or len(self._ends) >= MAX_RANGES):
            self._ends[-1] = end
        else:
            self._begins.append(begin)
            self._ends.append(end)

    def merge(self, other: Ranges) -> None:
        """Those of a later part of the log."""
        for begin, end in zip(other._begins, other._ends, strict=True):
            self.add(begin, end)

    def __contains__(self, position: int) -> bool:
        index = bisect_right(self._begins, position) - 1
        return index >= 0 and position < self._ends[index]

    def __bool__(self) -> bool:
        return bool(self._begins)

    @property
    def bytes(self) -> int:
        """How much they are."""
        return sum(self._ends) - sum(self._begins)
