"""The store as the broker sees it: messages in, messages out, and what is on the disk when.

One thread, the loop's, puts and gets (``reads``); nothing here blocks it but the pages of the maps.
Others work for it: one allocates ahead (``run_ahead``), one syncs the commit log, one the queues
(``flush``), one indexes (``index``), one deletes what is old (``retention``). What they have to say
comes back to the loop by ``call_soon_threadsafe``. Without a loop (tests, tools) the store works as
well: ``flush`` then does at once what the syncing threads would.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Sequence
from pathlib import Path

import structlog

from broker.store import clean_stop
from broker.store.append import Appender
from broker.store.config import StoreConfig, StorePaths
from broker.store.disk_state import DiskState
from broker.store.dispatch import Dispatcher, OnArrival
from broker.store.index.message_index import MessageIndex
from broker.store.limits import NO_SPACE_RETRY_SECONDS
from broker.store.opening import Parts, Progress, join_parts, open_store
from broker.store.os_files import DiskUse, Files, OsFiles
from broker.store.queries import StoreReads
from broker.store.queue_table import QueueTable
from broker.store.results import (
    BatchPutResult,
    GetResult,
    GetStatus,
    PendingMessage,
    PutResult,
    PutStatus,
    RecoveryReport,
    StoreError,
    StoreStats,
)
from broker.store.retention import Retention
from broker.store.sync import Callback, GroupCommit
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


class MessageStore(StoreReads):
    """A store in one directory.

    Attributes:
        config: as given.
        paths: where its files are.
        stats: counters since it was made.
        sync_flush: messages become visible, and answers go out, when the disk has them.
        progress: how far an opening is that is under way.
        recovery: what the last opening found and did.
    """

    def __init__(
        self, config: StoreConfig, *, files: Files | None = None, clock: Clock | None = None
    ) -> None:
        self.config = config
        self.paths = StorePaths.of(config)
        self.stats = StoreStats()
        self.sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self._files: Files = OsFiles() if files is None else files
        self._clock: Clock = SystemClock() if clock is None else clock
        self._disk = DiskState(self._files, self._clock)
        self._dispatcher = Dispatcher()
        self._parts: Parts | None = None
        self.progress = Progress()
        self.recovery = RecoveryReport()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commit: GroupCommit | None = None

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
        self._disk = DiskState(self._files, self._clock)
        self._parts = join_parts(
            opened,
            config=self.config,
            paths=self.paths,
            files=self._files,
            clock=self._clock,
            disk=self._disk,
            dispatcher=self._dispatcher,
            stats=self.stats,
        )
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
        parts = self._opened()
        self._loop = loop
        if self.sync_flush:
            timeout_ms = self.config.sync_flush_timeout_ms
            request = parts.log_flusher.request
            self._commit = GroupCommit(loop, request, timeout_ms, self.stats)
        parts.log_flusher.start(self._flushed_in_thread)
        parts.queue_flusher.start(loop.call_soon_threadsafe)
        parts.run_ahead.start()
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
        workers = (
            *(parts.retention, parts.index, parts.run_ahead),
            *(parts.log_flusher, parts.queue_flusher),
        )
        ended = [worker.stop() for worker in workers]
        try:
            if all(ended) and self.flush():
                parts.index.finish()
                parts.queue_flusher.write_checkpoint()
                parts.log.remove_prepared()
                self._leave_word(parts)
                self._files.remove(self.paths.abort)
                self._files.sync_directory(self.paths.root)
        except OSError as error:
            _log.error("store not closed cleanly", store=str(self.paths.root), error=str(error))
        finally:
            if self._commit is not None:
                self._commit.fail()
                self._commit = None
            self._dispatcher.clear()
            self._parts = None
            self._loop = None
            parts.index.close()
            parts.log.close()
            parts.queues.close()
            parts.lock.release()

    def _leave_word(self, parts: Parts) -> None:
        """Spare the next start the long way; it can do without."""
        if len(self._dispatcher):
            return
        with contextlib.suppress(OSError):
            clean_stop.write(
                self._files,
                self.paths,
                self.config,
                parts.log,
                parts.queues,
                log_tail=parts.log_flusher.tail,
                last_store_ms=parts.writer.last_store_ms,
            )

    def _opened(self) -> Parts:
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
        if self._commit is not None:
            self._commit.ask()
        return result

    def put_batch(self, messages: Sequence[PendingMessage]) -> BatchPutResult:
        """Store messages of one queue one behind the other: all of them or none."""
        if self._parts is None:
            return BatchPutResult(PutStatus.SERVICE_NOT_AVAILABLE, message=self._not_open)
        result = self._parts.writer.put_batch(messages)
        if self._commit is not None:
            self._commit.ask()
        return result

    @property
    def queues(self) -> QueueTable:
        """The consume queues. Raises ``StoreError`` when the store is not open."""
        return self._opened().queues

    @property
    def retention(self) -> Retention:
        """Deletes old messages. Raises ``StoreError`` when the store is not open."""
        return self._opened().retention

    def disk_use(self, path: Path) -> DiskUse:
        """How full the disk of a directory is. Raises ``OSError``."""
        return self._files.disk_use(path)

    @property
    def appender(self) -> Appender:
        """Appends the messages of one read together. Raises ``StoreError`` likewise."""
        return self._opened().appender

    @property
    def index(self) -> MessageIndex:
        """Finds messages by their keys. Raises ``StoreError`` likewise."""
        return self._opened().index

    def ask_sync(self) -> None:
        """In SYNC mode, have what the appender stored synced soon."""
        if self._commit is not None:
            self._commit.ask()

    def when_durable(self, end_offset: int, callback: Callback) -> None:
        """Tell ``callback`` on the loop's thread when the disk has the log up to ``end_offset``.

        True: it has. False: it took longer than ``syncFlushTimeout``, or the disk failed; the
        message is stored, but less durable. May call back before it returns.
        """
        parts = self._parts
        if parts is None or self._disk.final:
            callback(False)
        elif end_offset <= parts.log_flusher.flushed:
            callback(True)
        elif self._commit is not None:
            self._commit.add(end_offset, callback)
        else:
            callback(self.flush())

    def flush(self) -> bool:
        """Bring everything to the disk now; blocks. False when the disk failed.

        Raises:
            OSError: the queues or the checkpoint could not be written; the log is on the disk.
        """
        parts = self._opened()
        done = parts.log_flusher.sync()
        self._flushed(parts.log_flusher.flushed)
        if done:
            parts.queue_flusher.make_safe()
            parts.queue_flusher.write_checkpoint()
        return done

    def _flushed_in_thread(self, durable_end: int) -> None:
        if self.sync_flush and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._flushed, durable_end)

    def _flushed(self, durable_end: int) -> None:
        """The log is on the disk up to here: show it, and tell those who wait."""
        try:
            self._dispatcher.release(durable_end)
        except OSError as error:
            self._disk.refused(self.paths.consume_queues, error)
            if self._loop is not None:
                self._loop.call_later(NO_SPACE_RETRY_SECONDS, self._flushed, durable_end)
        if self._commit is not None:
            self._commit.reached(durable_end)
            if self._disk.final:
                self._commit.fail()

    # --- messages out

    @property
    def on_arrival(self) -> OnArrival | None:
        """Called with topic, queue id, new maximum offset and tags code of what became visible."""
        return self._dispatcher.on_arrival

    @on_arrival.setter
    def on_arrival(self, callback: OnArrival | None) -> None:
        self._dispatcher.on_arrival = callback

    def watch(self, queues: Container[tuple[str, int]]) -> None:
        """Call ``on_arrival`` for these queues (topic and id) and the schedule topic's only."""
        self._dispatcher.watched = queues

    # --- topics and state

    def delete_topic(self, topic: str) -> int:
        """Remove a topic's queues; how many there were. Its records stay in the log.

        Raises:
            StoreError: they can't be removed.
        """
        parts = self._opened()
        self._dispatcher.forget(topic)
        try:
            parts.queue_flusher.forget(topic)
        except OSError as error:
            raise StoreError(
                f"topic {topic} can't be deleted, for {self.paths.safe_point} can't be written"
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
        return self._not_open if self._parts is None else self._disk.trouble
