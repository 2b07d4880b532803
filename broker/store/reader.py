"""Getting messages: what a pull returns.

A get looks at one contiguous slice of the consume queue, skips by tags code, and returns slices of
the log; adjacent records come as one. No record is decoded, and an entry that points outside the
valid log is never followed. The order of the cases is that of DefaultMessageStore.getMessage. Old
records are checked, and left out if they are damaged (``record_validator``).

A get that may not wait for the disk returns COLD instead, once for entries and once for records
that are not known to be in the page cache. What was appended recently is not looked up. Any get
returns COLD if it meets damaged entries: they have to be restored first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress, count, pairwise
from operator import add, ne
from struct import Struct
from typing import Final, NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import NO_MESSAGE, ConsumeQueue, QueueTable
from broker.store.limits import MAX_PULL_BYTES, MAX_PULL_MESSAGES, StoreLimits
from broker.store.page_cache import PageCacheTracker
from broker.store.record_validator import RecordValidator, TagsCodes
from broker.store.results import FileRange, GetResult, GetStatus, Run, StoreStats
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES
from remoting.protocol.message.record import FIXED_BYTES_V4

MIN_RUNS_MESSAGES: Final = 65
"""From here on adjacent records are looked for: Apache's clients pull 32 at a time, ours 512."""


class Span(NamedTuple):
    """Some of a get's messages.

    Attributes:
        place: from the first one's begin to the last one's end, with what may lie between.
        low: index of the first one.
        high: index behind the last one.
    """

    place: FileRange
    low: int
    high: int


def spans_of(log: CommitLog, starts: Sequence[int], sizes: Sequence[int], near: int) -> list[Span]:
    """The spans of consecutive messages; none when one of them is in no file, or not in one whole.

    Messages belong to one span if no more than ``near`` bytes are between them.

    Args:
        log: what they lie in.
        starts: physical offset of each.
        sizes: of each.
        near: see above.
    """
    spans = []
    file = None
    low = begin = end = limit = base = 0
    for index, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        behind = start + size
        if end <= start <= end + near and behind <= limit:
            end = behind
            continue
        if file is not None:
            spans.append(Span(FileRange(file, begin - base, end - base), low, index))
        file = log.file_at(start)
        if file is None or behind > file.start + file.size:
            return []
        low, begin, end, base = index, start, behind, file.start
        limit = base + file.size
    if file is not None:
        spans.append(Span(FileRange(file, begin - base, end - base), low, len(starts)))
    return spans


def slices_of(
    view: memoryview, base: int, starts: Sequence[int], sizes: Sequence[int]
) -> list[memoryview]:
    """Slices of a file that begins at physical offset ``base``: its records, one after the other.

    Of a few records each has its own: queues in turns leave no two side by side. Of many, those
    that are adjacent come as one, as a producer's batches left them.
    """
    if len(starts) < MIN_RUNS_MESSAGES:
        return [
            view[start - base : start - base + size]
            for start, size in zip(starts, sizes, strict=True)
        ]
    ends = list(map(add, starts, sizes))
    breaks = compress(count(1), map(ne, ends, starts[1:]))
    bounds = pairwise((0, *breaks, len(starts)))
    return [view[starts[low] - base : ends[high - 1] - base] for low, high in bounds]


_NOTHING: Final = memoryview(b"")
_NO_MESSAGE: Final = NO_MESSAGE[:2]

_TAKEN_AT_ONCE: Final = 64
"""Entries unpacked in one step."""

_PLACES: Final = [Struct(">" + "qi8x" * n).unpack_from for n in range(_TAKEN_AT_ONCE + 1)]
"""By number of entries: unpacks where each record begins and how long it is, alternately."""


def _positions(entries: memoryview, count: int) -> tuple[int, ...]:
    if count <= _TAKEN_AT_ONCE:
        return _PLACES[count](entries)
    places: list[int] = []
    for first in range(0, count, _TAKEN_AT_ONCE):
        unpack = _PLACES[min(_TAKEN_AT_ONCE, count - first)]
        places += unpack(entries, first * ENTRY_BYTES)
    return tuple(places)


class EntryWindow(NamedTuple):
    """Where messages lie, for a caller that looks at the entries itself.

    Attributes:
        entries: of the queue, from the first message on.
        log: of the log's file in which the first message lies, up to the last record.
        base: physical offset of the first byte of ``log``.
        low, high: the queue's bounds.
        queue: whose messages they are.
        offset: the number of the first message.
        is_old: ask ``StoreReader.may_take`` before messages are taken.
    """

    entries: memoryview
    log: memoryview
    base: int
    low: int
    high: int
    queue: ConsumeQueue
    offset: int
    is_old: bool


class StoreReader:
    """Reads a store; only the loop's thread comes here."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        page_cache: PageCacheTracker,
        validator: RecordValidator,
        limits: StoreLimits,
        stats: StoreStats,
    ) -> None:
        self._log = log
        self._queues = queues
        self._page_cache = page_cache
        self._validator = validator
        self._limits = limits
        self._stats = stats

    def _window_bytes(self, count: int) -> int:
        """Of the entries looked at for ``count`` messages: more of them, for a filter."""
        least = self._limits.min_scan_bytes
        return max(least, count * ENTRY_BYTES) // ENTRY_BYTES * ENTRY_BYTES

    def window(self, topic: str, queue_id: int, offset: int, max_count: int) -> EntryWindow | None:
        """What ``get`` would look at; None where only ``get`` knows what to do.

        So it is if there are no messages from ``offset`` on, or the entries may have left memory.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return None
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return None
        longest = self._window_bytes(max_count)
        if not queue.is_recent(offset) and self._page_cache.cold_entries(queue, offset, longest):
            return None
        entries = queue.entries(offset, longest)
        if entries is None:
            return None
        first = ENTRY.unpack_from(entries)[0]
        file = self._log.file_at(first)
        if file is None:
            return None
        try:
            view = file.view
        except OSError:
            return None
        is_old = first < self._log.recent_from or offset < queue.opened_offset
        log = view[: self._log.end - file.start]
        return EntryWindow(entries, log, file.start, low, high, queue, offset, is_old)

    def may_take(self, window: EntryWindow, scanned: int, begin: int, end: int) -> bool:
        """Whether old messages are in memory and as they were stored, for all that is known.

        Args:
            window: where they lie.
            scanned: how many of its entries were looked at.
            begin, end: all their records lie between these physical offsets.
        """
        # A filter takes a few of many: those that it leaves out only have to be in memory as well.
        if end - begin > self._limits.max_probes * self._limits.block_bytes:
            return False
        file = self._log.file_at(begin)
        if file is None or not self._page_cache.is_resident(
            file, begin - file.start, end - file.start
        ):
            return False
        offset = window.offset
        return not self._page_cache.needs_check(window.queue, offset, offset + scanned, begin)

    def took(self, gets: int, messages: int, size: int) -> None:
        """So many messages have been taken from windows."""
        self._stats.gets += gets
        self._stats.got_messages += messages
        self._stats.got_bytes += size

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int = MAX_PULL_BYTES,
        codes: TagsCodes | None = None,
        wait: bool = True,
    ) -> GetResult:
        """Messages of a queue from ``offset`` on; see ``GetResult``."""
        self._stats.gets += 1
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        count = max(1, min(max_count, MAX_PULL_MESSAGES))
        window = self._window_bytes(count)
        if not wait and (cold := self._page_cache.cold_entries(queue, offset, window)):
            return GetResult(GetStatus.COLD, offset, low, high, cold=cold)
        entries = queue.entries(offset, window)
        if entries is None:
            following = min(queue.next_file_offset(offset), high)
            return GetResult(GetStatus.OFFSET_FOUND_NULL, following, low, high)
        most = min(max_bytes, MAX_PULL_BYTES)
        if codes is None:
            found = self._take_all(queue, offset, entries, count, most, wait=wait)
            if found is not None:
                return found
        return self._collect(queue, offset, entries, count, most, codes, wait=wait)

    def _take_all(
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: memoryview,
        count: int,
        max_bytes: int,
        *,
        wait: bool,
    ) -> GetResult | None:
        """The usual get: no filter, and sound entries of sound records that are in memory.

        None when it isn't like that; ``_collect`` then looks at each entry.
        """
        count = min(count, len(entries) // ENTRY_BYTES)
        places = _positions(entries, count)
        starts, sizes = places[::2], places[1::2]
        total, first = sum(sizes), starts[0]
        if total > max_bytes:
            count = max(1, bisect_right(list(accumulate(sizes)), max_bytes))
            starts, sizes = starts[:count], sizes[:count]
            total = sum(sizes)
        end = max(map(add, starts, sizes))
        log = self._log
        if (
            end > log.end
            or min(sizes) < FIXED_BYTES_V4
            or min(starts) < first
            or (file := log.file_at(first)) is None
        ):
            return None
        # Only old records may be out of memory, or may have come from a damaged disk.
        is_old = first < log.recent_from or offset < queue.opened_offset
        asks = is_old and not wait
        base = file.start
        if end > base + file.size or (is_old and end - first > self._limits.max_span_bytes):
            records = self._spread_records(queue, offset, starts, sizes, asks=asks)
            if records is None:
                return None
        else:
            if asks and not self._page_cache.is_resident(file, first - base, end - base):
                return None
            try:
                view = file.view
            except OSError:
                return None
            if (
                is_old
                and self._page_cache.needs_check(queue, offset, offset + count, first)
                and not self._validator.are_sound(queue, offset, starts, sizes, view, base)
            ):
                return None
            if end - first == total:
                records = [view[first - base : end - base]]
            else:
                records = slices_of(view, base, starts, sizes)
        self._stats.got_messages += count
        self._stats.got_bytes += total
        return GetResult(
            GetStatus.FOUND,
            offset + count,
            queue.min_offset,
            queue.max_offset,
            records,
            count,
            size=total,
        )

    def _spread_records(
        self,
        queue: ConsumeQueue,
        offset: int,
        starts: Sequence[int],
        sizes: Sequence[int],
        *,
        asks: bool,
    ) -> list[memoryview] | None:
        """The records of messages that lie in several places or files; None as ``_take_all``."""
        spans = spans_of(self._log, starts, sizes, self._limits.block_bytes)
        if not spans or (
            asks and not self._page_cache.are_resident([span.place for span in spans])
        ):
            return None
        views = {}
        try:
            for (file, _, _), _, _ in spans:
                if file not in views:
                    views[file] = file.view
        except OSError:
            return None
        if self._page_cache.needs_check(queue, offset, offset + len(starts), starts[0]):
            for (file, _, _), low, high in spans:
                if not self._validator.are_sound(
                    queue, offset + low, starts[low:high], sizes[low:high], views[file], file.start
                ):
                    return None
        records = []
        for (file, begin, behind), low, high in spans:
            view = views[file]
            if behind - begin == sum(sizes[low:high]):
                records.append(view[begin:behind])
            else:
                records += slices_of(view, file.start, starts[low:high], sizes[low:high])
        return records

    def _collect(  # noqa: PLR0912 - one pass over entries
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: memoryview,
        count: int,
        max_bytes: int,
        codes: TagsCodes | None,
        *,
        wait: bool,
    ) -> GetResult:
        end = self._log.end
        length = end - self._log.start
        runs: list[Run] = []
        run_at = run_end = -1
        broken: list[int] = []
        total = matched = run_count = scanned = bad = damaged = 0
        for physical_offset, size, tags_code in ENTRY.iter_unpack(entries):
            if matched >= count or (matched and total + size > max_bytes):
                break
            scanned += 1
            if not FIXED_BYTES_V4 <= size <= end - physical_offset <= length:
                # It points outside the log. Its tags code may be damaged as well, so a filter can't
                # decide whether the message is wanted.
                if (physical_offset, size) != _NO_MESSAGE:
                    broken.append(offset + scanned - 1)
                elif codes is None or tags_code in codes:
                    bad += 1
                continue
            if codes is not None and tags_code not in codes:
                continue
            if physical_offset != run_end:
                if run_count:
                    runs.append((run_at, run_end, run_count))
                run_at, run_count = physical_offset, 0
            run_end = physical_offset + size
            run_count += 1
            matched += 1
            total += size
        if run_count:
            runs.append((run_at, run_end, run_count))
        low, high = queue.min_offset, queue.max_offset
        if broken:
            return GetResult(GetStatus.COLD, offset, low, high, broken=broken)
        if runs and (runs[0][0] < self._log.recent_from or offset < queue.opened_offset):
            if not wait and (cold := self._page_cache.cold_records(runs)):
                return GetResult(GetStatus.COLD, offset, low, high, count=matched, cold=cold)
            if self._page_cache.needs_check(queue, offset, offset + scanned, runs[0][0]):
                looked_at = entries[: scanned * ENTRY_BYTES]
                runs, damaged, broken = self._validator.filter_valid(
                    queue, offset, looked_at, codes
                )
                if broken:
                    return GetResult(GetStatus.COLD, offset, low, high, broken=broken)
        records, found = self._slices(runs)
        bad += matched - found - damaged
        if not records:
            removed = bad or damaged
            status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
            return GetResult(status, offset + scanned, low, high)
        size = sum(map(len, records))
        self._stats.got_messages += found
        self._stats.got_bytes += size
        return GetResult(GetStatus.FOUND, offset + scanned, low, high, records, found, size=size)

    def outside(self, rows: Iterable[tuple[int, int, int]], first: int) -> list[int]:
        """Which entries of messages point outside the log; ``first`` is the first one's number."""
        end = self._log.end
        length = end - self._log.start
        return [
            number
            for number, (place, size, _) in enumerate(rows, first)
            if not FIXED_BYTES_V4 <= size <= end - place <= length and (place, size) != _NO_MESSAGE
        ]

    def _slices(self, runs: list[Run]) -> tuple[list[memoryview], int]:
        records = []
        found = 0
        base = limit = 0
        view = _NOTHING
        for start, end, records_of_run in runs:
            if not (base <= start and end <= limit):
                file = self._log.file_at(start)
                if file is None or end > file.start + file.size:
                    continue
                try:
                    view = file.view
                except OSError:
                    continue
                base, limit = file.start, file.start + file.size
            records.append(view[start - base : end - base])
            found += records_of_run
        return records, found
