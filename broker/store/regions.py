"""Mapped files of the operating system's: with a descriptor of their own, or without.

A map has a descriptor, which nobody else can use. Whoever writes to a file, syncs it and asks about
it needs a second one: the few large files of the log keep theirs, the many small ones of queues
open the file again when it comes to that.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.store.page_cache import address_of, fetch_range, is_range_cached, read_range_ahead

# fdatasync is not to be had everywhere (macOS); fsync does the same and more.
datasync = getattr(os, "fdatasync", os.fsync)

_NOT_SERVED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


def shortened(found: int | None, size: int) -> OSError:
    """The error for a file in use that somebody cut off."""
    return OSError(errno.EIO, f"it was shortened to {found} bytes of {size} while it was in use")


def _removed() -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "it was removed while it was in use")


class OsRegion:
    """A region of the operating system's: a descriptor and a shared map."""

    __slots__ = ("_address", "_descriptor", "_size", "view")

    def __init__(self, descriptor: int, view: memoryview) -> None:
        self._descriptor = descriptor
        self._size = len(view)
        self._address = 0
        self.view = view

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data`` at ``position``."""
        written = os.pwrite(self._descriptor, data, position)
        while written < len(data):
            # A disk that runs full may take a part first; the next call says ENOSPC.
            more = os.pwrite(self._descriptor, memoryview(data)[written:], position + written)
            if more == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += more

    def allocate(self, position: int, length: int) -> bool:
        """Give a range blocks."""
        if not hasattr(os, "posix_fallocate"):
            return False
        try:
            os.posix_fallocate(self._descriptor, position, length)
        except OSError as error:
            if error.errno in _NOT_SERVED:
                return False
            raise
        return True

    def extents(self, position: int) -> Iterator[tuple[int, int]]:
        """Ranges that the file system has blocks for; all of it where that can't be asked."""
        if not hasattr(os, "SEEK_DATA"):
            yield position, self._size
            return
        while position < self._size:
            try:
                start = os.lseek(self._descriptor, position, os.SEEK_DATA)
                end = min(os.lseek(self._descriptor, start, os.SEEK_HOLE), self._size)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return
            yield start, end
            position = end

    def sync(self) -> None:
        """Wait for the disk."""
        # Never mmap.flush: it holds the GIL for as long as the disk takes.
        datasync(self._descriptor)
        self._check_kept()

    def _check_kept(self) -> None:
        status = os.fstat(self._descriptor)
        if not status.st_nlink:
            raise _removed()
        if status.st_size < self._size:
            raise shortened(status.st_size, self._size)

    def inode(self) -> int:
        """The file's number."""
        return os.fstat(self._descriptor).st_ino

    def is_whole(self) -> bool:
        """Ask for the length, in the cheapest way there is."""
        return os.lseek(self._descriptor, 0, os.SEEK_END) >= self._size

    def is_cached(self, position: int, length: int) -> bool | None:
        """Ask the page cache."""
        self._address = self._address or address_of(self.view)
        return is_range_cached(self._address, position, length)

    def fetch(self, position: int, length: int) -> None:
        """Read into the page cache."""
        fetch_range(self._descriptor, position, length)

    def read_ahead(self, position: int, length: int) -> None:
        """Have the system read ahead."""
        read_range_ahead(self._descriptor, position, min(length, self._size - position))

    def __del__(self) -> None:
        """Close the descriptor; the map goes with its last slice."""
        os.close(self._descriptor)


class SmallRegion:
    """A region of a small file, of which there may be thousands: the map has the one descriptor.

    Whatever the map can't do opens the file anew, by its name.
    """

    __slots__ = ("_address", "_file", "_inode", "_path", "_size", "view")

    def __init__(self, path: Path, descriptor: int, file: mmap.mmap) -> None:
        self._path = os.fspath(path)
        self._inode = os.fstat(descriptor).st_ino
        self._file = file
        self._size = len(file)
        self._address = 0
        self.view = memoryview(file)

    def _opened(self) -> OsRegion:
        """The same with a descriptor. Raises ``OSError``; ``FileNotFoundError`` if it has gone."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _removed() from None
        region = OsRegion(descriptor, self.view)
        if region.inode() != self._inode:
            raise _removed()
        return region

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data`` at ``position``."""
        self._opened().write(position, data)

    def allocate(self, position: int, length: int) -> bool:
        """Give a range blocks."""
        return self._opened().allocate(position, length)

    def extents(self, position: int) -> Iterator[tuple[int, int]]:
        """Ranges that the file system has blocks for."""
        return self._opened().extents(position)

    def sync(self) -> None:
        """Wait for the disk."""
        self._opened().sync()

    def is_whole(self) -> bool:
        """Ask for the length."""
        return self._file.size() >= self._size

    def is_cached(self, position: int, length: int) -> bool | None:
        """Ask the page cache."""
        self._address = self._address or address_of(self.view)
        return is_range_cached(self._address, position, length)

    def fetch(self, position: int, length: int) -> None:
        """Read into the page cache."""
        self._opened().fetch(position, length)

    def read_ahead(self, position: int, length: int) -> None:
        """Have the system read ahead."""
        self._opened().read_ahead(position, length)
