"""The entries that the log calls for, gathered until there are many, and handed on by queue.

With ten thousand queues the messages of one lie far apart. So what a part of the log calls for is
gathered, up to a bound, and each queue's files are then looked at once for all of it. What is
handed on are runs: messages of one queue whose numbers follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from broker.store.derive.rows import Row
from broker.store.derive.runs import EntryRun, QueueKey
from remoting.protocol.disk.consume_queue_entry import ENTRY

MAX_GATHERED: Final = 400_000
"""Entries that wait: some 20 MiB as columns, and enough to make a visit to a queue pay."""

MAX_GATHERED_PLAIN: Final = 50_000
"""Likewise without numpy, where an entry takes more."""


class LogRow(NamedTuple):
    """A record, and what it calls for."""

    position: int
    size: int
    row: Row


class Gathering(Protocol):
    """Gathers entries."""

    def full(self) -> bool:
        """Whether they have to be taken."""
        ...

    def take(self) -> Iterator[EntryRun]:
        """All of them; those of one queue in the log's order, one run after another."""
        ...


class PlainGathering:
    """Entries as bytes, by queue."""

    def __init__(self) -> None:
        self._runs: dict[QueueKey, list[tuple[int, bytearray]]] = {}
        self._count = 0

    def add(self, rows: Sequence[LogRow]) -> None:
        """Records in the log's order."""
        for position, size, row in rows:
            if row.topic is None:
                continue
            entry = ENTRY.pack(position, size, row.tags_code)
            runs = self._runs.setdefault((row.topic, row.queue_id), [])
            if runs and runs[-1][0] + len(runs[-1][1]) // ENTRY.size == row.queue_offset:
                runs[-1][1].extend(entry)
            else:
                runs.append((row.queue_offset, bytearray(entry)))
            self._count += 1

    def full(self) -> bool:
        """See ``Gathering``."""
        return self._count >= MAX_GATHERED_PLAIN

    def take(self) -> Iterator[EntryRun]:
        """See ``Gathering``."""
        gathered, self._runs, self._count = self._runs, {}, 0
        for key in sorted(gathered):
            for first, entries in gathered[key]:
                yield EntryRun(key, first, entries)
