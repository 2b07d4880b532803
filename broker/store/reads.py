"""What can be asked of an open store: messages of a queue, single records, offsets and times.

Everything here only reads, on the loop's thread; what has to wait for the disk is read in a thread
(``cold_reads``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from broker.store.limits import MAX_PULL_BYTES
from broker.store.parts import Parts
from broker.store.range_bytes import measure
from broker.store.reader import Window
from broker.store.results import FileRange, GetResult
from broker.store.soundness import TagsCodes
from remoting.protocol.byte_range import ByteAnswer, ByteQuestion

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
