"""Messages of a topic from a store's directory, without a broker.

Queue after queue, entries lead to the records. Records that lie near each other are read together;
each has to be the one that its entry says, with a right CRC. What is not is damage, and is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import client
from broker.store.consume_queue import FILLER_SIZE
from broker.storetools.view import LogView, QueueView, StoreView, ViewedRun
from broker.storetools.view_files import ViewFile
from client.serde import raw
from pocketmq.export.writers import (
    PORTION,
    ExportError,
    ExportSelection,
    Message,
    Portion,
    Where,
    fault_of,
)
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.errors import RecordError
from remoting.protocol.message.record import FIXED_BYTES_V4
from remoting.protocol.names import SCHEDULE_TOPIC

MAX_GAP_BYTES: Final = 4096
"""Bytes of others between two messages that are read along: about what one more call costs."""

READ_BYTES: Final = 4 * 1024 * 1024
"""Read at once, unless a single message is larger."""

MAX_SIZE_BYTES: Final = 64 * 1024 * 1024
"""An entry that says more is not believed: its message would have to be held in memory."""


class _Entry(NamedTuple):
    offset: int
    position: int
    size: int


class _Gathered:
    """Entries whose records lie in one file of the log, to be read into one buffer.

    Attributes:
        entries: each with the place of its record in the buffer.
        path: the file's; None when there are no entries.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[_Entry, int]] = []
        self.path: str | None = None
        self._file: ViewFile | None = None
        # Begin and end in the log, and place in the buffer.
        self._spans: list[tuple[int, int, int]] = []
        self._size = 0

    def takes(self, entry: _Entry, file: ViewFile) -> bool:
        """Whether there is room for one more."""
        return not self.entries or (file is self._file and self._size + entry.size <= READ_BYTES)

    def add(self, entry: _Entry, file: ViewFile) -> None:
        """Have it read too."""
        begin, end, place = self._spans[-1] if self._spans else (0, -1, 0)
        behind = entry.position + entry.size
        if 0 <= entry.position - end <= MAX_GAP_BYTES and end >= 0:
            self._spans[-1] = begin, behind, place
        else:
            begin, place = entry.position, self._size
            self._spans.append((begin, behind, place))
        self._size = place + behind - begin
        self.entries.append((entry, place + entry.position - begin))
        self._file, self.path = file, file.path

    def read(self, log: LogView) -> bytes:
        """The buffer. Raises ``StoreError``."""
        data = memoryview(bytearray(self._size))
        for begin, end, place in self._spans:
            log.read_into(begin, data[place : place + end - begin])
        return bytes(data)


class _Range(NamedTuple):
    queue: QueueView
    begin: int
    end: int


class StoreSource:
    """A store's messages.

    Args:
        root: its directory.
        commit_log: where the log lies, if not in it.
        selection: what is wanted.

    Raises:
        ExportError: it has no such topic or queue.
        StoreError: it can't be read.
    """

    def __init__(self, root: Path, commit_log: str | None, selection: ExportSelection) -> None:
        self._view = StoreView(root, commit_log=commit_log)
        self._selection = selection
        self._name = str(root)
        self._ranges = [self._range(queue_id) for queue_id in self._queues()]
        self._skips_by_hash = not selection.tags.is_all and selection.topic != SCHEDULE_TOPIC

    @property
    def total(self) -> int:
        """How many numbers the wanted parts of the queues have."""
        return sum(max(0, part.end - part.begin) for part in self._ranges)

    def portions(self) -> Iterator[Portion]:
        """All of it. Raises ``StoreError``."""
        for part in self._ranges:
            for run in part.queue.entries(part.begin, part.end, max_entries=PORTION):
                yield from self._run(part.queue, run)

    # --- what there is

    def _queues(self) -> list[int]:
        topic, view = self._selection.topic, self._view
        topics = view.topics()
        if topic not in topics:
            known = ", ".join(topics[:20]) + (" …" if len(topics) > 20 else "")
            raise ExportError(
                f"the store {self._name} has no queue of topic {topic!r}: it has {known or 'none'}"
            )
        there = view.queues(topic)
        wanted = [text.rpartition("/")[2] for text in self._selection.queues]
        for text in wanted:
            if text not in map(str, there):
                raise ExportError(
                    f"topic {topic} in the store {self._name} has no queue {text!r}: it has"
                    f" {', '.join(map(str, there))}"
                )
        return [queue_id for queue_id in there if not wanted or str(queue_id) in wanted]

    def _range(self, queue_id: int) -> _Range:
        queue = self._view.queue(self._selection.topic, queue_id)
        least, most, _ = queue.range()

        def place(where: Where) -> int:
            if isinstance(where, datetime):
                return queue.offset_of_time(int(where.timestamp() * 1000))
            if isinstance(where, int):
                return min(max(where, least), most)
            return least if where is client.BEGIN else most

        return _Range(queue, place(self._selection.begin), place(self._selection.end))

    # --- reading

    def _run(self, queue: QueueView, run: ViewedRun) -> Iterator[Portion]:
        files = self._view.log.files
        gathered, damage, passed = _Gathered(), [], 0
        for number, (position, size, code) in enumerate(ENTRY.iter_unpack(run.entries)):
            entry = _Entry(run.offset + number, position, size)
            if not self._skips_by_hash or code in self._selection.tags.codes:
                file = _file_of(files, entry)
                if file is None:
                    reason = "there is no record of it in the log"
                    damage.append(self._lost(queue, entry.offset, reason))
                elif gathered.takes(entry, file):
                    gathered.add(entry, file)
                else:
                    yield self._read(queue, gathered, passed, damage)
                    gathered, damage, passed = _Gathered(), [], 0
                    gathered.add(entry, file)
            passed += 1
        yield self._read(queue, gathered, passed, damage)

    def _read(
        self, queue: QueueView, gathered: _Gathered, passed: int, damage: list[str]
    ) -> Portion:
        where = client.MessageQueue(queue.topic, self._name, queue.queue_id)
        buffer = gathered.read(self._view.log)
        messages = []
        for entry, place in gathered.entries:
            try:
                message = Message(buffer, place, where, raw)
            except RecordError as error:
                damage.append(self._lost(queue, entry.offset, str(error)))
                continue
            if not _is_it(message, entry):
                reason = "the record that its queue points at is not it"
                damage.append(self._lost(queue, entry.offset, reason))
            elif fault := fault_of(message):
                damage.append(fault)
            elif self._selection.wants(message):
                messages.append(message)
        return Portion(messages, passed, damage, gathered.path)

    def _lost(self, queue: QueueView, offset: int, reason: str) -> str:
        where = client.MessageQueue(queue.topic, self._name, queue.queue_id)
        return f"message {offset} of {where} is left out: {reason}"


def _is_it(message: Message, entry: _Entry) -> bool:
    told = (message.queue_offset, message.physical_offset, message.size)
    queue = message.queue
    return told == entry and (message.topic, message.queue_id) == (queue.topic, queue.queue_id)


def _file_of(files: Sequence[ViewFile], entry: _Entry) -> ViewFile | None:
    """The log file that an entry points into; None for an entry that points nowhere."""
    if not FIXED_BYTES_V4 <= entry.size <= MAX_SIZE_BYTES or entry.size == FILLER_SIZE:
        return None
    index = bisect_right(files, entry.position, key=lambda file: file.start) - 1
    if index < 0 or entry.position + entry.size > files[index].end:
        return None
    return files[index]
