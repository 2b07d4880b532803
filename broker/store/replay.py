"""Giving queues the entries that the log calls for, when a store is opened.

Records that come one by one are gathered first: an entry by itself takes a look at its queue's file
each time, a run of them only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from broker.store.consume_queue import ConsumeQueue
from broker.store.dispatch import QueueEntry, entry_of
from broker.store.log_walk import LogRecord, LogWalk, QueueKey, Stretch
from broker.store.queue_table import QueueTable
from broker.store.results import RecoveryReport
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES

_MAX_GATHERED: Final = 4096
"""Entries that wait for others of their queue: some 100 KiB."""


class QueueLacksEntries(Exception):
    """A queue does not have what it should have of the log before the place of a start."""


class _Run:
    """Entries of a queue that follow each other."""

    __slots__ = ("end", "entries", "first", "queue")

    def __init__(self, queue: ConsumeQueue, first: int) -> None:
        self.queue = queue
        self.first = self.end = first
        self.entries = bytearray()


class Replay:
    """One replay of the log, or of a part of it.

    Attributes:
        seen: of each queue the number of its first message in the log, and behind its last one.
    """

    def __init__(
        self,
        walk: LogWalk,
        queues: QueueTable,
        report: RecoveryReport,
        delay_levels_ms: Sequence[int],
        *,
        partial: bool,
    ) -> None:
        """A replay.

        Args:
            walk: that finds the records.
            queues: to be given entries.
            report: to count in.
            delay_levels_ms: of ``messageDelayLevel``.
            partial: queues have the entries of all messages before.
        """
        self._walk = walk
        self._queues = queues
        self._report = report
        self._delay_levels_ms = delay_levels_ms
        self._partial = partial
        self._gathered: dict[QueueKey, _Run] = {}
        self._count = 0
        self.seen: dict[ConsumeQueue, tuple[int, int]] = {}

    def run(self, found: Iterable[LogRecord | Stretch]) -> None:
        """Replay what the walk finds.

        Raises:
            QueueLacksEntries: a queue does not have those before.
            OSError: there is no room for an entry.
        """
        for one in found:
            if isinstance(one, Stretch):
                self._give_all()
                for key, first, entries in one.runs:
                    queue = self._queue(key, first, ENTRY.unpack_from(entries)[0])
                    if queue is not None:
                        self._give(queue, first, entries)
            elif (entry := entry_of(one, self._delay_levels_ms)) is not None:
                self._gather(entry)
        self._give_all()

    def _gather(self, entry: QueueEntry) -> None:
        topic, queue_id, offset, position, size, tags_code = entry
        run = self._gathered.get((topic, queue_id))
        if run is None or run.end != offset:
            if run is not None:
                self._give(run.queue, run.first, run.entries)
                del self._gathered[topic, queue_id]
            queue = self._queue((topic, queue_id), offset, position)
            if queue is None:
                return
            run = self._gathered[topic, queue_id] = _Run(queue, offset)
        run.entries += ENTRY.pack(position, size, tags_code)
        run.end += 1
        self._count += 1
        if self._count >= _MAX_GATHERED:
            self._give_all()

    def _queue(self, key: QueueKey, offset: int, position: int) -> ConsumeQueue | None:
        """The queue that is to get message ``offset``; None when there can't be such a one."""
        topic, queue_id = key
        try:
            queue = self._queues.get_or_create(topic, queue_id)
        except ValueError as error:
            self._report.note(f"the record at {position} has no queue: {error}")
            return None
        if self._partial and offset > queue.max_offset and not self._walk.damaged:
            raise QueueLacksEntries(
                f"queue {queue_id} of topic {topic} has no entry {offset - 1}: the queues are built"
                " anew from the log"
            )
        return queue

    def _give_all(self) -> None:
        gathered, self._gathered, self._count = self._gathered, {}, 0
        for run in gathered.values():
            self._give(run.queue, run.first, run.entries)

    def _give(self, queue: ConsumeQueue, first: int, entries: bytes | bytearray) -> None:
        self._report.rebuilt_entries += queue.replay(first, entries)
        begin, behind = self.seen.get(queue, (first, first))
        queue.replay_gap(behind, first)
        end = first + len(entries) // ENTRY_BYTES
        # A queue whose topic was deleted and made again begins anew in the same log.
        self.seen[queue] = (begin if first >= behind else min(begin, first), end)
