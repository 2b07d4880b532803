"""Whether the disk takes what the store writes, and the threads that write to it.

A disk that refuses to allocate makes the store read-only; it heals as soon as an allocation
succeeds again, which is tried once a second. So does one that is fuller than it may be, until there
is room (see ``retention``); meanwhile nothing is tried. A failed sync is final: the kernel may have
dropped the pages it could not write, and a second sync that succeeds would prove nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from broker.store.config import StoreConfig, StorePaths
from broker.store.limits import StoreLimits
from broker.store.os_files import Files, is_no_space
from broker.store.results import StoreStats
from remoting.clock import Clock

_log = structlog.get_logger("store")


class DiskState:
    """What is wrong with the disk, for all who write to it.

    It logs when the store stops taking messages and when it takes them again, once each, whatever
    reasons come and go in between.

    Attributes:
        trouble: why the store does not take messages, in one sentence; None when it does.
        too_full: the same, as long as only room on the disk ends it.
        final: only a restart ends the trouble: a sync failed, or a thread died.
        refusals: how often the disk refused to allocate.
        no_space: set, in any thread, when it did for want of space.
    """

    __slots__ = (
        "_clock",
        "_files",
        "_lock",
        "_retry_at",
        "_retry_seconds",
        "final",
        "no_space",
        "refusals",
        "too_full",
        "trouble",
    )

    def __init__(self, files: Files, clock: Clock, limits: StoreLimits) -> None:
        self._files = files
        self._clock = clock
        self._retry_seconds = limits.no_space_retry_seconds
        self._lock = threading.Lock()
        self._retry_at = 0.0
        self.trouble: str | None = None
        self.too_full: str | None = None
        self.final = False
        self.refusals = 0
        self.no_space = threading.Event()

    def may_try(self) -> bool:
        """Whether a writer may go on, or try whether it can again."""
        if self.trouble is None:
            return True
        if self.final or self.too_full is not None:
            return False
        return self._clock.monotonic() >= self._retry_at

    def refused(self, path: Path, error: OSError) -> str:
        """An allocation for ``path`` failed; the sentence that says so."""
        with self._changing():
            self.refusals += 1
            if not self.final:
                self._retry_at = self._clock.monotonic() + self._retry_seconds
                self.trouble = self._sentence(path, error)
            sentence = self.trouble or ""
        if is_no_space(error):
            self.no_space.set()
        return sentence

    def healed(self) -> None:
        """An allocation has succeeded."""
        with self._changing():
            if not self.final:
                self.trouble = self.too_full

    def measured(self, too_full: str | None) -> None:
        """The disk was found to be too full, and this sentence says so; None: it is not."""
        with self._changing():
            was, self.too_full = self.too_full, too_full
            if not self.final and (too_full is not None or self.trouble == was):
                self.trouble = too_full

    def sync_failed(self, path: Path, error: OSError) -> None:
        """A sync failed: nothing is written any more."""
        with self._changing():
            self.final = True
            self.trouble = (
                f"the disk failed to sync {path} ({error.strerror or error}), so the store takes no"
                " more messages: check the disk, then restart the broker"
            )

    def thread_died(self, name: str, error: Exception) -> None:
        """A thread of the store ended by a fault of ours: nothing is written any more."""
        with self._changing():
            self.final = True
            self.trouble = (
                f"the store's thread {name} died ({error!r}), so it takes no more messages: restart"
                " the broker and report this"
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, and log whether the store takes messages if that has changed."""
        with self._lock:
            was_taking, was_final = self.trouble is None, self.final
            yield
            # Logged under the lock, so that the changes appear in their order.
            if self.trouble is None:
                if not was_taking:
                    _log.info("the store takes messages again")
            elif was_taking or self.final is not was_final:
                # A reason that only a restart removes is logged even if the store has stopped.
                _log.error("the store takes no messages", reason=self.trouble)

    def _sentence(self, path: Path, error: OSError) -> str:
        try:
            free = f"{self._files.free_bytes(path.parent)} bytes free"
        except OSError:
            free = "free space unknown"
        if is_no_space(error):
            return (
                f"no space left to write {path} ({free}), so the store is read-only: free some"
                " space and it goes on by itself"
            )
        return (
            f"can't write {path} ({error.strerror or error}; {free}), so the store is read-only:"
            " once the cause is gone it goes on by itself"
        )


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


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What every part of an open store works with."""

    config: StoreConfig
    paths: StorePaths
    files: Files
    clock: Clock
    disk: DiskState
    stats: StoreStats
