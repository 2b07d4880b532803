"""Keys of many records at once, by the compiled core: what ``batch`` does for single ones.

Imported only where the compiled core runs.
"""

from __future__ import annotations

from array import array
from mmap import mmap
from typing import NamedTuple

from broker.store.index.keys import Walked
from remoting.protocol.core import index_entries, record
from remoting.protocol.disk.index_file import HEADER, SLOT, IndexHeader, IndexTable, header_after


class CompiledLinks(NamedTuple):
    """See ``index_file.Links``."""

    entries: bytes
    header: IndexHeader
    buffer: bytearray | memoryview | mmap
    slots: array[int]
    numbers: array[int]

    def pages(self, marked: bytearray, page_bytes: int) -> set[int]:
        """See ``Links``."""
        pages = {(HEADER.size + slot * SLOT.size) // page_bytes for slot in self.slots}
        return {page for page in pages if marked[page]}

    def set_slots(self) -> None:
        """See ``Links``."""
        index_entries.set_slots(self.buffer, self.slots, self.numbers)


class CompiledBatch:
    """Entries as columns of 64-bit numbers."""

    __slots__ = ("hashes", "offsets", "times_ms")

    def __init__(self, hashes: array[int], offsets: array[int], times_ms: array[int]) -> None:
        self.hashes = hashes
        self.offsets = offsets
        self.times_ms = times_ms

    def __len__(self) -> int:
        """How many there are."""
        return len(self.hashes)

    def link(self, table: IndexTable, start: int, stop: int) -> CompiledLinks:
        """See ``Batch``."""
        hashes, offsets = self.hashes[start:stop], self.offsets[start:stop]
        times_ms, header = self.times_ms[start:stop], table.header
        entries, slots, numbers, used = index_entries.link(
            hashes,
            offsets,
            times_ms,
            table.buffer,
            table.slots,
            table.entries,
            header.next_entry,
            header.begin_ms,
        )
        after = header_after(
            header,
            len(hashes),
            first=(offsets[0], times_ms[0]),
            last=(offsets[-1], times_ms[-1]),
            used_slots=used,
        )
        return CompiledLinks(entries, after, table.buffer, slots, numbers)


def walk(data: memoryview, base: int) -> Walked:
    """See ``batch.walk``."""
    used, hashes, offsets, times_ms = record.walk_keys(data, base)
    return Walked(CompiledBatch(hashes, offsets, times_ms), used)
