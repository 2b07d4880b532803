"""The preallocator, which moves the commit log's watermark ahead of the appender.

A thread allocates in steps of 1 MiB (8 MiB when no zeros are written) with a pause in between, up
to a run-ahead that grows with the bytes stored: so an idle store does not write 64 MiB of zeros,
and a busy one does not reach the watermark. When the file is allocated to its end, the next one is
created and allocated too. An appender that has used half of the run-ahead wakes the thread
(``CommitLog.want_from``); one that reaches the watermark allocates itself. On a disk that is nearly
full nothing is allocated ahead.
"""

from __future__ import annotations

from broker.store.commit_log import CommitLog
from broker.store.disk_state import StoreContext, StoreThread
from broker.store.mapped_file import MappedFile


class Preallocator:
    """The thread that allocates ahead."""

    def __init__(self, context: StoreContext, log: CommitLog) -> None:
        self._log = log
        self._files = context.files
        self._disk = context.disk
        self._limits = context.config.limits
        self._worker = StoreThread(
            "store-preallocate", self._run, context.disk, self._limits, wake=log.wanted
        )

    def start(self) -> None:
        """Start the thread."""
        self._worker.wake.set()
        self._worker.start()

    def stop(self) -> bool:
        """Stop the thread; return False when its current step does not end in time."""
        return self._worker.stop()

    def _run(self) -> None:
        wake, stopping = self._worker.wake, self._worker.stopping
        while not stopping.is_set():
            # Woken by the appender; the timeout is for checking whether a full disk has space.
            wake.wait(self._limits.no_space_retry_seconds)
            wake.clear()
            while not stopping.is_set() and self.try_step():
                stopping.wait(self._limits.preallocate_pause_seconds)

    def try_step(self) -> bool:
        """Allocate one step, or retry on a disk that was full; return whether to continue."""
        if self._disk.final or self._disk.too_full is not None:
            return False
        try:
            if self._disk.trouble is not None:
                # Allocate a little, needed or not, to find out whether the disk has space again.
                active, following = self._log.ahead()
                if active is None or active.watermark == active.size:
                    active = following or self._log.prepare_next()
                active.advance(self._limits.appender_step_bytes)
                self._disk.accepted()
            return (
                self._files.free_bytes(self._log.directory)
                >= self._limits.preallocate_min_free_bytes
            ) and self.step()
        except OSError:
            # Not reported: the appender can still allocate in small steps, and reports the error if
            # it finds no space either.
            return False

    def step(self) -> bool:
        """Allocate one step if the run-ahead is too short; return whether there may be more to do.

        Raises:
            OSError: the disk refuses.
        """
        log = self._log
        active, following = log.ahead()
        target = min(
            self._limits.preallocate_bytes, max(self._limits.preallocate_first_bytes, log.appended)
        )
        ready = 0 if active is None else active.start + active.watermark - log.end
        if active is not None and active.watermark < active.size:
            return self._advance(active, ready, target)
        if following is None:
            if ready >= target:
                return self._enough(ready, target)
            following = log.prepare_next()
        ready += following.watermark
        if following.watermark < following.size:
            return self._advance(following, ready, target)
        return self._enough(ready, target)

    def _advance(self, file: MappedFile, ready: int, target: int) -> bool:
        if ready >= target:
            return self._enough(ready, target)
        if self._log.takes_large:
            file.advance(self._limits.allocate_step_bytes, zeros=False)
        else:
            file.advance(self._limits.preallocate_step_bytes)
        return True

    def _enough(self, ready: int, target: int) -> bool:
        # Wake up when half of the run-ahead is used. With files shorter than that, rolling wakes.
        self._log.want_from(
            self._log.end + max(ready - target // 2, self._limits.appender_step_bytes)
        )
        return False
