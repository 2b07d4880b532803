"""Reading: what a pull gets, and the questions about a queue that need no record decoded.

A get looks at one contiguous slice of the consume queue, skips by tags code, and returns slices of
the log; adjacent records come as one. No record is decoded, and an entry that points outside the
valid log is never followed. The order of the cases is that of DefaultMessageStore.getMessage.
Records from long ago are checked, and left out when they are damaged (``soundness``).

A get that must not wait for the disk says COLD instead, once for entries and once for records that
are not, or not known to be, in the page cache. What was appended not long ago is not asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from struct import Struct
from typing import Final

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.limits import (
    HOT_LOG_BYTES,
    HOT_QUEUE_ENTRIES,
    MAX_PULL_BYTES,
    MAX_PULL_MESSAGES,
    MIN_SCAN_BYTES,
    READ_IN_MEMORY_RATIO,
    TRUSTED_MEMORY_RATIO,
    memory_bytes,
)
from broker.store.queue_table import QueueTable
from broker.store.results import FileRange, GetResult, GetStatus
from broker.store.soundness import Accept, Run, Soundness
from broker.store.stats import StoreStats
from broker.store.warmth import Warmth
from remoting.protocol.disk.consume_queue_entry import ENTRY, ENTRY_BYTES
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.protocol.message.record import FIXED_BYTES_V4
from remoting.protocol.message.sys_flag import BORN_HOST_V6

# Physical offset, system flag, store time behind an IPv4 and behind an IPv6 born host.
_TIMES: Final = Struct(">28xqi16xq4xq")
_SIZE: Final = Struct(">I")
_NOTHING: Final = memoryview(b"")

_TAKEN_AT_ONCE: Final = 64
"""Entries unpacked in one step."""

_PLACES: Final = [Struct(">" + "qi8x" * n).unpack_from for n in range(_TAKEN_AT_ONCE + 1)]
"""Of so many entries where their records begin and how long they are, in turns."""


class NotInMemory(Exception):
    """What was asked for lies, or may lie, on the disk alone.

    Attributes:
        ranges: where.
    """

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        super().__init__("it would have to be read from the disk")
        self.ranges = ranges


class Reader:
    """Reads a store; only the loop's thread comes here.

    Attributes:
        memory_only: questions about single messages raise ``NotInMemory`` rather than wait.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        stats: StoreStats,
        warmth: Warmth,
        soundness: Soundness,
    ) -> None:
        self._log = log
        self._queues = queues
        self._stats = stats
        self._warmth = warmth
        self._soundness = soundness
        self._opened_end = log.end
        self._cold_end = 0
        self.memory_only = False
        self._memory = memory_bytes()
        self._in_memory_bytes = int(self._memory * READ_IN_MEMORY_RATIO)

    # --- messages

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int = MAX_PULL_BYTES,
        accept: Accept | None = None,
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
        window = max(MIN_SCAN_BYTES, count * ENTRY_BYTES) // ENTRY_BYTES * ENTRY_BYTES
        if not wait and (cold := self._cold_entries(queue, offset, window)):
            return GetResult(GetStatus.COLD, offset, low, high, cold=cold)
        entries = queue.entries(offset, window)
        if entries is None:
            following = min(queue.next_file_offset(offset), high)
            return GetResult(GetStatus.OFFSET_FOUND_NULL, following, low, high)
        most = min(max_bytes, MAX_PULL_BYTES)
        if accept is None:
            found = self._take_all(queue, offset, entries, count, most, wait=wait)
            if found is not None:
                return found
        return self._collect(queue, offset, entries, count, most, accept, wait=wait)

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
        """The usual get: no filter, sound entries and records, these in one file, in memory.

        None when it isn't like that; ``_collect`` then looks at each entry.
        """
        count = min(count, len(entries) // ENTRY_BYTES)
        if count > _TAKEN_AT_ONCE:
            return None
        places = _PLACES[count](entries)
        starts, sizes = places[::2], places[1::2]
        total, first = sum(sizes), starts[0]
        end = max(map(add, starts, sizes))
        log = self._log
        if (
            total > max_bytes
            or end > log.end
            or min(sizes) < FIXED_BYTES_V4
            or min(starts) < first
            or (file := log.file_at(first)) is None
            or end > file.start + file.size
        ):
            return None
        is_old = first < self._hot_from or offset < queue.opened_offset
        if is_old and not wait and not self._warmth.is_warm(file, first, end):
            return None
        try:
            view = file.view
        except OSError:
            return None
        base = file.start
        if (
            is_old
            and self._is_doubtful(queue, offset, first)
            and not self._soundness.are_sound(queue, offset, starts, sizes, view, base)
        ):
            return None
        if end - first == total:
            records = [view[first - base : end - base]]
        else:
            records = [
                view[start - base : start - base + size]
                for start, size in zip(starts, sizes, strict=True)
            ]
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

    def _collect(
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: memoryview,
        count: int,
        max_bytes: int,
        accept: Accept | None,
        *,
        wait: bool,
    ) -> GetResult:
        start, end = self._log.start, self._log.end
        runs: list[Run] = []
        run_at = run_end = -1
        total = matched = run_count = scanned = bad = damaged = 0
        for physical_offset, size, tags_code in ENTRY.iter_unpack(entries):
            if matched >= count or (matched and total + size > max_bytes):
                break
            scanned += 1
            if accept is not None and not accept(tags_code):
                continue
            if physical_offset < start or size < FIXED_BYTES_V4 or physical_offset + size > end:
                bad += 1
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
        if runs and (runs[0][0] < self._hot_from or offset < queue.opened_offset):
            if not wait and (cold := self._cold(runs)):
                return GetResult(GetStatus.COLD, offset, low, high, count=matched, cold=cold)
            if self._is_doubtful(queue, offset, runs[0][0]) and not self._soundness.is_known(
                queue, offset, offset + scanned
            ):
                looked_at = entries[: scanned * ENTRY_BYTES]
                runs, damaged = self._soundness.sift(queue, offset, looked_at, accept)
        records, found = self._slices(runs)
        bad += matched - found - damaged
        if bad:
            self._stats.bad_entries += bad
        if not records:
            removed = bad or damaged
            status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
            return GetResult(status, offset + scanned, low, high)
        size = sum(map(len, records))
        self._stats.got_messages += found
        self._stats.got_bytes += size
        return GetResult(GetStatus.FOUND, offset + scanned, low, high, records, found, size=size)

    def _slices(self, runs: list[Run]) -> tuple[list[memoryview], int]:
        records = []
        found = 0
        base = limit = 0
        view = _NOTHING
        for start, end, count in runs:
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
            found += count
        return records, found

    @property
    def _hot_from(self) -> int:
        """Physical offset from which on records were appended not long ago."""
        return max(self._opened_end, self._log.end - HOT_LOG_BYTES)

    def _is_doubtful(self, queue: ConsumeQueue, offset: int, first: int) -> bool:
        """Whether messages from ``offset`` on, at ``first`` in the log, may be other than stored.

        What this process appended and what has not left memory since, for all that is known, is as
        it was.
        """
        newest = self._log.end - max(HOT_LOG_BYTES, self._memory * TRUSTED_MEMORY_RATIO)
        return first < max(self._opened_end, self._cold_end, newest) or (
            offset < queue.opened_offset
        )

    def _cold(self, runs: list[Run]) -> list[FileRange]:
        """Where the records of runs lie, if some of them may not be in memory."""
        ranges = []
        for start, end, _ in runs:
            file = self._log.file_at(start)
            if file is not None:
                ranges.append(FileRange(file, start - file.start, min(end - file.start, file.size)))
        if self._warmth.are_warm(ranges):
            return []
        # What is older left memory before it.
        self._cold_end = max(self._cold_end, runs[-1][1])
        return ranges

    def _cold_entries(self, queue: ConsumeQueue, offset: int, longest: int) -> list[FileRange]:
        """Where entries lie, if some of them may not be in memory."""
        if offset >= max(queue.opened_offset, queue.max_offset - HOT_QUEUE_ENTRIES):
            return []
        cold = queue.range_of(offset, longest)
        return [] if cold is None or self._warmth.are_warm((cold,)) else [cold]

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record that begins at a place of the log; None when none does, or a damaged one."""
        if self.memory_only and (cold := self.cold_at(physical_offset, FIXED_BYTES_V4)):
            raise NotInMemory(cold)
        head = self._log.slice(physical_offset, FIXED_BYTES_V4) if physical_offset >= 0 else None
        if head is None or _TIMES.unpack_from(head)[0] != physical_offset:
            return None
        (size,) = _SIZE.unpack_from(head)
        longest = min(size, MAX_FRAME_BYTES)
        if self.memory_only and (cold := self.cold_at(physical_offset, longest)):
            raise NotInMemory(cold)
        record = self._log.slice(physical_offset, size)
        return record if self._soundness.is_sound(record, head, physical_offset) else None

    def cold_at(self, physical_offset: int, length: int) -> list[FileRange]:
        """Where bytes of the log lie that may not be in memory; nothing if they are."""
        if physical_offset < 0 or physical_offset >= self._hot_from:
            return []
        return self._cold([(physical_offset, physical_offset + length, 1)])

    def size_at(self, physical_offset: int) -> int:
        """What a record that begins there says of its size; 0 when none can."""
        head = self._log.slice(physical_offset, FIXED_BYTES_V4) if physical_offset >= 0 else None
        return 0 if head is None else int(_SIZE.unpack_from(head)[0])

    # --- offsets and times

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last visible message; 0 for a queue that has none."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first message that is still there; 0 for a queue that never had one."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, ms; -1 when it can't be read."""
        queue = self._queues.get((topic, queue_id))
        return -1 if queue is None else self._store_time(queue, offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """When the queue's first message was stored, ms; -1 when there is none."""
        return self.store_time_at(topic, queue_id, self.min_offset(topic, queue_id))

    def _store_time(self, queue: ConsumeQueue, offset: int) -> int:
        if self.memory_only and (cold := self._cold_entries(queue, offset, ENTRY_BYTES)):
            raise NotInMemory(cold)
        entry = queue.entry(offset)
        if entry is not None and self.memory_only and (cold := self.cold_at(entry[0], entry[1])):
            raise NotInMemory(cold)
        head = None if entry is None else self._log.slice(entry[0], FIXED_BYTES_V4)
        if head is None:
            return -1
        _, sys_flag, behind_v4, behind_v6 = _TIMES.unpack_from(head)
        return int(behind_v6 if sys_flag & BORN_HOST_V6 else behind_v4)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The message stored nearest to a time, the first of equal ones.

        The last message's number beyond the last time; 0 when there is no message.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.min_offset >= queue.max_offset:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            if self._store_time(queue, middle) >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        if low == queue.max_offset:
            return low - 1
        if low == queue.min_offset:
            return low
        before = timestamp_ms - self._store_time(queue, low - 1)
        behind = self._store_time(queue, low) - timestamp_ms
        return low if behind == 0 or before > behind else low - 1

    def is_offset_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is taken to be in the page cache (cf. checkInDiskByConsumeOffset).

        Also true when there is no such message, as the rule for groups without offset wants it.
        """
        queue = self._queues.get((topic, queue_id))
        entry = None if queue is None else queue.entry(offset)
        return entry is None or self._log.end - entry[0] <= self._in_memory_bytes
