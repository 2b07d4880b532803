"""What a store knows of its messages without pulling them: positions, times, single records.

Queries about a queue decode no record. What was appended recently is taken to be in memory and
unchanged; everything else is looked up in the page cache (``warmth``) and checked (``soundness``).
Everything here only reads, on the loop's thread; what has to wait for the disk is read in a thread
(``cold_reads``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from struct import Struct
from typing import Final, TypeVar

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.limits import (
    HOT_LOG_BYTES,
    HOT_QUEUE_ENTRIES,
    MAX_PULL_BYTES,
    READ_IN_MEMORY_RATIO,
    TRUSTED_MEMORY_RATIO,
)
from broker.store.opening import Parts
from broker.store.queue_table import QueueTable
from broker.store.range_bytes import measure
from broker.store.reader import Window
from broker.store.results import FileRange, GetResult, StoreStats
from broker.store.soundness import Run, Soundness, TagsCodes
from broker.store.warmth import Warmth
from remoting.process_limits import memory_bytes
from remoting.protocol.byte_range import ByteAnswer, ByteQuestion
from remoting.protocol.disk.files import ENTRY_BYTES
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.protocol.message.record import BORN_HOST_V6, FIXED_BYTES_V4

# Physical offset, system flag, store time behind an IPv4 and behind an IPv6 born host.
_TIMES: Final = Struct(">28xqi16xq4xq")
_SIZE: Final = Struct(">I")


class NotInMemory(Exception):
    """What was asked for lies, or may lie, on the disk alone.

    Attributes:
        ranges: where.
    """

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        super().__init__("it would have to be read from the disk")
        self.ranges = ranges


class Lookups:
    """Answers about the messages of a store; only the loop's thread comes here.

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
        return [] if cold is None or self._warmth.is_warm(*cold) else [cold]

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


T = TypeVar("T")


class StoreReads(ABC):
    """The reading half of ``MessageStore``."""

    @abstractmethod
    def _opened(self) -> Parts:
        """The parts of the store. Raises ``StoreError`` when it is not open."""

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
        """Messages of a queue from ``offset`` on.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            offset: number of the first message wanted.
            max_count: messages at most; never more than ``MAX_PULL_MESSAGES``.
            max_bytes: of records at most, but at least one record.
            codes: tags codes of the messages wanted; None for all.
            wait: whether the thread may wait for the disk. If not, the status may be COLD, and
                ``get_patiently`` gets the messages.

        Raises:
            StoreBusy: damaged entries can't be restored now.
            StoreError: the store is not open.
        """
        parts = self._opened()
        while True:
            result = parts.reader.get(
                topic, queue_id, offset, max_count, max_bytes=max_bytes, codes=codes, wait=wait
            )
            if not (wait and result.broken):
                return result
            parts.cold_reads.restore_now(topic, queue_id, result.broken)

    def window(self, topic: str, queue_id: int, offset: int, max_count: int) -> Window | None:
        """Where the messages lie that ``get`` would give; see ``Reader.window``, and ``took``."""
        return self._opened().reader.window(topic, queue_id, offset, max_count)

    def may_take(self, window: Window, scanned: int, begin: int, end: int) -> bool:
        """Whether what was chosen of an old window may be taken; see ``Reader.may_take``."""
        return self._opened().reader.may_take(window, scanned, begin, end)

    def took(self, gets: int, messages: int, size: int) -> None:
        """So many messages have been taken from windows; for the counters."""
        self._opened().reader.took(gets, messages, size)

    async def get_patiently(
        self,
        owner: Hashable,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int = MAX_PULL_BYTES,
        codes: TagsCodes | None = None,
    ) -> GetResult:
        """The same, with what is not in memory read in a thread; never COLD.

        Args:
            owner: who asks; of those who wait each gets its turn.

        Raises:
            StoreBusy: too many wait already.
            StoreError: the store is not open, or the disk can't be read.
        """
        return await self._opened().cold_reads.get(
            owner, topic, queue_id, offset, max_count, max_bytes=max_bytes, codes=codes
        )

    async def tags_codes(
        self, owner: Hashable, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[int]:
        """What the next entries of a queue carry as tags code; damaged ones are restored first.

        See ``entries``.
        """
        parts = self._opened()
        queue = parts.queues.get((topic, queue_id))
        if queue is None:
            return []
        return await parts.cold_reads.tags_codes(owner, queue, offset, max_count)

    async def entries(
        self, owner: Hashable, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[tuple[int, int, int]]:
        """Physical offset, size and tags code of the next entries of a queue, as they are.

        The disk is waited for in a thread.

        Args:
            owner: as for ``get_patiently``.
            topic: of the queue.
            queue_id: of the queue.
            offset: number of the first message asked about.
            max_count: entries at most; there may be fewer though more messages follow.

        Returns:
            Nothing when the queue does not have ``offset``.

        Raises:
            StoreBusy: too many wait already.
            StoreError: the store is not open, or the disk can't be read.
        """
        parts = self._opened()
        queue = parts.queues.get((topic, queue_id))
        if queue is None:
            return []
        return await parts.cold_reads.entries(owner, queue, offset, max_count)

    async def bytes_of(
        self, owner: Hashable, topic: str, queue_id: int, question: ByteQuestion
    ) -> ByteAnswer:
        """How many bytes of the log a range of messages takes, and how far a limit reaches.

        Raises as ``entries``; a queue that isn't there has no messages.
        """
        parts = self._opened()
        queue = parts.queues.get((topic, queue_id))
        if queue is None:
            return ByteAnswer(0, question.begin)
        return await measure(parts.cold_reads, owner, queue, question)

    def from_memory(self, ask: Callable[[], T]) -> T:
        """What a question about single messages gives, as long as it need not wait for the disk.

        Raises:
            NotInMemory: it would have to; ``fetch`` what that names and ask again.
        """
        reader = self._opened().reader
        reader.memory_only = True
        try:
            return ask()
        finally:
            reader.memory_only = False

    async def fetch(self, owner: Hashable, ranges: Sequence[FileRange]) -> None:
        """Have ranges in memory, read in a thread. Raises as ``get_patiently``."""
        await self._opened().cold_reads.fetch(owner, ranges)

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record that begins at a place of the log; None when none does."""
        return self._opened().reader.record_at(physical_offset)

    async def record_patiently(self, owner: Hashable, physical_offset: int) -> memoryview | None:
        """The same, with what is not in memory read in a thread. Raises as ``get_patiently``."""
        return await self._opened().cold_reads.record_at(owner, physical_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last visible message; 0 for a queue that has none."""
        return self._opened().reader.max_offset(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first message that is still there; 0 for a queue that never had one."""
        return self._opened().reader.min_offset(topic, queue_id)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The message stored nearest to a time; the last one's number beyond it, 0 for none."""
        return self._opened().reader.offset_by_time(topic, queue_id, timestamp_ms)

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, ms; -1 when it can't be read."""
        return self._opened().reader.store_time_at(topic, queue_id, offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """When the queue's first message was stored, ms; -1 when there is none."""
        return self._opened().reader.earliest_store_time(topic, queue_id)

    def is_offset_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is taken to be in the page cache; also when there is no such one."""
        return self._opened().reader.is_offset_in_memory(topic, queue_id, offset)

    # --- where things begin and end

    def topics_on_disk(self) -> list[str]:
        """Sorted names of the topics that have a queue."""
        return self._opened().queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Sorted ids of the queues that a topic has in this store."""
        return self._opened().queues.queue_ids(topic)

    @property
    def start_offset(self) -> int:
        """Physical offset of the first byte of the log that is still there."""
        return self._opened().log.start

    @property
    def end_offset(self) -> int:
        """Physical offset behind the last record."""
        return self._opened().log.end

    @property
    def durable_offset(self) -> int:
        """Physical offset up to which the log is on the disk."""
        return self._opened().log_flusher.flushed
