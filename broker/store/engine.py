"""The store as the broker sees it: messages in, messages out, and what is on the disk when.

One thread, the loop's, puts and gets; only a page of a map that is not in memory can block it.
Other threads work for it: one allocates ahead (``preallocate``), one syncs the commit log and one
the queues (``sync``), one indexes (``index``), one deletes old files (``retention``). They report
to the loop by ``call_soon_threadsafe``. The store also works without a loop (tests, tools):
``flush`` then does at once what the syncing threads would do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from broker.store.append import Appender, EntryDispatcher, MessageWriter, OnArrival
from broker.store.checkpoint import StoreCheckpoint
from broker.store.cold_reads import ColdReads
from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import QueueTable
from broker.store.disk_state import DiskState, StoreContext
from broker.store.index import MessageIndex
from broker.store.limits import (
    MAX_PULL_BYTES,
)
from broker.store.os_files import DiskUse, Files, Lock
from broker.store.page_cache import PageCacheTracker
from broker.store.preallocate import Preallocator
from broker.store.queries import Queries
from broker.store.reader import StoreReader
from broker.store.record_validator import RecordValidator, TagsCodes
from broker.store.recovery import RecoveredStore, open_store
from broker.store.restore import Restorer
from broker.store.results import (
    BatchPutResult,
    FileRange,
    GetResult,
    GetStatus,
    OpeningProgress,
    PendingMessage,
    PutResult,
    PutStatus,
    RecoveryReport,
    StoreError,
    StoreStats,
)
from broker.store.retention import Retention
from broker.store.sync import Callback, LogSync, QueueSync, Syncer
from remoting.clock import Clock, SystemClock

__all__ = [
    "BatchPutResult",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PendingMessage",
    "PutResult",
    "PutStatus",
    "RecoveryReport",
    "StoreConfig",
    "StoreError",
]

_log = structlog.get_logger("store")

T = TypeVar("T")


@dataclass(slots=True)
class Engine:
    """What an open store is made of."""

    lock: Lock
    log: CommitLog
    queues: QueueTable
    checkpoint: StoreCheckpoint
    writer: MessageWriter
    appender: Appender
    reader: StoreReader
    queries: Queries
    cold_reads: ColdReads
    syncer: Syncer
    preallocator: Preallocator
    index: MessageIndex
    retention: Retention


def build_engine(
    opened: RecoveredStore, context: StoreContext, dispatcher: EntryDispatcher
) -> Engine:
    """Join what opening a store found with what works on it."""
    log, queues, checkpoint = opened.log, opened.queues, opened.checkpoint
    config, clock, stats = context.config, context.clock, context.stats
    waits = config.flush_disk_type == "SYNC_FLUSH"
    writer = MessageWriter(context, log, queues, dispatcher, last_store_ms=opened.last_store_ms)
    log_sync = LogSync(context, log, synced=opened.synced, store_ms=lambda: writer.last_store_ms)
    clean = opened.report.clean
    index = MessageIndex(
        context,
        log,
        note=checkpoint.index_note() if clean else None,
        safe_ms=None if clean else checkpoint.times.index_ms,
        # Readers must not see what a crash could take back.
        visible_end=lambda: log_sync.flushed if waits else log.end,
    )
    queue_sync = QueueSync(
        context,
        queues,
        log_sync,
        dispatcher,
        checkpoint,
        store_ms=lambda: writer.last_store_ms,
        index_ms=index.safe_until_ms,
    )
    retention = Retention(
        context,
        log,
        queues,
        safe_end=lambda: checkpoint.safe_end,
        log_begins=index.drop_before,
    )
    page_cache = PageCacheTracker(log, config.limits, clock.monotonic)
    validator = RecordValidator(log, page_cache, stats, config.limits)
    reader = StoreReader(log, queues, page_cache, validator, config.limits, stats)
    queries = Queries(log, queues, page_cache, validator, config.limits)
    restorer = Restorer(log, queues, validator, stats, config)
    return Engine(
        lock=opened.lock,
        log=log,
        queues=queues,
        checkpoint=checkpoint,
        writer=writer,
        appender=Appender(context, log, dispatcher, writer.next_store_ms),
        reader=reader,
        queries=queries,
        cold_reads=ColdReads(reader, queries, restorer, page_cache, stats, config.limits),
        syncer=Syncer(context, log_sync, queue_sync, dispatcher),
        preallocator=Preallocator(context, log),
        index=index,
        retention=retention,
    )


class MessageStore:
    """A store in one directory.

    Attributes:
        config: as given.
        paths: where its files are.
        stats: counters since it was made.
        disk: what is wrong with the disk.
        sync_flush: messages become visible, and answers go out, when the disk has them.
        progress: how far an opening is that is under way.
        recovery: what the last opening found and did.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        progress: OpeningProgress | None = None,
    ) -> None:
        self.config = config
        self.paths = StorePaths.of(config)
        self.stats = StoreStats()
        self.sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self._files: Files = Files() if files is None else files
        self._clock: Clock = SystemClock() if clock is None else clock
        self.disk = DiskState(self._files, self._clock, self.config.limits)
        self._dispatcher = EntryDispatcher()
        self._parts: Engine | None = None
        self.progress = OpeningProgress() if progress is None else progress
        self.recovery = RecoveryReport()
        self._on_arrival: OnArrival | None = None

    # --- life

    def open(self) -> RecoveryReport:
        """Lock, recover and load the store; blocks.

        Raises:
            StoreError: it can't be opened; the text is one sentence that says what to do.
            OpeningGivenUp: somebody did not want to wait; see ``give_up_opening``.
        """
        if self._parts is not None:
            raise StoreError(f"the store {self.paths.root} is open already: close it first")
        opened = open_store(self.config, self.paths, self._files, self._clock, self.progress)
        self.recovery = opened.report
        self.disk = DiskState(self._files, self._clock, self.config.limits)
        context = StoreContext(
            self.config, self.paths, self._files, self._clock, self.disk, self.stats
        )
        self._parts = build_engine(opened, context, self._dispatcher)
        return opened.report

    def give_up_opening(self) -> None:
        """In any thread: have an opening that is under way end soon, and all later ones at once.

        It is as if the process had been killed then: the next broker begins anew.
        """
        self.progress.give_up()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads; callbacks come on ``loop``, whose thread is the one to put and get.

        Raises:
            StoreError: the store is not open.
        """
        parts = self.engine
        parts.syncer.start(loop)
        parts.preallocator.start()
        parts.index.start()
        parts.retention.start(loop)

    def close(self) -> None:
        """Stop cleanly: threads, flush, checkpoint, ``abort`` file, lock. Idempotent; blocks.

        Called on the loop's thread. When the disk fails the ``abort`` file stays, and the next
        start finds out what is good.
        """
        parts = self._parts
        if parts is None:
            return
        parts.cold_reads.close()
        # The syncer stops last: the other threads may still wait for the disk. A thread that does
        # not end may still write, so the store then stays marked as open.
        workers = (parts.retention, parts.index, parts.preallocator, parts.syncer)
        ended = [worker.stop() for worker in workers]
        try:
            if all(ended) and self.flush():
                indexed = parts.index.finish()
                parts.syncer.queues.write_times()
                parts.log.remove_prepared()
                # Best effort: it lets the next start skip recovery.
                with contextlib.suppress(OSError):
                    parts.checkpoint.finish(
                        parts.log,
                        parts.queues,
                        tail=parts.syncer.log.tail,
                        last_store_ms=parts.writer.last_store_ms,
                        index=indexed,
                    )
                # Last: without the ``abort`` file the next start believes all of the above.
                self._files.remove(self.paths.abort)
                self._files.sync_directory(self.paths.root)
        except OSError as error:
            _log.error("store not closed cleanly", store=str(self.paths.root), error=str(error))
        finally:
            parts.syncer.close()
            self._dispatcher.clear()
            self._parts = None
            parts.index.close()
            parts.log.close()
            parts.queues.close()
            parts.lock.release()

    @property
    def engine(self) -> Engine:
        """The parts of the open store. Raises ``StoreError`` when it is not open."""
        if self._parts is None:
            raise StoreError(self._not_open)
        return self._parts

    @property
    def _not_open(self) -> str:
        return f"the store {self.paths.root} is not open: the broker is starting or stopping"

    # --- messages in

    def put(self, message: PendingMessage) -> PutResult:
        """Store one message; never waits for the disk.

        In ASYNC mode it is visible when this returns, in SYNC mode once the disk has it. A message
        that can't be stored is a result with another status and a sentence, never an exception.
        """
        if self._parts is None:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=self._not_open)
        result = self._parts.writer.put(message)
        self._parts.syncer.ask()
        return result

    def put_batch(self, messages: Sequence[PendingMessage]) -> BatchPutResult:
        """Store messages of one queue one behind the other: all of them or none."""
        if self._parts is None:
            return BatchPutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=self._not_open)
        result = self._parts.writer.put_batch(messages)
        self._parts.syncer.ask()
        return result

    def disk_use(self, path: Path) -> DiskUse:
        """How full the disk of a directory is. Raises ``OSError``."""
        return self._files.disk_use(path)

    def ask_sync(self) -> None:
        """In SYNC mode, have what the appender stored synced soon."""
        if self._parts is not None:
            self._parts.syncer.ask()

    def when_durable(self, end_offset: int, callback: Callback) -> None:
        """Tell ``callback`` on the loop's thread when the disk has the log up to ``end_offset``.

        True: it has. False: it took longer than ``syncFlushTimeout``, or the disk failed; the
        message is stored, but less durable. May call back before it returns.
        """
        if self._parts is None:
            callback(False)
        else:
            self._parts.syncer.when_durable(end_offset, callback)

    def flush(self) -> bool:
        """Bring everything to the disk now; blocks. False when the disk failed.

        Raises:
            OSError: the queues or the checkpoint could not be written; the log is on the disk.
        """
        return self.engine.syncer.flush()

    # --- messages out

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
                ``get_async`` gets the messages.

        Raises:
            StoreBusy: damaged entries can't be restored now.
            StoreError: the store is not open.
        """
        parts = self.engine
        while True:
            result = parts.reader.get(
                topic, queue_id, offset, max_count, max_bytes=max_bytes, codes=codes, wait=wait
            )
            if not (wait and result.broken):
                return result
            parts.cold_reads.restore_now(topic, queue_id, result.broken)

    async def get_async(
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
        return await self.engine.cold_reads.get(
            owner, topic, queue_id, offset, max_count, max_bytes=max_bytes, codes=codes
        )

    async def tags_codes(
        self, owner: Hashable, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[int]:
        """What the next entries of a queue carry as tags code; damaged ones are restored first.

        See ``entries``.
        """
        parts = self.engine
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
            owner: as for ``get_async``.
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
        parts = self.engine
        queue = parts.queues.get((topic, queue_id))
        if queue is None:
            return []
        return await parts.cold_reads.entries(owner, queue, offset, max_count)

    def from_memory(self, ask: Callable[[], T]) -> T:
        """What a question about single messages gives, as long as it need not wait for the disk.

        Raises:
            NotInMemory: it would have to; ``fetch`` what that names and ask again.
        """
        return self.engine.queries.from_memory(ask)

    async def fetch(self, owner: Hashable, ranges: Sequence[FileRange]) -> None:
        """Have ranges in memory, read in a thread. Raises as ``get_async``."""
        await self.engine.cold_reads.fetch(owner, ranges)

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record that begins at a place of the log; None when none does."""
        return self.engine.queries.record_at(physical_offset)

    async def record_async(self, owner: Hashable, physical_offset: int) -> memoryview | None:
        """The same, with what is not in memory read in a thread. Raises as ``get_async``."""
        return await self.engine.cold_reads.record_at(owner, physical_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last visible message; 0 for a queue that has none."""
        return self.engine.queries.max_offset(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first message that is still there; 0 for a queue that never had one."""
        return self.engine.queries.min_offset(topic, queue_id)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The message stored nearest to a time; the last one's number beyond it, 0 for none."""
        return self.engine.queries.offset_by_time(topic, queue_id, timestamp_ms)

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, ms; -1 when it can't be read."""
        return self.engine.queries.store_time_at(topic, queue_id, offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """When the queue's first message was stored, ms; -1 when there is none."""
        return self.engine.queries.earliest_store_time(topic, queue_id)

    def is_offset_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is taken to be in the page cache; also when there is no such one."""
        return self.engine.queries.is_offset_in_memory(topic, queue_id, offset)

    # --- where things begin and end

    def topics_on_disk(self) -> list[str]:
        """Sorted names of the topics that have a queue."""
        return self.engine.queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Sorted ids of the queues that a topic has in this store."""
        return self.engine.queues.queue_ids(topic)

    @property
    def start_offset(self) -> int:
        """Physical offset of the first byte of the log that is still there."""
        return self.engine.log.start

    @property
    def end_offset(self) -> int:
        """Physical offset behind the last record."""
        return self.engine.log.end

    @property
    def durable_offset(self) -> int:
        """Physical offset up to which the log is on the disk."""
        return self.engine.syncer.log.flushed

    @property
    def on_arrival(self) -> OnArrival | None:
        """Called with topic, queue id, new maximum offset and tags code of what became visible."""
        return self._on_arrival

    @on_arrival.setter
    def on_arrival(self, callback: OnArrival | None) -> None:
        self._on_arrival = callback
        self._dispatcher.listen(callback)

    def watch(self, queues: Container[tuple[str, int]]) -> None:
        """Call ``on_arrival`` for these queues (topic and id) and the schedule topic's only."""
        self._dispatcher.watch(queues)

    # --- topics and state

    def delete_topic(self, topic: str) -> int:
        """Remove a topic's queues; how many there were. Its records stay in the log.

        Raises:
            StoreError: they can't be removed.
        """
        parts = self.engine
        self._dispatcher.forget(topic)
        try:
            parts.syncer.queues.forget(topic)
        except OSError as error:
            raise StoreError(
                f"topic {topic} can't be deleted, for {self.paths.own_checkpoint} can't be written"
                f" ({error.strerror or error}): check the disk, then delete it again"
            ) from error
        return parts.queues.remove_topic(topic)

    @property
    def writable(self) -> bool:
        """Whether a put has a chance."""
        return self.why_not_writable is None

    @property
    def readable(self) -> bool:
        """Whether the store is open."""
        return self._parts is not None

    @property
    def why_not_writable(self) -> str | None:
        """Why it takes no messages, in one sentence; None when it does."""
        return self._not_open if self._parts is None else self.disk.trouble
