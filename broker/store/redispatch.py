"""Deriving queue entries and keys from log records, for recovery and verification.

``row_of`` derives them from one record, and defines the result. The compiled core does the same for
many records at once, and leaves doubtful ones to ``row_of``. ``Replay`` writes the entries to the
queues.

With ten thousand queues, the messages of one queue lie far apart in the log. So ``Replay`` gathers
entries up to a bound and then writes those of each queue together.
"""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.index_keys import hashes_of
from broker.store.log_walk import (
    EntryRun,
    LogRecord,
    LogWalk,
    QueueKey,
    Stretch,
    has_possible_number,
    read_record,
)
from broker.store.results import RecoveryReport
from remoting.protocol import core
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES
from remoting.protocol.errors import RecordError
from remoting.protocol.message import properties
from remoting.protocol.message.record import (
    takes_queue_offset,
)
from remoting.protocol.message.tags import tags_code_of
from remoting.protocol.names import SCHEDULE_TOPIC, validate_topic

_DELAY: Final = properties.DELAY.encode()


class QueueEntry(NamedTuple):
    """A consume-queue entry and its position in the queue."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


def entry_of(record: LogRecord, delay_levels_ms: Sequence[int]) -> QueueEntry | None:
    """Return the queue entry of a record; None for a record without one.

    Args:
        record: a good record.
        delay_levels_ms: of ``messageDelayLevel``; an entry of the schedule topic holds the time of
            delivery instead of the tag's hash.
    """
    if not takes_queue_offset(record.sys_flag):
        return None
    view = record.view
    topic = str(view[record.topic_at : record.topic_end], "utf-8", "replace")
    text = bytes(view[record.topic_end + 2 : record.position + record.size])
    level = 0
    if topic == SCHEDULE_TOPIC:
        with contextlib.suppress(ValueError):
            level = int(properties.find(text, _DELAY) or b"0")
    if level > 0:
        delay_ms = delay_levels_ms[min(level, len(delay_levels_ms)) - 1]
        tags_code = record.store_timestamp_ms + delay_ms
    else:
        tags_code = tags_code_of(text)
    return QueueEntry(
        topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.size,
        tags_code,
    )


class Row(NamedTuple):
    """What is derived from one record.

    Attributes:
        entry: None for a record without a queue entry.
        store_ms: store time, ms since the epoch.
        hashes: of its keys.
        wrong: why the record is damaged, None when it is good. If set, the other fields are empty.
    """

    entry: QueueEntry | None
    store_ms: int
    hashes: Sequence[int]
    wrong: str | None = None


def row_of(data: memoryview, at: int, size: int, base: int, levels_ms: Sequence[int]) -> Row:
    """Derive the row of one record.

    Args:
        data: bytes of the log.
        at: where in ``data`` the record begins.
        size: the record's size, from its header.
        base: physical offset of ``data``.
        levels_ms: delay levels.

    Raises:
        RecordError: the record's lengths don't add up to its size.
    """
    record, is_intact = read_record(data, at, at + size)
    if record.size != size:
        raise RecordError(f"the lengths in the record at {base + at} don't add up to its size")
    if not is_intact:
        return _wrong(f"the body of the record at {base + at} fails its CRC")
    _, hashes = hashes_of(data, at, at + size)
    store_ms = record.store_timestamp_ms
    entry = entry_of(record, levels_ms)
    if entry is None:
        return Row(None, store_ms, hashes)
    number = entry.queue_offset
    if not has_possible_number(number, entry.physical_offset):
        return _wrong(f"the record at {base + at} has the impossible queue offset {number}")
    if not _is_topic(entry.topic) or entry.queue_id < 0:
        return _wrong(
            f"the record at {base + at} has no valid queue: topic {entry.topic[:200]!r}, queue"
            f" {entry.queue_id}"
        )
    return Row(entry, store_ms, hashes)


@lru_cache(maxsize=4096)
def _is_topic(topic: str) -> bool:
    try:
        validate_topic(topic)
    except ValueError:
        return False
    return True


def _wrong(why: str) -> Row:
    return Row(None, 0, (), why)


def derive(
    data: memoryview, base: int, levels_ms: Sequence[int]
) -> tuple[int, int, int, int, list[EntryRun]]:
    """Derive what a store keeps of the good records at the beginning of ``data``.

    Args:
        data: bytes of the log, all of which have been written.
        base: physical offset of its first byte.
        levels_ms: delay levels.

    Returns:
        The size of these records in bytes, their number, physical offset and store time of the
        last, and the queue entries; runs of one queue are in the order of the log.
    """
    if core.KIND == "compiled":
        # Imported here because the module exists only in the compiled core.
        from remoting.protocol.core.record import walk_records  # noqa: PLC0415

        size, records, last, last_ms, _, rows, *_ = walk_records(
            data, base, levels_ms, 0, sys.maxsize
        )
        return size, records, last, last_ms, list(map(EntryRun._make, rows))
    at = records = last_ms = 0
    last = -1
    runs: list[EntryRun] = []
    open_runs: dict[QueueKey, EntryRun] = {}
    while at < len(data):
        try:
            record, _ = read_record(data, at, len(data))
            row = row_of(data, at, record.size, base, levels_ms)
        except RecordError:
            break
        if row.wrong is not None or record.physical_offset != base + at:
            break
        if row.entry is not None:
            key = row.entry.topic, row.entry.queue_id
            run = open_runs.get(key)
            if run is None or run.first + len(run.entries) // ENTRY_BYTES != record.queue_offset:
                run = open_runs[key] = EntryRun(key, record.queue_offset, bytearray())
                runs.append(run)
            run.entries.extend(ENTRY.pack(base + at, record.size, row.entry.tags_code))
        last, last_ms = base + at, row.store_ms
        at, records = at + record.size, records + 1
    return at, records, last, last_ms, runs


_MAX_GATHERED: Final = 4096
"""Entries gathered before they are written to their queues: some 100 KiB."""


class QueueLacksEntries(Exception):
    """Recovery can't start at the chosen point: the log or a queue is incomplete before it."""


class _Run:
    """Consecutive entries of a queue."""

    __slots__ = ("end", "entries", "first", "queue")

    def __init__(self, queue: ConsumeQueue, first: int) -> None:
        self.queue = queue
        self.first = self.end = first
        self.entries = bytearray()


class Replay:
    """Replays the log, or a part of it, into the queues.

    Attributes:
        seen: by queue, the queue offset of its first message found, and behind its last one.
    """

    def __init__(
        self,
        walk: LogWalk,
        queues: QueueTable,
        report: RecoveryReport,
        delay_levels_ms: Sequence[int],
        deleted: Mapping[str, int],
        *,
        partial: bool,
    ) -> None:
        """Create a replay.

        Args:
            walk: the walk whose records are replayed.
            queues: get the entries.
            report: counts the entries written.
            delay_levels_ms: of ``messageDelayLevel``.
            deleted: see ``DeletedTopics.ends``.
            partial: the replay begins in the middle of the log, and queues must have the entries of
                all messages before it.
        """
        self._walk = walk
        self._queues = queues
        self._report = report
        self._delay_levels_ms = delay_levels_ms
        self._deleted = deleted
        self._partial = partial
        self._gathered: dict[QueueKey, _Run] = {}
        self._count = 0
        self.seen: dict[ConsumeQueue, tuple[int, int]] = {}

    def run(self, pieces: Iterable[LogRecord | Stretch]) -> None:
        """Write the entries of the records that the walk finds.

        Raises:
            QueueLacksEntries: in a partial replay, a queue lacks earlier entries.
            OSError: the disk refuses an entry.
        """
        for piece in pieces:
            if isinstance(piece, Stretch):
                self._give_all()
                for key, first, entries in piece.runs:
                    void = self._void(key, entries) if key[0] in self._deleted else 0
                    if void == len(entries) // ENTRY_BYTES:
                        continue
                    live = entries[void * ENTRY_BYTES :]
                    queue = self._queue(key, first + void, ENTRY.unpack_from(live)[0])
                    if queue is not None:
                        self._give(queue, first + void, live)
            elif (entry := entry_of(piece, self._delay_levels_ms)) is not None:
                self._gather(entry)
        self._give_all()

    def _void(self, key: QueueKey, entries: bytes | bytearray) -> int:
        """Return how many entries are of messages stored before their topic was deleted."""
        numbers = range(len(entries) // ENTRY_BYTES)
        end = self._deleted[key[0]]
        return bisect_left(
            numbers, end, key=lambda n: int(ENTRY.unpack_from(entries, n * ENTRY_BYTES)[0])
        )

    def _gather(self, entry: QueueEntry) -> None:
        topic, queue_id, offset, position, size, tags_code = entry
        if position < self._deleted.get(topic, 0):
            return
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
        """Return the queue for message ``offset``; None when there can't be such a queue."""
        topic, queue_id = key
        try:
            queue = self._queues.get_or_create(topic, queue_id)
        except ValueError as error:
            self._report.note(f"the record at {position} has no queue: {error}")
            return None
        if self._partial and offset > queue.max_offset and not self._walk.damaged:
            raise QueueLacksEntries(
                f"queue {queue_id} of topic {topic} has no entry {offset - 1}: the queues are"
                " rebuilt from the log"
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
        # If a topic was deleted and created again, its queue offsets start at 0 again in the log.
        self.seen[queue] = (begin if first >= behind else min(begin, first), end)
