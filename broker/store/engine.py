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
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from broker.store.append import Appender, EntryDispatcher, MessageWriter, Waiting
from broker.store.checkpoint import StoreCheckpoint
from broker.store.cold_reads import ColdReads
from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import QueueTable
from broker.store.deleted_topics import DeletedTopics
from broker.store.disk_state import DiskState, StoreContext
from broker.store.follow import LogFollower
from broker.store.index import MessageIndex
from broker.store.limits import MAX_PULL_BYTES
from broker.store.os_files import Files, Lock
from broker.store.page_cache import PageCacheTracker
from broker.store.preallocate import Preallocator
from broker.store.queries import Queries
from broker.store.reader import StoreReader
from broker.store.record_validator import RecordValidator, TagsCodes
from broker.store.recovery import RecoveredStore, open_store
from broker.store.restore import Restorer
from broker.store.results import (
    Ack,
    BatchPutResult,
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
from remoting.protocol.disk.files import ENTRY
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


class MessageStore:
    """A store in one directory.

    Its components exist while it is open. Before and after, reading one of these attributes raises
    ``StoreError``.

    Attributes:
        config: as given.
        paths: paths of the store's files.
        files: the file system.
        stats: counters since the object was created.
        disk: whether the disk accepts writes.
        dispatcher: makes stored messages visible.
        progress: progress of ``open`` while it runs; can make it end early.
        recovery: what the last ``open`` found and repaired.
        readable: whether the store is open.
        log: the commit log.
        queues: the consume queues.
        checkpoint: RocketMQ's checkpoint, and the safe point.
        deleted: the deletions of topics.
        writer: appends a message or a batch.
        appender: appends the messages of one socket read.
        reader: reads messages from memory.
        queries: answers queries other than pulls from memory.
        cold_reads: reads what is not in memory in threads.
        syncer: syncs the log and the queues.
        follower: appends a master's log to this one.
        preallocator: creates files in advance.
        index: finds messages by key.
        retention: deletes old files.
    """

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
    follower: LogFollower
    preallocator: Preallocator
    index: MessageIndex
    retention: Retention

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
        self.files: Files = Files() if files is None else files
        self._clock: Clock = SystemClock() if clock is None else clock
        self.disk = DiskState(self.files, self._clock, self.config.limits)
        self.dispatcher = EntryDispatcher()
        self.progress = OpeningProgress() if progress is None else progress
        self.recovery = RecoveryReport()
        self.readable = False
        self._lock: Lock | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            # Called only for attributes without a value: a component of a store that is not open.
            if name in _COMPONENTS:
                raise StoreError(self._not_open)
            raise AttributeError(f"MessageStore has no attribute {name}")

    # --- opening and closing

    def open(self, *, cut: int | None = None) -> RecoveryReport:
        """Lock, recover and load the store; blocks.

        With ``cut``, drop the log from this physical offset on, where a record begins.

        Raises:
            StoreError: the store can't be opened; the message says what to do.
            OpeningGivenUp: ``progress.give_up`` was called.
        """
        if self.readable:
            raise StoreError(f"the store {self.paths.root} is open already: close it first")
        opened = open_store(
            self.config, self.paths, self.files, self._clock, self.progress, cut=cut
        )
        self.recovery = opened.report
        self.disk = DiskState(self.files, self._clock, self.config.limits)
        self._create_components(opened)
        if self.config.controlled:
            # Hide what recovery has found behind the confirm offset, until it is confirmed.
            held = [
                Waiting(sum(ENTRY.unpack(entry)[:2]), queue, entry)
                for queue in self.queues.all()
                for entry in queue.withdraw(self.syncer.known)
            ]
            for waiting in sorted(held, key=lambda one: one.end_offset):
                self.dispatcher.hold(waiting)
        self.readable = True
        return opened.report

    def _create_components(self, opened: RecoveredStore) -> None:
        config, clock, stats = self.config, self._clock, self.stats
        context = StoreContext(config, self.paths, self.files, clock, self.disk, stats)
        self._lock = opened.lock
        self.log = log = opened.log
        self.queues = queues = opened.queues
        self.checkpoint = checkpoint = opened.checkpoint
        self.deleted = opened.deleted
        dispatcher = self.dispatcher
        self.writer = writer = MessageWriter(
            context, log, queues, dispatcher, last_store_ms=opened.last_store_ms
        )
        log_sync = LogSync(
            context, log, synced=opened.synced, store_ms=lambda: writer.last_store_ms
        )
        clean = opened.report.clean
        self.index = index = MessageIndex(
            context,
            log,
            note=checkpoint.index_note() if clean else None,
            safe_ms=None if clean else checkpoint.times.index_ms,
            visible_end=lambda: syncer.visible_end,
        )
        queue_sync = QueueSync(
            context,
            queues,
            log_sync,
            dispatcher,
            checkpoint,
            store_ms=lambda: writer.last_store_ms,
            index_ms=index.safe_until_ms,
            confirmed=lambda: syncer.known if config.controlled else 0,
        )
        # Without epochs the store was never in a group: nobody but its own broker confirmed.
        is_member = self.files.size(self.paths.epochs) is not None
        known = min(checkpoint.times.confirm_offset, log.end) if is_member else log.end
        self.syncer = syncer = Syncer(context, log_sync, queue_sync, dispatcher, known=known)
        self.appender = Appender(context, log, dispatcher, writer, syncer.request)
        self.retention = Retention(
            context,
            log,
            queues,
            safe_end=lambda: checkpoint.safe_end,
            log_begins=index.drop_before,
        )
        page_cache = PageCacheTracker(log, config.limits, clock.monotonic)
        validator = RecordValidator(log, page_cache, stats, config.limits)
        self.reader = StoreReader(log, queues, page_cache, validator, config.limits, stats)
        self.queries = Queries(log, queues, page_cache, validator)
        restorer = Restorer(log, queues, validator, stats, config)
        self.cold_reads = ColdReads(
            self.reader, self.queries, queues, restorer, page_cache, stats, config.limits
        )
        self.preallocator = Preallocator(context, log)
        self.follower = LogFollower(
            context,
            log,
            queues,
            dispatcher,
            on_stored=writer.stored_at,
            delete_topic=self.delete_topic,
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads. Callbacks run on ``loop``, whose thread must do all puts and gets.

        Raises:
            StoreError: the store is not open.
        """
        self.syncer.start(loop)
        self.preallocator.start()
        self.index.start()
        self.retention.start(loop)

    def close(self) -> None:
        """Stop the threads, flush, write the checkpoint, and remove ``abort``. Idempotent; blocks.

        Call it on the loop's thread. If the disk fails, the ``abort`` file stays, and the next
        start recovers the store.
        """
        if not self.readable:
            return
        self.cold_reads.close()
        # The syncer stops last: the other threads may still wait for a sync. A thread that does
        # not end may still write, so the store then stays marked as open (``abort``).
        workers = (self.retention, self.index, self.preallocator, self.syncer)
        ended = [worker.stop() for worker in workers]
        try:
            # A clean start takes the queues as they are; it hides again what is not confirmed.
            if self.config.controlled:
                self.dispatcher.settle()
            if all(ended) and self.flush():
                indexed = self.index.finish()
                self.syncer.queues.write_times()
                self.log.remove_prepared()
                # Best effort: it lets the next start skip recovery.
                with contextlib.suppress(OSError):
                    self.checkpoint.finish(
                        self.log,
                        self.queues,
                        tail=self.syncer.log.tail,
                        last_store_ms=self.writer.last_store_ms,
                        index=indexed,
                    )
                # Last: without the ``abort`` file the next start relies on all of the above.
                self.files.remove(self.paths.abort)
                self.files.sync_directory(self.paths.root)
        except OSError as error:
            _log.error("store not closed cleanly", store=str(self.paths.root), error=str(error))
        finally:
            self.readable = False
            self.syncer.close()
            self.dispatcher.clear()
            self.index.close()
            self.log.close()
            self.queues.close()
            if self._lock is not None:
                self._lock.release()
            for name in _COMPONENTS:
                delattr(self, name)

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
        if not self.readable:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=self._not_open)
        result = self.writer.put(message)
        self.syncer.request()
        return result

    def put_batch(self, messages: Sequence[PendingMessage]) -> BatchPutResult:
        """Store messages of one queue contiguously: all of them or none."""
        if not self.readable:
            return BatchPutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=self._not_open)
        result = self.writer.put_batch(messages)
        self.syncer.request()
        return result

    def refuse(self, reason: str | None) -> None:
        """Refuse all messages from now on, with this reason; None: take them again."""
        self.writer.refuse(reason)

    def watch_growth(self, on_grown: Callable[[], None] | None) -> None:
        """Call ``on_grown`` when there is more of the log for slaves; None for no call."""
        self.syncer.watch(on_grown)
        if not self.config.defers:
            self.appender.watch(on_grown)

    def when_durable(self, end_offset: int, callback: Callback) -> None:
        """Call ``callback`` on the loop's thread once the log is safe up to ``end_offset``.

        That is on the disk with SYNC_FLUSH, and at a slave as a SYNC_MASTER. The callback gets
        ``Ack.OK``, or why the message, which is stored, may not survive a failure. It may be called
        before this function returns.
        """
        if not self.readable:
            callback(Ack.FLUSH_DISK_TIMEOUT)
        else:
            self.syncer.when_durable(end_offset, callback)

    def flush(self) -> bool:
        """Sync log, queues and checkpoint; blocks. Return False when syncing the log failed.

        Raises:
            OSError: the queues or the checkpoint could not be written; the log is on the disk.
        """
        return self.syncer.flush()

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
                ``cold_reads.get`` gets the messages.

        Raises:
            StoreBusy: damaged entries can't be restored now.
            StoreError: the store is not open.
        """
        while True:
            result = self.reader.get(
                *(topic, queue_id, offset, max_count),
                max_bytes=max_bytes,
                codes=codes,
                records=records,
                wait=wait,
            )
            if not (wait and result.broken):
                return result
            self.cold_reads.restore_now(topic, queue_id, result.broken)

    # --- topics and state

    def delete_topic(
        self, topic: str, log_end: int | None = None, kept: Container[int] = ()
    ) -> int:
        """Remove a topic's queues and return their number.

        Its records stay in the log, and are void: see ``DeletedTopics``.

        Args:
            topic: its name.
            log_end: where the log ended at the deletion; None for now.
            kept: ids of the queues that the topic got when it was created again since.

        Raises:
            StoreError: they can't be removed.
        """
        self.deleted.add(topic, self.log.start, self.log.end if log_end is None else log_end)
        self.dispatcher.forget(topic, kept)
        try:
            self.syncer.queues.forget(topic)
        except OSError as error:
            raise StoreError(
                f"topic {topic} can't be deleted, for {self.paths.own_checkpoint} can't be written"
                f" ({error.strerror or error}): check the disk, then delete it again"
            ) from error
        return self.queues.remove_topic(topic, kept)

    @property
    def writable(self) -> bool:
        """Whether the store accepts messages."""
        return self.why_not_writable is None

    @property
    def why_not_writable(self) -> str | None:
        """Why the store accepts no messages, for an error text; None when it does."""
        return self.disk.trouble if self.readable else self._not_open


_COMPONENTS: Final = tuple(MessageStore.__annotations__)
