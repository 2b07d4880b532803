"""Bringing what was stored to the disk: the commit log, then the queues and the checkpoint.

``LogFlusher`` owns how far the log is on the disk. Its thread syncs on request and, in ASYNC mode,
by interval; all who ask while a sync runs share the next one, without any timer: that is group
commit. ``QueueFlusher`` syncs consume queues at its own pace in another thread, for nobody waits
for them, and writes the checkpoint. Only ``fdatasync`` is used, which releases the GIL.

A sync that failed is never tried again, and nothing is stored any more: see ``disk_state``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig
from broker.store.consume_queue import ConsumeQueue
from broker.store.disk_state import DiskState
from broker.store.files import Files
from broker.store.limits import PAGE_BYTES
from broker.store.queue_table import QueueTable
from broker.store.stats import StoreStats
from broker.store.threads import Worker
from remoting.clock import Clock
from remoting.protocol.disk.checkpoint import Checkpoint
from remoting.protocol.disk.consume_queue_entry import ENTRY_BYTES


class LogFlusher:
    """Syncs the commit log.

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
        store_ms: Callable[[], int],
    ) -> None:
        """``store_ms`` tells the store time of the last record."""
        self._log = log
        self._disk = disk
        self._config = config
        self._clock = clock
        self._stats = stats
        self._store_ms = store_ms
        self._syncing = threading.Lock()
        self._worker = Worker("store-flush-log", self._run, disk)
        self._worker.on_death = lambda: self._on_flushed(self.flushed)
        self._on_flushed: Callable[[int], None] = lambda _: None
        self._flushed_at = clock.monotonic()
        self.flushed = log.end
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
            if end > self.flushed:
                if not self._sync_files(end):
                    return False
                self.tail = self.flushed
            self.flushed = end
            self.flushed_store_ms = store_ms
            self._flushed_at = self._clock.monotonic()
            return True

    def _sync_files(self, end: int) -> bool:
        for file in self._log.files_between(self.flushed, end):
            begun = self._clock.monotonic()
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
            wake.clear()
            if not stopping.is_set() and (requested or self.is_due()):
                self.sync()
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


class QueueFlusher:
    """Syncs consume queues and writes the checkpoint."""

    def __init__(
        self,
        queues: QueueTable,
        log_flusher: LogFlusher,
        files: Files,
        disk: DiskState,
        checkpoint_path: Path,
        checkpoint: Checkpoint,
        config: StoreConfig,
        clock: Clock,
        stats: StoreStats,
        *,
        dispatched_ms: Callable[[], int],
    ) -> None:
        """``dispatched_ms`` tells the store time of the last message that has its entry."""
        self._queues = queues
        self._log_flusher = log_flusher
        self._files = files
        self._path = checkpoint_path
        self._checkpoint = checkpoint
        self._written: Checkpoint | None = None
        self._config = config
        self._clock = clock
        self._stats = stats
        self._dispatched_ms = dispatched_ms
        self._thorough_at = clock.monotonic()
        self._worker = Worker("store-flush-queues", self._run, disk)

    def sync(self, *, thorough: bool) -> None:
        """Bring the queues to the disk, all or those with much to bring. Raises ``OSError``."""
        least = 1
        if not thorough:
            least = self._config.flush_consume_queue_least_pages * PAGE_BYTES
        dispatched_ms = self._dispatched_ms()
        for queue in self._queues.all():
            if _dirty_bytes(queue) >= least:
                queue.sync()
        if thorough:
            self._thorough_at = self._clock.monotonic()
            self._checkpoint = replace(self._checkpoint, logics_ms=dispatched_ms)

    def write_checkpoint(self) -> None:
        """Write the checkpoint file if it has changed. Raises ``OSError``."""
        flushed_ms = self._log_flusher.flushed_store_ms
        if flushed_ms:
            self._checkpoint = replace(self._checkpoint, physic_ms=flushed_ms)
        if self._checkpoint != self._written:
            self._files.write(self._path, self._checkpoint.encode())
            self._written = self._checkpoint

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self) -> bool:
        """End the thread; False when a sync that runs does not end within bounds."""
        return self._worker.stop()

    def _run(self) -> None:
        interval = self._config.flush_interval_consume_queue_ms / 1000
        while not self._worker.stopping.wait(interval):
            age = self._clock.monotonic() - self._thorough_at
            pause = self._config.flush_consume_queue_thorough_interval_ms / 1000
            try:
                self.sync(thorough=age >= pause)
                self.write_checkpoint()
            except OSError:
                # Queues are derived: the next start finds out what they lack. Only the log's
                # syncs decide over what is acknowledged.
                self._stats.queue_sync_failures += 1


def _dirty_bytes(queue: ConsumeQueue) -> int:
    return (queue.max_offset - queue.flushed_offset) * ENTRY_BYTES
