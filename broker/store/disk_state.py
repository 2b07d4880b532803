"""Whether the store accepts messages, given the state of its disk; and the store's threads.

Three conditions make the store read-only:

- An allocation failed. It is retried once a second; the first one that succeeds ends this.
- The disk is fuller than the configured bound (see ``retention``). This ends when space is freed;
  until then no allocation is tried.
- A sync failed, or a thread of the store died. Only a restart ends this: the kernel may have
  dropped the pages that it could not write, so a later sync that succeeds would prove nothing.
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
from remoting.runtime.clock import Clock

_log = structlog.get_logger("store")


class DiskState:
    """Whether the store accepts messages, and why not. Thread-safe.

    It logs once when the store stops accepting messages and once when it accepts them again, even
    if the reason changes in between.

    Attributes:
        trouble: why the store accepts no messages, as a sentence for logs and errors; None when it
            accepts them.
        too_full: why the disk counts as too full, as such a sentence; None when it does not.
        final: whether only a restart helps: a sync failed, or a thread died.
        refusals: number of failed allocations.
        no_space: set, in any thread, when an allocation fails because the disk is full.
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
        """Return whether a writer may allocate: there is no trouble, or a retry is due."""
        if self.trouble is None:
            return True
        if self.final or self.too_full is not None:
            return False
        return self._clock.monotonic() >= self._retry_at

    def refused(self, path: Path, error: OSError) -> str:
        """Note that an allocation for ``path`` failed, and return why no message is accepted."""
        with self._changing():
            self.refusals += 1
            if not self.final:
                self._retry_at = self._clock.monotonic() + self._retry_seconds
                self.trouble = self._reason(path, error)
            reason = self.trouble or ""
        if is_no_space(error):
            self.no_space.set()
        return reason

    def accepted(self) -> None:
        """Note that an allocation succeeded."""
        with self._changing():
            if not self.final:
                self.trouble = self.too_full

    def measured(self, too_full: str | None) -> None:
        """Note why the disk is too full, or None when a measurement found that it is not."""
        with self._changing():
            was, self.too_full = self.too_full, too_full
            if not self.final and (too_full is not None or self.trouble == was):
                self.trouble = too_full

    def sync_failed(self, path: Path, error: OSError) -> None:
        """Note that a sync failed: the store accepts no more messages until a restart."""
        with self._changing():
            self.final = True
            self.trouble = (
                f"the disk failed to sync {path} ({error.strerror or error}), so the store takes no"
                " more messages: check the disk, then restart the broker"
            )

    def thread_died(self, name: str, error: Exception) -> None:
        """Note that a thread ended with an uncaught exception; effect as ``sync_failed``."""
        with self._changing():
            self.final = True
            self.trouble = (
                f"the store's thread {name} died ({error!r}), so it takes no more messages: restart"
                " the broker and report this"
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; on exit, log whether the store accepts messages, if that has changed."""
        with self._lock:
            was_taking, was_final = self.trouble is None, self.final
            yield
            # Logged under the lock, so that the changes appear in their order.
            if self.trouble is None:
                if not was_taking:
                    _log.info("the store takes messages again")
            elif was_taking or self.final is not was_final:
                # A reason that only a restart removes is logged even after another reason.
                _log.error("the store takes no messages", reason=self.trouble)

    def _reason(self, path: Path, error: OSError) -> str:
        try:
            free = f"{self._files.free_bytes(path.parent)} bytes free"
        except OSError:
            free = "free space unknown"
        if is_no_space(error):
            return (
                f"no space left to write {path} ({free}), so the store is read-only: free some"
                " space and it resumes by itself"
            )
        return (
            f"can't write {path} ({error.strerror or error}; {free}), so the store is read-only:"
            " remove the cause and it resumes by itself"
        )


class StoreThread:
    """A stoppable daemon thread of the store; an uncaught exception makes the store read-only.

    Attributes:
        wake: set to wake the thread, which clears it.
        stopping: set to make the thread end.
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
        """Create the thread; see ``start``.

        Args:
            name: for the log.
            work: the thread's function; must return soon after ``stopping`` and ``wake`` are set.
            disk: records an uncaught exception.
            limits: ``close_seconds`` bounds how long ``stop`` waits.
            wake: an event shared with its owner, instead of a new one.
            on_death: called in the thread after an uncaught exception.
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
        """Stop the thread; return False when it does not end in time, blocked by the disk."""
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
    """What all components of an open store share."""

    config: StoreConfig
    paths: StorePaths
    files: Files
    clock: Clock
    disk: DiskState
    stats: StoreStats
