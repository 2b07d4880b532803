"""Writing the files of a consume queue without a broker, for a copy and for a repair."""

from __future__ import annotations

import os
from pathlib import Path

from remoting.protocol.disk.files import ENTRY_BYTES, name_of


class QueueWriter:
    """The files of one queue, made at full length when something is written into them.

    Args:
        directory: where they are.
        file_bytes: how long they are.
    """

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self._size = file_bytes

    def clear(self) -> None:
        """Remove what was written so far. Raises ``OSError``."""
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                path.unlink()

    def write(self, first: int, entries: bytes | bytearray) -> None:
        """Write packed entries of messages from number ``first`` on. Raises ``OSError``."""
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
        """Make the file that a message's entry lies in. Raises ``OSError``."""
        os.close(self._open(number * ENTRY_BYTES // self._size * self._size))

    def _open(self, start: int) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / name_of(start)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(descriptor).st_size != self._size:
            os.ftruncate(descriptor, self._size)
        return descriptor

    def first_of(self, number: int) -> int:
        """The first message whose entry lies in the same file as that of message ``number``."""
        return number * ENTRY_BYTES // self._size * self._size // ENTRY_BYTES

    def sync(self) -> None:
        """Wait until files and names are on the disk. Raises ``OSError``."""
        for path in [*self._directory.iterdir(), self._directory]:
            sync_path(path)


def sync_path(path: Path | str) -> None:
    """Wait until a file, or the names in a directory, are on the disk. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
