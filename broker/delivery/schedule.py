"""What of which delay level is due when (cf. ScheduleMessageService).

A level's messages wait in a queue in the order they came, and all wait equally long: so the first
of them is due first, and only it has to be watched. For each level there is the number of the next
message to deliver and the time of the next look at the queue; a level without a time has nothing
waiting, and the arrival of a message gives it one.

An entry says when its message is due. If that is further off than the level is long, the clock was
set back or the table of levels was changed, and the message is due at once; so is a look. Queues of
levels that the table no longer has are served by their entries alone.

No I/O here; times are ms of the wall clock, as entries have them, and come in as ``now_ms``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

_first = itemgetter(0)


class Schedule:
    """The progress of all levels.

    Args:
        levels_ms: how long the levels are, from level 1 on.
        offsets: of each level the number of the next message to deliver, as it was stored.

    Attributes:
        offsets: the same as it is now.
        version: raised by each change of ``offsets``.
    """

    __slots__ = ("_levels_ms", "_looks", "offsets", "version")

    def __init__(self, levels_ms: Sequence[int], offsets: Mapping[int, int] | None = None) -> None:
        self._levels_ms = tuple(levels_ms)
        # In the order in which levels were last looked at, so that of equals each gets its turn.
        self._looks: dict[int, int] = {}
        self.offsets = dict(offsets or {})
        self.version = 0

    def next_look(self, now_ms: int) -> int | None:
        """When the next queue is to be looked at; None when nothing waits anywhere."""
        looks = (self.due(level, at, now_ms) for level, at in self._looks.items())
        return min(looks, default=None)

    def level_due(self, now_ms: int) -> int | None:
        """The level whose queue is to be looked at now; None when it is not time yet.

        It stays the same until ``settle`` says when to look there again.
        """
        if not self._looks:
            return None
        at, level = min(
            ((self.due(level, at, now_ms), level) for level, at in self._looks.items()), key=_first
        )
        return level if at <= now_ms else None

    def settle(self, level: int, again_ms: int | None) -> None:
        """Look at a level's queue again then; None: it is empty."""
        self._looks.pop(level, None)
        if again_ms is not None:
            self._looks[level] = again_ms

    def advance(self, level: int, offset: int) -> None:
        """The messages of a level below ``offset`` are done with."""
        if self.offsets.get(level, 0) != offset:
            self.offsets[level] = offset
            self.version += 1

    def clamp(self, level: int, low: int, high: int) -> int:
        """The next message of a level, whose queue has those from ``low`` to below ``high``."""
        offset = min(max(self.offsets.get(level, 0), low), high)
        self.advance(level, offset)
        return offset

    def arrived(self, level: int, due_ms: int, now_ms: int) -> bool:
        """A message came into a level's queue; whether the next look has become an earlier one."""
        if level in self._looks:
            return False
        before = self.next_look(now_ms)
        self._looks[level] = at = self.due(level, due_ms, now_ms)
        return before is None or at < before

    def due(self, level: int, due_ms: int, now_ms: int) -> int:
        """When a message is due whose entry says ``due_ms``."""
        if level <= len(self._levels_ms) and due_ms > now_ms + self._levels_ms[level - 1]:
            return now_ms
        return due_ms

    def split(self, level: int, entries: Sequence[int], now_ms: int) -> tuple[int, int | None]:
        """How many of a level's next messages are due, and when the one behind them is.

        Args:
            level: which.
            entries: what the entries say, from the next message to deliver on.
            now_ms: the time.

        Returns:
            The time is None when all of them are due.
        """
        for count, due_ms in enumerate(entries):
            at = self.due(level, due_ms, now_ms)
            if at > now_ms:
                return count, at
        return len(entries), None
