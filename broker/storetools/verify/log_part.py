"""Walking one file of the log: check every record, and compare queues and index with it.

Several processes can walk different files at the same time. Queue entries and index entries are
compared during the walk; ``check`` merges the results of the files.

Every record is checked completely: lengths, magic number, physical offset, CRC, queue offset. Where
there is no record, the next good one is searched for, and the bytes before it are damage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from broker.store.log_walk import EntryRun, QueueKey
from broker.store.redispatch import row_of
from broker.storetools.verify.findings import Findings, Ranges
from broker.storetools.verify.index_match import IndexMatch, Key
from broker.storetools.verify.index_scan import (
    INDEX_BEGIN,
    NO_ENTRIES,
    IndexEntries,
    IndexPart,
    IndexPlace,
    load_compiled,
)
from broker.storetools.verify.queue_walk import QueueWalk, StoredQueues, WalkedQueue
from broker.storetools.view import StoreView
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.errors import RecordError
from remoting.protocol.message.record import (
    MAGIC_BLANK,
    MIN_TAIL_BYTES,
    FoundRecord,
    Invalid,
    chain,
)

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of the log checked at once: they fit into the processor's cache."""

_START: Final = Struct(">II")

OnProgress = Callable[[int], None]
"""Called with the number of bytes of the log walked since the last call."""


MAX_GATHERED: Final = 50_000
"""Entries gathered before they are compared, so that each queue's files are read less often."""


class Gathering:
    """Gathers packed entries by queue."""

    def __init__(self) -> None:
        self._runs: dict[QueueKey, list[tuple[int, bytearray]]] = {}
        self._count = 0

    def add(self, key: QueueKey, first: int, entries: bytearray) -> None:
        """Add entries of a queue, in the log's order; ``first`` is their first queue offset."""
        runs = self._runs.setdefault(key, [])
        if runs and runs[-1][0] + len(runs[-1][1]) // ENTRY.size == first:
            runs[-1][1].extend(entries)
        else:
            runs.append((first, entries))
        self._count += len(entries) // ENTRY.size

    def full(self) -> bool:
        """Return whether there are enough entries to take them."""
        return self._count >= MAX_GATHERED

    def take(self) -> Iterator[EntryRun]:
        """Yield and remove all runs, sorted by queue; those of one queue in the log's order."""
        gathered, self._runs, self._count = self._runs, {}, 0
        for key in sorted(gathered):
            for first, entries in gathered[key]:
                yield EntryRun(key, first, entries)


class PartPlan(NamedTuple):
    """A part of the log to walk, in a form that can be sent to another process.

    Attributes:
        root, commit_log: as given to ``StoreView``.
        path: of the file.
        begin, end: physical offsets of the part.
        file_end: physical offset where the file ends.
        levels_ms: delay levels.
        plain: use the Python code instead of the compiled core.
        closed: whether a blank record must end the file.
        lost_until: physical offset up to which the bytes behind ``end`` are known to be lost.
        index_parts: the index files, oldest first.
        index_begin, index_end: positions of the part's entries in the index; ``index_end`` None for
            the index's end.
        claims: the part of the log that the index covers.
    """

    root: Path
    commit_log: str | None
    path: str
    begin: int
    end: int
    file_end: int
    levels_ms: tuple[int, ...]
    plain: bool
    closed: bool = False
    lost_until: int = 0
    index_parts: tuple[IndexPart, ...] = ()
    index_begin: IndexPlace = INDEX_BEGIN
    index_end: IndexPlace | None = None
    claims: IndexEntries = NO_ENTRIES


class PartResult(NamedTuple):
    """The result of walking a part.

    Attributes:
        findings: what is wrong.
        queues: by topic and queue id, the messages found and the wrong entries.
        damaged: the damaged parts of the log.
        records, entries, keys: numbers of those found.
        unindexed: number of keys before, and behind, the part of the log that the index covers.
        last_ms: the greatest store time, ms since the epoch; 0 for none.
    """

    findings: Findings
    queues: dict[tuple[str, int], WalkedQueue]
    damaged: Ranges
    records: int
    entries: int
    keys: int
    unindexed: tuple[int, int]
    last_ms: int


class LogPart:
    """Walks one part of the log.

    Args:
        plan: describes the part.
        view: the store.
        on_progress: called with the number of bytes walked since the last call.
        queues: receives the entries; by default they are compared with the stored ones.
        index: receives the keys; by default they are compared with the index.
    """

    def __init__(
        self,
        plan: PartPlan,
        view: StoreView,
        on_progress: OnProgress,
        *,
        queues: QueueWalk | None = None,
        index: IndexMatch | None = None,
    ) -> None:
        self._plan = plan
        self._view = view
        self._on_progress = on_progress
        self._compiled = None if plan.plain else load_compiled()
        self._findings = Findings()
        self._queues = queues or QueueWalk(StoredQueues(plan.root / "consumequeue"))
        self._gathering = Gathering()
        self._index = index or IndexMatch(
            plan.index_parts,
            plan.index_begin,
            plan.index_end,
            plan.claims,
            self._findings,
            self._compiled,
        )
        self._damaged = self._index.damaged
        self._buffer = memoryview(bytearray(CHUNK_BYTES))
        self._records = 0
        self._keys = 0
        self._last_ms = 0

    def run(self) -> PartResult:
        """Walk the part. Raises ``StoreError``."""
        position, end = self._plan.begin, self._plan.end
        closed = False
        while position < end and not closed:
            before = position
            data = self._read(position, min(CHUNK_BYTES, end - position))
            position = self._records_at(data, position)
            if position == before:
                position, closed = self._step(position)
            self._on_progress(min(position, end) - before)
        lost = self._plan.lost_until > self._plan.end
        if lost:
            self._damaged.add(self._plan.end, self._plan.lost_until)
        elif self._plan.closed and not closed and end - 1 not in self._damaged:
            self._findings.damage(
                "file-end",
                self._plan.path,
                end,
                "no blank record ends the file, though another follows",
            )
        self._gather(at_end=True)
        self._index.finish()
        return PartResult(
            self._findings,
            self._queues.states,
            self._damaged,
            self._records,
            self._queues.entries,
            self._keys,
            (self._index.earlier, self._index.unclaimed),
            self._last_ms,
        )

    def _read(self, position: int, length: int) -> memoryview:
        target = self._buffer
        if length > len(target):
            target = memoryview(bytearray(length))
        self._view.log.read_into(position, target[:length])
        return target[:length]

    # --- records

    def _records_at(self, data: memoryview, position: int) -> int:
        """Check consecutive records at a position; return where the last one ends."""
        if self._compiled is not None:
            behind = self._walk_compiled(data, position)
            if behind > position or len(data) < _START.size:
                return behind
            # The compiled core rejects this record: check it alone in Python.
            size, _ = _START.unpack_from(data)
            data = data[:size]
        singly, used = chain(data, position, position + len(data))
        return self._walk_plain(data[:used], position, singly, used) if used else position

    def _walk_compiled(self, data: memoryview, base: int) -> int:
        """Check consecutive records in the compiled core; return where the last one ends."""
        from remoting.protocol.core.record import walk_records  # noqa: PLC0415 - only where it runs

        used, records, _, _, newest_ms, runs, hashes, offsets, times_ms = walk_records(
            data, base, self._plan.levels_ms, sys.maxsize, None, with_keys=True
        )
        if not used:
            return base
        end = base + int(used)
        self._records += records
        self._last_ms = max(self._last_ms, newest_ms)
        for key, first, entries in runs:
            self._gathering.add(key, first, entries)
        self._keys += len(hashes)
        if not self._index.fits(hashes, offsets, times_ms):
            self._index.compare(list(map(Key, hashes, offsets, times_ms)), end)
        self._gather()
        return end

    def _walk_plain(self, data: memoryview, base: int, starts: Sequence[int], end: int) -> int:
        keys: list[Key] = []
        bad: int | None = None
        for at, behind in zip(starts, [*starts[1:], end], strict=True):
            try:
                row = row_of(data, at, behind - at, base, self._plan.levels_ms)
            except RecordError:
                bad, end = at, at
                break
            self._records += 1
            if row.wrong is not None:
                self._damaged.add(base + at, base + behind)
                self._findings.damage("record", self._plan.path, base + at, row.wrong)
                continue
            self._last_ms = max(self._last_ms, row.store_ms)
            if (entry := row.entry) is not None:
                packed = bytearray(ENTRY.pack(base + at, behind - at, entry.tags_code))
                self._gathering.add((entry.topic, entry.queue_id), entry.queue_offset, packed)
            keys += [Key(hashed, base + at, row.store_ms) for hashed in row.hashes]
        self._keys += len(keys)
        self._index.compare(keys, base + end)
        self._gather()
        if bad is None:
            return base + end
        bad += base
        return self._damage(bad, f"the lengths in the record at {bad} don't add up to its size")

    def _gather(self, *, at_end: bool = False) -> None:
        if at_end or self._gathering.full():
            for run in self._gathering.take():
                self._queues.add(run)
        if at_end:
            self._queues.finish()

    # --- long records, blank records, damage

    def _step(self, position: int) -> tuple[int, bool]:
        """Pass a long or blank record, or damage.

        Returns:
            The next position, and whether a blank record ends the file there.
        """
        left = self._plan.file_end - position
        if left < MIN_TAIL_BYTES:
            return self._plan.end, True
        size, magic = _START.unpack_from(self._read(position, _START.size))
        if magic == MAGIC_BLANK:
            if size != left:
                why = f"the blank record at {position} has size {size}, but {left} bytes are left"
                self._findings.damage("blank", self._plan.path, position, f"{why} in its file")
            return self._plan.end, True
        record, scan = self._view.log.look(position)
        if isinstance(scan, Invalid):
            return self._damage(position, scan.reason), False
        if isinstance(scan, FoundRecord) and position + size <= self._plan.end:
            behind = self._records_at(record, position)
            if behind > position:
                return behind, False
        why = f"nothing has been written at {position}, though the log continues"
        return self._damage(position, why), False

    def _damage(self, position: int, why: str) -> int:
        following = self._view.log.next_sound(position + 1, self._plan.end)
        end = self._plan.end if following is None else following
        self._damaged.add(position, end)
        if end == self._plan.end < self._plan.lost_until:
            # The log was truncated here, which is reported already.
            return end
        self._findings.damage(
            "log", self._plan.path, position, f"{why}; {end - position} bytes are damaged"
        )
        return end
