"""Gets that have to wait for the disk: a few threads read into the page cache for the loop.

When a get returns COLD, a thread reads the missing ranges into the page cache, and the get runs
again. Its queue entries may be cold first, then the records they point to. What was fetched for a
get is not looked up again, so two fetches are enough. The threads only read files, with a small
buffer each; everything else, including the answer, is done on the loop, and no slice of a map is
held meanwhile.

Owners (connections) that wait are served round robin, so one that sends many cold pulls does not
delay the others.

A get that meets damaged entries waits until the log has been searched for their messages
(``restore``). That may take long, so only one search runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.limits import MAX_PULL_BYTES, StoreLimits
from broker.store.page_cache import PageCacheTracker
from broker.store.queries import NotInMemory, Queries
from broker.store.reader import StoreReader
from broker.store.record_validator import TagsCodes
from broker.store.restore import Restorer, find_entries
from broker.store.results import (
    CLOSING,
    FileRange,
    GetResult,
    GetStatus,
    RecordFilter,
    StoreBusy,
    StoreError,
    StoreStats,
)
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES

_NO_ENTRIES: Final = memoryview(b"")


T = TypeVar("T")


class Job(NamedTuple):
    """A function to run in a thread, and the future for its result."""

    work: Callable[[], Any]
    done: asyncio.Future[Any]


class ColdReads:
    """Runs the cold reads of one store. Only the loop's thread uses it."""

    def __init__(
        self,
        reader: StoreReader,
        queries: Queries,
        queues: QueueTable,
        restorer: Restorer,
        page_cache: PageCacheTracker,
        stats: StoreStats,
        limits: StoreLimits,
    ) -> None:
        self._reader = reader
        self._queries = queries
        self._queues = queues
        self._restorer = restorer
        self._limits = limits
        self._page_cache = page_cache
        self._stats = stats
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[Hashable, deque[Job]] = {}
        self._turns: deque[Hashable] = deque()
        self._count = 0
        self._running: set[asyncio.Future[Any]] = set()
        self._restoring: dict[ConsumeQueue, asyncio.Future[None]] = {}
        self._search = asyncio.Lock()
        self._held = 0
        self._closed = False

    def __len__(self) -> int:
        """Return the number of reads that wait for a thread."""
        return self._count

    async def get(
        self,
        owner: Hashable,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        max_bytes: int = MAX_PULL_BYTES,
        codes: TagsCodes | None = None,
        records: RecordFilter | None = None,
    ) -> GetResult:
        """Like ``MessageStore.get``, but wait for the disk in a thread; the status is never COLD.

        Args:
            owner: the requester, such as a connection; waiting owners are served round robin.
            topic: of the queue.
            queue_id: of the queue.
            offset: queue offset of the first message to return.
            max_count: as for ``MessageStore.get``, like the arguments below.
            max_bytes: see there.
            codes: see there.
            records: see there.

        Raises:
            StoreBusy: too many reads wait already.
            StoreError: the disk can't be read, or the store is closing.
        """
        wait = is_cold = False
        while True:
            result = self._reader.get(
                *(topic, queue_id, offset, max_count),
                max_bytes=max_bytes,
                codes=codes,
                records=records,
                wait=wait,
            )
            if result.status is not GetStatus.COLD:
                return result
            self._stats.cold_gets += not is_cold
            is_cold = True
            if result.broken:
                await self._restore(owner, topic, queue_id, result.broken)
                wait = False
            elif result.count:
                await self._fetch(joined(result.cold, self._limits), owner)
                # These records have just been read: don't look them up in the page cache again.
                wait = True
            else:
                await self.fetch(owner, result.cold)

    async def fetch(self, owner: Hashable, ranges: Sequence[FileRange]) -> None:
        """Read ranges into memory, in a thread. Raises ``StoreBusy``, ``StoreError``."""
        await self._fetch(rounded(ranges, self._limits), owner)

    async def entries(
        self, owner: Hashable, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[tuple[int, int, int]]:
        """Return physical offset, size and tags code of a queue's next entries, unvalidated.

        A thread waits for the disk.

        Args:
            owner: as for ``get``.
            topic: of the queue.
            queue_id: of the queue.
            offset: queue offset of the first entry.
            max_count: maximum number of entries; fewer may be returned though more follow.

        Returns:
            The entries; empty when the queue does not have ``offset``.

        Raises:
            StoreBusy: too many reads wait already.
            StoreError: the disk can't be read, or the store is closing.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return []
        return list(ENTRY.iter_unpack(await self._packed_entries(owner, queue, offset, max_count)))

    async def tags_codes(
        self, owner: Hashable, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[int]:
        """Return the tags codes of a queue's next entries, after restoring damaged ones.

        Arguments and errors are those of ``entries``.
        """
        while True:
            rows = await self.entries(owner, topic, queue_id, offset, max_count)
            broken = self._reader.entries_outside_log(rows, offset)
            if not broken:
                return [tags_code for _, _, tags_code in rows]
            await self._restore(owner, topic, queue_id, broken)

    async def _packed_entries(
        self, owner: Hashable, queue: ConsumeQueue, offset: int, max_count: int
    ) -> memoryview:
        """Return what ``entries`` returns, packed as on the disk."""
        longest = max_count * ENTRY_BYTES
        if not queue.min_offset <= offset < queue.max_offset:
            return _NO_ENTRIES
        if cold := self._page_cache.cold_entries(queue, offset, longest):
            await self.fetch(owner, cold)
            if offset < queue.min_offset:
                # Retention has deleted them meanwhile.
                return _NO_ENTRIES
        entries = queue.entries(offset, longest)
        if entries is None:
            raise StoreError(
                f"the consume queue {queue.directory} can't be read at message {offset}"
            )
        return entries

    async def record_at(self, owner: Hashable, physical_offset: int) -> memoryview | None:
        """Like ``Queries.record_at``, but wait for the disk in a thread. Raises as ``get``."""
        queries = self._queries
        # At most two reads: the record's head, then all of it.
        for _ in range(2):
            try:
                return queries.from_memory(lambda: queries.record_at(physical_offset))
            except NotInMemory as problem:
                await self.fetch(owner, problem.ranges)
        return queries.record_at(physical_offset)

    async def _restore(
        self, owner: Hashable, topic: str, queue_id: int, numbers: Sequence[int]
    ) -> None:
        """Restore damaged entries, or wait for the search that is restoring them.

        Raises:
            StoreBusy: they can't be restored now.
        """
        plan = self._restorer.plan(topic, queue_id, numbers)
        if plan is None:
            return
        if self._held >= self._limits.max_cold_reads:
            raise _too_many()
        queue, search = plan
        self._held += 1
        try:
            if (other := self._restoring.get(queue)) is not None:
                await asyncio.wait([other])
                return
            mine = self._restoring[queue] = asyncio.get_running_loop().create_future()
            try:
                async with self._search:
                    found = await self._run(
                        # ``mine`` is done when the client has disconnected: stop searching then.
                        lambda: find_entries(search, lambda: not (self._closed or mine.done())),
                        owner,
                    )
                self._restorer.settle(queue, search, found)
            finally:
                del self._restoring[queue]
                mine.set_result(None)
        finally:
            self._held -= 1

    def restore_now(self, topic: str, queue_id: int, numbers: Sequence[int]) -> None:
        """Restore damaged entries, blocking this thread. Raises ``StoreBusy``."""
        plan = self._restorer.plan(topic, queue_id, numbers)
        if plan is not None:
            queue, search = plan
            self._restorer.settle(queue, search, find_entries(search, lambda: True))

    async def _fetch(self, ranges: Sequence[FileRange], owner: Hashable) -> None:
        """Read ranges in a thread. Raises ``StoreBusy``, ``StoreError``."""
        fetched = await self._run(partial(fetch_all, ranges, self._limits), owner)
        self._stats.cold_bytes += fetched
        self._page_cache.fetched(ranges)

    async def _run(self, work: Callable[[], T], owner: Hashable) -> T:
        """Run ``work`` in a thread. Raises ``StoreBusy``, ``StoreError``."""
        if self._closed:
            raise StoreError(CLOSING)
        if self._count >= self._limits.max_cold_reads:
            raise _too_many()
        job = Job(work, asyncio.get_running_loop().create_future())
        waiting = self._waiting.get(owner)
        if waiting is None:
            waiting = self._waiting[owner] = deque()
            self._turns.append(owner)
        waiting.append(job)
        self._count += 1
        self._start_next()
        result: T = await job.done
        if self._closed:
            raise StoreError(CLOSING)
        return result

    def _start_next(self) -> None:
        while len(self._running) < self._limits.cold_readers and (job := self._take()) is not None:
            if not job.done.done():
                self._start(job)

    def _take(self) -> Job | None:
        if not self._turns:
            return None
        owner = self._turns.popleft()
        waiting = self._waiting[owner]
        job = waiting.popleft()
        self._count -= 1
        if waiting:
            self._turns.append(owner)
        else:
            del self._waiting[owner]
        return job

    def _start(self, job: Job) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self._limits.cold_readers, thread_name_prefix="store-cold-read"
            )
        self._running.add(job.done)
        loop = job.done.get_loop()

        def ended(future: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(self._ended, job, future)

        self._pool.submit(job.work).add_done_callback(ended)

    def _ended(self, job: Job, future: Future[Any]) -> None:
        self._running.discard(job.done)
        problem = future.exception()
        if job.done.done():
            pass
        elif problem is None:
            job.done.set_result(future.result())
        elif isinstance(problem, StoreError):
            job.done.set_exception(problem)
        else:
            job.done.set_exception(StoreError(f"messages can't be read: {problem}"))
        self._start_next()

    def close(self) -> None:
        """Refuse the waiting reads, and wait for those that run; blocks."""
        self._closed = True
        while (job := self._take()) is not None:
            if not job.done.done():
                job.done.set_exception(StoreError(CLOSING))
        if self._pool is not None:
            self._pool.shutdown()


def _too_many() -> StoreBusy:
    return StoreBusy("too many pulls wait for messages from long ago: try again in a moment")


def fetch_all(ranges: Sequence[FileRange], limits: StoreLimits) -> int:
    """Read ranges into the page cache; return the number of bytes. Raises ``OSError``.

    If the ranges are dense, as for a consumer that reads a queue in order, the kernel is asked to
    read ahead behind the last one.
    """
    wanted = sum(end - start for _, start, end in ranges)
    first, last = ranges[0], ranges[-1]
    dense = first.file is last.file and last.end - first.start <= wanted + limits.read_ahead_bytes
    for number, (file, start, end) in enumerate(ranges, 1):
        ahead = limits.read_ahead_bytes if dense and number == len(ranges) else 0
        file.fetch(start, end - start, ahead=ahead)
    return wanted


def joined(ranges: Sequence[FileRange], limits: StoreLimits) -> list[FileRange]:
    """Join ranges with small gaps between them, for fewer reads."""
    out = [ranges[0]]
    for file, start, end in ranges[1:]:
        last = out[-1]
        if file is last.file and 0 <= start - last.end <= limits.max_fetch_gap_bytes:
            out[-1] = FileRange(file, last.start, end)
        else:
            out.append(FileRange(file, start, end))
    return out


def rounded(ranges: Sequence[FileRange], limits: StoreLimits) -> list[FileRange]:
    """Extend ranges to whole blocks, since the page-cache tracker remembers whole blocks."""
    return [
        FileRange(
            file,
            start // limits.block_bytes * limits.block_bytes,
            min(-(-end // limits.block_bytes) * limits.block_bytes, file.size),
        )
        for file, start, end in ranges
    ]
