"""Bringing the store to the disk, and what follows a sync.

``LogSync`` owns how far the commit log is on the disk, ``QueueSync`` how far the consume queues
are, and with them the checkpoint and the safe point. ``Syncer`` has the threads: one syncs the log,
on request and, in ASYNC mode, periodically; one syncs the queues at its own pace, since nobody
waits for them. All requests made during a sync of the log share the next one, without any timer:
that is group commit. Before and after a sync of the log, in this order:

1.  the safe point is marked, if one is due (``Syncer._sync_log``);
2.  the log is synced (``LogSync.sync``);
3.  the queues' thread makes the marked point safe (``Syncer._log_synced``);
4.  on the loop's thread, entries of messages become visible, and whoever waits for them is told
    (``Syncer._show``).

``GroupCommit`` has the callers that wait until a message is on the disk (SYNC mode).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import ConsumeQueue
from broker.store.disk_state import DiskState
from broker.store.dispatch import EntryDispatcher
from broker.store.limits import PAGE_BYTES, StoreLimits
from broker.store.os_files import Files, is_no_space
from broker.store.queue_table import QueueTable
from broker.store.results import StoreStats
from broker.store.safe_point import Mark, Marker, SafePointFile, point_of
from remoting.clock import Clock
from remoting.protocol.disk.files import ENTRY_BYTES, Checkpoint

Callback = Callable[[bool], None]


class StoreThread:
    """A stoppable thread; an uncaught error marks the store as failed.

    Attributes:
        wake: set to have the thread look at once; it clears it.
        stopping: set to have the thread end.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        disk: DiskState,
        limits: StoreLimits,
        *,
        wake: threading.Event | None = None,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        """A thread.

        Args:
            name: for the log.
            work: returns soon after ``stopping`` and ``wake`` have been set.
            disk: is told of an uncaught error.
            limits: bound how long the end of the thread is waited for.
            wake: another owner's, to be woken by it.
            on_death: called in the thread after an uncaught error.
        """
        self._name = name
        self._work = work
        self._disk = disk
        self._close_seconds = limits.close_seconds
        self._on_death = on_death
        self._thread: threading.Thread | None = None
        self.wake = threading.Event() if wake is None else wake
        self.stopping = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """End the thread; False when it sits in a call of the disk that does not end."""
        self.stopping.set()
        self.wake.set()
        if self._thread is None:
            return True
        self._thread.join(self._close_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - reported to all who put
            self._disk.thread_died(self._name, error)
            self._on_death()


class LogSync:
    """How far the commit log is on the disk, and bringing it there.

    Only ``fdatasync`` is used, which releases the GIL. A sync that failed is never repeated, and
    nothing is stored any more: see ``disk_state``.

    Attributes:
        flushed: physical offset up to which the log is on the disk.
        tail: physical offset from which on it was brought there last; a record begins there.
        flushed_store_ms: store time up to which its messages are.
    """

    def __init__(
        self,
        log: CommitLog,
        disk: DiskState,
        config: StoreConfig,
        clock: Clock,
        stats: StoreStats,
        *,
        synced: int,
        store_ms: Callable[[], int],
    ) -> None:
        """Syncs a log.

        Args:
            log: just opened.
            disk: its state.
            config: of the store.
            clock: for intervals.
            stats: to count in.
            synced: physical offset up to which the log is on the disk.
            store_ms: returns the store time of the last record.
        """
        self._log = log
        self._disk = disk
        self._config = config
        self._clock = clock
        self._stats = stats
        self._store_ms = store_ms
        self._syncing = threading.Lock()
        self._flushed_at = clock.monotonic()
        self._found_end = log.end
        self.flushed = synced
        self.tail = log.opened_tail
        self.flushed_store_ms = 0

    def sync(self) -> bool:
        """Bring all of the log to the disk, in any thread; False when the disk failed."""
        # One at a time: two would count the same pages, and report ends out of order.
        with self._syncing:
            if self._disk.final:
                return False
            # In this order: what was stored up to this time lies before that end.
            store_ms = self._store_ms()
            end = self._log.end
            if end > self.flushed:
                if not self._sync_files(end):
                    return False
                # A start does not begin before what another one has walked over.
                self.tail = max(self.flushed, self.tail)
            self.flushed = end
            self.flushed_store_ms = store_ms
            self._flushed_at = self._clock.monotonic()
            return True

    def _sync_files(self, end: int) -> bool:
        for file in self._log.files_between(self.flushed, end):
            begun = self._clock.monotonic()
            try:
                # What a start found behind the last sync may be in the page cache alone, marked
                # as written by a sync that failed: only a write brings it to the disk for sure.
                file.rewrite(self.flushed - file.start, self._found_end - file.start)
            except OSError as error:
                if not is_no_space(error):
                    self._disk.sync_failed(file.path, error)
                else:
                    self._disk.refused(file.path, error)
                return False
            try:
                file.sync()
            except OSError as error:
                self._disk.sync_failed(file.path, error)
                return False
            self._stats.count_sync(self._clock.monotonic() - begun)
        return True

    def is_due(self) -> bool:
        """Whether the interval sync has enough to do, or has waited long enough."""
        dirty = self._log.end - self.flushed
        if dirty <= 0:
            return False
        thorough = self._config.flush_commit_log_thorough_interval_ms / 1000
        return (
            dirty >= self._config.least_flush_bytes
            or self._clock.monotonic() - self._flushed_at >= thorough
        )


class Waiter(NamedTuple):
    """A caller that wants to know when the log is on the disk up to ``end_offset``."""

    end_offset: int
    deadline: float
    callback: Callback


class GroupCommit:
    """The callers that wait until a message is on the disk. Only the loop's thread uses it.

    All that arrives in one turn of the loop is one request for a sync; all that arrives during a
    sync is the next one. An answer that waited longer than ``syncFlushTimeout`` goes out as
    "stored, less durable"; the message still becomes visible when the disk has it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        request_sync: Callable[[], None],
        timeout_ms: int,
        stats: StoreStats,
    ) -> None:
        """``request_sync`` has the log synced soon."""
        self._loop = loop
        self._request_sync = request_sync
        self._timeout = timeout_ms / 1000
        self._stats = stats
        self._waiters: list[Waiter] = []
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def ask(self) -> None:
        """Have the log synced at the end of this turn of the loop."""
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._asked = False
        self._request_sync()

    def add(self, end_offset: int, callback: Callback) -> None:
        """Tell ``callback`` True when the disk has the log up to here, False if it never comes."""
        deadline = self._loop.time() + self._timeout
        self._waiters.append(Waiter(end_offset, deadline, callback))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        self.ask()

    def reached(self, durable_end: int) -> None:
        """The log is on the disk up to here."""
        waiters = self._waiters
        # They wait in the order of the log; one that does not waits for the next sync.
        ready = 0
        while ready < len(waiters) and waiters[ready].end_offset <= durable_end:
            ready += 1
        self._waiters = waiters[ready:]
        for waiter in waiters[:ready]:
            waiter.callback(True)

    def fail(self) -> None:
        """Fail all waiters: the disk has failed, or the store closes."""
        waiters, self._waiters = self._waiters, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in waiters:
            waiter.callback(False)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        late = 0
        while late < len(self._waiters) and self._waiters[late].deadline <= now:
            late += 1
        expired, self._waiters = self._waiters[:late], self._waiters[late:]
        if self._waiters:
            self._timer = self._loop.call_at(self._waiters[0].deadline, self._expire)
        self._stats.sync_timeouts += len(expired)
        for waiter in expired:
            waiter.callback(False)


class Wish(Enum):
    """What a turn of the queues leaves to be done."""

    NOTHING = auto()
    MARK = auto()
    """A mark is due; only the thread that appends may take it."""
    LOG_SYNC = auto()
    """A mark waits until the disk has the log up to there."""


class QueueSync:
    """How far the consume queues are on the disk; writes the checkpoint and the safe point.

    A safe point takes two steps: first the loop's thread takes a mark; when the disk has the log up
    to there it gets the queues. A log that grows fast is marked just before each of its syncs, so
    that a start after a crash walks over little more than what the disk did not have. When a sync
    of a queue has failed, nobody knows what of it is on the disk: the last safe point stays, and so
    does the ``abort`` file, so that the next start rebuilds what came later.

    Attributes:
        safe: the safe point.
    """

    def __init__(
        self,
        queues: QueueTable,
        log_sync: LogSync,
        files: Files,
        paths: StorePaths,
        checkpoint: Checkpoint,
        config: StoreConfig,
        clock: Clock,
        stats: StoreStats,
        *,
        dispatched_ms: Callable[[], int],
        index_ms: Callable[[], int | None],
        safe: SafePointFile,
        marker: Marker,
        named: Callable[[ConsumeQueue], bool],
    ) -> None:
        """Syncs queues.

        Args:
            queues: to be synced.
            log_sync: of the log they are about.
            files: the disk.
            paths: of the store.
            checkpoint: as it was when the store was opened.
            config: of the store.
            clock: for intervals.
            stats: to count in.
            dispatched_ms: returns the store time of the last message that has its entry.
            index_ms: returns the time up to which the index is on the disk; None: unknown.
            safe: the file of the safe point.
            marker: takes marks.
            named: whether a queue that was there at the start is known to have its directory on
                the disk.
        """
        self._queues = queues
        self._log_sync = log_sync
        self._files = files
        self._paths = paths
        self._checkpoint = checkpoint
        self._written: Checkpoint | None = None
        self._config = config
        self._clock = clock
        self._stats = stats
        self._dispatched_ms = dispatched_ms
        self._index_ms = index_ms
        self._marker = marker
        self._mark: Mark | None = None
        self._named = {queue for queue in queues.all() if queue.opened_offset and named(queue)}
        self._guard = threading.Lock()
        self._failed: OSError | None = None
        self._thorough_at = self._next_at = clock.monotonic()
        self.safe = safe

    def turn(self) -> Wish:
        """Do what there is to do once in an interval, in any thread, one at a time."""
        mark = self._mark
        wish = Wish.NOTHING
        try:
            if mark is not None and self._log_sync.flushed >= mark.end:
                self._mark = None
                self._make_safe(mark)
            else:
                self.sync(thorough=False)
                if mark is not None:
                    wish = Wish.LOG_SYNC
                elif self.is_due():
                    wish = Wish.MARK
            self.write_checkpoint()
        except OSError:
            # Queues are derived: the next start finds out what they lack. Only the log's
            # syncs decide over what is acknowledged.
            self._stats.queue_sync_failures += 1
        return wish

    def is_due(self) -> bool:
        """Whether a new safe point is worth its syncs."""
        now = self._clock.monotonic()
        safe_end = 0 if self.safe.point is None else self.safe.point.end
        grown = self._marker.log_end - safe_end
        if now < self._next_at or not grown:
            return False
        pause = self._config.flush_consume_queue_thorough_interval_ms / 1000
        return grown >= self._config.limits.safe_point_bytes or now - self._thorough_at >= pause

    def take_mark(self) -> None:
        """Mark what the store comes to now; only the thread that appends may do so."""
        self._mark = self._marker.take()

    @property
    def may_become_safe(self) -> bool:
        """Whether there is a mark, and the disk has the log up to there."""
        mark = self._mark
        return mark is not None and self._log_sync.flushed >= mark.end

    def _make_safe(self, mark: Mark) -> None:
        queues = self._queues.all()
        pause = self._config.limits.safe_point_queue_seconds * sum(
            map(bool, map(_dirty_bytes, queues))
        )
        pause += self._config.limits.mark_queue_seconds * len(queues)
        self.sync(thorough=True)
        point = point_of(mark, self._log_sync.flushed)
        with self._guard:
            # A topic that was deleted meanwhile would look like one that was lost.
            if mark.generation == self._marker.generation and point != self.safe.point:
                try:
                    self.safe.write(point)
                except OSError:
                    # What the last one says is still true.
                    self._stats.queue_sync_failures += 1
        self._next_at = self._clock.monotonic() + pause

    def make_safe(self) -> None:
        """Make everything safe, in the thread that appends; the log is on the disk.

        Raises:
            OSError: the disk refuses.
        """
        self._mark = None
        self._make_safe(self._marker.take())

    def forget(self, topic: str) -> None:
        """A topic is about to be deleted, in the thread that appends. Raises ``OSError``."""
        with self._guard:
            self._marker.generation += 1
            self._mark = None
            self.safe.forget(topic)

    def sync(self, *, thorough: bool) -> None:
        """Bring the queues to the disk, all or those with much to bring. Raises ``OSError``."""
        if self._failed is not None:
            raise self._failed
        # Read before the queues: their entries are at least as new.
        dispatched_ms = self._dispatched_ms()
        least = 1 if thorough else self._config.flush_consume_queue_least_pages * PAGE_BYTES
        queues = self._queues.all()
        try:
            for queue in queues:
                if _dirty_bytes(queue) >= least:
                    queue.sync()
        except OSError as error:
            self._failed = error
            raise
        if thorough:
            self._sync_names(queues)
            self._thorough_at = self._clock.monotonic()
            self._checkpoint = replace(self._checkpoint, logics_ms=dispatched_ms)

    def _sync_names(self, queues: list[ConsumeQueue]) -> None:
        """Bring the directories of queues to the disk, once for each."""
        fresh = [queue for queue in queues if queue not in self._named and queue.max_offset]
        if not fresh:
            return
        # A new queue's files were synced with their names; one found at the start may lack its own.
        directories = {queue.directory for queue in fresh if queue.opened_offset}
        directories |= {queue.directory.parent for queue in fresh} | {self._paths.consume_queues}
        for directory in sorted(directories, reverse=True):
            try:
                self._files.sync_directory(directory)
            except FileNotFoundError:
                # Its topic is being deleted; if not, the next start will see.
                self._named.clear()
                return
        self._named = {queue for queue in queues if queue.max_offset}

    def write_checkpoint(self) -> None:
        """Write the checkpoint file if it has changed. Raises ``OSError``."""
        flushed_ms = self._log_sync.flushed_store_ms
        if flushed_ms:
            self._checkpoint = replace(self._checkpoint, physic_ms=flushed_ms)
        index_ms = self._index_ms()
        if index_ms is not None:
            self._checkpoint = replace(self._checkpoint, index_ms=index_ms)
        if self._checkpoint != self._written:
            self._files.write(self._paths.checkpoint, self._checkpoint.encode())
            self._written = self._checkpoint


def _dirty_bytes(queue: ConsumeQueue) -> int:
    return (queue.max_offset - queue.flushed_offset) * ENTRY_BYTES


class Syncer:
    """The threads that sync a store, and what follows their syncs.

    Without a loop (tests, tools) there are no threads: ``turn_log`` and ``turn_queues`` do their
    work.

    Attributes:
        log: how far the log is on the disk.
        queues: how far the queues are.
    """

    def __init__(
        self,
        log: LogSync,
        queues: QueueSync,
        dispatcher: EntryDispatcher,
        disk: DiskState,
        config: StoreConfig,
        paths: StorePaths,
        stats: StoreStats,
    ) -> None:
        self.log = log
        self.queues = queues
        self._dispatcher = dispatcher
        self._disk = disk
        self._config = config
        self._paths = paths
        self._stats = stats
        self._waits = config.flush_disk_type == "SYNC_FLUSH"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commit: GroupCommit | None = None
        self._marked = threading.Event()
        self._log_thread = StoreThread(
            "store-flush-log", self._sync_log, disk, config.limits, on_death=self._show_soon
        )
        self._queue_thread = StoreThread(
            "store-flush-queues", self._sync_queues, disk, config.limits
        )

    # --- the loop's thread

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads; ``loop``'s thread is the one that appends."""
        self._loop = loop
        if self._waits:
            self._commit = GroupCommit(
                loop, self.request, self._config.sync_flush_timeout_ms, self._stats
            )
        self._log_thread.start()
        self._queue_thread.start()

    def stop(self) -> bool:
        """End the threads; False when a sync that runs does not end within bounds."""
        ended = [self._log_thread.stop(), self._queue_thread.stop()]
        return all(ended)

    def close(self) -> None:
        """Fail those who wait; the store is closed."""
        if self._commit is not None:
            self._commit.fail()
            self._commit = None
        self._loop = None

    def request(self) -> None:
        """Have the log synced soon; all requests made during a sync share the next one."""
        self._log_thread.wake.set()

    def ask(self) -> None:
        """In SYNC mode, have what was stored in this turn of the loop synced at its end."""
        if self._commit is not None:
            self._commit.ask()

    def when_durable(self, end_offset: int, callback: Callback) -> None:
        """See ``MessageStore.when_durable``."""
        if self._disk.final:
            callback(False)
        elif end_offset <= self.log.flushed:
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
        done = self.turn_log()
        if done:
            self.queues.make_safe()
            self.queues.write_checkpoint()
        return done

    def turn_log(self) -> bool:
        """Sync the log and show what the disk has; False when the disk failed."""
        done = self.log.sync()
        self._show()
        return done

    def _show(self) -> None:
        """Show what the disk has now, then tell those who wait: they must find it."""
        durable_end = self.log.flushed
        try:
            self._dispatcher.release(durable_end)
        except OSError as error:
            self._disk.refused(self._paths.consume_queues, error)
            if self._loop is not None:
                self._loop.call_later(self._config.limits.no_space_retry_seconds, self._show)
        if self._commit is not None:
            self._commit.reached(durable_end)
            if self._disk.final:
                self._commit.fail()

    def _take_mark(self) -> None:
        self.queues.take_mark()
        self._marked.set()

    # --- the log's thread

    def _sync_log(self) -> None:
        interval = self._config.flush_interval_commit_log_ms / 1000
        wake, stopping = self._log_thread.wake, self._log_thread.stopping
        while not stopping.is_set():
            requested = wake.wait(interval)
            if requested:
                # Not else: a request that comes just when the wait has ended is the next turn's.
                wake.clear()
            if stopping.is_set() or not (requested or self.log.is_due()):
                continue
            if not requested and self.queues.is_due():
                # What is marked now is safe after this sync. Somebody who requested one waits.
                self._marked.clear()
                self._ask_for_mark()
                self._marked.wait(self._config.limits.mark_seconds)
            if self.log.sync():
                self._log_synced()
            self._show_soon()

    def _log_synced(self) -> None:
        if self.queues.may_become_safe:
            self._queue_thread.wake.set()

    def _show_soon(self) -> None:
        """In SYNC mode messages wait for the sync; else the loop need not be disturbed."""
        if self._waits:
            self._on_loop(self._show)

    # --- the queues' thread

    def _sync_queues(self) -> None:
        interval = self._config.flush_interval_consume_queue_ms / 1000
        wake, stopping = self._queue_thread.wake, self._queue_thread.stopping
        # A start must not repeat the walk of the one before, over ever more of the log, when one
        # life after the other ends before an interval does.
        for _ in range(self._config.limits.first_turns):
            first = min(self._config.limits.first_turn_seconds, interval)
            if not self.queues.is_due() or stopping.wait(first):
                break
            self.turn_queues()
        while not stopping.is_set():
            wake.wait(interval)
            wake.clear()
            if not stopping.is_set():
                self.turn_queues()

    def turn_queues(self) -> None:
        """One turn of the queues, and what it leaves to be done."""
        wish = self.queues.turn()
        if wish is Wish.MARK:
            self._ask_for_mark()
        elif wish is Wish.LOG_SYNC:
            self.request()

    def _ask_for_mark(self) -> None:
        if self._loop is None:
            self._take_mark()
        else:
            self._on_loop(self._take_mark)

    def _on_loop(self, act: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(act)
