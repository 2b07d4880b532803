"""``MappedFile``, a file of the commit log or of a queue; ``MappedFiles``, which bounds open maps.

A file has its full length from the start, but no blocks. On a full disk, a store through the map
into a page without blocks raises SIGBUS instead of an error. So the file has a **watermark**: below
it all pages have been filled with zeros or allocated (and read as zeros), and only there is data
stored through the map. The preallocator's thread and the appender both move the watermark. Whoever
moves it holds the file's lock from reading the watermark until the new one is published, and
nothing is stored above it; so zeros never overwrite data.

When too many files are open, those not pinned are unmapped; they are mapped again on next use.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count
from mmap import mmap
from pathlib import Path
from typing import Final

from broker.store.os_files import Files, Region, shortened

_ZEROS: Final = memoryview(bytes(1024 * 1024))
_numbers: Final = count()


class MappedFiles:
    """The mapped files that may be unmapped, at most ``capacity`` of them.

    Files are evicted by the second-chance (clock) algorithm: one used since it was last examined
    stays. Not thread-safe: only the thread that reads and appends may use it.
    """

    __slots__ = ("_capacity", "_open")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._open: deque[MappedFile] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, file: MappedFile) -> None:
        """Add a file that has been mapped, and unmap others if there are too many."""
        while len(self._open) >= self._capacity:
            oldest = self._open.popleft()
            if oldest.pinned or oldest.removed:
                continue
            if oldest.touched:
                oldest.touched = False
                self._open.append(oldest)
                continue
            oldest.unmap()
        self._open.append(file)

    def close(self) -> None:
        """Unmap all files; slices in use stay valid."""
        while self._open:
            self._open.pop().unmap()


class MappedFile:
    """A file of fixed length, named after the offset of its first byte.

    Attributes:
        start: offset of the file's first byte in its log or queue.
        size: length in bytes.
        number: unique in this process.
        watermark: bytes from the beginning that have blocks, so that they may be stored to.
        pinned: whether the file stays mapped.
        touched: whether it was used since ``MappedFiles`` last examined it.
        removed: whether it was removed from the disk, or is about to be.
    """

    __slots__ = (
        "_files",
        "_lock",
        "_maps",
        "_name_synced",
        "_path",
        "_region",
        "number",
        "pinned",
        "removed",
        "size",
        "start",
        "touched",
        "watermark",
    )

    def __init__(
        self, files: Files, maps: MappedFiles, path: Path, start: int, size: int, *, used: int
    ) -> None:
        """Represent an existing file whose watermark is ``used``."""
        self._files = files
        self._maps = maps
        self._region: Region | None = None
        self._lock = threading.Lock()
        self._name_synced = True
        # A string: there may be very many files, and a Path is large.
        self._path = str(path)
        self.start = start
        self.size = size
        self.number = next(_numbers)
        self.watermark = used
        self.pinned = False
        self.touched = False
        self.removed = False

    @classmethod
    def create(
        cls, files: Files, maps: MappedFiles, path: Path, start: int, size: int, *, pinned: bool
    ) -> MappedFile:
        """Create a file without blocks. Raises ``OSError``."""
        file = cls(files, maps, path, start, size, used=0)
        file._region = files.open_mapped(path, size, create=True)
        file._name_synced = False
        file.pinned = pinned
        if not pinned:
            maps.admit(file)
        return file

    def make_durable(self) -> None:
        """Sync a new file's name and length, or remove the file and raise ``OSError``.

        Otherwise, after a crash, a later file of the log could exist without this one, and this one
        would seem to be lost.
        """
        try:
            self.sync()
        except OSError:
            self.remove()
            raise

    @property
    def path(self) -> Path:
        """The file's path."""
        return Path(self._path)

    @property
    def mapped(self) -> bool:
        """Whether the file is mapped."""
        return self._region is not None

    @property
    def view(self) -> memoryview:
        """The whole file, mapped. Raises ``OSError`` if it was removed or its length changed."""
        self.touched = True
        region = self._region
        if region is None:
            region = self._map()
        elif not region.is_whole():
            raise self._shortened()
        return region.view

    def keep_mapped(self) -> None:
        """Map the file if needed, so that ``view`` can't fail next. Raises ``OSError``."""
        self.touched = True
        if self._region is None:
            self._map()
        elif not self._region.is_whole():
            raise self._shortened()

    def _shortened(self) -> OSError:
        error = shortened(self._files.size(self.path), self.size)
        error.filename = self._path
        return error

    def _map(self) -> Region:
        region = self._files.open_mapped(self.path, self.size, create=False)
        self._region = region
        if not self.pinned:
            self._maps.admit(self)
        return region

    def pin(self) -> None:
        """Map the file and keep it mapped, as the active file is. Raises ``OSError``."""
        self.pinned = True
        if self._region is None:
            self._map()

    def unpin(self) -> None:
        """Allow ``MappedFiles`` to unmap the file."""
        if self.pinned:
            self.pinned = False
            if self._region is not None:
                self._maps.admit(self)

    def unmap(self) -> None:
        """Drop the map; slices in use stay valid."""
        self._region = None

    def extend(self, end: int, step: int, *, zeros: bool = True) -> None:
        """Move the watermark to ``end`` or further, by at least ``step`` bytes if possible.

        Raises:
            OSError: there is no space up to ``end``.
        """
        with self._lock:
            if end <= self.watermark:
                return
            target = min(self.size, max(end, self.watermark + step))
            try:
                self._allocate(target, zeros=zeros)
            except OSError:
                # The whole step may fail where a smaller one succeeds, even on a full disk: after
                # a crash, the file may have blocks above the watermark.
                if target == end:
                    raise
                self._allocate(end, zeros=True)

    def advance(self, step: int, *, zeros: bool = True) -> None:
        """Move the watermark ahead by ``step`` bytes, or to the end of the file.

        Args:
            step: bytes.
            zeros: fill the pages with zeros, so that they are in memory when they are stored to
                through the map. Otherwise only allocate blocks, which is enough for ``try_write``.

        Raises:
            OSError: there is no space.
        """
        with self._lock:
            self._allocate(min(self.size, self.watermark + step), zeros=zeros)

    def _allocate(self, target: int, *, zeros: bool) -> None:
        region = self.hold()
        length = target - self.watermark
        if length > 0 and not zeros and region.allocate(self.watermark, length):
            self.watermark = target
        while self.watermark < target:
            length = min(target - self.watermark, len(_ZEROS))
            region.write(self.watermark, _ZEROS[:length])
            # Only after the write: the appender may store below the watermark at once.
            self.watermark += length

    def try_write(self, position: int, data: bytes | memoryview) -> bool:
        """Write below the watermark with ``pwrite``; on False, store through the map instead."""
        region = self._region
        if region is None:
            return False
        try:
            region.write(position, data)
        except OSError:
            # The page has blocks, so a store through the map succeeds; the next sync reports the
            # disk's error.
            return False
        return True

    def write(self, position: int, data: bytes) -> None:
        """Write at ``position``, also above the watermark. Raises ``OSError``."""
        self.keep_mapped()
        assert self._region is not None
        self._region.write(position, data)

    def data_end(self) -> int:
        """Return the position behind the last byte that may not be zero. Raises ``OSError``."""
        self.keep_mapped()
        assert self._region is not None
        return max((end for _, end in self._region.extents(0)), default=0)

    def clear_from(self, position: int) -> int:
        """Overwrite everything from ``position`` on with zeros; return how many bytes of data.

        Only for a file that is not being appended to. Raises ``OSError``.
        """
        region = self.hold()
        cleared = position
        for start, end in region.extents(position):
            for at in range(start, end, len(_ZEROS)):
                length = min(end - at, len(_ZEROS))
                # Copied to bytes: memoryviews are compared ten times as slowly, item by item.
                chunk = bytes(region.view[at : at + length])
                if chunk != bytes(length):
                    region.write(at, _ZEROS[:length])
                    cleared = at + len(chunk.rstrip(b"\0"))
        if cleared > position:
            region.sync()
        self.watermark = position
        return cleared - position

    def sync(self) -> None:
        """Wait until the file's data and name are on the disk. Raises ``OSError``."""
        try:
            # An unmapped file is opened again: its data is in the page cache.
            self.hold().sync()
            if not self._name_synced:
                self._files.sync_directory(self.path.parent)
                self._name_synced = True
        except FileNotFoundError:
            if not self.removed:
                raise

    def rewrite(self, begin: int, end: int) -> None:
        """Write a range's present content again, so that the next sync is sure to write it.

        After a failed sync the kernel may count pages as clean that are not on the disk, and still
        return their content. Callable in any thread; the range must not change meanwhile.

        Args:
            begin, end: positions in the file, clipped to its length.

        Raises:
            OSError: the disk refuses, or the file was removed or its length changed.
        """
        begin, end = max(0, begin), min(end, self.size)
        if begin >= end:
            return
        region = self.hold()
        for at in range(begin, end, len(_ZEROS)):
            if not region.is_whole():
                raise self._shortened()
            region.write(at, bytes(region.view[at : min(at + len(_ZEROS), end)]))

    def is_cached(self, position: int, length: int) -> bool | None:
        """See ``Region.is_cached``. Raises ``OSError`` when the file can't be mapped."""
        region = self._region or self._map()
        return region.is_cached(position, length)

    def fetch(self, position: int, length: int, *, ahead: int) -> None:
        """Read a range into memory and start reading ``ahead`` more bytes. Callable in any thread.

        Raises:
            OSError: the file can't be read.
        """
        try:
            region = self.hold()
            # A small file is opened by its name for each call, so it may be removed in between.
            region.read_ahead(position, length + ahead)
            region.fetch(position, length)
        except FileNotFoundError:
            if not self.removed:
                raise
            # Not an error: the caller finds that the log begins later now.

    def hold(self) -> Region:
        """Return a map of the file that stays valid while referenced. Callable in any thread.

        Raises:
            OSError: the file can't be mapped.
        """
        # One expression: the loop's thread may unmap the file between two reads of ``_region``.
        return self._region or self._files.open_mapped(self.path, self.size, create=False)

    def give_up(self) -> Callable[[], bool]:
        """Unmap the file before its removal.

        Slices in use stay valid, and the file takes space until they are released.

        Returns:
            A function that returns whether a slice is still in use.
        """
        self.removed = True
        region, self._region = self._region, None
        if region is None or not isinstance(region.view.obj, mmap):
            return lambda: False
        held = weakref.ref(region.view.obj)
        return lambda: held() is not None

    def remove(self) -> None:
        """Remove the file from the disk; slices in use stay valid. Raises ``OSError``."""
        self.removed = True
        self._region = None
        self._files.remove(self.path)

    def remove_durably(self) -> None:
        """Remove the file and sync its directory. Raises ``OSError``."""
        self.remove()
        self._files.sync_directory(self.path.parent)
