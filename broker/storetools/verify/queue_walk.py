"""Comparing the queues' files with the log as it is walked, and rebuilding queues from the log.

The messages of a queue have consecutive queue offsets. If they don't, records were lost (a gap), or
the topic was deleted and created again: then the queue started at 0 again, and earlier records do
not count. A single message whose queue offset does not match its neighbours' has a damaged queue
offset, which neither CRC nor lengths cover. Wrong entries are kept as ranges of one kind, a few for
each queue; ``queue_checker`` evaluates them when the whole log has been read.

A repair writes new files beside the old ones. Entries of messages that retention has deleted are
copied from the old files. Queue offsets without a message get fillers, as in recovery. A queue
never ends before a queue offset that it has already used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from broker.store.consume_queue import FILLER_SIZE
from broker.store.log_walk import EntryRun, QueueKey
from broker.store.raw_files import FileRow
from broker.storetools.queue_writer import QueueWriter
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, FILLER

MAX_RANGES_PER_QUEUE: Final = 64
"""Maximum ranges of wrong entries of one queue; further ones extend the last."""

MAX_OPEN_ROWS: Final = 20_000
"""Queues whose file names are cached: a KiB each."""

_POSITION: Final = Struct(">q")


class Kind(StrEnum):
    """Kinds of wrong entries."""

    MISSING = "entry-missing"
    PLACE = "entry-place"
    SIZE = "entry-size"
    TAGS = "entry-tags"
    TWICE = "number-twice"
    NUMBER = "record-number"


class Wrong(NamedTuple):
    """Wrong entries ``[begin, end)``; ``position`` is the physical offset of the first's record."""

    kind: Kind
    begin: int
    end: int
    position: int


@dataclass(slots=True)
class WalkedQueue:
    """One queue according to the log.

    Attributes:
        first: queue offset of its first message.
        end: queue offset behind its last message.
        first_position: physical offset of its first message.
        last_position: physical offset of its last message.
        messages: number of messages.
        gaps: ranges of queue offsets without a record.
        wrong: stored entries that differ from the log.
    """

    first: int
    end: int
    first_position: int
    last_position: int
    messages: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)

    def add_gap(self, begin: int, end: int) -> None:
        """Add queue offsets ``[begin, end)`` without a record."""
        if len(self.gaps) >= MAX_RANGES_PER_QUEUE:
            begin, _ = self.gaps.pop()
        self.gaps.append((begin, end))

    def add_wrong(self, wrong: Wrong) -> None:
        """Add wrong entries, extending the last range if possible."""
        last = self.wrong[-1] if self.wrong else None
        if last is not None and last.kind == wrong.kind and last.end == wrong.begin:
            self.wrong[-1] = last._replace(end=wrong.end)
        elif last is not None and len(self.wrong) >= MAX_RANGES_PER_QUEUE:
            self.wrong[-1] = last._replace(end=max(last.end, wrong.end))
        else:
            self.wrong.append(wrong)

    def follow(self, later: WalkedQueue) -> None:
        """Add the messages of a later part of the log."""
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


class StoredQueues:
    """Reads entries of any queue; missing ones read as zeros."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows: dict[QueueKey, FileRow] = {}

    def row(self, key: QueueKey) -> FileRow:
        """Return the files of a queue. Raises ``StoreError``."""
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
        """Return the entries ``[first, first + count)``, packed. Raises ``StoreError``."""
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
    """Compares stored entries with those derived from a part of the log, or writes new files.

    Args:
        reader: reads the stored entries.
        new: writers of the queues to rebuild, instead of comparing; None to compare all queues.

    Attributes:
        states: the result for each queue that has messages in the part.
        entries: number of entries derived from the part.
    """

    def __init__(
        self, reader: StoredQueues, new: Mapping[QueueKey, QueueWriter] | None = None
    ) -> None:
        self._reader = reader
        self._new = new
        self._odd: dict[QueueKey, EntryRun] = {}
        self.states: dict[QueueKey, WalkedQueue] = {}
        self.entries = 0

    def add(self, run: EntryRun) -> None:
        """Add messages of a queue, in the log's order. Raises ``StoreError``."""
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
        """Process the remaining messages at the end of the part. Raises ``StoreError``."""
        while self._odd:
            key, run = self._odd.popitem()
            self._follow(self.states[key], run)

    def _follow(self, state: WalkedQueue | None, run: EntryRun) -> None:
        count = len(run.entries) // ENTRY_BYTES
        self.entries += count
        (last,) = _POSITION.unpack_from(run.entries, len(run.entries) - ENTRY_BYTES)
        walked = WalkedQueue(run.first, run.first + count, _position(run.entries), last, count)
        if self._new is None:
            actual = self._reader.read(run.key, run.first, count)
            if actual != run.entries:
                pairs = zip(ENTRY.iter_unpack(run.entries), ENTRY.iter_unpack(actual), strict=True)
                for number, (derived, stored) in enumerate(pairs, run.first):
                    if derived != stored and (kind := _kind(derived, stored)) is not None:
                        walked.add_wrong(Wrong(kind, number, number + 1, derived[0]))
        elif (writer := self._new.get(run.key)) is not None:
            if state is not None and run.first == 0:
                # The topic was deleted and created again.
                writer.clear()
            writer.write(run.first, run.entries)
        if state is None:
            self.states[run.key] = walked
        else:
            state.follow(walked)

    def merge(self, later: dict[QueueKey, WalkedQueue]) -> None:
        """Add the queues of a later part of the log."""
        for key, state in later.items():
            if key in self.states:
                self.states[key].follow(state)
            else:
                self.states[key] = state


def _position(entries: bytes | bytearray) -> int:
    return int(_POSITION.unpack_from(entries)[0])


def _kind(derived: tuple[int, int, int], stored: tuple[int, int, int]) -> Kind | None:
    position, size, _ = stored
    if (not position and not size) or size == FILLER_SIZE:
        return Kind.MISSING
    if position != derived[0]:
        return Kind.PLACE
    return Kind.SIZE if size != derived[1] else Kind.TAGS


_AT_ONCE: Final = 65_536


def complete(
    queue: QueueWriter, old: StoredQueues, key: QueueKey, state: WalkedQueue | None, **bounds: int
) -> None:
    """Write the entries of a rebuilt queue that the log has no records for.

    Args:
        queue: writes the new files, which have the entries derived from the log.
        old: reads the old files.
        key: topic and id of the queue.
        state: the queue according to the log; None when the log has no message of it.
        **bounds: ``log_start``, the log's first physical offset, and ``number``, the smallest
            allowed queue offset of the next message.

    Raises:
        OSError, StoreError: the disk refuses.
    """
    files = old.row(key).files
    first, end = (bounds["number"], 0) if state is None else (state.first, state.end)
    begin = queue.first_of(
        first if state is not None or not files else files[0].start // ENTRY_BYTES
    )
    if files:
        begin = min(begin, queue.first_of(files[0].start // ENTRY_BYTES))
    kept_until = min(first, bounds["number"]) if state is None else first
    for number, entries in _kept(old, key, begin, kept_until, bounds["log_start"]):
        queue.write(number, entries)
    for gap_begin, gap_end in [] if state is None else state.gaps:
        queue.write(gap_begin, FILLER * (gap_end - gap_begin))
    if state is not None and end < bounds["number"]:
        queue.write(end, FILLER * (bounds["number"] - end))
    queue.touch(max(end, bounds["number"], 1) - 1)


def _kept(
    old: StoredQueues, key: QueueKey, begin: int, end: int, log_start: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the old entries of deleted messages, and fillers for all others, packed."""
    while begin < end:
        count = min(end - begin, _AT_ONCE)
        entries = old.read(key, begin, count)
        yield (
            begin,
            b"".join(
                ENTRY.pack(position, size, code)
                if size == FILLER_SIZE or (size > 0 and 0 <= position < log_start)
                else FILLER
                for position, size, code in ENTRY.iter_unpack(entries)
            ),
        )
        begin += count
