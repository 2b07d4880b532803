"""Bringing consume queues to the disk, and what tells the next start how far all of it is there.

``QueueFlusher`` does so at its own pace in a thread of its own, for nobody waits for queues.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

from broker.store.config import StoreConfig
from broker.store.consume_queue import ConsumeQueue
from broker.store.disk_state import DiskState
from broker.store.files import Files
from broker.store.limits import (
    FIRST_TURN_SECONDS,
    FIRST_TURNS,
    MARK_QUEUE_SECONDS,
    MARK_SECONDS,
    PAGE_BYTES,
    SAFE_POINT_BYTES,
    SAFE_POINT_QUEUE_SECONDS,
)
from broker.store.log_flusher import LogFlusher
from broker.store.paths import StorePaths
from broker.store.queue_table import QueueTable
from broker.store.safe_point import Mark, Marker, SafePoint, SafePointFile, point_of
from broker.store.stats import StoreStats
from broker.store.threads import Worker
from remoting.clock import Clock
from remoting.protocol.disk.files import ENTRY_BYTES, Checkpoint


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
        self._worker = Worker("store-flush-queues", self._run, disk)
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
            if mark.epoch == self._marker.epoch and point != self.safe.point:
                self._write_point(point)
        self._next_at = self._clock.monotonic() + pause

    def _write_point(self, point: SafePoint) -> None:
        try:
            self.safe.write(point)
        except OSError:
            # What the last one says is still true.
            self._stats.queue_sync_failures += 1

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
            self._marker.epoch += 1
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
        # What the start walked over shall not be walked over again, and ever more of it, when one
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
