"""Bringing the commit log to the disk.

``LogFlusher`` owns how far the log is there. Its thread syncs on request and, in ASYNC mode, by
interval; all who ask while a sync runs share the next one, without any timer: that is group commit.
Only ``fdatasync`` is used, which releases the GIL.

A sync that failed is never tried again, and nothing is stored any more: see ``disk_state``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig
from broker.store.disk_state import DiskState
from broker.store.files import is_no_space
from broker.store.mapped_file import MappedFile
from broker.store.stats import StoreStats
from broker.store.threads import Worker
from remoting.clock import Clock


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
        self._worker = Worker("store-flush-log", self._run, disk)
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
            self._reached(end, store_ms)
            return True

    def _reached(self, end: int, store_ms: int) -> None:
        if end > self.flushed:
            # A start does not begin before what another one has walked over.
            self.tail = max(self.flushed, self.tail)
        self.flushed = end
        self.flushed_store_ms = store_ms
        self._flushed_at = self._clock.monotonic()

    def _sync_files(self, end: int) -> bool:
        for file in self._log.files_between(self.flushed, end):
            begun = self._clock.monotonic()
            try:
                self._write_again(file)
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

    def _write_again(self, file: MappedFile) -> None:
        """What a start has found behind the last sync before it. Raises ``OSError``."""
        file.rewrite(self.flushed - file.start, self._found_end - file.start)

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
