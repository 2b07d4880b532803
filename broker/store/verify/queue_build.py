"""Queues written anew from the log, beside the old ones.

What the log says goes into new files. What it says nothing of is taken from the old ones, where
that can be: entries of messages that retention has taken. Numbers without a message become fillers,
as in recovery. A queue never ends before a number that it has given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.store.derive.runs import EntryRun, QueueKey
from broker.store.queue_files import FILLER_SIZE
from broker.store.verify.queue_walk import QueueReader, QueueState, QueueWalk
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, FILLER, name_of

_AT_ONCE: Final = 65_536


class NewQueue:
    """One queue's new files.

    Args:
        directory: where they are made.
        file_bytes: how long they are.
    """

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self._size = file_bytes

    def clear(self) -> None:
        """Begin anew."""
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                path.unlink()

    def write(self, first: int, entries: bytes | bytearray) -> None:
        """Entries from a number on. Raises ``OSError``."""
        at, rest = first * ENTRY_BYTES, memoryview(entries)
        while rest:
            start = at // self._size * self._size
            count = min(len(rest), start + self._size - at)
            descriptor = self._open(start)
            try:
                os.pwrite(descriptor, rest[:count], at - start)
            finally:
                os.close(descriptor)
            at, rest = at + count, rest[count:]

    def touch(self, number: int) -> None:
        """Have the file that an entry lies in. Raises ``OSError``."""
        os.close(self._open(number * ENTRY_BYTES // self._size * self._size))

    def _open(self, start: int) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / name_of(start)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(descriptor).st_size != self._size:
            os.ftruncate(descriptor, self._size)
        return descriptor

    def first_of(self, number: int) -> int:
        """The first number of the file that one lies in."""
        return number * ENTRY_BYTES // self._size * self._size // ENTRY_BYTES

    def sync(self) -> None:
        """Wait for the disk. Raises ``OSError``."""
        for path in [*self._directory.iterdir(), self._directory]:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class QueueBuild(QueueWalk):
    """Takes the entries of some queues from the log.

    Args:
        reader: of the old files.
        new: the queues that are built, and where.
    """

    def __init__(self, reader: QueueReader, new: dict[QueueKey, NewQueue]) -> None:
        super().__init__(reader)
        self._new = new

    def _follow(self, state: QueueState | None, run: EntryRun) -> None:
        count = len(run.entries) // ENTRY_BYTES
        position, _, _ = ENTRY.unpack_from(run.entries)
        last, _, _ = ENTRY.unpack_from(run.entries, len(run.entries) - ENTRY_BYTES)
        found = QueueState(run.first, run.first + count, position, last, count)
        queue = self._new.get(run.key)
        if queue is not None:
            if state is not None and run.first == 0:
                queue.clear()
            queue.write(run.first, run.entries)
        if state is None:
            self.states[run.key] = found
        else:
            state.follow(found)


def complete(
    queue: NewQueue, old: QueueReader, key: QueueKey, state: QueueState | None, **bounds: int
) -> None:
    """Fill in what the log says nothing of.

    Args:
        queue: with what it does say.
        old: the old files.
        key: the queue.
        state: what the log said; None for nothing.
        **bounds: ``log_start``, a physical offset, and ``number``, which the next message has at
            least.

    Raises:
        OSError, StoreError: the disk refuses.
    """
    files = old.row(key).files
    first, end = (bounds["number"], 0) if state is None else (state.first, state.end)
    begin = queue.first_of(
        first if state is not None or not files else files[0].start // ENTRY_BYTES
    )
    if files:
        begin = min(begin, queue.first_of(files[0].start // ENTRY_BYTES))
    kept_until = min(first, bounds["number"]) if state is None else first
    for number, entries in _kept(old, key, begin, kept_until, bounds["log_start"]):
        queue.write(number, entries)
    for gap_begin, gap_end in [] if state is None else state.gaps:
        queue.write(gap_begin, FILLER * (gap_end - gap_begin))
    if state is not None and end < bounds["number"]:
        queue.write(end, FILLER * (bounds["number"] - end))
    queue.touch(max(end, bounds["number"], 1) - 1)


def _kept(
    old: QueueReader, key: QueueKey, begin: int, end: int, log_start: int
) -> Iterator[tuple[int, bytes]]:
    """Entries of messages that are gone; fillers for others."""
    while begin < end:
        count = min(end - begin, _AT_ONCE)
        entries = old.read(key, begin, count)
        yield (
            begin,
            b"".join(
                ENTRY.pack(position, size, code)
                if size == FILLER_SIZE or (size > 0 and 0 <= position < log_start)
                else FILLER
                for position, size, code in ENTRY.iter_unpack(entries)
            ),
        )
        begin += count
