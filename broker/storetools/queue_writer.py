"""Writing the files of a consume queue without a broker, for copying and repairing a store."""

from __future__ import annotations

import os
from pathlib import Path

from remoting.protocol.disk.files import ENTRY_BYTES, name_of
from remoting.runtime.durable_file import sync_path


class QueueWriter:
    """Writes the files of one queue, which are created at full length when needed.

    Args:
        directory: of the files.
        file_bytes: length of each file.
    """

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self._size = file_bytes

    def clear(self) -> None:
        """Remove all files written so far. Raises ``OSError``."""
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                path.unlink()

    def write(self, first: int, entries: bytes | bytearray) -> None:
        """Write packed entries from queue offset ``first`` on. Raises ``OSError``."""
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
        """Create the file of a message's entry. Raises ``OSError``."""
        os.close(self._open(number * ENTRY_BYTES // self._size * self._size))

    def _open(self, start: int) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / name_of(start)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(descriptor).st_size != self._size:
            os.ftruncate(descriptor, self._size)
        return descriptor

    def first_of(self, number: int) -> int:
        """Return the queue offset of the first entry in the file that has entry ``number``."""
        return number * ENTRY_BYTES // self._size * self._size // ENTRY_BYTES

    def sync(self) -> None:
        """Sync the files and their directory. Raises ``OSError``."""
        for path in [*self._directory.iterdir(), self._directory]:
            sync_path(path)
