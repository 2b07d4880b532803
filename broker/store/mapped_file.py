"""One file of a log, its map and its watermark; and the table that bounds how many are mapped.

A file has its full length from the start, but a page is only stored to through the map once the
**watermark** has passed it: everything below the watermark has been written as zeros by ``write``,
or given blocks that read as zeros, so a store can't fail (a store into a page without blocks on a
full disk is SIGBUS, not an error). The thread that moves the watermark holds the file's lock from
reading it until it is published, and nothing is stored above it; so zeros never land on what was
stored, whichever of the preallocator's thread and the appender is faster.

Files that are not pinned lose their map when too many are open and get it back on the next look.
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
    """The mapped files that may be unmapped again, at most ``capacity`` of them open.

    Second chance: a file looked at since the hand last passed stays. Only the thread that reads
    and appends may come here.
    """

    __slots__ = ("_capacity", "_open")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._open: deque[MappedFile] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, file: MappedFile) -> None:
        """A file has been mapped; another one may have to go."""
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
        """Unmap all; slices that were handed out stay good."""
        while self._open:
            self._open.pop().unmap()


class MappedFile:
    """A file of fixed length named after the offset of its first byte.

    Attributes:
        start: offset of its first byte in the whole log.
        size: length in bytes.
        number: its own, of all in this process.
        watermark: bytes from its beginning that have blocks and may be stored to.
        pinned: it stays mapped.
        touched: looked at since the table's hand passed.
        removed: it is gone from the disk, or about to be.
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
        """A file that exists, ``used`` bytes of which are taken."""
        self._files = files
        self._maps = maps
        self._region: Region | None = None
        self._lock = threading.Lock()
        self._name_synced = True
        # As text: there may be very many files, and a Path is large.
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
        """Make a file without blocks. Raises ``OSError``."""
        file = cls(files, maps, path, start, size, used=0)
        file._region = files.open_mapped(path, size, create=True)
        file._name_synced = False
        file.pinned = pinned
        if not pinned:
            maps.admit(file)
        return file

    def make_durable(self) -> None:
        """Bring a new file's name and length to the disk, or take it away. Raises ``OSError``.

        After a crash, a log's file without the ones before it would look like a loss of those.
        """
        try:
            self.sync()
        except OSError:
            self.remove()
            raise

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self._path)

    @property
    def mapped(self) -> bool:
        """Whether a look at it costs nothing."""
        return self._region is not None

    @property
    def view(self) -> memoryview:
        """The whole file. Raises ``OSError`` when it has gone or changed its length."""
        self.touched = True
        region = self._region
        if region is None:
            region = self._map()
        elif not region.is_whole():
            raise self._shortened()
        return region.view

    def keep_mapped(self) -> None:
        """Have it mapped, so that the next look can't fail. Raises ``OSError``."""
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
        """Keep it mapped, as the file being appended to is. Raises ``OSError``."""
        self.pinned = True
        if self._region is None:
            self._map()

    def unpin(self) -> None:
        """Let it be unmapped when others need the room."""
        if self.pinned:
            self.pinned = False
            if self._region is not None:
                self._maps.admit(self)

    def unmap(self) -> None:
        """Drop the map; slices that were handed out stay good."""
        self._region = None

    def extend(self, end: int, step: int, *, zeros: bool = True) -> None:
        """Move the watermark to ``end`` or further, in one step; see ``advance``."""
        with self._lock:
            if end <= self.watermark:
                return
            target = min(self.size, max(end, self.watermark + step))
            try:
                self._allocate(target, zeros=zeros)
            except OSError:
                # A disk that is full may still have what is needed: after a crash, blocks that
                # the file got before it.
                if target == end:
                    raise
                self._allocate(end, zeros=True)

    def advance(self, step: int, *, zeros: bool = True) -> None:
        """Move the watermark one step ahead, if the file has room for it.

        Args:
            zeros: whether the pages are written, so that a store through the map finds them in
                memory. Without, there are only blocks: enough for ``try_write``.

        Raises:
            OSError: there is no space.
        """
        with self._lock:
            self._allocate(min(self.size, self.watermark + step), zeros=zeros)

    def _allocate(self, target: int, *, zeros: bool) -> None:
        region = self._region or self._files.open_mapped(self.path, self.size, create=False)
        length = target - self.watermark
        if length > 0 and not zeros and region.allocate(self.watermark, length):
            self.watermark = target
        while self.watermark < target:
            length = min(target - self.watermark, len(_ZEROS))
            region.write(self.watermark, _ZEROS[:length])
            # Published last: only now may an appender store there.
            self.watermark += length

    def try_write(self, position: int, data: bytes | memoryview) -> bool:
        """Write below the watermark, which the map sees; False: it has to be stored there."""
        region = self._region
        if region is None:
            return False
        try:
            region.write(position, data)
        except OSError:
            # There is room, so the map takes it; a sync will report the fault of the disk.
            return False
        return True

    def write(self, position: int, data: bytes) -> None:
        """Write where a page may have no blocks. Raises ``OSError``."""
        self.keep_mapped()
        assert self._region is not None
        self._region.write(position, data)

    def data_end(self) -> int:
        """Behind the last byte that may be other than zero. Raises ``OSError``."""
        self.keep_mapped()
        assert self._region is not None
        return max((end for _, end in self._region.extents(0)), default=0)

    def clear_from(self, position: int) -> int:
        """Overwrite what stands behind ``position`` with zeros; how long that was.

        Only for a file that is not appended to. Raises ``OSError``.
        """
        region = self._region or self._files.open_mapped(self.path, self.size, create=False)
        cleared = position
        for start, end in region.extents(position):
            for at in range(start, end, len(_ZEROS)):
                length = min(end - at, len(_ZEROS))
                # As bytes: views are compared element by element, ten times as slowly.
                chunk = bytes(region.view[at : at + length])
                if chunk != bytes(length):
                    region.write(at, _ZEROS[:length])
                    cleared = at + len(chunk.rstrip(b"\0"))
        if cleared > position:
            region.sync()
        self.watermark = position
        return cleared - position

    def sync(self) -> None:
        """Wait until all of it is on the disk, its name included. Raises ``OSError``."""
        try:
            # Unmapped in between: what it took is in the page cache under its name.
            region = self._region or self._files.open_mapped(self.path, self.size, create=False)
            region.sync()
            if not self._name_synced:
                self._files.sync_directory(self.path.parent)
                self._name_synced = True
        except FileNotFoundError:
            if not self.removed:
                raise

    def rewrite(self, begin: int, end: int) -> None:
        """Write what stands there once more, so that the next sync brings it to the disk for sure.

        After a sync that failed the system may take pages for written that are not, and they can
        still be read. In any thread; nothing is changed there meanwhile.

        Args:
            begin, end: bytes of the file; what lies outside it is left out.

        Raises:
            OSError: the disk refuses, or the file has gone or changed its length.
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
        """See ``Region.is_cached``. Raises ``OSError`` when it can't be mapped."""
        region = self._region or self._map()
        return region.is_cached(position, length)

    def fetch(self, position: int, length: int, *, ahead: int) -> None:
        """Bring a range into memory and begin with ``ahead`` more bytes; in any thread.

        Raises:
            OSError: it can't be read.
        """
        try:
            region = self.hold()
            # A small file's are done by its name, which may go between the two.
            region.read_ahead(position, length + ahead)
            region.fetch(position, length)
        except FileNotFoundError:
            if not self.removed:
                raise
            # The caller sees that the log begins later now.

    def hold(self) -> Region:
        """Its map, or another one, that stays while the caller has it; in any thread.

        Raises:
            OSError: it can't be mapped.
        """
        # The loop may unmap the file meanwhile.
        return self._region or self._files.open_mapped(self.path, self.size, create=False)

    def give_up(self) -> Callable[[], bool]:
        """Unmap it before its removal; returns a function: whether a reader still holds a slice.

        Slices that were handed out stay good, and their file takes space until they are gone.
        """
        self.removed = True
        region, self._region = self._region, None
        if region is None or not isinstance(region.view.obj, mmap):
            return lambda: False
        held = weakref.ref(region.view.obj)
        return lambda: held() is not None

    def remove(self) -> None:
        """Remove it from the disk; slices that were handed out stay good. Raises ``OSError``."""
        self.removed = True
        self._region = None
        self._files.remove(self.path)

    def remove_durably(self) -> None:
        """The same, and the name does not come back. Raises ``OSError``."""
        self.remove()
        self._files.sync_directory(self.path.parent)
