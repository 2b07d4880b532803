"""What the log says of each queue, compared with the queue's files as the log is walked.

Messages of a queue have numbers that follow one another. Where they don't, records were lost (a
gap), or the topic was deleted and made again: then its queue began anew at 0, and what was found of
its first life does not count. A single message that has another number than those before and behind
it leave for it has a damaged one: neither CRC nor lengths cover it.

Which entries are wrong is kept as ranges of one kind, a few for each queue. What becomes of them is
decided at the end (``queue_judge``), when all of the log has been seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from broker.store.derive.runs import EntryRun, QueueKey
from broker.store.errors import StoreError
from broker.store.queue_files import FILLER_SIZE
from broker.store.view_files import FileRow
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES

MAX_RANGES_PER_QUEUE: Final = 64
"""Ranges of wrong entries that are kept of one queue; those behind them count as one."""

MAX_OPEN_ROWS: Final = 20_000
"""Queues whose file names are remembered: a KiB each."""

_POSITION: Final = Struct(">q")


class Kind(StrEnum):
    """What is wrong with an entry."""

    MISSING = "entry-missing"
    PLACE = "entry-place"
    SIZE = "entry-size"
    TAGS = "entry-tags"
    TWICE = "number-twice"
    NUMBER = "record-number"


class Wrong(NamedTuple):
    """Entries ``[begin, end)`` of a queue; ``position`` is where the first one's record lies."""

    kind: Kind
    begin: int
    end: int
    position: int


@dataclass(slots=True)
class QueueState:
    """What the log says of one queue.

    Attributes:
        first: number of its first message.
        end: number behind its last.
        first_position: physical offset of its first message.
        last_position: of its last.
        messages: how many there are.
        gaps: numbers that no record has.
        wrong: entries that are not as they should be.
    """

    first: int
    end: int
    first_position: int
    last_position: int
    messages: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)

    def add_gap(self, begin: int, end: int) -> None:
        """Numbers without a record."""
        if len(self.gaps) >= MAX_RANGES_PER_QUEUE:
            begin, _ = self.gaps.pop()
        self.gaps.append((begin, end))

    def add_wrong(self, wrong: Wrong) -> None:
        """Entries that are wrong."""
        last = self.wrong[-1] if self.wrong else None
        if last is not None and last.kind == wrong.kind and last.end == wrong.begin:
            self.wrong[-1] = last._replace(end=wrong.end)
        elif last is not None and len(self.wrong) >= MAX_RANGES_PER_QUEUE:
            self.wrong[-1] = last._replace(end=max(last.end, wrong.end))
        else:
            self.wrong.append(wrong)

    def follow(self, later: QueueState) -> None:
        """Go on with what a later part of the log says of the queue."""
        if later.first < self.end and later.first == 0:
            self.gaps, self.wrong = [], []
            self.first, self.first_position = 0, later.first_position
            self.messages = 0
        elif later.first > self.end:
            self.add_gap(self.end, later.first)
        elif later.first < self.end:
            doubled = min(self.end, later.end)
            self.add_wrong(Wrong(Kind.TWICE, later.first, doubled, later.first_position))
        for gap in later.gaps:
            self.add_gap(*gap)
        for wrong in later.wrong:
            self.add_wrong(wrong)
        self.end = max(self.end, later.end) if later.first else later.end
        self.last_position = later.last_position
        self.messages += later.messages


class QueueReader:
    """Reads entries of any queue, missing ones as zeros."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows: dict[QueueKey, FileRow] = {}

    def row(self, key: QueueKey) -> FileRow:
        """The files of a queue. Raises ``StoreError``."""
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_OPEN_ROWS:
                self._rows.clear()
            topic, queue_id = key
            directory = self._directory / topic / str(queue_id)
            row = FileRow([directory], f"queue {queue_id} of topic {topic}")
            self._rows[key] = row
        return row

    def read(self, key: QueueKey, first: int, count: int) -> bytearray:
        """Entries of messages ``[first, first + count)``. Raises ``StoreChanged``."""
        row = self.row(key)
        data = bytearray(count * ENTRY_BYTES)
        begin, end = first * ENTRY_BYTES, (first + count) * ENTRY_BYTES
        if row.files and end > row.end:
            row.refresh()
        for file in row.files:
            at, stop = max(begin, file.start), min(end, file.end)
            if at < stop:
                row.opened(file).read_into(at, memoryview(data)[at - begin : stop - begin])
        row.close()
        return data


class QueueWalk:
    """Compares entries with what a part of the log calls for.

    Attributes:
        states: of each queue that the part has messages of.
        entries: how many were compared.
    """

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self._odd: dict[QueueKey, EntryRun] = {}
        self.states: dict[QueueKey, QueueState] = {}
        self.entries = 0

    def add(self, run: EntryRun) -> None:
        """Messages of a queue, in the log's order. Raises ``StoreError``."""
        state = self.states.get(run.key)
        if (odd := self._odd.pop(run.key, None)) is not None:
            assert state is not None
            if run.first == state.end + 1:
                number, position = odd.first, _position(odd.entries)
                self._follow(state, odd._replace(first=state.end))
                state.add_wrong(Wrong(Kind.NUMBER, number, number + 1, position))
            else:
                self._follow(state, odd)
        if state is not None and run.first != state.end and len(run.entries) == ENTRY_BYTES:
            self._odd[run.key] = run
        else:
            self._follow(state, run)

    def finish(self) -> None:
        """The part has ended. Raises ``StoreError``."""
        while self._odd:
            key, run = self._odd.popitem()
            self._follow(self.states[key], run)

    def _follow(self, state: QueueState | None, run: EntryRun) -> None:
        count = len(run.entries) // ENTRY_BYTES
        self.entries += count
        (last,) = _POSITION.unpack_from(run.entries, len(run.entries) - ENTRY_BYTES)
        found = QueueState(run.first, run.first + count, _position(run.entries), last, count)
        actual = self._reader.read(run.key, run.first, count)
        if actual != run.entries:
            _compare(found, run, actual)
        if state is None:
            self.states[run.key] = found
        else:
            state.follow(found)

    def merge(self, later: dict[QueueKey, QueueState]) -> None:
        """Go on with what a later part of the log says."""
        for key, state in later.items():
            if key in self.states:
                self.states[key].follow(state)
            else:
                self.states[key] = state


def _position(entries: bytes | bytearray) -> int:
    return int(_POSITION.unpack_from(entries)[0])


def _compare(state: QueueState, run: EntryRun, actual: bytearray) -> None:
    pairs = zip(ENTRY.iter_unpack(run.entries), ENTRY.iter_unpack(actual), strict=True)
    for number, (wanted, found) in enumerate(pairs, run.first):
        if wanted != found and (kind := _kind(wanted, found)) is not None:
            state.add_wrong(Wrong(kind, number, number + 1, wanted[0]))


def _kind(wanted: tuple[int, int, int], found: tuple[int, int, int]) -> Kind | None:
    position, size, _ = found
    if (not position and not size) or size == FILLER_SIZE:
        return Kind.MISSING
    if position != wanted[0]:
        return Kind.PLACE
    return Kind.SIZE if size != wanted[1] else Kind.TAGS


def readable(reader: QueueReader, key: QueueKey) -> bool:
    """Whether a queue has files."""
    try:
        return bool(reader.row(key).files)
    except StoreError:
        return False
