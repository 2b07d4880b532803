"""Where each queue begins after a deletion (cf. correctMinOffset), and removing the deleted files.

The beginning is found in a thread, for each of perhaps ten thousand queues, most of which have lost
nothing: then one entry shows it. The others are searched by bisection. The queue itself is
unchanged and may grow meanwhile; entries are read into the page cache first, so that no page fault
holds the GIL.

``Removals`` removes files of the log one after the other, oldest first, each durably before the
next: so a crash leaves a log without a gap. One that can't be removed delays the others and is
tried again. A removed file takes space as long as a slice of it is held, by an answer that a slow
reader has not taken yet. Only the deleting thread uses it, except for ``add``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import structlog

from broker.store.consume_queue import FILLER_SIZE, NO_MESSAGE, QueueFiles
from broker.store.mapped_file import MappedFile
from broker.store.os_files import Files, Region
from broker.store.retention_policy import RetentionConfig
from remoting.clock import Clock
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES

_log = structlog.get_logger("store")

_AT_ONCE: Final = 512
"""Entries read in one step where fillers are stepped over."""

_NO_MESSAGE: Final = NO_MESSAGE[:2]


def first_alive(queue: QueueFiles, log_start: int) -> int:
    """A queue's first message in the log from ``log_start`` on; its end if there is none.

    Raises:
        OSError: an entry can't be read.
    """
    low, high = queue.min_offset, queue.max_offset
    if low >= high:
        return low
    search = _Search(queue.files, high, log_start)
    if search.is_alive(low):
        return low
    # Dead at ``low``; alive at ``high``, if only in that messages to come will be.
    while high - low > 1:
        middle = (low + high) // 2
        if search.is_alive(middle):
            high = middle
        else:
            low = middle
    return search.next_message(high)


class _Search:
    """A look at the entries of one queue below ``end``."""

    __slots__ = ("_end", "_files", "_log_start", "_regions")

    def __init__(self, files: list[MappedFile], end: int, log_start: int) -> None:
        self._files = files
        self._end = end
        self._log_start = log_start
        # Held so that a file without a map of its own is not mapped for each entry.
        self._regions: dict[MappedFile, Region] = {}

    def is_alive(self, offset: int) -> bool:
        """Whether the log has this message or, for a filler, the next one there was, if any."""
        for physical_offset, size in self._entries(offset, 1):
            if _is_real(physical_offset, size):
                return physical_offset >= self._log_start
        for _, physical_offset in self._real(offset):
            return physical_offset >= self._log_start
        return True

    def next_message(self, offset: int) -> int:
        """The first entry from ``offset`` on that is, damaged or not, that of a message."""
        while entries := self._entries(offset, _AT_ONCE):
            for number, entry in enumerate(entries, offset):
                if entry != _NO_MESSAGE:
                    return number
            offset += len(entries)
        return self._end

    def _real(self, offset: int) -> Iterator[tuple[int, int]]:
        """Number and physical offset of the entries that are no fillers."""
        while offset < self._end:
            entries = self._entries(offset, _AT_ONCE)
            if not entries:
                return
            for number, (physical_offset, size) in enumerate(entries, offset):
                if _is_real(physical_offset, size):
                    yield number, physical_offset
            offset += len(entries)

    def _entries(self, offset: int, most: int) -> list[tuple[int, int]]:
        """Physical offset and size of entries of one file, at least one."""
        file = self._file_of(offset)
        if offset >= self._end or file is None:
            return []
        begin = offset * ENTRY_BYTES - file.start
        end = min(begin + most * ENTRY_BYTES, file.size, self._end * ENTRY_BYTES - file.start)
        region = self._regions.get(file)
        if region is None:
            region = self._regions[file] = file.hold()
        region.fetch(begin, end - begin)
        return [entry[:2] for entry in ENTRY.iter_unpack(region.view[begin:end])]

    def _file_of(self, offset: int) -> MappedFile | None:
        at = offset * ENTRY_BYTES
        return next((file for file in self._files if 0 <= at - file.start < file.size), None)


def _is_real(physical_offset: int, size: int) -> bool:
    return physical_offset >= 0 and 0 < size < FILLER_SIZE


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
        """Take files of the log and of queues that are in no list any more. The loop's thread."""
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
