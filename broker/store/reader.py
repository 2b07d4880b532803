"""Reading messages for pulls.

A get reads one contiguous slice of the consume queue, filters by tags code or by what is in the
records, and returns slices of the log; adjacent records may share a slice. Records are not decoded,
and entries that point outside the log are not followed. The cases are in the order of
DefaultMessageStore.getMessage. Old records are validated, and left out if they are damaged
(``record_validator``).

A get that must not wait for the disk returns COLD when entries or records may not be in the page
cache; recently appended ones are assumed to be. Every get returns COLD when it meets damaged
entries, which must be restored first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import NO_MESSAGE, ConsumeQueue, QueueTable
from broker.store.limits import MAX_PULL_BYTES, MAX_PULL_MESSAGES, StoreLimits
from broker.store.page_cache import PageCacheTracker
from broker.store.record_validator import RecordValidator, TagsCodes
from broker.store.results import (
    GetResult,
    GetStatus,
    RecordFilter,
    Run,
    StoreStats,
)
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES
from remoting.protocol.message.record import FIXED_BYTES_V4

MIN_TURN_MESSAGES: Final = 64
"""The fewest messages that a filter looks into at once, for pulls of a few messages."""


_NOTHING: Final = memoryview(b"")
_NO_MESSAGE: Final = NO_MESSAGE[:2]


class EntryWindow(NamedTuple):
    """Entries and log bytes, for a caller that reads the entries itself (the fast path).

    Attributes:
        entries: of the queue, from the first message on.
        log: bytes of the log file that holds the first message, up to the end of the log.
        base: physical offset of the first byte of ``log``.
        low, high: ``min_offset`` and ``max_offset`` of the queue.
        queue: of the messages.
        offset: queue offset of the first message.
        is_old: call ``StoreReader.may_take`` before returning messages.
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
    """Reads messages of a store. Only the loop's thread uses it."""

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
        """Return the bytes of entries to examine for ``count`` messages, allowing for a filter."""
        least = self._limits.min_scan_bytes
        return max(least, count * ENTRY_BYTES) // ENTRY_BYTES * ENTRY_BYTES

    def window(self, topic: str, queue_id: int, offset: int, max_count: int) -> EntryWindow | None:
        """Return the entries that ``get`` would examine, or None if the caller must use ``get``.

        It must if there are no messages from ``offset`` on, or the entries may not be in memory.
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
        """Return whether old messages may be returned: in memory, with no need for validation.

        Args:
            window: with ``is_old``.
            scanned: number of its entries that were examined.
            begin, end: physical offsets between which all the records lie.
        """
        # The range may include records that a filter leaves out; they must be in memory too.
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
        """Count messages that were returned from windows, and their bytes."""
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
        records: RecordFilter | None = None,
        wait: bool = True,
    ) -> GetResult:
        """Return messages of a queue from ``offset`` on; see ``MessageStore.get``."""
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
        if records is not None:
            result = self._select(queue, offset, entries, count, most, records, wait=wait)
        else:
            result = self._collect(queue, offset, entries, count, most, codes, wait=wait)
        self._stats.got_messages += result.count if result.records else 0
        self._stats.got_bytes += result.size
        return result

    def _select(
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: memoryview,
        count: int,
        max_bytes: int,
        wanted: RecordFilter,
        *,
        wait: bool,
    ) -> GetResult:
        """Return the messages that a filter selects. It looks into them in turns.

        A turn that would have to wait for the disk is left to the next get, except the first turn.
        """
        low, high = queue.min_offset, queue.max_offset
        records: list[memoryview] = []
        found = size = 0
        passed = self._limits.max_filtered_bytes
        status, at = GetStatus.NO_MATCHED_MESSAGE, offset
        end = offset + min(len(entries) // ENTRY_BYTES, wanted.reach)
        while at < end and found < count and size < max_bytes and passed > 0:
            rest = entries[(at - offset) * ENTRY_BYTES :]
            left = max_bytes - size
            most = min(max(count - found, MIN_TURN_MESSAGES), end - at)
            turn = self._collect(queue, at, rest, most, left, None, wait=wait)
            if count - found < turn.count < turn.next_offset - at:
                # Some entries were left out, so the number looked into wouldn't give the offset:
                # take only as many messages as may be returned.
                turn = self._collect(queue, at, rest, count - found, left, None, wait=wait)
            if turn.status is GetStatus.COLD:
                if at == offset:
                    return turn
                break
            if turn.size > left and found:
                break
            if turn.status is GetStatus.MESSAGE_WAS_REMOVING:
                status = turn.status
            passed -= turn.size
            chosen, matched, looked = wanted.select(turn.records, count - found)
            records += chosen
            found += matched
            size += sum(map(len, chosen))
            self._stats.filtered_messages += looked - matched
            at = at + looked if found == count and looked < turn.count else turn.next_offset
            wait = False
        if not records:
            return GetResult(status, at, low, high)
        return GetResult(GetStatus.FOUND, at, low, high, records, found, size=size)

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
                # The entry points outside the log. Its tags code may be damaged too, so the filter
                # can't be applied.
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
                if matched != scanned or not self._validator.are_sound(
                    queue, offset, looked_at, runs
                ):
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
        return GetResult(GetStatus.FOUND, offset + scanned, low, high, records, found, size=size)

    def entries_outside_log(self, rows: Iterable[tuple[int, int, int]], first: int) -> list[int]:
        """Return the queue offsets of entries, other than fillers, that point outside the log.

        ``first`` is the queue offset of the first entry.
        """
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
