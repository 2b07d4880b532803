"""Delay levels, and which message of each is due when, without I/O (cf. ScheduleMessageService).

``messageDelayLevel`` is a text such as ``1s 5s 10s``: level 1 is the first, one second long. The
messages of a level wait in the queue ``level - 1`` of SCHEDULE_TOPIC_XXXX, in the order they came.
All wait equally long, so the first is due first and only that one has to be watched. Each level has
the number of the next message to deliver and the time of the next look at the queue; a level
without a time has nothing waiting, and the arrival of a message sets one.

An entry has the time its message is due. If that is further off than the level is long, the clock
was set back or the table of levels was changed, and the message is due at once. Queues of levels
that the table no longer has are served by their entries alone.

Two files keep the progress. ``delayOffset.json`` is RocketMQ's: written every few seconds, and only
with deliveries in a part of the log that is on the disk, so it is never ahead of the log. Our own
file beside it is written after every turn of deliveries into the page cache, which survives a
killed process: so ``kill -9`` repeats at most one turn.

===========  ==================================================================
bytes        of ``deliveryProgress``, 4096 bytes long, big endian
===========  ==================================================================
8            ``PMQDELAY``
int64        end of the log after the deliveries counted here
int32        number of levels that follow
int32        CRC-32 of everything else up to the last level
12 each      int32 level, int64 number of its next message
===========  ==================================================================

After a power failure the page cache may have reached the disk in any order; so at the start the
file is used only if the log goes at least as far as the file's end. Of both files the higher number
counts: another broker may have used the store meanwhile, and deliveries are never undone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

import structlog

from broker.limits import MAX_DELAY_LEVELS, MAX_DELAY_MS
from broker.store.os_files import Files, Region
from remoting.protocol.accelerated import crc32
from remoting.protocol.message import properties

if TYPE_CHECKING:
    from broker.store.engine import MessageStore


DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's 18 levels."""

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY: Final = re.compile(r"([0-9]{1,9})([smhd])")
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,10}")
DELAY_KEY: Final = properties.DELAY.encode()


def delay_levels(text: str) -> str:
    """Check the value of ``messageDelayLevel``; for the configuration.

    Raises:
        ValueError: it is invalid; the text is the end of a sentence.
    """
    parse_levels(text)
    return text


def parse_levels(text: str) -> tuple[int, ...]:
    """How long the levels are, in ms, from level 1 on.

    Raises:
        ValueError: ``text`` doesn't list levels; the text is the end of a sentence.
    """
    found = [_DELAY.fullmatch(word) for word in text.split()]
    levels = [int(match[1]) * _UNITS_MS[match[2]] for match in found if match is not None]
    if not 0 < len(levels) == len(found) <= MAX_DELAY_LEVELS:
        raise ValueError(
            f"must be 1 to {MAX_DELAY_LEVELS} delays with a blank in between, each a number and "
            f"one of s m h d, such as 1s 30s 5m"
        )
    if not 0 < min(levels) <= max(levels) <= MAX_DELAY_MS:
        raise ValueError(f"must have delays of 1s to {MAX_DELAY_MS // _UNITS_MS['d']}d")
    return tuple(levels)


def level_of(text: bytes) -> int:
    """The delay level that a message's properties ask for; 0 or less: none.

    Raises:
        ValueError: the property is no number.
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
    """The shortest level that is at least this long; the longest one if none is.

    Args:
        wait_ms: how long a message has to wait.
        levels_ms: how long the levels are, from level 1 on.
    """
    levels = range(1, len(levels_ms) + 1)
    enough = [level for level in levels if levels_ms[level - 1] >= wait_ms]
    if enough:
        return min(enough, key=lambda level: levels_ms[level - 1])
    return max(levels, key=lambda level: levels_ms[level - 1])


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

        It stays the same until ``settle`` sets when to look there again.
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
        """When a message is due whose entry has ``due_ms``."""
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


Save = Callable[[dict[int, int]], None]
"""Writes ``delayOffset.json`` in the background."""

FILE_NAME: Final = "deliveryProgress"
FILE_BYTES: Final = 4096

_log = structlog.get_logger("broker")

_MAGIC: Final = b"PMQDELAY"
_HEAD: Final = Struct(">8sqiI")
_LEVEL: Final = Struct(">iq")
_MOST: Final = (FILE_BYTES - _HEAD.size) // _LEVEL.size


def encode(offsets: Mapping[int, int], log_end: int) -> bytes:
    """The file's bytes; of more levels than it has room for the first ones."""
    levels = sorted(offsets.items())[:_MOST]
    body = b"".join(_LEVEL.pack(level, offset) for level, offset in levels)
    crc = crc32(_HEAD.pack(_MAGIC, log_end, len(levels), 0) + body)
    return _HEAD.pack(_MAGIC, log_end, len(levels), crc) + body


def decode(data: bytes | memoryview, log_end: int) -> dict[int, int]:
    """The offsets in a file of a store with a log up to ``log_end``; empty if it is not valid.

    Never raises, whatever the bytes are.
    """
    if len(data) < _HEAD.size:
        return {}
    magic, end, count, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or not 0 <= count <= (len(data) - _HEAD.size) // _LEVEL.size:
        return {}
    body = bytes(data[_HEAD.size : _HEAD.size + count * _LEVEL.size])
    if crc != crc32(_HEAD.pack(_MAGIC, end, count, 0) + body) or end > log_end:
        return {}
    return dict(_LEVEL.iter_unpack(body))


class DeliveryProgress:
    """Keeps the progress of a schedule.

    Args:
        schedule: whose.
        store: where deliveries go.
        directory: of the broker's state files.
        files: the disk.
        save: writes ``delayOffset.json``, in the background.
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
        # Of the deliveries that wait for the disk: end of the log, version, offsets.
        self._waiting: tuple[int, int, dict[int, int]] | None = None

    def load(self) -> None:
        """Take over the progress in our file; once, before anything is delivered.

        Raises:
            OSError: the file can't be read or made.
        """
        self._files.make_directory(self._path.parent, durable=True)
        kept = self._files.read(self._path)
        for level, offset in decode(kept or b"", self._store.end_offset).items():
            if offset > self._schedule.offsets.get(level, 0):
                self._schedule.advance(level, offset)
        if kept is not None and len(kept) != FILE_BYTES:
            self._files.remove(self._path)
            kept = None
        self._region = self._files.open_mapped(self._path, FILE_BYTES, create=kept is None)

    def delivered(self) -> None:
        """Messages were delivered: note it."""
        assert self._region is not None
        try:
            self._region.write(0, encode(self._schedule.offsets, self._store.end_offset))
        except OSError as error:
            _log.warning(
                "progress of delayed messages can't be noted; if the broker were killed now, some "
                "of them would come twice",
                file=str(self._path),
                reason=str(error),
            )

    def save_durable(self) -> None:
        """Write ``delayOffset.json`` as far as the disk has what was delivered; now and then."""
        if self._waiting is None and self._schedule.version != self._saved_version:
            schedule = self._schedule
            self._waiting = (self._store.end_offset, schedule.version, schedule.offsets.copy())
        if self._waiting is not None and self._waiting[0] <= self._store.durable_offset:
            _, self._saved_version, offsets = self._waiting
            self._waiting = None
            self._save(offsets)

    def save_all(self) -> None:
        """Write ``delayOffset.json`` with everything that was delivered; blocks for the disk."""
        self._waiting = None
        try:
            if self._schedule.version != self._saved_version:
                self._store.flush()
        except OSError as error:
            _log.warning("the store can't be flushed", reason=str(error))
        self.save_durable()
