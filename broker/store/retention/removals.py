"""Files that the store has given up, until they are off the disk and nobody reads them any more.

Files of the log go one after the other, oldest first, each for good before the next: so what a
crash leaves is a log without a gap. One that can't be removed holds up the others and is tried
again. A removed file takes space as long as a slice of it is held, by an answer that a slow reader
has not taken yet; that space counts as coming, for a while.

Only the thread that deletes comes here, but for ``add``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from broker.store.files import Files
from broker.store.mapped_file import MappedFile
from broker.store.retention.policy import RetentionConfig
from remoting.clock import Clock

_log = structlog.get_logger("store")

_QUEUE_PAUSE_SECONDS = 0.001


class _Held(NamedTuple):
    """A removed file that may still take space."""

    size: int
    is_held: Callable[[], bool]
    until: float


class Removals:
    """What is to be removed, and what has been.

    Attributes:
        failures: how often a file could not be removed.
    """

    def __init__(
        self, files: Files, config: RetentionConfig, clock: Clock, stopping: threading.Event
    ) -> None:
        """``stopping`` ends all pauses."""
        self._files = files
        self._config = config
        self._clock = clock
        self._stopping = stopping
        self._logs: deque[tuple[MappedFile, Callable[[], bool]]] = deque()
        self._queues: deque[MappedFile] = deque()
        self._held: list[_Held] = []
        self._retry_at = 0.0
        self.failures = 0

    def add(self, logs: Iterable[MappedFile], queues: Iterable[MappedFile]) -> None:
        """Files of the log and of queues that are in nobody's list any more; the loop's thread."""
        for file in logs:
            self._logs.append((file, file.give_up()))
        for file in queues:
            file.give_up()
            self._queues.append(file)

    def work(self, *, hurry: bool) -> None:
        """Remove what there is.

        Args:
            hurry: without the pause between two files of the log.
        """
        if self._clock.monotonic() < self._retry_at and not self._stopping.is_set():
            return
        while self._logs and self._remove(self._logs[0][0], durably=True):
            file, is_held = self._logs.popleft()
            until = self._clock.monotonic() + self._config.hold_ms / 1000
            self._held.append(_Held(file.size, is_held, until))
            if self._logs and not hurry:
                self._stopping.wait(self._config.log_pause_ms / 1000)
        while self._queues and self._remove(self._queues[0], durably=False):
            self._queues.popleft()
            self._stopping.wait(_QUEUE_PAUSE_SECONDS)

    def _remove(self, file: MappedFile, *, durably: bool) -> bool:
        try:
            file.remove()
            if durably:
                self._files.sync_directory(file.path.parent)
        except OSError as error:
            self.failures += 1
            self._retry_at = self._clock.monotonic() + self._config.retry_ms / 1000
            _log.error(
                "an old file can't be removed; it is tried again: check the owner of its directory",
                path=str(file.path),
                reason=error.strerror or str(error),
            )
            return False
        return True

    @property
    def held_bytes(self) -> int:
        """Space of removed files that readers still hold."""
        return sum(held.size for held in self._held.copy() if held.is_held())

    def coming_bytes(self) -> int:
        """Space that will be free without anything more being deleted."""
        now = self._clock.monotonic()
        self._held = [held for held in self._held if held.is_held() and now < held.until]
        waiting = sum(file.size for file, _ in self._logs.copy())
        return waiting + sum(held.size for held in self._held)
