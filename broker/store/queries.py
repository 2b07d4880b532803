"""Queries other than pulls: queue offsets, store times, single records.

Everything here only reads, on the loop's thread. Store times are read from the record's header
without decoding the record. ``from_memory`` runs a query that raises ``NotInMemory`` instead of
waiting for the disk, and ``cold_reads`` then reads those bytes in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeVar

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import FILLER_SIZE, ConsumeQueue, QueueTable
from broker.store.page_cache import PageCacheTracker
from broker.store.record_validator import RecordValidator
from broker.store.results import FileRange
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, FILLER
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.protocol.message.record import BORN_HOST_V6, FIXED_BYTES_V4
from remoting.runtime.process_limits import memory_bytes

# Physical offset, system flag, store time behind an IPv4 and behind an IPv6 born host.
_TIMES: Final = Struct(">28xqi16xq4xq")
_SIZE: Final = Struct(">I")

_AT_ONCE: Final = 4096
"""Entries read in one step while skipping fillers: 80 KiB."""


T = TypeVar("T")


class NotInMemory(Exception):
    """The query needs bytes that are not, or may not be, in memory.

    Attributes:
        ranges: the ranges to read.
    """

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        super().__init__("it would have to be read from the disk")
        self.ranges = ranges


class Queries:
    """Answers queries about the messages of a store. Only the loop's thread uses it."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        page_cache: PageCacheTracker,
        validator: RecordValidator,
    ) -> None:
        self._log = log
        self._queues = queues
        self._page_cache = page_cache
        self._validator = validator
        self._memory_only = False
        self._memory_bytes = memory_bytes()

    def from_memory(self, ask: Callable[[], T]) -> T:
        """Return what ``ask``, one of these queries, returns, without waiting for the disk.

        Raises:
            NotInMemory: the query would wait for the disk; ``ColdReads.fetch`` the ranges that the
                exception has, then try again.
        """
        self._memory_only = True
        try:
            return ask()
        finally:
            self._memory_only = False

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Return the record at a physical offset; None when no intact record begins there."""
        if physical_offset < 0:
            return None
        self._demand(physical_offset, FIXED_BYTES_V4)
        head = self._log.slice(physical_offset, FIXED_BYTES_V4)
        if head is None or _TIMES.unpack_from(head)[0] != physical_offset:
            return None
        (size,) = _SIZE.unpack_from(head)
        self._demand(physical_offset, min(size, MAX_FRAME_BYTES))
        record = self._log.slice(physical_offset, size)
        return record if self._validator.is_sound(record, head, physical_offset) else None

    def _demand(self, physical_offset: int, length: int) -> None:
        """Raise ``NotInMemory`` if the query must not wait and bytes may not be in memory."""
        if self._memory_only and physical_offset < self._log.recent_from:
            run = (physical_offset, physical_offset + length, 1)
            if cold := self._page_cache.cold_records([run]):
                raise NotInMemory(cold)

    # --- offsets and times

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the last visible message; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message not yet deleted; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored, ms since the epoch; -1 when it can't be read."""
        queue = self._queues.get((topic, queue_id))
        return -1 if queue is None else self._store_time(queue, offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return when the queue's first message was stored, ms since the epoch; -1 for none."""
        return self.store_time_at(topic, queue_id, self.min_offset(topic, queue_id))

    def _demand_entries(self, queue: ConsumeQueue, offset: int, longest: int) -> None:
        """Like ``_demand``, for the entries that ``ConsumeQueue.entries`` returns."""
        if self._memory_only and (cold := self._page_cache.cold_entries(queue, offset, longest)):
            raise NotInMemory(cold)

    def _store_time(self, queue: ConsumeQueue, offset: int) -> int:
        self._demand_entries(queue, offset, ENTRY_BYTES)
        entry = queue.entry(offset)
        if entry is not None:
            self._demand(entry[0], entry[1])
        head = None if entry is None else self._log.slice(entry[0], FIXED_BYTES_V4)
        if head is None:
            return -1
        _, sys_flag, behind_v4, behind_v6 = _TIMES.unpack_from(head)
        return int(behind_v6 if sys_flag & BORN_HOST_V6 else behind_v4)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = ""
    ) -> int:
        """Return the queue offset of the message stored nearest to a time, ms since the epoch.

        Of messages stored at that very time it is the first. Beyond the last message it is the last
        message's offset, and 0 for a queue without any.

        Args:
            boundary: what a client of RocketMQ 5 asks for: ``LOWER`` is the first message that was
                not stored before the time, or the queue's end, and ``UPPER`` the last message that
                was not stored after it, or the first one.
        """
        if boundary == "UPPER":
            timestamp_ms += 1
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.min_offset >= queue.max_offset:
            return 0
        low = queue.min_offset
        high = found = queue.max_offset
        found_ms = -1
        while low < high:
            middle = (low + high) // 2
            offset, time_ms = self._first_message(queue, middle, high)
            if offset < high and time_ms < timestamp_ms:
                low = offset + 1
                continue
            if offset < high:
                found, found_ms = offset, time_ms
            high = middle
        # ``found`` is the first message from ``low`` on, and the entry before ``low`` is a message.
        if boundary == "LOWER":
            return found
        if boundary == "UPPER":
            return max(low - 1, queue.min_offset)
        if low == queue.min_offset:
            return low if found == queue.max_offset else found
        if found == queue.max_offset:
            return low - 1
        before = timestamp_ms - self._store_time(queue, low - 1)
        behind = found_ms - timestamp_ms
        return found if behind == 0 or before > behind else low - 1

    def _first_message(self, queue: ConsumeQueue, offset: int, end: int) -> tuple[int, int]:
        """Return offset and store time of the first readable message in ``[offset, end)``.

        Without any they are ``end`` and -1.
        """
        while offset < end:
            time_ms = self._store_time(queue, offset)
            if time_ms >= 0:
                return offset, time_ms
            offset = self._skip_fillers(queue, offset + 1, end)
        return end, -1

    def _skip_fillers(self, queue: ConsumeQueue, offset: int, end: int) -> int:
        """Return the first offset from ``offset`` on that may have a message; ``end`` if none."""
        while offset < end:
            longest = min(end - offset, _AT_ONCE) * ENTRY_BYTES
            self._demand_entries(queue, offset, longest)
            entries = bytes(queue.entries(offset, longest) or b"")
            if not entries:
                # Its file can't be read: the messages of the next one may be readable.
                offset = queue.next_file_offset(offset)
                continue
            count = len(entries) // ENTRY_BYTES
            if entries != FILLER * count:
                for number, (_, size, _) in enumerate(ENTRY.iter_unpack(entries), offset):
                    if 0 < size < FILLER_SIZE:
                        return number
            offset += count
        return end

    def is_offset_in_memory(self, topic: str, queue_id: int, offset: int, percent: float) -> bool:
        """Return whether a message is in the newest part of the log, of ``percent`` of the memory.

        True also when there is no such message: RocketMQ's rule for groups without an offset needs
        that (cf. checkInDiskByConsumeOffset).
        """
        queue = self._queues.get((topic, queue_id))
        entry = None if queue is None else queue.entry(offset)
        return entry is None or (self._log.end - entry[0]) * 100 <= self._memory_bytes * percent
