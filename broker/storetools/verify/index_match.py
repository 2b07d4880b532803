"""Comparing the index entries with the keys of a part of the log.

Both are in the log's order, so they are read in parallel. Where they differ, the next match is
searched for: keys of the log before it are missing in the index, index entries before it are wrong.
Entries of damaged records are accepted, and so are repeated entries of one message, which RocketMQ
writes when it indexes again after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from types import ModuleType
from typing import Any, Final, NamedTuple

from broker.storetools.verify.findings import Findings, Ranges
from broker.storetools.verify.index_scan import (
    IndexEntries,
    IndexPart,
    IndexPlace,
    blocks,
)
from remoting.protocol.disk.index_file import ENTRY, MAX_SECONDS

_Block = tuple[int, int, bytearray]

_WINDOW: Final = 64
"""Distance, in keys and entries, up to which the next match is searched for; if there is none,
physical offsets decide."""


class Key(NamedTuple):
    """A key of a message in the log."""

    hash: int
    offset: int
    stored_ms: int


class ClaimedEntry(NamedTuple):
    """An entry of the index."""

    file: int
    number: int
    hash: int
    offset: int
    seconds: int


class IndexMatch:
    """Compares the index with a part of the log.

    Args:
        parts: the index files, oldest first.
        begin, end: positions between which the part's entries are; ``end`` None for the index's
            end.
        claims: the part of the log that the index covers.
        findings: receives what is wrong.
        compiled: see ``load_compiled``; None for the Python code.

    Attributes:
        damaged: the damaged parts of the log, filled in by the caller.
        unclaimed: number of keys behind the part of the log that the index covers.
        earlier: number of keys before it.
    """

    def __init__(
        self,
        parts: Sequence[IndexPart],
        begin: IndexPlace,
        end: IndexPlace | None,
        claims: IndexEntries,
        findings: Findings,
        compiled: ModuleType | None,
    ) -> None:
        self._compiled = compiled
        self._last_offset = -1
        self._parts = parts
        self._blocks: Iterator[_Block] = blocks(parts, begin, end)
        self._block: _Block | None = None
        self._at = 0
        self._claims = claims
        self._findings = findings
        self._missing: list[Key] = []
        self._missing_count = 0
        self.damaged = Ranges()
        self.unclaimed = 0
        self.earlier = 0

    # --- comparing

    def fits(self, hashes: Any, offsets: Any, times_ms: Any) -> bool:
        """Return whether the next entries match these keys, given as columns; consume them if so.

        If not, call ``compare``, which finds the differences. Raises ``StoreError``.
        """
        block = self._current()
        if block is None or self._compiled is None or not len(hashes):
            return False
        index, first, data = block
        begin_ms = self._parts[index].header.begin_ms
        # The time of a file's first entry may have another base; see ``_date``.
        if begin_ms <= 0 or first + self._at == 1 or int(offsets[-1]) >= self._claims.end:
            return False
        count = len(hashes)
        begin, end = self._at * ENTRY.size, (self._at + count) * ENTRY.size
        if end > len(data) or int(offsets[0]) < self._claims.begin:
            return False
        if not self._compiled.match(data[begin:end], hashes, offsets, times_ms, begin_ms):
            return False
        self._at += count
        self._last_offset = int(offsets[-1])
        self._flush()
        return True

    def compare(self, keys: Sequence[Key], end: int) -> None:
        """Compare the keys of the log up to a physical offset. Raises ``StoreError``."""
        claimed = []
        for key in keys:
            if key.offset < self._claims.begin:
                self.earlier += 1
            elif key.offset > self._claims.end:
                self.unclaimed += 1
            else:
                claimed.append(key)
        entries = list(self._take(end))
        self._align(claimed, entries)

    def finish(self) -> None:
        """Compare the remaining entries at the end of the part. Raises ``StoreError``."""
        self._align([], list(self._take(None)))
        self._flush()

    def _current(self) -> _Block | None:
        while self._block is None or self._at * ENTRY.size >= len(self._block[2]):
            self._block = next(self._blocks, None)
            self._at = 0
            if self._block is None:
                return None
        return self._block

    def _take(self, end: int | None) -> Iterator[ClaimedEntry]:
        """Yield entries of messages before ``end``, and single damaged ones between them."""
        held: ClaimedEntry | None = None
        mark: tuple[_Block, int] | None = None
        while (block := self._current()) is not None:
            index, first, data = block
            hashed, offset, seconds, _ = ENTRY.unpack_from(data, self._at * ENTRY.size)
            entry = ClaimedEntry(index, first + self._at, hashed, offset, seconds)
            if end is not None and offset >= end:
                if held is not None:
                    break
                held, mark = entry, (block, self._at)
            else:
                if held is not None:
                    yield held
                    held = None
                yield entry
            self._at += 1
        if held is not None and mark is not None:
            # Put the entry back: it belongs to the next piece of the log.
            if self._block is not None and self._block is not mark[0]:
                self._blocks = chain((self._block,), self._blocks)
            self._block, self._at = mark

    # --- differences

    def _align(self, keys: Sequence[Key], entries: Sequence[ClaimedEntry]) -> None:
        at, entry_at = 0, 0
        while at < len(keys) or entry_at < len(entries):
            if at < len(keys) and entry_at < len(entries) and _same(keys[at], entries[entry_at]):
                self._date(keys[at], entries[entry_at])
                at, entry_at = at + 1, entry_at + 1
                continue
            skip_keys, skip_entries = _resync(keys, at, entries, entry_at)
            self._differ(keys[at : at + skip_keys], entries[entry_at : entry_at + skip_entries])
            at, entry_at = at + skip_keys, entry_at + skip_entries

    def _differ(self, keys: Sequence[Key], entries: Sequence[ClaimedEntry]) -> None:
        wrong = [entry for entry in entries if entry.offset not in self.damaged]
        if not keys:
            # After a crash, the last indexed message may have been indexed again.
            wrong = [entry for entry in wrong if entry.offset != self._last_offset]
        for entry in wrong:
            part = self._parts[entry.file]
            self._findings.derived(
                "index-entry",
                part.path,
                part.place(entry.number),
                f"entry {entry.number} of the index matches no key of the log: hash {entry.hash},"
                f" offset {entry.offset}",
            )
        for key in keys[len(wrong) :]:
            if key.offset != self._claims.end:
                if not self._missing_count:
                    self._missing = [key, key]
                self._missing[1] = key
                self._missing_count += 1

    def _date(self, key: Key, entry: ClaimedEntry) -> None:
        self._flush()
        self._last_offset = entry.offset
        part = self._parts[entry.file]
        begin_ms = part.header.begin_ms
        seconds = _seconds(begin_ms, key.stored_ms)
        right = entry.seconds == seconds
        if not right and entry.number == 1:
            right = entry.seconds == _seconds(part.before_ms, key.stored_ms)
        if not right:
            self._findings.derived(
                "index-time",
                part.path,
                part.place(entry.number),
                f"entry {entry.number} of the index has a time of {entry.seconds} s, not"
                f" {seconds} s, after the file's begin time",
            )

    # --- missing keys, one finding for each run of them

    def _flush(self) -> None:
        if not self._missing_count:
            return
        first, last = self._missing
        path = next(
            (part.path for part in self._parts if part.header.end_offset >= first.offset),
            self._parts[-1].path,
        )
        self._findings.derived(
            "index-missing",
            path,
            None,
            f"the index lacks {self._missing_count} keys of the messages at {first.offset} to"
            f" {last.offset} of the log",
        )
        self._missing_count = 0


def _same(key: Key, entry: ClaimedEntry) -> bool:
    return key.hash == entry.hash and key.offset == entry.offset


def _seconds(begin_ms: int, stored_ms: int) -> int:
    return min(max((stored_ms - begin_ms) // 1000, 0), MAX_SECONDS) if begin_ms > 0 else 0


def _resync(
    keys: Sequence[Key], at: int, entries: Sequence[ClaimedEntry], entry_at: int
) -> tuple[int, int]:
    """Return how many keys and entries to skip until both match again."""
    left, right = len(keys) - at, len(entries) - entry_at
    for total in range(1, min(_WINDOW, left + right) + 1):
        for skip in sorted(range(total + 1), key=lambda n: abs(2 * n - total)):
            other = total - skip
            if skip < left and other < right and _same(keys[at + skip], entries[entry_at + other]):
                return skip, other
    if not left or not right:
        return left, right
    offset = entries[entry_at].offset
    behind = next((n for n in range(left) if keys[at + n].offset >= offset), left)
    if behind:
        return behind, 0
    return 0, 1
