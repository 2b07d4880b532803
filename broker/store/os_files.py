"""The store's access to the disk: files, mapped regions, the page cache.

Everything the store does to a disk goes through ``Files``; nothing else in this package opens,
maps, syncs, renames or removes a file. Tests use other ``Files`` that simulate a disk which tears
writes, loses unsynced pages or runs full; recovery and appends work on them unchanged.

A mapped file has its full length from the start but no blocks: it reads as zeros, and on a full
disk the first store through the map into a page without blocks raises SIGBUS. So the owner of a
file allocates with ``write`` or ``allocate`` (which raise ``OSError``) before it stores through
``view``; see ``mapped_file``.

``mmap`` objects don't expose their descriptor, and writing, syncing and ``fstat`` need one. The few
large files of the log keep a second descriptor; the many small files of queues are opened again for
each such call.

On Linux, ``mincore`` tells whether a range of a map is in the page cache, in less than a
microsecond and without reading it, whether or not this map was used to read it (``man 2 mincore``:
it is exact for the file's owner, which the broker is). On other systems the answer is unknown.
Calls that may wait for the disk release the GIL.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import math
import mmap
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from broker.store.limits import ASKED_AHEAD_BYTES, FETCH_BYTES, SMALL_FILE_BYTES
from remoting.runtime import durable_file


def _find_mincore() -> Callable[[int, int, int], int] | None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            # PyDLL keeps the GIL: the call never blocks.
            mincore = ctypes.PyDLL(None).mincore
            mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
            return mincore
    return None


def _find_syncfs() -> Callable[[int], int] | None:
    # Before 5.8 syncfs doesn't report that the disk failed.
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform == "linux" and release and tuple(map(int, release.groups())) >= (5, 8):
        with suppress(OSError, AttributeError):
            syncfs = ctypes.CDLL(None, use_errno=True).syncfs
            syncfs.argtypes = [ctypes.c_int]
            return syncfs
    return None


_syncfs: Final = _find_syncfs()
_mincore: Final = _find_mincore()
_PAGES_AT_ONCE: Final = ASKED_AHEAD_BYTES // PAGESIZE + 1
_answer: Final = bytearray(_PAGES_AT_ONCE)
_answer_at: Final = ctypes.addressof((ctypes.c_char * _PAGES_AT_ONCE).from_buffer(_answer))


def address_of(view: memoryview) -> int:
    """Return the address of a writable map, valid as long as the map is referenced."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def is_range_cached(address: int, position: int, length: int) -> bool | None:
    """Return whether a range of a map can be accessed without waiting for the disk.

    Not thread-safe (it uses one buffer): only for the loop's thread.

    Args:
        address: of the map, see ``address_of``.
        position: first byte of the range.
        length: of the range, which lies within the map.

    Returns:
        True or False; None if unknown.
    """
    if _mincore is None:
        return None
    over = position % PAGESIZE
    pages = (over + length + PAGESIZE - 1) // PAGESIZE
    if pages > _PAGES_AT_ONCE:
        first = _PAGES_AT_ONCE * PAGESIZE - over
        is_cached = is_range_cached(address, position, first)
        return is_cached and is_range_cached(address, position + first, length - first)
    if _mincore(address + position - over, pages * PAGESIZE, _answer_at):
        return None
    return _answer.find(0, 0, pages) < 0


def fetch_range(descriptor: int, position: int, length: int) -> None:
    """Read a range into the page cache, waiting for the disk. Raises ``OSError``."""
    buffer = memoryview(bytearray(min(length, FETCH_BYTES)))
    end = position + length
    while position < end:
        got = os.preadv(descriptor, [buffer[: end - position]], position)
        if got == 0:
            return
        position += got


def read_range_ahead(descriptor: int, position: int, length: int) -> None:
    """Start reading a range that will be needed soon."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None and length > 0:
        advise(descriptor, position, length, os.POSIX_FADV_WILLNEED)


# macOS has no fdatasync; fsync includes it.
datasync = getattr(os, "fdatasync", os.fsync)

_NOT_SERVED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


def shortened(length: int | None, size: int) -> OSError:
    """Return the error for a file that was truncated while in use."""
    return OSError(errno.EIO, f"it was shortened to {length} bytes of {size} while it was in use")


def _removed() -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "it was removed while it was in use")


class OsRegion:
    """A ``Region`` with a descriptor and a shared map."""

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
            # On a disk that becomes full, a call may write a part; the next one raises ENOSPC.
            more = os.pwrite(self._descriptor, memoryview(data)[written:], position + written)
            if more == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += more

    def allocate(self, position: int, length: int) -> bool:
        """Allocate blocks for a range."""
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
        """Yield the ranges that have blocks; the whole file where SEEK_DATA does not exist."""
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
        """Sync the file."""
        # Not mmap.flush: it holds the GIL while the disk works.
        datasync(self._descriptor)
        status = os.fstat(self._descriptor)
        if not status.st_nlink:
            raise _removed()
        if status.st_size < self._size:
            raise shortened(status.st_size, self._size)

    def inode(self) -> int:
        """Return the file's inode number."""
        return os.fstat(self._descriptor).st_ino

    def is_whole(self) -> bool:
        """Return whether the file has its full length; lseek is cheaper than fstat."""
        return os.lseek(self._descriptor, 0, os.SEEK_END) >= self._size

    def is_cached(self, position: int, length: int) -> bool | None:
        """Return whether a range is in the page cache; None if unknown."""
        self._address = self._address or address_of(self.view)
        return is_range_cached(self._address, position, length)

    def fetch(self, position: int, length: int) -> None:
        """Read a range into the page cache."""
        fetch_range(self._descriptor, position, length)

    def read_ahead(self, position: int, length: int) -> None:
        """Ask the kernel to read a range ahead."""
        read_range_ahead(self._descriptor, position, min(length, self._size - position))

    def __del__(self) -> None:
        """Close the descriptor; the file is unmapped when the last slice is released."""
        os.close(self._descriptor)


class SmallRegion:
    """A ``Region`` of a small file, of which there may be thousands; only its map has a descriptor.

    Calls that need a descriptor open the file again, by its name.
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
        """Return the same region with a descriptor.

        Raises:
            FileNotFoundError: the file was removed, or replaced by another one.
            OSError: it can't be opened.
        """
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
        """Allocate blocks for a range."""
        return self._opened().allocate(position, length)

    def extents(self, position: int) -> Iterator[tuple[int, int]]:
        """Return the ranges that have blocks."""
        return self._opened().extents(position)

    def sync(self) -> None:
        """Sync the file."""
        self._opened().sync()

    def is_whole(self) -> bool:
        """Return whether the file has its full length."""
        return self._file.size() >= self._size

    def is_cached(self, position: int, length: int) -> bool | None:
        """Return whether a range is in the page cache; None if unknown."""
        self._address = self._address or address_of(self.view)
        return is_range_cached(self._address, position, length)

    def fetch(self, position: int, length: int) -> None:
        """Read a range into the page cache."""
        self._opened().fetch(position, length)

    def read_ahead(self, position: int, length: int) -> None:
        """Ask the kernel to read a range ahead."""
        self._opened().read_ahead(position, length)


_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

Stamp = list[int]
"""Length, inode and time of the last change (ctime) in ns: a list, for comparison with JSON."""


class DiskUse(NamedTuple):
    """How full the disk of a directory is, as ``df`` counts: blocks reserved for root are neither.

    Attributes:
        used: bytes in use.
        free: bytes that an unprivileged process may still write.
    """

    used: int
    free: int

    @property
    def ratio(self) -> float:
        """The part in use, 0 to 1."""
        return self.used / (self.used + self.free) if self.used + self.free else 0.0

    @property
    def percent(self) -> int:
        """The part in use in percent, rounded up as ``df`` does."""
        return math.ceil(100 * self.used / (self.used + self.free)) if self.used else 0


class Region(Protocol):
    """An open file of a fixed length, mapped into memory.

    It is closed when the last reference to it is dropped; slices of ``view`` keep the mapping, not
    the descriptor, alive beyond that.
    """

    @property
    def view(self) -> memoryview:
        """The whole file, writable."""

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data`` at ``position``, allocating. Raises ``OSError``."""

    def allocate(self, position: int, length: int) -> bool:
        """Allocate blocks for a range, which then read as zeros.

        Returns:
            False where the file system does not support it; use ``write`` there.

        Raises:
            OSError: there is no space; a part of the range may have been allocated.
        """

    def extents(self, position: int) -> Iterator[tuple[int, int]]:
        """Return ``(start, end)`` of the ranges from ``position`` on that may not be zeros."""

    def sync(self) -> None:
        """Wait until all that was written, or stored through the map, is on the disk.

        Raises:
            OSError: the sync failed, or the file was removed or shortened.
        """

    def is_whole(self) -> bool:
        """Return whether the file has its full length; an access behind its end is SIGBUS."""

    def is_cached(self, position: int, length: int) -> bool | None:
        """Return whether a range can be read without waiting for the disk; None if unknown."""

    def fetch(self, position: int, length: int) -> None:
        """Read a range into memory. Callable in any thread. Raises ``OSError``."""

    def read_ahead(self, position: int, length: int) -> None:
        """Start reading a range into memory. Callable in any thread. Raises ``OSError``."""


def is_no_space(error: OSError) -> bool:
    """Return whether an error means that the disk, or the user's quota, is full."""
    return error.errno in _NO_SPACE


class Lock:
    """A lock on a file, against other processes and within this process.

    POSIX locks do not exclude the process that holds them, so a set of the files locked by this
    process excludes a second store in it.
    """

    _held: Final[set[tuple[int, int]]] = set()
    _guard: Final = threading.Lock()

    __slots__ = ("_descriptor", "_identity")

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor: int | None = descriptor
        self._identity = identity

    @classmethod
    def take(cls, path: Path, text: bytes) -> Lock | None:
        """Lock a file and write ``text`` to it; return None when it is locked already."""
        with cls._guard:
            with contextlib.suppress(FileNotFoundError):
                # Checked first: closing any descriptor of the file drops this process's lock on it.
                status_before = path.stat()
                if (status_before.st_dev, status_before.st_ino) in cls._held:
                    return None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text, 0)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:
                os.close(descriptor)
                raise
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            cls._held.add(identity)
            return cls(descriptor, identity)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        with self._guard:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
                self._held.discard(self._identity)


class Files:
    """The operating system's files; tests pass other implementations."""

    __slots__ = ()

    def make_directory(self, path: Path, *, durable: bool = False) -> None:
        """Create a directory and its parents if they don't exist. Raises ``OSError``.

        With ``durable``, also sync the parents of those created.
        """
        if not durable:
            path.mkdir(parents=True, exist_ok=True)
        elif not path.is_dir():
            self.make_directory(path.parent, durable=True)
            path.mkdir(exist_ok=True)
            self.sync_directory(path.parent)

    def list(self, path: Path) -> list[str]:
        """Return the sorted names in a directory; none when it does not exist."""
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - the names, not paths of them
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int | None:
        """Return the length of a file, None when it does not exist."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def stamp(self, path: Path | str) -> Stamp:
        """Return length, inode and time of the last change (ctime), in ns, of a file or directory.

        Any change alters at least one of them. Raises ``OSError`` when it does not exist.
        """
        status = os.stat(path)  # noqa: PTH116 - called for thousands of paths, given as strings
        return [status.st_size, status.st_ino, status.st_ctime_ns]

    def read(self, path: Path) -> bytes | None:
        """Return the content of a small file, None when it does not exist. Raises ``OSError``."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: Path, data: bytes) -> None:
        """Write a small file in place and sync it. Raises ``OSError``."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.truncate()
            file.flush()
            datasync(file.fileno())

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        """Write a small file atomically: temporary file, sync, rename, sync of the directory.

        With ``backup`` the old content stays as ``<name>.bak``. Raises ``OSError``.
        """
        durable_file.replace(path, data, backup=backup)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists. Raises ``OSError``."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove a directory with its content, or a file. Raises ``OSError``."""
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            return
        for name in os.listdir(path):  # noqa: PTH208 - the names, not paths of them
            self.remove_directory(path / name)
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        """Sync a directory: the names created, renamed and removed in it. Raises ``OSError``."""
        durable_file.sync_path(path)

    def sync_filesystem(self, directory: Path) -> bool:
        """Sync all files and names of a directory's file system; False where that is unsupported.

        Raises:
            OSError: the disk failed.
        """
        if _syncfs is None:
            return False
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _syncfs(descriptor):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(directory))
        finally:
            os.close(descriptor)
        return True

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        """Map a file of ``size`` bytes; with ``create``, create it without blocks if needed.

        Raises:
            OSError: the file can't be opened or has another length.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, 0o644)
        try:
            if create and os.fstat(descriptor).st_size == 0:
                os.ftruncate(descriptor, size)
            _check_length(descriptor, size, path)
            file = mmap.mmap(descriptor, size)
            small = SmallRegion(path, descriptor, file) if size < SMALL_FILE_BYTES else None
        except BaseException:
            os.close(descriptor)
            raise
        if small is None:
            return OsRegion(descriptor, memoryview(file))
        os.close(descriptor)
        return small

    def lock(self, path: Path, text: bytes) -> Lock | None:
        """Lock a file and write ``text`` to it; return None when it is locked already."""
        return Lock.take(path, text)

    def free_bytes(self, path: Path) -> int:
        """Return the free bytes on the disk of ``path``: ``DiskUse.free``. Raises ``OSError``."""
        return self.disk_use(path).free

    def disk_use(self, path: Path) -> DiskUse:
        """Return how full the disk of ``path`` is. Raises ``OSError``."""
        status = os.statvfs(path)
        unit = status.f_frsize
        return DiskUse((status.f_blocks - status.f_bfree) * unit, status.f_bavail * unit)


def _check_length(descriptor: int, size: int, path: Path) -> None:
    length = os.fstat(descriptor).st_size
    if length != size:
        raise OSError(errno.EINVAL, f"it has {length} bytes instead of {size}", str(path))
