"""Reading the files of the commit log or of a queue without a broker."""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.limits import MAX_RECORD_BYTES
from broker.store.results import StoreError
from remoting.protocol.disk.files import offset_of


class StoreChanged(StoreError):
    """Files have been removed or shortened since they were listed."""


class ViewLimits(NamedTuple):
    """Limits of a reader.

    Attributes:
        open_files: open descriptors for the log, and as many for each queue.
        search_bytes: step in which files are searched, backward for the last used byte, forward for
            a record.
        chunk_bytes: bytes of the log read at once, unless a single record is larger.
        entries: entries of a queue read at once: 320 KiB.
        overlap_bytes: how far before a position a record that reaches beyond it may begin.
        longest_bytes: longest record, since records are read whole; thirty-two times RocketMQ's
            default. Bytes with a greater size are not taken for a record.
    """

    open_files: int = 64
    search_bytes: int = 256 * 1024
    chunk_bytes: int = 4 * 1024 * 1024
    entries: int = 16_384
    overlap_bytes: int = MAX_RECORD_BYTES
    longest_bytes: int = 128 * 1024 * 1024


DEFAULT_LIMITS: Final = ViewLimits()


class ViewFile:
    """One file, read at offsets of its log or queue.

    Attributes:
        path: of the file.
        start: offset of its first byte.
        size: its length when it was listed.
    """

    __slots__ = ("_descriptor", "path", "size", "start")

    def __init__(self, path: str, start: int, size: int) -> None:
        self._descriptor = -1
        self.path = path
        self.start = start
        self.size = size

    def __del__(self) -> None:
        """Close the descriptor."""
        self.close()

    @property
    def end(self) -> int:
        """Offset behind the file's last byte."""
        return self.start + self.size

    @property
    def is_open(self) -> bool:
        """Whether the file has a descriptor."""
        return self._descriptor >= 0

    def open(self) -> None:
        """Open the file. Raises ``StoreChanged``, ``StoreError``."""
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StoreChanged(
                f"the file {self.path} has been removed, by retention or by hand: start again, or"
                " read a copy of the store"
            ) from None
        except OSError as error:
            raise unreadable(self.path, error) from error

    def close(self) -> None:
        """Close the descriptor; reading opens the file again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read_into(self, position: int, target: memoryview) -> None:
        """Fill ``target`` from offset ``position``. Raises ``StoreChanged``, ``StoreError``."""
        at, done = position - self.start, 0
        while done < len(target):
            try:
                got = os.preadv(self._descriptor, [target[done:]], at + done)
            except OSError as error:
                raise unreadable(self.path, error) from error
            if got == 0:
                raise StoreChanged(
                    f"the file {self.path} ends at byte {at + done}, though it had {self.size}"
                    " bytes: it was shortened while it was read; check the disk and its owner"
                )
            done += got

    def data_end(self) -> int:
        """Return the offset behind the last byte that has blocks; only zeros follow."""
        ends = (end for _, end in extents(self._descriptor, self.size))
        return self.start + max(ends, default=0)


class FileRow:
    """The files of one log or queue, oldest first.

    Args:
        directories: of the files; more than one when the commit log is spread over disks.
        what: names the log or queue in error messages.
        limits: bound memory and descriptors.
    """

    def __init__(
        self, directories: Sequence[Path], what: str, limits: ViewLimits = DEFAULT_LIMITS
    ) -> None:
        self._directories = directories
        self._what = what
        self.limits = limits
        self._open: deque[ViewFile] = deque()
        self.files: list[ViewFile] = []
        self._starts: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        """List the files again. Raises ``StoreError``."""
        listed = {file.start: file for file in self.files}
        files = []
        for directory in self._directories:
            for path, start, size in _listed(directory):
                file = listed.get(start)
                if file is None or file.size != size:
                    file = ViewFile(path, start, size)
                files.append(file)
        self.files = sorted(files, key=lambda file: file.start)
        self._starts = [file.start for file in self.files]

    def close(self) -> None:
        """Close all descriptors; reading opens files again."""
        while self._open:
            self._open.pop().close()

    @property
    def start(self) -> int:
        """Offset of the first byte; 0 when there are no files."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """Offset behind the last file."""
        return self.files[-1].end if self.files else 0

    def index_of(self, position: int) -> int:
        """Return the index of the file that holds an offset.

        Raises:
            StoreChanged: the offset is before the first file.
            StoreError: no file holds it.
        """
        index = self._find(position)
        if index is None:
            self.refresh()
            index = self._find(position)
        if index is None:
            raise self._absent(position)
        return index

    def file_of(self, position: int) -> ViewFile:
        """Return the file that holds an offset. Raises as ``index_of``."""
        index = self.index_of(position)
        return self.files[index]

    def _find(self, position: int) -> int | None:
        index = bisect_right(self._starts, position) - 1
        return index if index >= 0 and position < self.files[index].end else None

    def _absent(self, position: int) -> StoreError:
        where = ", ".join(map(str, self._directories))
        if self.files and position < self.start:
            return StoreChanged(
                f"{self._what} in {where} begins at {self.start} now; what was at {position} has"
                " been removed by retention: start again, or read a copy of the store"
            )
        if position >= self.end:
            return StoreError(f"{self._what} in {where} ends at {self.end}, before {position}")
        before = self.files[bisect_right(self._starts, position) - 1]
        return StoreError(
            f"{self._what} in {where} has nothing at {position}: {Path(before.path).name} ends at"
            f" {before.end}, so a file is missing or too short; put it back from a copy"
        )

    def read(self, position: int, length: int) -> memoryview:
        """Return bytes of one file. Raises ``StoreError`` when the file does not have them."""
        buffer = memoryview(bytearray(length))
        self.read_into(position, buffer)
        return buffer

    def read_into(self, position: int, target: memoryview) -> None:
        """Fill ``target`` from one file. Raises ``StoreError`` when it can't be filled."""
        file = self.opened(self.file_of(position))
        if position + len(target) > file.end:
            raise self._absent(file.end)
        file.read_into(position, target)

    def opened(self, file: ViewFile) -> ViewFile:
        """Return the file, opened; those opened first are closed if there are too many."""
        if not file.is_open:
            while len(self._open) >= self.limits.open_files:
                self._open.popleft().close()
            file.open()
            self._open.append(file)
        return file

    def used_end(self, file: ViewFile) -> int:
        """Return the offset behind a file's last byte that is not zero; its start for none."""
        self.opened(file)
        end = file.data_end()
        while end > file.start:
            begin = max(file.start, end - self.limits.search_bytes)
            block = bytearray(end - begin)
            file.read_into(begin, memoryview(block))
            if used := len(block.rstrip(b"\0")):
                return begin + used
            end = begin
        return end


def extents(descriptor: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of ``[0, end)`` that have blocks; all other bytes are zeros."""
    if not hasattr(os, "SEEK_DATA"):
        yield 0, end
        return
    at = 0
    while at < end:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
            stop = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                # The file system does not support SEEK_DATA.
                yield at, end
            return
        if begin >= end:
            return
        yield begin, min(stop, end)
        at = stop


def names_in(directory: Path) -> list[str]:
    """Return the sorted names in a directory; none if it does not exist. Raises ``StoreError``."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - the names, not paths of them
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(str(directory), error) from error


def _listed(directory: Path) -> list[tuple[str, int, int]]:
    """Return path, start and length of the files in a directory; none when it does not exist."""
    rows = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                start = offset_of(entry.name)
                if start is None:
                    continue
                try:
                    size = entry.stat().st_size
                except FileNotFoundError:
                    continue
                # A file created just before a crash has a name, but no length yet.
                if size:
                    rows.append((entry.path, start, size))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(str(directory), error) from error
    return rows


def unreadable(path: str, error: OSError) -> StoreError:
    """Return the error for a file or directory that can't be read."""
    return StoreError(
        f"{path} can't be read ({error.strerror or error}): let this user read the store, or give"
        " the path of a copy"
    )
