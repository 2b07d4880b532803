"""From records of the log to queue entries and keys again, for recovery and verification.

``row_of`` does so for a single record, and defines the result. The compiled core does the same for
many at once, and leaves doubtful records to ``row_of``. ``Replay`` gives the entries to the queues.

With ten thousand queues the messages of one lie far apart. So the entries of a part of the log are
gathered, up to a bound, and each queue's files are then touched once for all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.index_keys import hashes_of
from broker.store.log_walk import LogRecord, LogWalk, QueueKey, Stretch
from broker.store.results import RecoveryReport
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES
from remoting.protocol.errors import RecordError
from remoting.protocol.message import properties
from remoting.protocol.message.record import (
    BORN_HOST_V6,
    FIXED_BYTES_V4,
    body_crc,
    locate,
    takes_queue_offset,
)
from remoting.protocol.message.tags import tags_code_of
from remoting.protocol.names import SCHEDULE_TOPIC, validate_topic

_DELAY: Final = properties.DELAY.encode()

# CRC, queue id, queue offset, physical offset, system flag, store time behind an IPv4 born host.
_FIELDS: Final = Struct(">8xIi4xqqi16xq")
_TIME: Final = Struct(">q")
_TIME_AT_V6: Final = 68


class QueueEntry(NamedTuple):
    """Where a record belongs in which queue."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


def entry_of(record: LogRecord, delay_levels_ms: Sequence[int]) -> QueueEntry | None:
    """The queue entry that a record of the log calls for; None for none.

    Args:
        record: a good one.
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
    """What one record calls for.

    Attributes:
        topic: None for a record that is of no queue.
        queue_id, queue_offset, tags_code: its entry's.
        store_ms: when it was stored.
        hashes: of its keys.
        wrong: why it can't be trusted, None when it can. Nothing else is said then.
    """

    topic: str | None
    queue_id: int
    queue_offset: int
    tags_code: int
    store_ms: int
    hashes: Sequence[int]
    wrong: str | None = None


def row_of(data: memoryview, at: int, size: int, base: int, levels_ms: Sequence[int]) -> Row:
    """Look at the record at ``at`` of a piece of the log, which begins at ``base``.

    Args:
        size: what it says of its size.
        levels_ms: delay levels.

    Raises:
        RecordError: its lengths don't make up its size.
    """
    flag, body_at, body_end, topic_at, topic_end, end = locate(data, at, at + size)
    if end != at + size:
        raise RecordError(f"the record at {base + at} is shorter than it says")
    crc, queue_id, offset, physical, _, store_ms = _FIELDS.unpack_from(data, at)
    if body_crc(data[body_at:body_end]) != crc:
        return _wrong(f"the body of the record at {base + at} fails its CRC")
    if flag & BORN_HOST_V6:
        (store_ms,) = _TIME.unpack_from(data, at + _TIME_AT_V6)
    record = LogRecord(
        data, at, topic_at, topic_end, physical, size, queue_id, offset, flag, store_ms
    )
    _, hashes = hashes_of(data, at, at + size)
    if not takes_queue_offset(flag):
        return Row(None, 0, 0, 0, store_ms, hashes)
    entry = entry_of(record, levels_ms)
    assert entry is not None
    if not has_possible_number(offset, physical):
        return _wrong(f"the record at {base + at} says that it is message {offset} of its queue")
    if not _is_topic(entry.topic) or queue_id < 0:
        return _wrong(
            f"the record at {base + at} is of no queue: topic {entry.topic[:200]!r}, queue"
            f" {queue_id}"
        )
    return Row(entry.topic, queue_id, offset, entry.tags_code, store_ms, hashes)


def has_possible_number(queue_offset: int, physical_offset: int) -> bool:
    """A message comes after all earlier ones of its queue."""
    return 0 <= queue_offset <= physical_offset // FIXED_BYTES_V4


@lru_cache(maxsize=4096)
def _is_topic(topic: str) -> bool:
    try:
        validate_topic(topic)
    except ValueError:
        return False
    return True


def _wrong(why: str) -> Row:
    return Row(None, 0, 0, 0, 0, (), why)


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
