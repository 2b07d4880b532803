"""Bringing the store to the disk: the commit log, the consume queues, and who waits for it.

``LogFlusher`` owns how far the log is on the disk. Its thread syncs on request and, in ASYNC mode,
periodically; all requests made during a sync share the next one, without any timer: that is group
commit. It uses ``fdatasync`` only, which releases the GIL. A sync that failed is never repeated,
and nothing is stored any more: see ``disk_state``.

``GroupCommit`` has the callers that wait until a message is on the disk (SYNC mode). All that
arrives in one turn of the loop is one request to the flusher. An answer that waited longer than
``syncFlushTimeout`` goes out as "stored, less durable"; the message still becomes visible when the
disk has it.

``QueueFlusher`` syncs the queues at its own pace in its own thread, since nobody waits for queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import ConsumeQueue
from broker.store.disk_state import DiskState
from broker.store.limits import (
    CLOSE_SECONDS,
    FIRST_TURN_SECONDS,
    FIRST_TURNS,
    MARK_QUEUE_SECONDS,
    MARK_SECONDS,
    PAGE_BYTES,
    SAFE_POINT_BYTES,
    SAFE_POINT_QUEUE_SECONDS,
)
from broker.store.os_files import Files, is_no_space
from broker.store.queue_table import QueueTable
from broker.store.results import StoreStats
from broker.store.safe_point import Mark, Marker, SafePointFile, point_of
from remoting.clock import Clock
from remoting.protocol.disk.files import ENTRY_BYTES, Checkpoint


class StoreThread:
    """A thread that runs ``work`` until ``stopping`` is set.

    Attributes:
        wake: set to have the thread look at once; it clears it.
        stopping: set to have the thread end.
        on_death: called in the thread when a fault of ours ended it.
    """

    def __init__(self, name: str, work: Callable[[], None], disk: DiskState) -> None:
        """``work`` returns soon after ``stopping`` and ``wake`` have been set."""
        self._name = name
        self._work = work
        self._disk = disk
        self._thread: threading.Thread | None = None
        self.wake = threading.Event()
        self.stopping = threading.Event()
        self.on_death: Callable[[], None] = lambda: None

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
        self._thread.join(CLOSE_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - reported to all who put
            self._disk.thread_died(self._name, error)
            self.on_death()


class LogFlusher:
    """Syncs the commit log.

    Attributes:
        before_sync: called in the thread before a sync that nobody has asked for.
        after_sync: called in it after each sync that succeeded.
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
        """A flusher.

        Args:
            log: just opened.
            disk: its state.
            config: of the store.
            clock: for intervals.
            stats: to count in.
            synced: physical offset up to which the log is on the disk.
            store_ms: tells the store time of the last record.
        """
        self._log = log
        self._disk = disk
        self._config = config
        self._clock = clock
        self._stats = stats
        self._store_ms = store_ms
        self._syncing = threading.Lock()
        self._worker = StoreThread("store-flush-log", self._run, disk)
        self._worker.on_death = lambda: self._on_flushed(self.flushed)
        self._on_flushed: Callable[[int], None] = lambda _: None
        self._flushed_at = clock.monotonic()
        self._found_end = log.end
        self.before_sync: Callable[[], None] = lambda: None
        self.after_sync: Callable[[], None] = lambda: None
        self.flushed = synced
        self.tail = log.opened_tail
        self.flushed_store_ms = 0

    def sync(self) -> bool:
        """Bring all of the log to the disk, in any thread; False when the disk failed."""
        with self._syncing:
            if self._disk.final:
                return False
            # In this order: what was stored up to this time lies before that end.
            store_ms = self._store_ms()
            end = self._log.end
            if end > self.flushed and not self._sync_files(end):
                return False
            if end > self.flushed:
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
                # What a start has found behind the last sync before it.
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

    def request(self) -> None:
        """Have the thread sync soon; all requests made during a sync share the next one."""
        self._worker.wake.set()

    def start(self, on_flushed: Callable[[int], None]) -> None:
        """Start the thread; ``on_flushed`` is called in it after each sync or failed one."""
        self._on_flushed = on_flushed
        self._worker.start()

    def stop(self) -> bool:
        """End the thread; False when a sync that runs does not end within bounds."""
        return self._worker.stop()

    def _run(self) -> None:
        interval = self._config.flush_interval_commit_log_ms / 1000
        wake, stopping = self._worker.wake, self._worker.stopping
        while not stopping.is_set():
            requested = wake.wait(interval)
            if requested:
                # Not else: a request that comes just when the wait has ended is the next turn's.
                wake.clear()
            if stopping.is_set() or not (requested or self.is_due()):
                continue
            if not requested:
                self.before_sync()
            if self.sync():
                self.after_sync()
            self._on_flushed(self.flushed)

    def is_due(self) -> bool:
        """Whether the interval flush has enough to do, or has waited long enough."""
        dirty = self._log.end - self.flushed
        if dirty <= 0:
            return False
        thorough = self._config.flush_commit_log_thorough_interval_ms / 1000
        return (
            dirty >= self._config.least_flush_bytes
            or self._clock.monotonic() - self._flushed_at >= thorough
        )


Callback = Callable[[bool], None]


class Waiter(NamedTuple):
    """Somebody who wants to know when the log is on the disk up to ``end_offset``."""

    end_offset: int
    deadline: float
    callback: Callback


class GroupCommit:
    """The waiters of one store."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        request_sync: Callable[[], None],
        timeout_ms: int,
        stats: StoreStats,
    ) -> None:
        """``request_sync`` has the flusher sync soon."""
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


class QueueFlusher:
    """Syncs consume queues, and writes the checkpoint and the safe point.

    A safe point takes two steps: first the loop is asked to take a mark; when the disk has the log
    up to there it gets the queues. A log that grows fast is marked just before each of its syncs,
    so that a start after a crash walks over little more than what the disk did not have. When a
    sync of a queue has failed, nobody knows what of it is on the disk: the last safe point stays,
    and so does the ``abort`` file, so that the next start builds anew what came later.

    Attributes:
        safe: the safe point.
        index_ms: tells up to when the index is on the disk, ms; None when nobody knows.
    """

    def __init__(
        self,
        queues: QueueTable,
        log_flusher: LogFlusher,
        files: Files,
        disk: DiskState,
        paths: StorePaths,
        checkpoint: Checkpoint,
        config: StoreConfig,
        clock: Clock,
        stats: StoreStats,
        *,
        dispatched_ms: Callable[[], int],
        safe: SafePointFile,
        marker: Marker,
        named: Callable[[ConsumeQueue], bool],
    ) -> None:
        """A flusher.

        Args:
            queues: to be synced.
            log_flusher: of the log they are about.
            files: the disk.
            disk: its state.
            paths: of the store.
            checkpoint: as it was when the store was opened.
            config: of the store.
            clock: for intervals.
            stats: to count in.
            dispatched_ms: tells the store time of the last message that has its entry.
            safe: the file of the safe point.
            marker: takes marks.
            named: whether a queue that was there at the start is known to have its directory on
                the disk.
        """
        self._queues = queues
        self._log_flusher = log_flusher
        self._files = files
        self._paths = paths
        self._checkpoint = checkpoint
        self._written: Checkpoint | None = None
        self._config = config
        self._clock = clock
        self._stats = stats
        self._dispatched_ms = dispatched_ms
        self._marker = marker
        self._mark: Mark | None = None
        self._marked = threading.Event()
        self._named = {queue for queue in queues.all() if queue.opened_offset and named(queue)}
        self._guard = threading.Lock()
        self._failed: OSError | None = None
        self._thorough_at = self._next_at = clock.monotonic()
        self._worker = StoreThread("store-flush-queues", self._run, disk)
        self._call_loop: Callable[[Callable[[], None]], object] | None = None
        self.safe = safe
        self.index_ms: Callable[[], int | None] = lambda: None

    # --- the work, in the thread or, as long as that does not run, in another

    def turn(self) -> None:
        """What there is to do once in an interval."""
        mark = self._mark
        try:
            if mark is not None and self._log_flusher.flushed >= mark.end:
                self._mark = None
                self._make_safe(mark)
            else:
                self.sync(thorough=False)
                if mark is not None:
                    self._log_flusher.request()
                elif self._is_due():
                    self._ask_for_mark()
            self.write_checkpoint()
        except OSError:
            # Queues are derived: the next start finds out what they lack. Only the log's
            # syncs decide over what is acknowledged.
            self._stats.queue_sync_failures += 1

    def _is_due(self) -> bool:
        now = self._clock.monotonic()
        safe_end = 0 if self.safe.point is None else self.safe.point.end
        grown = self._marker.log_end - safe_end
        if now < self._next_at or not grown:
            return False
        pause = self._config.flush_consume_queue_thorough_interval_ms / 1000
        return grown >= SAFE_POINT_BYTES or now - self._thorough_at >= pause

    def _ask_for_mark(self) -> None:
        if self._call_loop is None:
            self._take_mark()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._call_loop(self._take_mark)

    def _take_mark(self) -> None:
        self._mark = self._marker.take()
        self._marked.set()

    def log_is_synced_soon(self) -> None:
        """In the log's thread: what is marked now is safe the sooner."""
        if self._is_due():
            self._marked.clear()
            self._ask_for_mark()
            self._marked.wait(MARK_SECONDS)

    def log_was_synced(self) -> None:
        """In the log's thread: a mark may have become safe."""
        mark = self._mark
        if mark is not None and self._log_flusher.flushed >= mark.end:
            self._worker.wake.set()

    def _make_safe(self, mark: Mark) -> None:
        queues = self._queues.all()
        pause = SAFE_POINT_QUEUE_SECONDS * sum(map(bool, map(_dirty_bytes, queues)))
        pause += MARK_QUEUE_SECONDS * len(queues)
        self.sync(thorough=True)
        point = point_of(mark, self._log_flusher.flushed)
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
        dispatched_ms = self._dispatched_ms()
        if not thorough:
            least = self._config.flush_consume_queue_least_pages * PAGE_BYTES
            self._sync_queues([q for q in self._queues.all() if _dirty_bytes(q) >= least])
            return
        queues = self._queues.all()
        self._sync_queues([queue for queue in queues if _dirty_bytes(queue)])
        self._sync_names(queues)
        self._thorough_at = self._clock.monotonic()
        self._checkpoint = replace(self._checkpoint, logics_ms=dispatched_ms)

    def _sync_queues(self, queues: list[ConsumeQueue]) -> None:
        try:
            for queue in queues:
                queue.sync()
        except OSError as error:
            self._failed = error
            raise

    def _sync_names(self, queues: list[ConsumeQueue]) -> None:
        """Bring the directories of queues to the disk, once for each."""
        fresh = [queue for queue in queues if queue not in self._named and queue.max_offset]
        if not fresh:
            return
        # What one that is made anew got, its files brought there.
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
        flushed_ms = self._log_flusher.flushed_store_ms
        if flushed_ms:
            self._checkpoint = replace(self._checkpoint, physic_ms=flushed_ms)
        index_ms = self.index_ms()
        if index_ms is not None:
            self._checkpoint = replace(self._checkpoint, index_ms=index_ms)
        if self._checkpoint != self._written:
            self._files.write(self._paths.checkpoint, self._checkpoint.encode())
            self._written = self._checkpoint

    def start(self, call_loop: Callable[[Callable[[], None]], object]) -> None:
        """Start the thread; ``call_loop`` has something done in the thread that appends."""
        self._call_loop = call_loop
        self._worker.start()

    def stop(self) -> bool:
        """End the thread; False when a sync that runs does not end within bounds."""
        return self._worker.stop()

    def _run(self) -> None:
        interval = self._config.flush_interval_consume_queue_ms / 1000
        wake, stopping = self._worker.wake, self._worker.stopping
        # A start must not repeat the walk of the one before, over ever more of the log, when one
        # life after the other ends before an interval does.
        for _ in range(FIRST_TURNS):
            if not self._is_due() or stopping.wait(min(FIRST_TURN_SECONDS, interval)):
                break
            self.turn()
        while not stopping.is_set():
            wake.wait(interval)
            wake.clear()
            if not stopping.is_set():
                self.turn()


def _dirty_bytes(queue: ConsumeQueue) -> int:
    return (queue.max_offset - queue.flushed_offset) * ENTRY_BYTES
