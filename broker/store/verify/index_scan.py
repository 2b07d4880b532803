"""An index file by itself: its header, its entries' order, and its chains.

How many slots and entries a file has is a setting of the broker that wrote it, and stands nowhere.
It is found by the file: the newest entry must be the one that its slot leads to.

Entries are as good as sorted by physical offset, for the index follows the log. So a file is read
from end to end once: the chains are built as a writer would, and compared, and it is noted where
the entries of each part of the log begin, which is then checked with that part (``index_match``).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.errors import StoreError
from broker.store.index.file import Shape
from broker.store.verify.fast import Fast
from broker.store.verify.findings import Findings
from broker.store.view_files import StoreChanged, ViewFile
from remoting.protocol.disk.index_file import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    ENTRY,
    HEADER,
    SLOT,
    IndexHeader,
)

NAME_DIGITS: Final = 17
BLOCK_ENTRIES: Final = 65_536
"""Entries that are looked at together: 1.3 MB."""

_MAX_SHAPES: Final = 4096
"""Shapes that are tried one by one; of larger files that are not the usual ones, the likely."""

_SAMPLES: Final = 32


class IndexPart(NamedTuple):
    """A sound-looking index file.

    Attributes:
        path: where it is.
        shape: its slots and entries.
        header: as it was when the check began.
        before_ms: end time of the file before it, which its first entry is dated from.
    """

    path: str
    shape: Shape
    header: IndexHeader
    before_ms: int

    @property
    def entries_at(self) -> int:
        """Byte at which entry 0 would be."""
        return HEADER.size + self.shape.slots * SLOT.size

    def place(self, number: int) -> int:
        """Byte at which an entry is."""
        return self.entries_at + number * ENTRY.size

    def open(self) -> ViewFile:
        """The file, open. Raises ``StoreError``."""
        file = ViewFile(self.path, 0, self.shape.bytes)
        file.open()
        return file

    def read(self, file: ViewFile, number: int, count: int) -> bytearray:
        """Entries from a number on. Raises ``StoreError``."""
        data = bytearray(count * ENTRY.size)
        file.read_into(self.place(number), memoryview(data))
        return data


class Place(NamedTuple):
    """The entry with a number in the file with an index."""

    file: int
    number: int


def index_files(directory: Path) -> list[str]:
    """Paths of the index files, oldest first. Raises ``StoreError``."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - the names, not paths of them
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{directory} can't be read ({error.strerror or error})") from error
    return [
        str(directory / name)
        for name in sorted(names)
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
    ]


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        raise StoreChanged(f"the index file {path} has been removed: start again") from None


def is_made(path: str) -> bool:
    """Whether a file has more than its name, which it gets first. Raises ``StoreChanged``."""
    return _size(path) > 0


def header_of(path: str) -> IndexHeader | None:
    """A file's header; None when it is too short to have one. Raises ``StoreError``."""
    size = _size(path)
    if size < HEADER.size + SLOT.size + 2 * ENTRY.size:
        return None
    file = ViewFile(path, 0, size)
    file.open()
    data = bytearray(HEADER.size)
    file.read_into(0, memoryview(data))
    header = IndexHeader(*HEADER.unpack(data))
    return header if header.next_entry else header._replace(next_entry=1)


def shape_of(path: str, header: IndexHeader) -> Shape | None:
    """How many slots and entries a file with such a header has; None when that can't be told.

    Raises:
        StoreError: it can't be read.
    """
    size = _size(path)
    usual = Shape(DEFAULT_SLOTS, DEFAULT_ENTRIES)
    if header.next_entry <= 1:
        return usual if size == usual.bytes else None
    file = ViewFile(path, 0, size)
    file.open()
    likely = [usual] if size == usual.bytes else _shapes(size, header.next_entry)
    best, votes = None, 0
    for shape in likely:
        found = _votes(file, IndexPart(path, shape, header, 0))
        if found > votes:
            best, votes = shape, found
    return best


def _shapes(size: int, next_entry: int) -> list[Shape]:
    most = min((size - HEADER.size - ENTRY.size * next_entry) // SLOT.size, _MAX_SHAPES * 5)
    return [
        Shape(slots, (size - HEADER.size - SLOT.size * slots) // ENTRY.size)
        for slots in range(1, most + 1)
        if (size - HEADER.size - SLOT.size * slots) % ENTRY.size == 0
    ]


def _votes(file: ViewFile, part: IndexPart) -> int:
    """How many of some entries would be where they belong."""
    header, slots = part.header, part.shape.slots
    last = header.next_entry - 1
    votes = 0
    for number in range(last, max(last - _SAMPLES, 0), -1):
        hashed, offset, seconds, before = ENTRY.unpack(part.read(file, number, 1))
        if not header.begin_offset <= offset <= header.end_offset or hashed < 0 or seconds < 0:
            continue
        if not 0 <= before < number:
            continue
        slot = bytearray(SLOT.size)
        file.read_into(HEADER.size + hashed % slots * SLOT.size, memoryview(slot))
        (newest,) = SLOT.unpack(slot)
        # A broker at work may have added entries to the chain since.
        votes += number <= newest < part.shape.entries
        votes += 3 * (number == newest == last)
    return votes


class Scan:
    """Reads index files from end to end.

    Args:
        findings: what is found.
        borders: physical offsets at which parts of the log begin, ascending.
        fast: the compiled way; None for the Python path.

    Attributes:
        places: of each border the first entry at or behind it.
        entries: how many were looked at.
    """

    def __init__(self, findings: Findings, borders: Sequence[int], fast: Fast | None) -> None:
        self._findings = findings
        self._fast = fast.chains if fast is not None else None
        self._borders = borders
        self._before: tuple[int, Place] | None = None
        self.places: list[Place] = []
        self.entries = 0

    def run(self, parts: Sequence[IndexPart]) -> None:
        """Look at the files, oldest first. Raises ``StoreError``."""
        for index, part in enumerate(parts):
            self._scan(index, part)
        self._end(Place(len(parts), 1))

    def _scan(self, index: int, part: IndexPart) -> None:
        file = part.open()
        newest = array("i", bytes(SLOT.size * part.shape.slots))
        number, end = 1, part.header.next_entry
        while number < end:
            count = min(BLOCK_ENTRIES, end - number)
            data = part.read(file, number, count)
            self._place(index, number, data)
            self._chain(part, number, data, newest)
            number += count
            self.entries += count
        self._slots(part, file, newest)

    # --- where parts of the log begin

    def _place(self, index: int, first: int, data: bytearray) -> None:
        """Of two entries behind a border the first is where it is: one alone may be damaged."""
        left = self._borders[len(self.places) :]
        if not left or (self._fast is not None and not self._fast.reaches(data, left[0])):
            self._before = None
            return
        for number, offset in enumerate(offsets_of(data), first):
            while len(self.places) < len(self._borders):
                border = self._borders[len(self.places)]
                if offset < border or self._before is None or self._before[0] < border:
                    break
                self.places.append(self._before[1])
            self._before = (offset, Place(index, number))

    def _end(self, end: Place) -> None:
        for border in self._borders[len(self.places) :]:
            is_last = self._before is not None and self._before[0] >= border
            self.places.append(self._before[1] if is_last and self._before is not None else end)

    # --- chains

    def _chain(self, part: IndexPart, first: int, data: bytearray, newest: array[int]) -> None:
        slots = part.shape.slots
        if self._fast is not None and self._fast.chain(data, first, newest):
            return
        for number, (hashed, _, _, before) in enumerate(ENTRY.iter_unpack(data), first):
            slot = hashed % slots
            if before != newest[slot]:
                self._findings.derived(
                    "index-chain",
                    part.path,
                    part.place(number),
                    f"entry {number} of the index leads to entry {before}, not to {newest[slot]}",
                )
            newest[slot] = number

    def _slots(self, part: IndexPart, file: ViewFile, newest: array[int]) -> None:
        data = bytearray(SLOT.size * part.shape.slots)
        file.read_into(HEADER.size, memoryview(data))
        found = array("i", bytes(data))
        if array("i", [1]).tobytes()[0]:
            found.byteswap()
        if found != newest:
            for slot, (wanted, actual) in enumerate(zip(newest, found, strict=True)):
                # Beyond the header's count: of entries that came meanwhile.
                if wanted != actual and not part.header.next_entry <= actual < part.shape.entries:
                    self._findings.derived(
                        "index-slot",
                        part.path,
                        HEADER.size + slot * SLOT.size,
                        f"slot {slot} of the index leads to entry {actual}, not to {wanted}",
                    )


def offsets_of(data: bytearray) -> list[int]:
    """Physical offsets of packed entries."""
    return [offset for _, offset, _, _ in ENTRY.iter_unpack(data)]


def blocks(
    parts: Sequence[IndexPart], begin: Place, end: Place | None
) -> Iterator[tuple[int, int, bytearray]]:
    """Entries from a place to another: index of the file, number of the first, and packed.

    Raises:
        StoreError: a file can't be read.
    """
    for index in range(begin.file, len(parts)):
        if end is not None and index > end.file:
            return
        part = parts[index]
        number = begin.number if index == begin.file else 1
        stop = part.header.next_entry
        if end is not None and index == end.file:
            stop = end.number
        file = part.open() if number < stop else None
        while file is not None and number < stop:
            count = min(BLOCK_ENTRIES, stop - number)
            yield index, number, part.read(file, number, count)
            number += count
