"""The index files of a store, oldest first, and one of them on the disk (cf. IndexService).

A file has its full length from the start and blocks only where something was written. Entries and
header are written by ``write``; slots, which lie scattered, are stored through the map, into pages
that were written as zeros before: a store into a page without blocks on a full disk is SIGBUS, not
an error. What is read is fetched first, so that no thread holds the GIL while the disk works.

Files are named after the local time of their creation, and a later one's name is greater. Only the
last one takes entries; when it is full it is synced, and the next one begins with its end. A file
is removed if its header is invalid, if it has messages that the log has not, or if the broker died
before it was full: the log has all that is needed to write it again. Files of another length are
left alone and not used.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from broker.store.index_keys import KeyBatch
from broker.store.limits import PAGE_BYTES
from broker.store.os_files import Files, Region
from remoting.clock import Clock
from remoting.protocol.disk.index_file import (
    ENTRY,
    HEADER,
    IndexHeader,
    IndexTable,
    file_bytes,
    index_key,
)


class Shape(NamedTuple):
    """How large index files are: ``maxHashSlotNum`` and ``maxIndexNum``."""

    slots: int
    entries: int

    @property
    def bytes(self) -> int:
        """The length of a file."""
        return file_bytes(self.slots, self.entries)


class IndexFile:
    """A file that entries are added to, or that is only searched.

    Attributes:
        path: where it is.
        header: as it was last written.
    """

    def __init__(self, files: Files, path: Path, shape: Shape, *, create: bool = False) -> None:
        """Map it. Raises ``OSError``, also when it has another length."""
        self.path = path
        self._entries = shape.entries
        self._region: Region = files.open_mapped(path, shape.bytes, create=create)
        view, slots, entries = self._region.view, shape.slots, shape.entries
        self._table = IndexTable(view, slots=slots, entries=entries)
        self._searched = IndexTable(view, slots=slots, entries=entries, touch=self._region.fetch)
        self._region.fetch(0, HEADER.size)
        self.header = self._table.header
        # A byte for each page that slots are in: 1 when it has no room.
        self._bare: bytearray | None = None

    @property
    def room(self) -> int:
        """How many entries it takes."""
        return max(self._entries - self.header.next_entry, 0)

    def is_sane(self, log_end: int) -> bool:
        """Whether the header can be that of an index of a log that ends there."""
        header = self.header
        if header.next_entry == 1:
            return header.used_slots == 0
        return (
            header.next_entry <= self._entries
            and 0 <= header.used_slots < header.next_entry
            and 0 <= header.begin_offset <= header.end_offset < log_end
        )

    def date_from(self, before: IndexHeader) -> None:
        """Begin an empty file where the one before it ends. Raises ``OSError``."""
        self._write_header(
            self.header._replace(
                begin_ms=before.end_ms,
                end_ms=before.end_ms,
                begin_offset=before.end_offset,
                end_offset=before.end_offset,
            )
        )

    def add(self, batch: KeyBatch, start: int) -> int:
        """Add the entries of a batch from ``start`` on, as many as there is room for; how many.

        Raises:
            OSError: the disk refuses; the file is as it was.
        """
        count = min(len(batch) - start, self.room)
        if not count:
            return 0
        bare = self._touch_slots()
        links = batch.link(self._table, start, start + count)
        at = self._table.entries_at + self.header.next_entry * ENTRY.size
        self._region.write(at, links.entries)
        for page in links.pages(bare, PAGE_BYTES):
            self._make_room(page)
            bare[page] = 0
        links.set_slots()
        self._write_header(links.header)
        return count

    def _touch_slots(self) -> bytearray:
        """Once, before the first entry: have the slots in memory, and learn which have no room."""
        if self._bare is not None:
            return self._bare
        end = self._table.entries_at
        bare = bytearray(b"\1" * -(-end // PAGE_BYTES))
        for start, stop in self._region.extents(0):
            if start < end:
                behind = min(stop, end)
                self._region.fetch(start, behind - start)
                first, last = -(-start // PAGE_BYTES), behind // PAGE_BYTES
                bare[first:last] = bytes(max(last - first, 0))
        self._bare = bare
        return bare

    def _make_room(self, page: int) -> None:
        start = page * PAGE_BYTES
        behind = min(start + PAGE_BYTES, self._table.entries_at)
        # As it is: a page at the border may hold something already, header, slots or entries.
        self._region.write(start, bytes(self._region.view[start:behind]))

    def _write_header(self, header: IndexHeader) -> None:
        self._region.write(0, HEADER.pack(*header))
        self.header = header

    def select(self, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """See ``IndexTable.select``. Raises ``OSError``."""
        return self._searched.select(key, max_count, begin_ms, end_ms)

    def sync(self) -> None:
        """Wait until all of it is on the disk. Raises ``OSError``."""
        self._region.sync()


_log = structlog.get_logger("store")

_NAME: Final = re.compile(r"\d{17}")


def name_at(now_ms: int) -> str:
    """What a file made now is called: ``yyyyMMddHHmmssSSS``, local time."""
    now = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006 - local, as RocketMQ's are
    return f"{now:%Y%m%d%H%M%S}{now_ms % 1000:03}"


class IndexFileSet:
    """The files; callers hold the index's lock.

    Attributes:
        full_ms: end time of the last full file, which is on the disk; 0 when there is none.
    """

    def __init__(self, files: Files, directory: Path, shape: Shape, clock: Clock) -> None:
        self._disk = files
        self._directory = directory
        self._shape = shape
        self._clock = clock
        self._files: list[IndexFile] = []
        self.full_ms = 0

    @property
    def last(self) -> IndexFile | None:
        """The one that takes entries."""
        return self._files[-1] if self._files else None

    def is_whole(self) -> bool:
        """Whether each file is still there in its full length. Raises ``OSError``.

        A look into the map of one that was shortened would end the process.
        """
        return all(self._disk.size(file.path) == self._shape.bytes for file in self._files)

    def load(self, log_end: int, *, safe_ms: int | None) -> None:
        """Find the files.

        Args:
            log_end: physical offset behind the last record.
            safe_ms: after a crash, the checkpoint's index time: later files are removed, and one
                that is not full.

        Raises:
            OSError: one can't be read, or not be removed.
        """
        self._files = []
        for name in self._disk.list(self._directory):
            if not _NAME.fullmatch(name):
                continue
            path = self._directory / name
            if (size := self._disk.size(path)) != self._shape.bytes:
                _log.warning(
                    "an index file is not used: it was made with another maxHashSlotNum or"
                    " maxIndexNum, or is damaged; what it knows is indexed anew",
                    file=str(path),
                    bytes=size,
                    expected_bytes=self._shape.bytes,
                )
                continue
            file = IndexFile(self._disk, path, self._shape)
            safe = safe_ms is None or (not file.room and file.header.end_ms <= safe_ms)
            if not safe or not file.is_sane(log_end):
                self._disk.remove(path)
            else:
                self._files.append(file)
        full = [file.header.end_ms for file in self._files if not file.room]
        self.full_ms = max(full, default=0)

    def add(self, batch: KeyBatch) -> None:
        """Add entries. Raises ``OSError``; some of them may be added then."""
        start = 0
        while start < len(batch):
            start += self._writable().add(batch, start)

    def _writable(self) -> IndexFile:
        last = self.last
        if last is not None and last.room:
            return last
        if last is not None:
            last.sync()
            self.full_ms = last.header.end_ms
        file = self._create()
        if last is not None:
            file.date_from(last.header)
        self._files.append(file)
        return file

    def _create(self) -> IndexFile:
        self._disk.make_directory(self._directory, durable=True)
        now_ms = self._clock.now_ms()
        taken = {*self._disk.list(self._directory)}
        newest = max((name for name in taken if _NAME.fullmatch(name)), default="")
        name = name_at(now_ms)
        if name <= newest:
            # The clock, or local time, went back: the digits count on, whatever time that is.
            name = f"{int(newest) + 1:017}"
        file = IndexFile(self._disk, self._directory / name, self._shape, create=True)
        self._disk.sync_directory(self._directory)
        return file

    def find(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of what may be messages with a key, of the newest files first.

        Raises:
            OSError: a file can't be read.
        """
        hashed = index_key(topic, key)
        found: dict[int, None] = {}
        for file in reversed(self._files):
            header = file.header
            if header.begin_ms <= end_ms and begin_ms <= header.end_ms:
                count = max_count - len(found)
                found.update(dict.fromkeys(file.select(hashed, count, begin_ms, end_ms)))
            if header.begin_ms < begin_ms or len(found) >= max_count:
                break
        return list(found)

    def sync(self) -> None:
        """Bring the last file to the disk; the others are there. Raises ``OSError``."""
        if self._files:
            self._files[-1].sync()

    def drop_before(self, physical_offset: int) -> int:
        """Remove files that know only messages before an offset, but not the last; how many.

        Raises:
            OSError: one can't be removed.
        """
        dropped = 0
        while len(self._files) > 1 and self._files[0].header.end_offset < physical_offset:
            self._disk.remove(self._files[0].path)
            del self._files[0]
            dropped += 1
        if dropped:
            self._disk.sync_directory(self._directory)
        return dropped
