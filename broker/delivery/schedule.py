"""Delay levels, the schedule of delayed messages, and its saved progress.

cf. ScheduleMessageService

``messageDelayLevel`` is a text such as ``1s 5s 10s``, in which level 1 is the first, one second.
The messages of a level wait in queue ``level - 1`` of SCHEDULE_TOPIC_XXXX, in the order of arrival.
All messages of a level wait equally long, so only the first one must be scheduled. ``Schedule``
keeps for each level the queue offset of its next message and the time of the next check. A level
without a time has no messages, until one arrives.

The tags code of a queue entry is the time at which its message is due. If that is further away than
the level's delay, the clock was set back or ``messageDelayLevel`` was changed, and the message is
due at once. For levels that no longer exist only the time in the entry counts.

The progress is kept in two files. ``delayOffset.json`` is RocketMQ's. It is written every few
seconds, and includes only deliveries that are on disk, so it is never ahead of the commit log. Our
own ``deliveryProgress`` is written to the page cache after every batch of deliveries. The page
cache survives a killed process, so ``kill -9`` repeats at most one batch. Its layout is in
``remoting.protocol.disk.delays``.

In controller mode the next master may cut deliveries that are not confirmed from the log. Then
nobody may count them, so ``delayOffset.json`` waits until they are confirmed, too, and is alone.

After a power failure the page cache may have reached the disk in any order. Therefore the file is
used at the start only if the commit log is at least as long as the file says. The higher offset of
both files counts, because another broker may have used the store in the meantime, and deliveries
are never undone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from broker.store.os_files import Files, Region
from remoting.protocol.disk.delays import FILE_BYTES, FILE_NAME, decode, encode
from remoting.protocol.message import properties

if TYPE_CHECKING:
    from broker.store.engine import MessageStore


_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,10}")
DELAY_KEY: Final = properties.DELAY.encode()


def level_of(text: bytes) -> int:
    """Return the delay level in a message's properties; 0 or less means no delay.

    Raises:
        ValueError: the property isn't a number.
    """
    value = properties.find(text, DELAY_KEY)
    if value is None:
        return 0
    if _NUMBER.fullmatch(value) is None:
        raise ValueError(
            f"the property DELAY is {value[:20]!r}, not the number of a delay level: send 1 for "
            "the shortest, or leave it out"
        )
    return int(value)


def level_for(wait_ms: int, levels_ms: Sequence[int]) -> int:
    """Return the level with the shortest delay of at least ``wait_ms``, else the longest level.

    Args:
        wait_ms: how long a message must wait.
        levels_ms: the delays of the levels in ms, from level 1 on.
    """
    levels = range(1, len(levels_ms) + 1)
    enough = [level for level in levels if levels_ms[level - 1] >= wait_ms]
    if enough:
        return min(enough, key=lambda level: levels_ms[level - 1])
    return max(levels, key=lambda level: levels_ms[level - 1])


_first = itemgetter(0)


class Schedule:
    """The schedule and progress of all levels. No I/O.

    Args:
        levels_ms: the delays of the levels in ms, from level 1 on.
        offsets: saved progress: level -> queue offset of its next message.

    Attributes:
        offsets: current progress: level -> queue offset of its next message.
        version: raised by each change of ``offsets``.
    """

    __slots__ = ("_checks", "_levels_ms", "offsets", "version")

    def __init__(self, levels_ms: Sequence[int], offsets: Mapping[int, int] | None = None) -> None:
        self._levels_ms = tuple(levels_ms)
        # Level -> time of its next check in ms. Ordered by the last check, so that levels that are
        # due at the same time are served round-robin.
        self._checks: dict[int, int] = {}
        self.offsets = dict(offsets or {})
        self.version = 0

    def next_check(self, now_ms: int) -> int | None:
        """Return the time in ms at which to check the next queue; None if no message waits."""
        checks = (self.due(level, at, now_ms) for level, at in self._checks.items())
        return min(checks, default=None)

    def level_due(self, now_ms: int) -> int | None:
        """Return the level whose queue must be checked now, or None.

        The result stays the same until ``settle`` sets the level's next check.
        """
        if not self._checks:
            return None
        at, level = min(
            ((self.due(level, at, now_ms), level) for level, at in self._checks.items()), key=_first
        )
        return level if at <= now_ms else None

    def settle(self, level: int, again_ms: int | None) -> None:
        """Set the time of a level's next check; None if its queue is empty."""
        self._checks.pop(level, None)
        if again_ms is not None:
            self._checks[level] = again_ms

    def advance(self, level: int, offset: int) -> None:
        """Note that the messages of a level below ``offset`` are delivered."""
        if self.offsets.get(level, 0) != offset:
            self.offsets[level] = offset
            self.version += 1

    def clamp(self, level: int, low: int, high: int) -> int:
        """Limit a level's offset to its queue, from ``low`` to ``high``, and return it."""
        offset = min(max(self.offsets.get(level, 0), low), high)
        self.advance(level, offset)
        return offset

    def arrived(self, level: int, due_ms: int, now_ms: int) -> bool:
        """Schedule a message that arrived; return whether the next check is earlier than before."""
        if level in self._checks:
            return False
        before = self.next_check(now_ms)
        self._checks[level] = at = self.due(level, due_ms, now_ms)
        return before is None or at < before

    def due(self, level: int, due_ms: int, now_ms: int) -> int:
        """Return when a message with ``due_ms`` in its entry is due; see the module's docstring."""
        if level <= len(self._levels_ms) and due_ms > now_ms + self._levels_ms[level - 1]:
            return now_ms
        return due_ms

    def split(self, level: int, entries: Sequence[int], now_ms: int) -> tuple[int, int | None]:
        """Return how many of a level's next messages are due, and when the one after them is due.

        Args:
            level: the level.
            entries: the times in the queue's entries, from the next message to deliver on.
            now_ms: the time.

        Returns:
            The count and the time in ms, which is None if all are due.
        """
        for count, due_ms in enumerate(entries):
            at = self.due(level, due_ms, now_ms)
            if at > now_ms:
                return count, at
        return len(entries), None


Save = Callable[[dict[int, int]], None]
"""Writes ``delayOffset.json`` in the background."""

_log = structlog.get_logger("broker")


class DeliveryProgress:
    """Saves the progress of a schedule.

    Args:
        schedule: the schedule.
        store: the store in which messages are delivered.
        directory: the directory of the broker's state files.
        files: the file system.
        save: writes ``delayOffset.json`` in the background.
    """

    def __init__(
        self,
        schedule: Schedule,
        store: MessageStore,
        directory: Path,
        files: Files,
        save: Save,
    ) -> None:
        self._schedule = schedule
        self._store = store
        self._path = directory / FILE_NAME
        self._files = files
        self._save = save
        self._region: Region | None = None
        self._saved_version = schedule.version
        # Progress that waits until its deliveries are on disk: end of the log, version, offsets.
        self._waiting: tuple[int, int, dict[int, int]] | None = None

    def load(self) -> None:
        """Read ``deliveryProgress`` into the schedule; call once, before the first delivery.

        Raises:
            OSError: the file can't be read or created.
        """
        self._files.make_directory(self._path.parent, durable=True)
        kept = self._files.read(self._path)
        for level, offset in decode(kept or b"", self._store.log.end).items():
            if offset > self._schedule.offsets.get(level, 0):
                self._schedule.advance(level, offset)
        is_controlled = self._store.config.controlled
        if kept is not None and (len(kept) != FILE_BYTES or is_controlled):
            self._files.remove(self._path)
            kept = None
        if is_controlled:
            return
        self._region = self._files.open_mapped(self._path, FILE_BYTES, create=kept is None)

    def delivered(self) -> None:
        """Write the schedule's progress to ``deliveryProgress``, after a delivery."""
        if self._region is None:  # controller mode
            return
        try:
            self._region.write(0, encode(self._schedule.offsets, self._store.log.end))
        except OSError as error:
            _log.warning(
                "progress of delayed messages can't be written; if the broker is killed now, some "
                "of them will be delivered twice",
                file=str(self._path),
                reason=str(error),
            )

    def save_durable(self) -> None:
        """Write ``delayOffset.json`` if deliveries since the last write are safe.

        They are on the disk then, and confirmed (controller mode).
        """
        self._save_waiting()
        if self._waiting is None and self._schedule.version != self._saved_version:
            schedule = self._schedule
            self._waiting = (self._store.log.end, schedule.version, schedule.offsets.copy())
            self._save_waiting()

    def _save_waiting(self) -> None:
        syncer = self._store.syncer
        kept_end = min(syncer.log.flushed, syncer.confirmed)
        if self._waiting is not None and self._waiting[0] <= kept_end:
            _, self._saved_version, offsets = self._waiting
            self._waiting = None
            self._save(offsets)

    def save_all(self) -> None:
        """Flush the store, and write ``delayOffset.json`` with all safe deliveries; blocks."""
        try:
            if self._schedule.version != self._saved_version:
                self._store.flush()
        except OSError as error:
            _log.warning("the store can't be flushed", reason=str(error))
        self.save_durable()
