"""Copying the consume queues: all entries of messages before the end of the copied log.

Entries are in the log's order, so a queue is cut at the first entry that points behind that end.
Entries of the last messages may not have been written yet when their queue was copied. So the
copied log is walked from the offset up to which all entries were written, and missing entries are
added.

A queue that lacks entries of earlier messages is damaged. It is copied as it is, with a note;
PocketMQ rebuilds it when it opens the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from broker.store.consume_queue import FILLER_SIZE
from broker.store.log_view import LogChunk, LogView
from broker.store.log_walk import read_record
from broker.store.raw_files import FileRow
from broker.store.redispatch import QueueEntry, entry_of
from broker.storetools.copy.files import LogCopy, copy_beginning
from broker.storetools.copy.target import (
    DEFAULT_QUEUE_FILE_BYTES,
    SYNC_THREADS,
    CopyPoint,
    Target,
    until_unchanged,
)
from broker.storetools.queue_writer import QueueWriter
from broker.storetools.view import first_from, written_entries
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, name_of
from remoting.protocol.errors import RecordError


@dataclass(slots=True)
class CopiedQueue:
    """One queue of the copy.

    Attributes:
        directory: of its files.
        file_bytes: length of its files.
        first: queue offset of the first entry in a file.
        end: queue offset behind the last entry.
        number: queue offset of the next message according to the log; greater than ``end`` when
            entries are missing.
        added: packed entries that the source did not have yet.
        first_position: physical offset in the first copied entry; -1 when there is none.
    """

    directory: Path
    file_bytes: int
    first: int = 0
    end: int = 0
    number: int = 0
    added: bytearray = field(default_factory=bytearray)
    first_position: int = -1

    def write_added(self) -> None:
        """Write and sync the added entries. Raises ``OSError``."""
        writer = QueueWriter(self.directory, self.file_bytes)
        writer.write(self.end - len(self.added) // ENTRY_BYTES, self.added)
        writer.sync()


Queues = dict[tuple[str, int], CopiedQueue]


def copy_queues(moment: CopyPoint, target: Target, on_progress: Callable[[int], None]) -> Queues:
    """Copy all queues, each up to the moment's end.

    Args:
        moment: of the copy.
        target: the directory of the copy.
        on_progress: called with the number of queues done since the last call.

    Raises:
        StoreError: the source can't be read.
        OSError: the target can't be written.
    """
    target.directory("consumequeue")
    if not moment.view.log.files:
        # Without a log, the entries would point to new messages later.
        return {}

    def copied(key: tuple[str, int]) -> tuple[tuple[str, int], CopiedQueue | None]:
        return key, _copy_queue(moment, target, *key)

    queues: Queues = {}
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        # Called in this thread only: ``on_progress`` need not be thread-safe.
        for key, queue in pool.map(copied, list(moment.view.all_queues())):
            on_progress(1)
            if queue is not None:
                queues[key] = queue
    return queues


def _copy_queue(moment: CopyPoint, target: Target, topic: str, queue_id: int) -> CopiedQueue | None:
    source = moment.view.root / "consumequeue" / topic / str(queue_id)
    directory = target.directory("consumequeue", topic, str(queue_id))

    def copy() -> CopiedQueue | None:
        for path in directory.iterdir():
            path.unlink()
        row = FileRow([source], f"queue {queue_id} of topic {topic}")
        return _copy_files(row, directory, moment.end) if row.files else None

    queue = until_unchanged(copy)
    if queue is None:
        # The queue never had a message, or its topic has been deleted.
        directory.rmdir()
    return queue


def _copy_files(row: FileRow, directory: Path, log_end: int) -> CopiedQueue:
    cut = cut_of(row, log_end)
    for file in row.files:
        if file.start and file.start >= cut * ENTRY_BYTES and file is not row.files[0]:
            break
        used = max(0, min(file.size, cut * ENTRY_BYTES - file.start))
        path = directory / name_of(file.start)
        copy_beginning(file.path, path, end=used, size=file.size, on_progress=lambda _: None)
    first = row.files[0]
    queue = CopiedQueue(directory, first.size, first.start // ENTRY_BYTES, cut, cut)
    if queue.end > queue.first:
        with (directory / name_of(first.start)).open("rb") as copied:
            position, size, _ = ENTRY.unpack(copied.read(ENTRY_BYTES))
        queue.first_position = -1 if size == FILLER_SIZE else position
    return queue


def cut_of(row: FileRow, log_end: int) -> int:
    """Return the queue offset of a queue's first message at or behind a physical offset.

    Raises:
        StoreChanged: retention has deleted its files.
        StoreError: they can't be read.
    """
    for file in reversed(row.files):
        count = written_entries(row, file)
        if not count:
            continue
        behind, first_behind = first_from(row.read(file.start, count * ENTRY_BYTES), log_end)
        # If nothing is cut, fillers at the end stay: their queue offsets must not be used again.
        kept = behind if first_behind < count else count
        if kept or file is row.files[0]:
            return file.start // ENTRY_BYTES + kept
    return row.start // ENTRY_BYTES


# --- entries that the source did not have yet


def complete(
    moment: CopyPoint, queues: Queues, log: LogCopy, target: Target, levels_ms: Sequence[int]
) -> list[str]:
    """Add missing entries to the queues; return notes on queues that can't be completed.

    Entries of delayed messages have their time by ``levels_ms``.

    Raises:
        StoreError: the copied log can't be read.
        OSError: the target can't be written.
    """
    file_bytes = next((queue.file_bytes for queue in queues.values()), DEFAULT_QUEUE_FILE_BYTES)
    lacking = _lacking(moment, queues, target)
    for entry in _entries(log.view, max(moment.settled, log.start), log.end, levels_ms):
        key = entry.topic, entry.queue_id
        queue = queues.get(key)
        if queue is None:
            if entry.queue_offset or not (
                bool(entry.topic)
                and "/" not in entry.topic
                and "\0" not in entry.topic
                and entry.topic not in {".", ".."}
            ):
                # A record of a topic that has been deleted.
                continue
            directory = target.part / "consumequeue" / entry.topic / str(entry.queue_id)
            queue = queues[key] = CopiedQueue(directory, file_bytes)
        if not entry.queue_offset and len(queue.added) == queue.end * ENTRY_BYTES:
            # The topic was deleted and created again, and the source's queue had no entry of the
            # new one yet.
            queue.added.clear()
            queue.end = queue.number = 0
        if entry.queue_offset < queue.end or entry.physical_offset < queue.first_position:
            # The queue has this entry, or the record is from before the topic was deleted and
            # created again.
            continue
        if entry.queue_offset == queue.end == queue.number:
            queue.added += ENTRY.pack(entry.physical_offset, entry.size, entry.tags_code)
            queue.end = queue.number = entry.queue_offset + 1
        else:
            queue.number = entry.queue_offset + 1
            lacking[key] = queue
    grown = [queue for queue in queues.values() if queue.added]
    with ThreadPoolExecutor(SYNC_THREADS) as pool:
        for _ in pool.map(CopiedQueue.write_added, grown):
            pass
    return [
        f"queue {queue_id} of topic {topic} lacks entries from message {queue.end} on, and so does"
        " the source's: `pocketmq store verify --repair` rebuilds it, and so does PocketMQ's"
        " broker when it starts"
        for (topic, queue_id), queue in lacking.items()
    ]


def _lacking(moment: CopyPoint, queues: Queues, target: Target) -> Queues:
    """Return the queues with fewer entries than at the safe point, and set their ``number``."""
    lacking = {}
    for topic, rows in moment.numbers.items():
        for queue_id, number in rows.items():
            key = topic, queue_id
            names = ("consumequeue", topic, str(queue_id))
            if key not in queues and not moment.view.root.joinpath(*names[:2]).is_dir():
                # The topic has been deleted since the safe point.
                continue
            queue = queues.get(key) or CopiedQueue(
                target.part.joinpath(*names), DEFAULT_QUEUE_FILE_BYTES
            )
            if queue.number < number:
                queue.number = number
                queues[key] = lacking[key] = queue
    return lacking


def _entries(log: LogView, begin: int, end: int, levels_ms: Sequence[int]) -> Iterator[QueueEntry]:
    for chunk in log.walk(log.first_start(begin, end), end):
        if not isinstance(chunk, LogChunk):
            continue
        for start in chunk.starts:
            try:
                record, _ = read_record(chunk.data, start, len(chunk.data), check_crc=False)
                entry = entry_of(record, levels_ms)
            except RecordError:
                continue
            if entry is not None and entry.queue_id >= 0:
                yield entry
