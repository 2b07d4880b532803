"""Moving the log's watermark ahead of the appender, so that appending meets no page without blocks.

A thread allocates in steps of 1 MiB with a pause in between, up to a distance that grows with what
the store has taken: an idle store does not write 64 MiB of zeros, a busy one is not overtaken. When
the file is allocated to its end, the next one is made and allocated too. An appender that comes
close wakes the thread (``CommitLog.wake_at``); one that overtakes it helps itself.
"""

from __future__ import annotations

from broker.store.commit_log import CommitLog
from broker.store.disk_state import DiskState
from broker.store.limits import (
    APPENDER_STEP_BYTES,
    NO_SPACE_RETRY_SECONDS,
    RUN_AHEAD_BYTES,
    RUN_AHEAD_FIRST_BYTES,
    RUN_AHEAD_PAUSE_SECONDS,
    RUN_AHEAD_STEP_BYTES,
)
from broker.store.mapped_file import MappedFile
from broker.store.threads import Worker


class RunAhead:
    """The thread that allocates."""

    def __init__(self, log: CommitLog, disk: DiskState) -> None:
        self._log = log
        self._disk = disk
        self._worker = Worker("store-run-ahead", self._run, disk)

    def start(self) -> None:
        """Start the thread."""
        self._log.wake = self._worker.wake.set
        self._worker.wake.set()
        self._worker.start()

    def stop(self) -> None:
        """End the thread; a step it is in is waited for, within bounds."""
        self._worker.stop()

    def _run(self) -> None:
        wake, stopping = self._worker.wake, self._worker.stopping
        while not stopping.is_set():
            # A disk in trouble is asked again even if nobody appends, so that it heals.
            wake.wait(NO_SPACE_RETRY_SECONDS if self._disk.trouble else None)
            wake.clear()
            while not stopping.is_set() and self._try_step():
                self._pause()

    def _pause(self) -> None:
        # Not time.sleep: stop() ends the pause.
        self._worker.stopping.wait(RUN_AHEAD_PAUSE_SECONDS)

    def _try_step(self) -> bool:
        try:
            more = self.step()
        except OSError as error:
            active, _ = self._log.ahead()
            self._disk.refused(self._log.directory if active is None else active.path, error)
            return False
        if self._disk.trouble:
            self._disk.healed()
        return more

    def step(self) -> bool:
        """Allocate one step if too little is; whether there may be more to do.

        Raises:
            OSError: the disk refuses; nothing has changed.
        """
        log = self._log
        active, following = log.ahead()
        target = min(RUN_AHEAD_BYTES, max(RUN_AHEAD_FIRST_BYTES, log.appended))
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
        file.advance(RUN_AHEAD_STEP_BYTES)
        return True

    def _enough(self, ready: int, target: int) -> bool:
        # Woken when half of it is used up; a file shorter than that wakes by rolling.
        self._log.wake_at = self._log.end + max(ready - target // 2, APPENDER_STEP_BYTES)
        return False
