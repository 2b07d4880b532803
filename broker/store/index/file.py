"""One index file on the disk.

A file has its full length from the start and blocks only where something was written. Entries and
header are written by ``write``; slots, which lie scattered, are stored through the map, into pages
that were written as zeros before: a store into a page without blocks on a full disk is SIGBUS, not
an error. What is looked at is fetched first, so that no thread holds the GIL while the disk works.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from broker.store.files import Files, Region
from broker.store.index.batch import Batch
from broker.store.index.limits import PAGE_BYTES
from remoting.protocol.disk.index_file import ENTRY, HEADER, IndexHeader, IndexTable, file_bytes


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
        header: what its header says.
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

    def add(self, batch: Batch, start: int) -> int:
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
