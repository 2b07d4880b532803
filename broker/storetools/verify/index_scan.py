"""Checking the index files of a store: headers, and hash chains of entries.

A file does not contain its numbers of slots and entries, which are settings of the broker that
wrote it. They are found by trial: the newest entry must be the one that its slot points to.

Entries are almost sorted by physical offset, because the index is built in the order of the log. So
a file is read once, sequentially: the hash chains are computed as a writer would and compared with
the file, and the first entry of each part of the log is recorded. The entries are compared with the
keys when that part of the log is walked (``index_match``).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from broker.store.index_files import Shape
from broker.store.raw_files import StoreChanged, ViewFile, names_in
from broker.storetools.verify.findings import Findings
from broker.storetools.view import StoreView
from remoting.protocol import core
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
"""Entries read at once: 1.3 MB."""

_MAX_SHAPES: Final = 4096
"""Shapes tried for a file of unusual length."""

_SAMPLES: Final = 32


def load_compiled() -> ModuleType | None:
    """Return the compiled core's functions for index entries; None without the compiled core.

    The Python code gives identical results.
    """
    if core.KIND != "compiled":
        return None
    from remoting.protocol.core import index_entries  # noqa: PLC0415 - only where it runs

    return index_entries


class IndexPart(NamedTuple):
    """An index file with a usable header.

    Attributes:
        path: of the file.
        shape: numbers of slots and entries.
        header: as read when the check began.
        before_ms: end time of the previous file; the time of this file's first entry may be
            relative to it.
    """

    path: str
    shape: Shape
    header: IndexHeader
    before_ms: int

    @property
    def entries_at(self) -> int:
        """Position of entry 0 in the file."""
        return HEADER.size + self.shape.slots * SLOT.size

    def place(self, number: int) -> int:
        """Position of an entry in the file."""
        return self.entries_at + number * ENTRY.size

    def open(self) -> ViewFile:
        """Open the file. Raises ``StoreError``."""
        file = ViewFile(self.path, 0, self.shape.bytes)
        file.open()
        return file

    def read(self, file: ViewFile, number: int, count: int) -> bytearray:
        """Read ``count`` packed entries from entry ``number`` on. Raises ``StoreError``."""
        data = bytearray(count * ENTRY.size)
        file.read_into(self.place(number), memoryview(data))
        return data


class IndexPlace(NamedTuple):
    """Position of an entry: the index of its file among all, and its number in the file."""

    file: int
    number: int


class IndexEntries(NamedTuple):
    """The part of the log that the index covers.

    Attributes:
        begin: physical offset of the first indexed message.
        end: physical offset of the last one, some of whose keys may be missing.
    """

    begin: int
    end: int


INDEX_BEGIN: Final = IndexPlace(0, 1)
NO_ENTRIES: Final = IndexEntries(1, 0)


def index_files(directory: Path) -> list[str]:
    """Return the paths of the index files, oldest first. Raises ``StoreError``."""
    return [
        str(directory / name)
        for name in names_in(directory)
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
    ]


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        raise StoreChanged(f"the index file {path} has been removed: start again") from None


def header_of(path: str) -> IndexHeader | None:
    """Return a file's header; None when the file is too short. Raises ``StoreError``."""
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
    """Return the numbers of slots and entries of a file; None when no shape fits.

    Raises:
        StoreError: the file can't be read.
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
        score = _votes(file, IndexPart(path, shape, header, 0))
        if score > votes:
            best, votes = shape, score
    return best


def _shapes(size: int, next_entry: int) -> list[Shape]:
    max_slots = min((size - HEADER.size - ENTRY.size * next_entry) // SLOT.size, _MAX_SHAPES * 5)
    return [
        Shape(slots, (size - HEADER.size - SLOT.size * slots) // ENTRY.size)
        for slots in range(1, max_slots + 1)
        if (size - HEADER.size - SLOT.size * slots) % ENTRY.size == 0
    ]


def _votes(file: ViewFile, part: IndexPart) -> int:
    """Return a score for a shape: how many of the newest entries are consistent with it."""
    header, slots = part.header, part.shape.slots
    last = header.next_entry - 1
    votes, first = 0, max(last - _SAMPLES, 0) + 1
    samples = ENTRY.iter_unpack(part.read(file, first, last + 1 - first))
    for number, (hashed, offset, seconds, before) in enumerate(samples, first):
        if min(hashed, seconds, before) < 0 or before >= number:
            continue
        if not header.begin_offset <= offset <= header.end_offset:
            continue
        slot = bytearray(SLOT.size)
        file.read_into(HEADER.size + hashed % slots * SLOT.size, memoryview(slot))
        (newest,) = SLOT.unpack(slot)
        # A running broker may have added entries to the chain since.
        votes += number <= newest < part.shape.entries
        votes += 3 * (number == newest == last)
    return votes


class IndexScan:
    """Reads all index files once, and checks their hash chains.

    Args:
        findings: receives what is wrong.
        borders: physical offsets where the parts of the log begin, ascending.
        compiled: see ``load_compiled``; None for the Python code.

    Attributes:
        places: for each border, the position of the first entry at or behind it.
        entries: number of entries read.
    """

    def __init__(
        self, findings: Findings, borders: Sequence[int], compiled: ModuleType | None
    ) -> None:
        self._findings = findings
        self._compiled = compiled
        self._borders = borders
        self._before: tuple[int, IndexPlace] | None = None
        self.places: list[IndexPlace] = []
        self.entries = 0

    def run(self, parts: Sequence[IndexPart]) -> None:
        """Read the files, oldest first. Raises ``StoreError``."""
        for index, part in enumerate(parts):
            self._scan(index, part)
        end = IndexPlace(len(parts), 1)
        for border in self._borders[len(self.places) :]:
            is_last = self._before is not None and self._before[0] >= border
            self.places.append(self._before[1] if is_last and self._before is not None else end)

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

    # --- first entries of the parts

    def _place(self, index: int, first: int, data: bytearray) -> None:
        """Find the parts' first entries: two in a row behind a border, as one may be damaged."""
        left = self._borders[len(self.places) :]
        if not left or (self._compiled is not None and not self._compiled.reaches(data, left[0])):
            self._before = None
            return
        for number, (_, offset, *_) in enumerate(ENTRY.iter_unpack(data), first):
            while len(self.places) < len(self._borders):
                border = self._borders[len(self.places)]
                if offset < border or self._before is None or self._before[0] < border:
                    break
                self.places.append(self._before[1])
            self._before = (offset, IndexPlace(index, number))

    # --- chains

    def _chain(self, part: IndexPart, first: int, data: bytearray, newest: array[int]) -> None:
        slots = part.shape.slots
        if self._compiled is not None and self._compiled.chain(data, first, newest):
            return
        for number, (hashed, _, _, before) in enumerate(ENTRY.iter_unpack(data), first):
            slot = hashed % slots
            if before != newest[slot]:
                self._findings.derived(
                    "index-chain",
                    part.path,
                    part.place(number),
                    f"entry {number} of the index points to entry {before}, not to {newest[slot]}",
                )
            newest[slot] = number

    def _slots(self, part: IndexPart, file: ViewFile, newest: array[int]) -> None:
        data = bytearray(SLOT.size * part.shape.slots)
        file.read_into(HEADER.size, memoryview(data))
        stored = array("i", bytes(data))
        if array("i", [1]).tobytes()[0]:
            stored.byteswap()
        if stored != newest:
            for slot, (computed, actual) in enumerate(zip(newest, stored, strict=True)):
                # A number beyond the header's is of an entry added since the check began.
                if computed != actual and not part.header.next_entry <= actual < part.shape.entries:
                    self._findings.derived(
                        "index-slot",
                        part.path,
                        HEADER.size + slot * SLOT.size,
                        f"slot {slot} of the index points to entry {actual}, not to {computed}",
                    )


def blocks(
    parts: Sequence[IndexPart], begin: IndexPlace, end: IndexPlace | None
) -> Iterator[tuple[int, int, bytearray]]:
    """Yield entries in blocks: index of the file, number of the first entry, packed entries.

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


class IndexFiles:
    """The index files of one store.

    Attributes:
        parts: the usable files with entries, oldest first.
        shape: of most of them; None when there are none.
        paths: of all index files.
    """

    def __init__(self, directory: Path, parts: list[IndexPart], paths: list[str]) -> None:
        self._directory = directory
        shapes = Counter(part.shape for part in parts).most_common(1)
        self.parts = parts
        self.paths = paths
        self.shape: Shape | None = shapes[0][0] if shapes else None

    @property
    def claims(self) -> IndexEntries:
        """The part of the log that the files cover."""
        if not self.parts:
            return NO_ENTRIES
        return IndexEntries(self.parts[0].header.begin_offset, self.parts[-1].header.end_offset)

    def check_headers(self, view: StoreView, log_end: int, findings: Findings) -> None:
        """Compare headers with entries and log; drop unusable files. Raises ``StoreError``."""
        kept = []
        for part in self.parts:
            header = part.header
            file = part.open()
            first = ENTRY.unpack(part.read(file, 1, 1))[1]
            last = ENTRY.unpack(part.read(file, header.next_entry - 1, 1))[1]
            wrong = None
            if header.end_offset >= log_end:
                wrong = f"the log ends at {log_end}"
            elif (header.begin_offset, header.end_offset) != (first, last):
                wrong = f"the entries are of messages at {first} to {last}"
            elif not 0 <= header.used_slots < header.next_entry:
                wrong = f"{header.used_slots} slots cannot be in use"
            elif (stored := view.log.stored_ms(header.end_offset)) not in {None, header.end_ms}:
                wrong = f"the last message was stored at {stored}, not {header.end_ms}"
            elif (stored := view.log.stored_ms(header.begin_offset)) not in {None, header.begin_ms}:
                wrong = f"the first message was stored at {stored}, not {header.begin_ms}"
                header = header._replace(begin_ms=stored or 0)
            if wrong is None:
                kept.append(part)
                continue
            sentence = (
                f"the header is for messages at {header.begin_offset} to {header.end_offset} of the"
                f" log, but {wrong}"
            )
            findings.derived("index-header", part.path, 0, sentence)
            if 0 <= first <= last < log_end:
                header = header._replace(begin_offset=first, end_offset=last)
                kept.append(part._replace(header=header))
        self.parts = kept

    def judge(
        self,
        own: dict[str, Any],
        keys: int,
        unindexed: tuple[int, int],
        findings: Findings,
        *,
        clean: bool,
    ) -> None:
        """Report keys of the log that the index does not cover.

        Args:
            own: the sections of PocketMQ's checkpoint.
            keys: number of keys in the log.
            unindexed: number of keys before, and behind, the part that the index covers.
            findings: receives what is wrong.
            clean: the store was closed properly.
        """
        is_noted = self._check_note(own, findings)
        path = str(self._directory)
        earlier, later = unindexed
        if not self.parts:
            if keys:
                sentence = f"there is no index, so {keys} keys find no message"
                findings.note("no-index", path, None, sentence)
            return
        if earlier:
            begin = self.claims.begin
            sentence = f"the index lacks {earlier} keys of messages before {begin} of the log"
            findings.derived("index-missing", path, None, sentence)
        # A copy lacks the file that was being written, and doesn't say that the index is complete.
        is_copy = "safe" in own and "index" not in own
        if later and clean and not is_noted and not is_copy:
            end = self.claims.end
            sentence = f"the index lacks {later} keys of messages behind {end} of the log"
            findings.derived("index-missing", path, None, sentence)

    def _check_note(self, own: dict[str, Any], findings: Findings) -> bool:
        """Return whether a clean stop of PocketMQ recorded the index in exactly this state."""
        try:
            last = list(own["index"]["last"])
        except (KeyError, TypeError):
            return False
        newest = self.parts[-1] if self.parts else None
        actual = [] if newest is None else [Path(newest.path).name, newest.header.next_entry]
        if last and last[0] > (actual[0] if actual else ""):
            missing = self._directory / str(last[0])
            findings.derived("index-file", str(missing), None, "the newest index file is missing")
        return last == actual and bool(own["index"].get("indexed"))


def load_index(directory: Path, findings: Findings) -> IndexFiles:
    """Read the headers of a directory's index files. Raises ``StoreError``."""
    parts: list[IndexPart] = []
    # A new file is empty for a moment.
    paths = [path for path in index_files(directory) if _size(path)]
    before_ms = 0
    for path in paths:
        header = header_of(path)
        shape = None if header is None else shape_of(path, header)
        if header is not None and header.next_entry <= 1 and not header.used_slots:
            continue
        if header is None or shape is None or not 1 <= header.next_entry <= shape.entries:
            sentence = "its slots and entries are not consistent, so it is not an index file"
            findings.derived("index-file", path, None, sentence)
            continue
        parts.append(IndexPart(path, shape, header, before_ms))
        before_ms = header.end_ms
    return IndexFiles(directory, _of_one_shape(parts, findings), paths)


def _of_one_shape(parts: list[IndexPart], findings: Findings) -> list[IndexPart]:
    """Return the files with the newest one's length; others are from different settings."""
    kept = [part for part in parts if part.shape.bytes == parts[-1].shape.bytes]
    for part in parts:
        if part not in kept:
            sentence = (
                f"it has {part.shape.bytes} bytes, the newest index file {kept[-1].shape.bytes}: a"
                " broker with the newest file's settings does not use it"
            )
            findings.note("index-other", part.path, None, sentence)
    return kept
