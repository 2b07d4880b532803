"""``MessageStore``, the store's interface for the broker: put, get, query, and durability.

Only the event loop's thread puts and gets; it blocks only on a page fault of a mapped file whose
page is not in memory. Background threads preallocate files (``preallocate``), sync the commit log
and the consume queues (``sync``, one thread each), build the index (``index``), delete old files
(``retention``) and read from the disk (``cold_reads``). They report to the loop with
``call_soon_threadsafe``. The store also works without a loop (tests, tools): ``flush`` then does
synchronously what the syncing threads would do.
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
from broker.store.deleted_topics import DeletedTopics
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
    RecordFilter,
    RecoveryReport,
    StoreError,
    StoreStats,
)
from broker.store.retention import Retention
from broker.store.sync import Callback, LogSync, QueueSync, Syncer
from remoting.runtime.clock import Clock, SystemClock

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
    """The components of an open store."""

    lock: Lock
    log: CommitLog
    queues: QueueTable
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
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
    """Create the components of an open store from what opening it found."""
    log, queues, checkpoint = opened.log, opened.queues, opened.checkpoint
    config, clock, stats = context.config, context.clock, context.stats
    writer = MessageWriter(context, log, queues, dispatcher, last_store_ms=opened.last_store_ms)
    log_sync = LogSync(context, log, synced=opened.synced, store_ms=lambda: writer.last_store_ms)
    clean = opened.report.clean
    index = MessageIndex(
        context,
        log,
        note=checkpoint.index_note() if clean else None,
        safe_ms=None if clean else checkpoint.times.index_ms,
        # Readers must not see messages that a crash could still lose.
        visible_end=lambda: syncer.confirmed if config.defers else log.end,
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
    syncer = Syncer(context, log_sync, queue_sync, dispatcher)
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
    queries = Queries(log, queues, page_cache, validator)
    restorer = Restorer(log, queues, validator, stats, config)
    return Engine(
        lock=opened.lock,
        log=log,
        queues=queues,
        checkpoint=checkpoint,
        deleted=opened.deleted,
        writer=writer,
        appender=Appender(context, log, dispatcher, writer.next_store_ms),
        reader=reader,
        queries=queries,
        cold_reads=ColdReads(reader, queries, restorer, page_cache, stats, config.limits),
        syncer=syncer,
        preallocator=Preallocator(context, log),
        index=index,
        retention=retention,
    )


class MessageStore:
    """A store in one directory.

    Attributes:
        config: as given.
        paths: paths of the store's files.
        stats: counters since the object was created.
        disk: whether the disk accepts writes.
        progress: progress of ``open`` while it runs.
        recovery: what the last ``open`` found and repaired.
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
        self._files: Files = Files() if files is None else files
        self._clock: Clock = SystemClock() if clock is None else clock
        self.disk = DiskState(self._files, self._clock, self.config.limits)
        self._dispatcher = EntryDispatcher()
        self._parts: Engine | None = None
        self.progress = OpeningProgress() if progress is None else progress
        self.recovery = RecoveryReport()
        self._on_arrival: OnArrival | None = None

    # --- opening and closing

    def open(self) -> RecoveryReport:
        """Lock, recover and load the store; blocks.

        Raises:
            StoreError: the store can't be opened; the message says what to do.
            OpeningGivenUp: ``give_up_opening`` was called.
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
        """Abort a running ``open`` soon, and every later one immediately. Callable in any thread.

        The files are left as if the process had been killed; the next start recovers from the
        beginning.
        """
        self.progress.give_up()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads. Callbacks run on ``loop``, whose thread must do all puts and gets.

        Raises:
            StoreError: the store is not open.
        """
        parts = self.engine
        parts.syncer.start(loop)
        parts.preallocator.start()
        parts.index.start()
        parts.retention.start(loop)

    def close(self) -> None:
        """Stop the threads, flush, write the checkpoint, and remove ``abort``. Idempotent; blocks.

        Call it on the loop's thread. If the disk fails, the ``abort`` file stays, and the next
        start recovers the store.
        """
        parts = self._parts
        if parts is None:
            return
        parts.cold_reads.close()
        # The syncer stops last: the other threads may still wait for a sync. A thread that does
        # not end may still write, so the store then stays marked as open (``abort``).
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
                # Last: without the ``abort`` file the next start relies on all of the above.
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
        """The components of the open store. Raises ``StoreError`` when it is not open."""
        if self._parts is None:
            raise StoreError(self._not_open)
        return self._parts

    @property
    def _not_open(self) -> str:
        return f"the store {self.paths.root} is not open: the broker is starting or stopping"

    # --- storing messages

    def put(self, message: PendingMessage) -> PutResult:
        """Store one message, without waiting for a sync.

        In ASYNC mode it is visible when this returns, in SYNC mode once it is on the disk. A
        refused message is reported by the result's ``status`` and ``message``, never by an
        exception.
        """
        if self._parts is None:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=self._not_open)
        result = self._parts.writer.put(message)
        self._parts.syncer.ask()
        return result

    def put_batch(self, messages: Sequence[PendingMessage]) -> BatchPutResult:
        """Store messages of one queue contiguously: all of them or none."""
        if self._parts is None:
            return BatchPutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=self._not_open)
        result = self._parts.writer.put_batch(messages)
        self._parts.syncer.ask()
        return result

    def disk_use(self, path: Path) -> DiskUse:
        """Return how full the disk of a directory is. Raises ``OSError``."""
        return self._files.disk_use(path)

    def ask_sync(self) -> None:
        """In SYNC mode, request a sync of what the appender has stored."""
        if self._parts is not None:
            self._parts.syncer.ask()

    def when_durable(self, end_offset: int, callback: Callback) -> None:
        """Call ``callback`` on the loop's thread once the log is synced up to ``end_offset``.

        It gets True when the log is synced, False when that took longer than ``syncFlushTimeout``
        or the disk failed: the message is stored, but may not survive a power cut. It may be
        called before this function returns.
        """
        if self._parts is None:
            callback(False)
        else:
            self._parts.syncer.when_durable(end_offset, callback)

    def flush(self) -> bool:
        """Sync log, queues and checkpoint; blocks. Return False when syncing the log failed.

        Raises:
            OSError: the queues or the checkpoint could not be written; the log is on the disk.
        """
        return self.engine.syncer.flush()

    # --- reading messages

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
        """Return messages of a queue from ``offset`` on.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            offset: queue offset of the first message to return.
            max_count: maximum number of messages, capped at ``MAX_PULL_MESSAGES``.
            max_bytes: maximum bytes of records; at least one record is returned.
            codes: return only messages with these tags codes; None for all.
            records: return only messages whose records this filter takes, in place of ``codes``.
            wait: whether the thread may wait for the disk. If not, the status may be COLD, and
                ``get_async`` gets the messages.

        Raises:
            StoreBusy: damaged entries can't be restored now.
            StoreError: the store is not open.
        """
        parts = self.engine
        while True:
            result = parts.reader.get(
                *(topic, queue_id, offset, max_count),
                max_bytes=max_bytes,
                codes=codes,
                records=records,
                wait=wait,
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
        records: RecordFilter | None = None,
    ) -> GetResult:
        """Like ``get``, but read what is not in memory in a thread; the status is never COLD.

        Args:
            owner: the requester, such as a connection; waiting owners are served round robin.

        Raises:
            StoreBusy: too many reads wait already.
            StoreError: the store is not open, or the disk can't be read.
        """
        return await self.engine.cold_reads.get(
            *(owner, topic, queue_id, offset, max_count),
            max_bytes=max_bytes,
            codes=codes,
            records=records,
        )

    async def tags_codes(
        self, owner: Hashable, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[int]:
        """Return the tags codes of a queue's next entries, after restoring damaged ones.

        Arguments, result and errors are those of ``entries``.
        """
        parts = self.engine
        queue = parts.queues.get((topic, queue_id))
        if queue is None:
            return []
        return await parts.cold_reads.tags_codes(owner, queue, offset, max_count)

    async def entries(
        self, owner: Hashable, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[tuple[int, int, int]]:
        """Return physical offset, size and tags code of a queue's next entries, unvalidated.

        A thread waits for the disk.

        Args:
            owner: as for ``get_async``.
            topic: of the queue.
            queue_id: of the queue.
            offset: queue offset of the first entry.
            max_count: maximum number of entries; fewer may be returned though more follow.

        Returns:
            The entries; empty when the queue does not have ``offset``.

        Raises:
            StoreBusy: too many reads wait already.
            StoreError: the store is not open, or the disk can't be read.
        """
        parts = self.engine
        queue = parts.queues.get((topic, queue_id))
        if queue is None:
            return []
        return await parts.cold_reads.entries(owner, queue, offset, max_count)

    def from_memory(self, ask: Callable[[], T]) -> T:
        """Return what ``ask``, a query for single messages, returns, without waiting for the disk.

        Raises:
            NotInMemory: the query would wait for the disk; ``fetch`` the ranges that the exception
                has, then try again.
        """
        return self.engine.queries.from_memory(ask)

    async def fetch(self, owner: Hashable, ranges: Sequence[FileRange]) -> None:
        """Read ranges into memory, in a thread. Raises as ``get_async``."""
        await self.engine.cold_reads.fetch(owner, ranges)

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Return the record that begins at a physical offset; None when none begins there."""
        return self.engine.queries.record_at(physical_offset)

    async def record_async(self, owner: Hashable, physical_offset: int) -> memoryview | None:
        """Like ``record_at``, but wait for the disk in a thread. Raises as ``get_async``."""
        return await self.engine.cold_reads.record_at(owner, physical_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the last visible message; 0 for a queue without any."""
        return self.engine.queries.max_offset(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message not yet deleted; 0 for an unknown queue."""
        return self.engine.queries.min_offset(topic, queue_id)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the message stored nearest to a time, ms since the epoch.

        Beyond the last message it is the last message's offset, and 0 for a queue without any.
        """
        return self.engine.queries.offset_by_time(topic, queue_id, timestamp_ms)

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored, ms since the epoch; -1 when it can't be read."""
        return self.engine.queries.store_time_at(topic, queue_id, offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return when the queue's first message was stored, ms since the epoch; -1 for none."""
        return self.engine.queries.earliest_store_time(topic, queue_id)

    def is_offset_in_memory(self, topic: str, queue_id: int, offset: int, percent: float) -> bool:
        """Return whether a message is in the newest part of the log; True if it doesn't exist.

        That part has ``percent`` of the machine's memory.
        """
        return self.engine.queries.is_offset_in_memory(topic, queue_id, offset, percent)

    # --- queues and offsets

    def topics_on_disk(self) -> list[str]:
        """Return the sorted names of the topics that have a queue."""
        return self.engine.queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Return the sorted ids of a topic's queues in this store."""
        return self.engine.queues.queue_ids(topic)

    def queues_beyond(self, topic: str, first: int) -> list[int]:
        """Return the ids from ``first`` on of a topic's queues that have messages."""
        return self.engine.queues.beyond(topic, first)

    @property
    def start_offset(self) -> int:
        """Physical offset of the first byte of the log that has not been deleted."""
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
        """Called with topic, queue id, new max offset and tags code when messages become visible.

        See ``EntryDispatcher.listen``.
        """
        return self._on_arrival

    @on_arrival.setter
    def on_arrival(self, callback: OnArrival | None) -> None:
        self._on_arrival = callback
        self._dispatcher.listen(callback)

    def watch(self, queues: Container[tuple[str, int]]) -> None:
        """Call ``on_arrival`` only for these queues (topic, id), and for delayed messages."""
        self._dispatcher.watch(queues)

    # --- topics and state

    def delete_topic(self, topic: str) -> int:
        """Remove a topic's queues and return their number.

        Its records stay in the log, and are void: see ``is_void``.

        Raises:
            StoreError: they can't be removed.
        """
        parts = self.engine
        parts.deleted.add(topic, parts.log.start, parts.log.end)
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
    def has_void(self) -> bool:
        """Whether any records may be void; see ``is_void``."""
        return bool(self.engine.deleted.ends)

    def is_void(self, topic: str, physical_offset: int) -> bool:
        """Return whether a topic was deleted after the record at an offset was stored."""
        return self.engine.deleted.has(topic, physical_offset)

    @property
    def writable(self) -> bool:
        """Whether the store accepts messages."""
        return self.why_not_writable is None

    @property
    def readable(self) -> bool:
        """Whether the store is open."""
        return self._parts is not None

    @property
    def why_not_writable(self) -> str | None:
        """Why the store accepts no messages, for an error text; None when it does."""
        return self._not_open if self._parts is None else self.disk.trouble
