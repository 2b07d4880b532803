"""The entries that the log calls for, gathered until there are many, and handed on by queue.

With ten thousand queues the messages of one lie far apart. So what a part of the log calls for is
gathered, up to a bound, and each queue's files are then looked at once for all of it. What is
handed on are runs: messages of one queue whose numbers follow one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.store.derive.rows import Row
from broker.store.derive.runs import EntryRun, QueueKey
from remoting.protocol.disk.files import ENTRY

MAX_GATHERED: Final = 50_000
"""Entries that wait: enough to make a visit to a queue pay."""


class LogRow(NamedTuple):
    """A record, and what it calls for."""

    position: int
    size: int
    row: Row


class Gathering:
    """Gathers entries as bytes, by queue."""

    def __init__(self) -> None:
        self._runs: dict[QueueKey, list[tuple[int, bytearray]]] = {}
        self._count = 0

    def add(self, rows: Sequence[LogRow]) -> None:
        """Records in the log's order."""
        for position, size, row in rows:
            if row.topic is not None:
                entry = ENTRY.pack(position, size, row.tags_code)
                self._add((row.topic, row.queue_id), row.queue_offset, bytearray(entry))

    def add_runs(self, runs: Iterable[tuple[QueueKey, int, bytearray]]) -> None:
        """Runs of entries; those of one queue in the log's order."""
        for key, first, entries in runs:
            self._add(key, first, entries)

    def _add(self, key: QueueKey, first: int, entries: bytearray) -> None:
        runs = self._runs.setdefault(key, [])
        if runs and runs[-1][0] + len(runs[-1][1]) // ENTRY.size == first:
            runs[-1][1].extend(entries)
        else:
            runs.append((first, entries))
        self._count += len(entries) // ENTRY.size

    def full(self) -> bool:
        """Whether they have to be taken."""
        return self._count >= MAX_GATHERED

    def take(self) -> Iterator[EntryRun]:
        """All of them; those of one queue in the log's order, one run after another."""
        gathered, self._runs, self._count = self._runs, {}, 0
        for key in sorted(gathered):
            for first, entries in gathered[key]:
                yield EntryRun(key, first, entries)
