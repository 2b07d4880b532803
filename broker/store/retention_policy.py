"""What old messages go, and where each queue begins then: decisions, nothing is removed here.

The rules are RocketMQ's (cf. CleanCommitLogService): expired files go in the configured hours, and
at any hour when the disk is fuller than ``diskMaxUsedSpaceRatio``; above a further bound the oldest
files go at any age, and above the last one nothing is stored until there is room again. Both bounds
can be given in free bytes instead, because a tenth of a large disk is a lot.

RocketMQ takes a file's age from its time of modification, which a copy or a backup changes. Here it
is the store time of the first message behind the file: all messages of the file are at least as
old.

Only as many young files go as make enough room. Space that a slow reader still holds counts as
free: it will be when the reader has gone on.
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
"""Entries read in one step where fillers are stepped over."""

_NO_MESSAGE: Final = NO_MESSAGE[:2]


class DiskUsage(NamedTuple):
    """A directory of the store and the disk it is on."""

    path: Path
    use: DiskUse


class LogFile(NamedTuple):
    """A file of the log, oldest first.

    Attributes:
        size: bytes.
        behind_ms: store time of the first message behind it; None if unknown.
    """

    size: int
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class DiskMoment:
    """What a decision goes by beside the files.

    Attributes:
        places: the store's directories.
        now_ms: the time.
        hour: of the day, local time.
        asked: whether an operator asked to delete expired files now.
        coming_bytes: space that deleted files still take, soon to be free.
    """

    places: Sequence[DiskUsage]
    now_ms: int
    hour: int
    asked: bool = False
    coming_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What is to be done.

    Attributes:
        files: number of the oldest files that go.
        young: number of these that have not expired.
        full: why nothing is stored meanwhile, in one sentence; None when messages are taken.
        pressed: whether the disk is beyond a bound, so that it should be looked at again soon.
    """

    files: int
    young: int
    full: str | None
    pressed: bool


def decide(config: RetentionConfig, moment: DiskMoment, files: Iterable[LogFile]) -> RetentionPlan:
    """What to do now.

    Args:
        config: the rules.
        moment: disk and time.
        files: those that may go, oldest first; only as many are looked at as are needed.
    """
    missing = max((missing_bytes(config, place.use) for place in moment.places), default=0)
    wanted = missing if config.forcibly else 0
    due = is_due(config, moment)
    count = young = 0
    freed = moment.coming_bytes
    if due or freed < wanted:
        for file in files:
            is_old = file.behind_ms is not None and (
                file.behind_ms + config.reserved_ms <= moment.now_ms
            )
            if count >= config.batch or not ((due and is_old) or freed < wanted):
                break
            count += 1
            young += not is_old
            freed += file.size
    full = next(filter(None, (full_sentence(config, place) for place in moment.places)), None)
    return RetentionPlan(count, young, full, pressed=missing > 0)


def is_due(config: RetentionConfig, moment: DiskMoment) -> bool:
    """Whether files past their time go now."""
    return (
        moment.asked
        or moment.hour in config.delete_hours
        or any(place.use.ratio * _PERCENT > config.max_used_percent for place in moment.places)
    )


def missing_bytes(config: RetentionConfig, use: DiskUse) -> int:
    """How much has to go, old or young, for a disk to be within its bounds."""
    return max(
        _missing(use, config.forced_used_percent, config.forced_free_bytes),
        _missing(use, config.full_used_percent, config.full_free_bytes),
    )


def _missing(use: DiskUse, used_percent: int, free_bytes: int) -> int:
    if free_bytes:
        return max(0, free_bytes - use.free)
    allowed = (use.used + use.free) * used_percent / _PERCENT
    return max(0, math.ceil(use.used - allowed))


def full_sentence(config: RetentionConfig, place: DiskUsage) -> str | None:
    """Why a disk is too full to store anything; None when it is not."""
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
        " the store takes no messages: free some space and it goes on by itself"
    )


class Ages:
    """The store times of the first messages of files: they never change, so each is read once.

    Only the thread that deletes comes here.
    """

    def __init__(self) -> None:
        self._first_ms: dict[int, int] = {}

    def of(self, files: Sequence[MappedFile], log_end: int) -> Iterator[LogFile]:
        """The files that may go, all but the last; each is looked at when it is asked for."""
        start = files[0].start if files else 0
        for known in [known for known in self._first_ms if known < start]:
            del self._first_ms[known]
        files = [file for file in files if file.start < log_end]
        for index, file in enumerate(files[:-1]):
            yield LogFile(file.size, self._first_of(files[index + 1 :]))

    def _first_of(self, files: Sequence[MappedFile]) -> int | None:
        """Store time of the first message; of a later one when the first ones can't be read."""
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
    """Store time of a file's first record; None when there is no good one.

    Raises:
        OSError: the file can't be read.
    """
    region = file.hold()
    region.fetch(0, _HEAD.size)
    (size, *_) = _HEAD.unpack_from(region.view)
    if size <= MAX_RECORD_BYTES:
        # All of it that is looked at, so that no page fault holds the GIL.
        region.fetch(0, min(size, file.size))
    scan = examine(region.view, 0, check_crc=False)
    if not isinstance(scan, FoundRecord):
        return None
    _, sys_flag, behind_v4, behind_v6 = _HEAD.unpack_from(region.view)
    return int(behind_v6 if sys_flag & BORN_HOST_V6 else behind_v4)


def first_alive(queue: ConsumeQueue, log_start: int) -> int:
    """A queue's first message in the log from ``log_start`` on; its end if there is none.

    Raises:
        OSError: an entry can't be read.
    """
    low, high = queue.min_offset, queue.max_offset
    if low >= high:
        return low
    search = _Search(queue.files, high, log_start)
    if search.is_alive(low):
        return low
    # Dead at ``low``; alive at ``high``, if only in that messages to come will be.
    while high - low > 1:
        middle = (low + high) // 2
        if search.is_alive(middle):
            high = middle
        else:
            low = middle
    return search.next_message(high)


class _Search:
    """A look at the entries of one queue below ``end``."""

    __slots__ = ("_end", "_files", "_log_start", "_regions")

    def __init__(self, files: list[MappedFile], end: int, log_start: int) -> None:
        self._files = files
        self._end = end
        self._log_start = log_start
        # Held so that a file without a map of its own is not mapped for each entry.
        self._regions: dict[MappedFile, Region] = {}

    def is_alive(self, offset: int) -> bool:
        """Whether the log has this message or, for a filler, the next one there was, if any."""
        for physical_offset, size in self._entries(offset, 1):
            if _is_real(physical_offset, size):
                return physical_offset >= self._log_start
        for _, physical_offset in self._real(offset):
            return physical_offset >= self._log_start
        return True

    def next_message(self, offset: int) -> int:
        """The first entry from ``offset`` on that is, damaged or not, that of a message."""
        while entries := self._entries(offset, _AT_ONCE):
            for number, entry in enumerate(entries, offset):
                if entry != _NO_MESSAGE:
                    return number
            offset += len(entries)
        return self._end

    def _real(self, offset: int) -> Iterator[tuple[int, int]]:
        """Number and physical offset of the entries that are no fillers."""
        while offset < self._end:
            entries = self._entries(offset, _AT_ONCE)
            if not entries:
                return
            for number, (physical_offset, size) in enumerate(entries, offset):
                if _is_real(physical_offset, size):
                    yield number, physical_offset
            offset += len(entries)

    def _entries(self, offset: int, most: int) -> list[tuple[int, int]]:
        """Physical offset and size of entries of one file, at least one."""
        file = self._file_of(offset)
        if offset >= self._end or file is None:
            return []
        begin = offset * ENTRY_BYTES - file.start
        end = min(begin + most * ENTRY_BYTES, file.size, self._end * ENTRY_BYTES - file.start)
        region = self._regions.get(file)
        if region is None:
            region = self._regions[file] = file.hold()
        region.fetch(begin, end - begin)
        return [entry[:2] for entry in ENTRY.iter_unpack(region.view[begin:end])]

    def _file_of(self, offset: int) -> MappedFile | None:
        at = offset * ENTRY_BYTES
        return next((file for file in self._files if 0 <= at - file.start < file.size), None)


def _is_real(physical_offset: int, size: int) -> bool:
    return physical_offset >= 0 and 0 < size < FILLER_SIZE
