"""What a store knows of its messages without pulling them: positions, times, single records.

Queries about a queue decode no record. Everything here only reads, on the loop's thread; what is
not in memory (``page_cache``) is read in a thread (``cold_reads``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeVar

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.limits import StoreLimits
from broker.store.page_cache import PageCacheTracker
from broker.store.record_validator import RecordValidator
from broker.store.results import FileRange
from remoting.process_limits import memory_bytes
from remoting.protocol.disk.files import ENTRY_BYTES
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.protocol.message.record import BORN_HOST_V6, FIXED_BYTES_V4

# Physical offset, system flag, store time behind an IPv4 and behind an IPv6 born host.
_TIMES: Final = Struct(">28xqi16xq4xq")
_SIZE: Final = Struct(">I")


T = TypeVar("T")


class NotInMemory(Exception):
    """The answer needs bytes that are, or may be, on the disk alone.

    Attributes:
        ranges: where.
    """

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        super().__init__("it would have to be read from the disk")
        self.ranges = ranges


class Queries:
    """Answers about the messages of a store; only the loop's thread comes here."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        page_cache: PageCacheTracker,
        validator: RecordValidator,
        limits: StoreLimits,
    ) -> None:
        self._log = log
        self._queues = queues
        self._page_cache = page_cache
        self._validator = validator
        self._memory_only = False
        self._in_memory_bytes = int(memory_bytes() * limits.read_in_memory_ratio)

    def from_memory(self, ask: Callable[[], T]) -> T:
        """See ``MessageStore.from_memory``."""
        self._memory_only = True
        try:
            return ask()
        finally:
            self._memory_only = False

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record that begins at a place of the log; None when none does, or a damaged one."""
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
        """Raises ``NotInMemory`` if bytes of the log may not be in memory, but have to be."""
        if self._memory_only and physical_offset < self._log.recent_from:
            run = (physical_offset, physical_offset + length, 1)
            if cold := self._page_cache.cold_records([run]):
                raise NotInMemory(cold)

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
        if self._memory_only and (
            cold := self._page_cache.cold_entries(queue, offset, ENTRY_BYTES)
        ):
            raise NotInMemory(cold)
        entry = queue.entry(offset)
        if entry is not None:
            self._demand(entry[0], entry[1])
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
