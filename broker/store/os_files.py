"""The one seam between the store and the disk: files, mapped regions, the page cache.

Everything the store does to a disk goes through ``Files``; nothing else in this package opens,
maps, syncs, renames or removes. A simulated disk that tears writes, loses unsynced pages or runs
full is another ``Files``, and recovery and appends can't tell the difference.

A mapped file has its full length from the start but no blocks: reading it gives zeros, and the
first store through the map into a page without blocks may fail with SIGBUS on a full disk. So the
owner of a file allocates by ``write`` (which raises ``OSError``) before it stores through ``view``;
see ``mapped_file``.

A map's own descriptor is not accessible, and writing to a file, syncing it and asking about it need
one: the few large files of the log keep a second one, the many small files of queues are opened
again when needed.

``mincore`` reports whether a range of a map is in the page cache, in less than a microsecond and
without reading it, whether or not this map was used to read it (``man 2 mincore``; a file's owner
gets true answers, and a store's files are its broker's own). On other systems the answer is
unknown. Calls that may wait for the disk release the GIL.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import math
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from broker.store.limits import ASKED_AHEAD_BYTES, FETCH_BYTES, SMALL_FILE_BYTES
from remoting import durable_file


def _find_mincore() -> Callable[[int, int, int], int] | None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            # It waits for nothing, so the GIL need not be given away.
            found = ctypes.PyDLL(None).mincore
            found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
            return found
    return None


_mincore: Final = _find_mincore()
_PAGES_AT_ONCE: Final = ASKED_AHEAD_BYTES // PAGESIZE + 1
_answer: Final = bytearray(_PAGES_AT_ONCE)
_answer_at: Final = ctypes.addressof((ctypes.c_char * _PAGES_AT_ONCE).from_buffer(_answer))


def address_of(view: memoryview) -> int:
    """Where a writable map lies in memory, as long as it is referenced."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def is_range_cached(address: int, position: int, length: int) -> bool | None:
    """Whether a range of a map can be touched without waiting for the disk.

    Only for the loop's thread.

    Args:
        address: of the map, see ``address_of``.
        position: first byte of the range.
        length: of the range, within the map.

    Returns:
        None if unknown.
    """
    if _mincore is None:
        return None
    over = position % PAGESIZE
    pages = (over + length + PAGESIZE - 1) // PAGESIZE
    if pages > _PAGES_AT_ONCE:
        first = _PAGES_AT_ONCE * PAGESIZE - over
        found = is_range_cached(address, position, first)
        return is_range_cached(address, position + first, length - first) if found else found
    if _mincore(address + position - over, pages * PAGESIZE, _answer_at):
        return None
    return _answer.find(0, 0, pages) < 0


def fetch_range(descriptor: int, position: int, length: int) -> None:
    """Read a range into the page cache, however long the disk takes. Raises ``OSError``."""
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


# macOS has no fdatasync; fsync does the same and more.
datasync = getattr(os, "fdatasync", os.fsync)

_NOT_SERVED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


def shortened(found: int | None, size: int) -> OSError:
    """The error for a file that was cut off while in use."""
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
            # A disk that runs full may take a part first; the next call fails with ENOSPC.
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


_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

Stamp = list[int]
"""Length, inode and time of the last change in ns: a list, as JSON gives it back."""


class DiskUse(NamedTuple):
    """How full the disk of a directory is, as ``df`` counts: what root keeps for itself is neither.

    Attributes:
        used: bytes taken.
        free: bytes that a process of ours may still write.
    """

    used: int
    free: int

    @property
    def ratio(self) -> float:
        """The part of it that is in use."""
        return self.used / (self.used + self.free) if self.used + self.free else 0.0

    @property
    def percent(self) -> int:
        """The same in percent, rounded up as ``df`` does."""
        return math.ceil(100 * self.used / (self.used + self.free)) if self.used else 0


class Region(Protocol):
    """An open file of a fixed length, mapped into memory.

    It closes itself when the last reference to it is gone; slices of ``view`` keep the mapping
    (not the descriptor) alive beyond that.
    """

    @property
    def view(self) -> memoryview:
        """The whole file, writable."""
        ...

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data`` at ``position``, allocating. Raises ``OSError``."""
        ...

    def allocate(self, position: int, length: int) -> bool:
        """Give a range blocks, which read as zeros; False where only writing does that.

        Raises:
            OSError: there are none; some of the range may have got blocks.
        """
        ...

    def extents(self, position: int) -> Iterator[tuple[int, int]]:
        """``(start, end)`` of the ranges from ``position`` on that may hold other than zeros."""
        ...

    def sync(self) -> None:
        """Wait until what was written and stored is on the disk.

        Raises:
            OSError: it is not, or the file was removed or shortened.
        """
        ...

    def is_whole(self) -> bool:
        """Whether the file still has its length: a look behind its end would be SIGBUS."""
        ...

    def is_cached(self, position: int, length: int) -> bool | None:
        """Whether a range can be read without waiting for the disk; None if unknown."""
        ...

    def fetch(self, position: int, length: int) -> None:
        """Bring a range into memory, in any thread. Raises ``OSError``."""
        ...

    def read_ahead(self, position: int, length: int) -> None:
        """Begin to bring a range into memory, in any thread. Raises ``OSError``."""
        ...


def is_no_space(error: OSError) -> bool:
    """Whether an error says that the disk, or the user's share of it, is full."""
    return error.errno in _NO_SPACE


class Lock:
    """A POSIX lock on the first byte of a file, and on its name within this process.

    POSIX locks never keep a process from itself, so two stores of one process are told apart by a
    set of the files locked.
    """

    _held: Final[set[tuple[int, int]]] = set()
    _guard: Final = threading.Lock()

    __slots__ = ("_descriptor", "_identity")

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor: int | None = descriptor
        self._identity = identity

    @classmethod
    def take(cls, path: Path, text: bytes) -> Lock | None:
        """Take it, or None when it is held."""
        with cls._guard:
            with contextlib.suppress(FileNotFoundError):
                # Opening and closing the file would drop the lock that this process has on it.
                known = path.stat()
                if (known.st_dev, known.st_ino) in cls._held:
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
        """Give it up; does nothing the second time."""
        with self._guard:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
                self._held.discard(self._identity)


class Files:
    """The operating system's disk; tests put others in its place."""

    __slots__ = ()

    def make_directory(self, path: Path, *, durable: bool = False) -> None:
        """Make a directory and those above it; it may exist. Raises ``OSError``.

        ``durable`` waits until the names of those made are on the disk.
        """
        if not durable:
            path.mkdir(parents=True, exist_ok=True)
        elif not path.is_dir():
            self.make_directory(path.parent, durable=True)
            path.mkdir(exist_ok=True)
            self.sync_directory(path.parent)

    def list(self, path: Path) -> list[str]:
        """Sorted names in a directory; none when it does not exist."""
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - the names, not paths of them
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int | None:
        """Length of a file, None when there is none."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def stamp(self, path: Path | str) -> Stamp:
        """Length, inode and time of the last change, in ns, of a file or directory.

        Whatever is done to it changes one of them. Raises ``OSError`` when there is none.
        """
        status = os.stat(path)  # noqa: PTH116 - thousands of them, and no Path for each
        return [status.st_size, status.st_ino, status.st_ctime_ns]

    def read(self, path: Path) -> bytes | None:
        """All of a small file, None when there is none. Raises ``OSError``."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: Path, data: bytes) -> None:
        """Write a small file in place and wait for the disk. Raises ``OSError``."""
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
        """Remove a file; it may be gone already. Raises ``OSError``."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove a directory with all that is in it. Raises ``OSError``."""
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            return
        for name in os.listdir(path):  # noqa: PTH208 - the names, not paths of them
            self.remove_directory(path / name)
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        """Wait until names made, renamed and removed in a directory are on the disk."""
        durable_file.sync_directory(path)

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        """Map a file of ``size`` bytes; ``create`` makes it, without blocks, when there is none.

        Raises:
            OSError: it can't be opened or has another length.
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
        """Lock the first byte of a file that holds ``text``; None when another holds it."""
        return Lock.take(path, text)

    def free_bytes(self, path: Path) -> int:
        """What a process of ours may still write below ``path``. Raises ``OSError``."""
        return self.disk_use(path).free

    def disk_use(self, path: Path) -> DiskUse:
        """How full the disk is that ``path`` is on. Raises ``OSError``."""
        status = os.statvfs(path)
        unit = status.f_frsize
        return DiskUse((status.f_blocks - status.f_bfree) * unit, status.f_bavail * unit)


def _check_length(descriptor: int, size: int, path: Path) -> None:
    found = os.fstat(descriptor).st_size
    if found != size:
        raise OSError(errno.EINVAL, f"it has {found} bytes instead of {size}", str(path))
