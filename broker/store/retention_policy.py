"""Which old messages are deleted, and where each queue begins then. Only decides; removes nothing.

The rules are RocketMQ's (cf. CleanCommitLogService): expired files are deleted in the configured
hours, and at any hour when the disk is fuller than ``diskMaxUsedSpaceRatio``. Above a second bound
the oldest files are deleted at any age, and above a third one nothing is stored until there is room
again. These two can be given in free bytes instead, because a tenth of a large disk is a lot.

RocketMQ takes a file's age from its modification time, which a copy or a backup changes. Here the
age is that of the first message behind the file: all messages in the file are at least as old.

Only as many unexpired files are deleted as make enough room. Space that a slow reader still holds
counts as free, since it becomes free when the reader is done.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from broker.store.config import RetentionConfig
from broker.store.consume_queue import FILLER_SIZE, NO_MESSAGE, ConsumeQueue
from broker.store.limits import MAX_RECORD_BYTES
from broker.store.mapped_file import MappedFile
from broker.store.os_files import DiskUse, Region
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES
from remoting.protocol.message.record import BORN_HOST_V6, FoundRecord, examine

_PERCENT: Final = 100

# Size; system flag; store time behind an IPv4 and behind an IPv6 born host.
_HEAD: Final = Struct(">I32xi16xq4xq")

_AT_ONCE: Final = 512
"""Entries read in one step while skipping fillers."""

_NO_MESSAGE: Final = NO_MESSAGE[:2]


class DiskUsage(NamedTuple):
    """A directory of the store and how full its disk is."""

    path: Path
    use: DiskUse


class LogFile(NamedTuple):
    """A file of the log that may be deleted.

    Attributes:
        size: bytes.
        behind_ms: store time, ms since the epoch, of the first message behind the file; None if
            unknown.
    """

    size: int
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class DiskMoment:
    """The state of disks and clock that a decision depends on.

    Attributes:
        places: the store's directories and their disks.
        now_ms: ms since the epoch.
        hour: of the day, local time.
        asked: whether an operator asked to delete expired files now.
        coming_bytes: bytes of deleted files that will be free soon.
    """

    places: Sequence[DiskUsage]
    now_ms: int
    hour: int
    asked: bool = False
    coming_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What to delete, and whether messages are accepted meanwhile.

    Attributes:
        files: number of the oldest files to delete.
        unexpired: how many of these have not expired.
        refusal: why no message is accepted meanwhile, for an error text; None when messages are
            accepted.
        pressed: whether the disk is beyond a bound, so that it should be measured again soon.
    """

    files: int
    unexpired: int
    refusal: str | None
    pressed: bool


def decide(config: RetentionConfig, moment: DiskMoment, files: Iterable[LogFile]) -> RetentionPlan:
    """Decide which files to delete now, and whether to accept messages.

    Args:
        config: the rules.
        moment: disk and time.
        files: those that may be deleted, oldest first; only as many as needed are consumed.
    """
    missing = max((missing_bytes(config, place.use) for place in moment.places), default=0)
    needed = missing if config.forcibly else 0
    due = is_due(config, moment)
    count = unexpired = 0
    freed = moment.coming_bytes
    if due or freed < needed:
        for file in files:
            expired = file.behind_ms is not None and (
                file.behind_ms + config.reserved_ms <= moment.now_ms
            )
            if count >= config.batch or not ((due and expired) or freed < needed):
                break
            count += 1
            unexpired += not expired
            freed += file.size
    refusal = next(filter(None, (refusal_of(config, place) for place in moment.places)), None)
    return RetentionPlan(count, unexpired, refusal, pressed=missing > 0)


def is_due(config: RetentionConfig, moment: DiskMoment) -> bool:
    """Return whether expired files are deleted now."""
    return (
        moment.asked
        or moment.hour in config.delete_hours
        or any(place.use.ratio * _PERCENT > config.max_used_percent for place in moment.places)
    )


def missing_bytes(config: RetentionConfig, use: DiskUse) -> int:
    """Return the bytes to delete, expired or not, for a disk to be within its bounds."""
    return max(
        _missing(use, config.forced_used_percent, config.forced_free_bytes),
        _missing(use, config.full_used_percent, config.full_free_bytes),
    )


def used_limits(config: RetentionConfig, use: DiskUse) -> dict[str, float]:
    """Return the limits of a disk's use, as shares of 0 to 1, by the names of RocketMQ's settings.

    Above one, unexpired files are deleted; above the other, no message is accepted. A bound in
    free bytes is converted. Without ``forcibly`` there is only the second bound.
    """
    free = config.forced_free_bytes, config.full_free_bytes
    used = config.forced_used_percent / _PERCENT, config.full_used_percent / _PERCENT
    size = use.used + use.free or 1
    forced, full = (
        max(0.0, 1 - least / size) if least else share
        for least, share in zip(free, used, strict=True)
    )
    limits = {"diskSpaceWarningLevelRatio": full}
    return {"diskSpaceCleanForciblyRatio": forced, **limits} if config.forcibly else limits


def _missing(use: DiskUse, used_percent: int, free_bytes: int) -> int:
    if free_bytes:
        return max(0, free_bytes - use.free)
    allowed = (use.used + use.free) * used_percent / _PERCENT
    return max(0, math.ceil(use.used - allowed))


def refusal_of(config: RetentionConfig, place: DiskUsage) -> str | None:
    """Return why a disk is too full to accept messages, for an error text; None if it is not."""
    use, least = place.use, config.full_free_bytes
    if not _missing(use, config.full_used_percent, least):
        return None
    bound = (
        f"less than the {least} of pocketmqDiskFullFreeBytes"
        if least
        else f"more than the {config.full_used_percent} % of diskSpaceWarningLevelRatio"
    )
    return (
        f"the disk of {place.path} is {use.percent}% full with {use.free} bytes free, {bound}, so"
        " the store takes no messages: free some space and it resumes by itself"
    )


class Ages:
    """Caches the store times of the files' first messages, which never change.

    Not thread-safe: only the retention thread uses it.
    """

    def __init__(self) -> None:
        self._first_ms: dict[int, int] = {}

    def of(self, files: Sequence[MappedFile], log_end: int) -> Iterator[LogFile]:
        """Yield the files that may be deleted, all but the last; each is read when it is needed."""
        start = files[0].start if files else 0
        for known in [known for known in self._first_ms if known < start]:
            del self._first_ms[known]
        files = [file for file in files if file.start < log_end]
        for index, file in enumerate(files[:-1]):
            yield LogFile(file.size, self._first_of(files[index + 1 :]))

    def _first_of(self, files: Sequence[MappedFile]) -> int | None:
        """Return the store time of the first readable first message of ``files``, or None."""
        for file in files:
            first_ms = self._first_ms.get(file.start)
            if first_ms is None:
                with contextlib.suppress(OSError):
                    first_ms = first_store_ms(file)
            if first_ms is not None:
                self._first_ms[file.start] = first_ms
                return first_ms
        return None


def first_store_ms(file: MappedFile) -> int | None:
    """Return the store time of a file's first record, ms since the epoch; None if it is damaged.

    Raises:
        OSError: the file can't be read.
    """
    region = file.hold()
    region.fetch(0, _HEAD.size)
    (size, *_) = _HEAD.unpack_from(region.view)
    if size <= MAX_RECORD_BYTES:
        # Read all that is examined into memory first, so that no page fault holds the GIL.
        region.fetch(0, min(size, file.size))
    scan = examine(region.view, 0, check_crc=False)
    if not isinstance(scan, FoundRecord):
        return None
    _, sys_flag, behind_v4, behind_v6 = _HEAD.unpack_from(region.view)
    return int(behind_v6 if sys_flag & BORN_HOST_V6 else behind_v4)


def first_alive(queue: ConsumeQueue, log_start: int) -> int:
    """Return the queue offset of the first message at or behind ``log_start``; else the end.

    Raises:
        OSError: an entry can't be read.
    """
    low, high = queue.min_offset, queue.max_offset
    if low >= high:
        return low
    search = _Search(queue.files, high, log_start)
    if search.is_alive(low):
        return low
    # Bisect: the message at ``low`` is not in the log; the one at ``high`` is, or is yet to come.
    while high - low > 1:
        middle = (low + high) // 2
        if search.is_alive(middle):
            high = middle
        else:
            low = middle
    return search.next_message(high)


class _Search:
    """Reads the entries of one queue below ``end``."""

    __slots__ = ("_end", "_files", "_log_start", "_regions")

    def __init__(self, files: list[MappedFile], end: int, log_start: int) -> None:
        self._files = files
        self._end = end
        self._log_start = log_start
        # Kept so that an unmapped file is not mapped again for each entry.
        self._regions: dict[MappedFile, Region] = {}

    def is_alive(self, offset: int) -> bool:
        """Return whether the log has this message or, for a filler, the next message, if any."""
        for physical_offset, size in self._entries(offset, 1):
            if _is_real(physical_offset, size):
                return physical_offset >= self._log_start
        for _, physical_offset in self._real(offset):
            return physical_offset >= self._log_start
        return True

    def next_message(self, offset: int) -> int:
        """Return the first offset from ``offset`` on whose entry, even if damaged, is no filler."""
        while entries := self._entries(offset, _AT_ONCE):
            for number, entry in enumerate(entries, offset):
                if entry != _NO_MESSAGE:
                    return number
            offset += len(entries)
        return self._end

    def _real(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield queue offset and physical offset of the entries that have a message."""
        while offset < self._end:
            entries = self._entries(offset, _AT_ONCE)
            if not entries:
                return
            for number, (physical_offset, size) in enumerate(entries, offset):
                if _is_real(physical_offset, size):
                    yield number, physical_offset
            offset += len(entries)

    def _entries(self, offset: int, max_count: int) -> list[tuple[int, int]]:
        """Return physical offset and size of up to ``max_count`` entries from ``offset`` on.

        They are of one file, so there may be fewer; none only at the end of the queue.
        """
        at = offset * ENTRY_BYTES
        file = next((file for file in self._files if 0 <= at - file.start < file.size), None)
        if offset >= self._end or file is None:
            return []
        begin = at - file.start
        end = min(begin + max_count * ENTRY_BYTES, file.size, self._end * ENTRY_BYTES - file.start)
        region = self._regions.get(file)
        if region is None:
            region = self._regions[file] = file.hold()
        region.fetch(begin, end - begin)
        return [entry[:2] for entry in ENTRY.iter_unpack(region.view[begin:end])]


def _is_real(physical_offset: int, size: int) -> bool:
    return physical_offset >= 0 and 0 < size < FILLER_SIZE
