"""Entries as columns of numpy, and what it takes to have them in an index file.

Chains are found by sorting: entries by their slots, and those of one slot by their numbers. So each
entry's predecessor is its neighbour, or what the slot held before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remoting.protocol.disk.index_file import (
    HEADER,
    MAX_SECONDS,
    SLOT,
    IndexHeader,
    IndexTable,
    header_after,
)

_Ints = NDArray[np.int64]

_WORD: Final = 0xFFFFFFFF
_LOW: Final = 32
_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("before", ">i4")]
)


class ColumnLinks(NamedTuple):
    """See ``index_file.Links``."""

    entries: bytes
    header: IndexHeader
    table: NDArray[np.signedinteger]
    slots: _Ints
    numbers: _Ints

    def pages(self, marked: bytearray, page_bytes: int) -> set[int]:
        """See ``Links``."""
        pages = (HEADER.size + self.slots * SLOT.size) // page_bytes
        return set(pages[np.frombuffer(marked, np.bool_)[pages]].tolist())

    def set_slots(self) -> None:
        """See ``Links``."""
        self.table[self.slots] = self.numbers


class ColumnBatch:
    """Entries as columns."""

    __slots__ = ("hashes", "offsets", "times_ms")

    def __init__(self, hashes: _Ints, offsets: _Ints, times_ms: _Ints) -> None:
        self.hashes = hashes
        self.offsets = offsets
        self.times_ms = times_ms

    def __len__(self) -> int:
        """How many there are."""
        return len(self.hashes)

    def link(self, table: IndexTable, start: int, stop: int) -> ColumnLinks:
        """See ``Batch``."""
        hashes, offsets = self.hashes[start:stop], self.offsets[start:stop]
        times_ms, header = self.times_ms[start:stop], table.header
        count, number = len(hashes), header.next_entry
        # Sorted by slot and then by number, so that those of one chain stand together.
        chained = (hashes % table.slots << _LOW) | np.arange(count)
        chained.sort()
        order, slots = chained & _WORD, chained >> _LOW
        first = np.ones(count, np.bool_)
        np.not_equal(slots[1:], slots[:-1], out=first[1:])
        stored: NDArray[np.signedinteger] = np.frombuffer(
            table.buffer, ">i4", table.slots, HEADER.size
        )
        begun = slots[first]
        newest = stored[begun].astype(np.int64)
        newest[(newest < 0) | (newest >= min(number, table.entries))] = 0
        before = np.empty(count, np.int64)
        before[1:] = number + order[:-1]
        before[first] = newest
        entries = np.empty(count, _ENTRY)
        entries["hash"] = hashes
        entries["offset"] = offsets
        entries["seconds"] = _seconds(header, times_ms)
        entries["before"][order] = before
        last = np.append(first[1:], True)
        after = header_after(
            header,
            count,
            first=(int(offsets[0]), int(times_ms[0])),
            last=(int(offsets[-1]), int(times_ms[-1])),
            used_slots=count_zeros(newest),
        )
        return ColumnLinks(entries.tobytes(), after, stored, begun, number + order[last])


def count_zeros(numbers: _Ints) -> int:
    """How many of them are 0."""
    return len(numbers) - int(np.count_nonzero(numbers))


def _seconds(header: IndexHeader, times_ms: _Ints) -> _Ints:
    begin_ms = header.begin_ms
    if header.next_entry == 1:
        begin_ms = int(times_ms[0])
    seconds = np.clip((times_ms - begin_ms) // 1000, 0, MAX_SECONDS)
    if begin_ms <= 0:
        seconds[:] = 0
    if header.next_entry == 1:
        # The first entry of a file is dated from the end of the file before it.
        passed = (int(times_ms[0]) - header.begin_ms) // 1000 if header.begin_ms > 0 else 0
        seconds[0] = min(max(passed, 0), MAX_SECONDS)
    return seconds
