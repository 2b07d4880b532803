"""Export source: a topic's messages in a store's directory, read without a broker.

The consume queues are read one after another. The record at the position in a queue entry must
match the entry, and its CRC must be right; otherwise the message is left out and reported.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import client
from broker.store.consume_queue import FILLER_SIZE
from broker.store.raw_files import ViewFile
from broker.storetools.view import QueueView, StoreView, ViewedRun
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

PORTION_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of the records in a portion, unless a single record is larger."""

MAX_SIZE_BYTES: Final = 64 * 1024 * 1024
"""Queue entries with a larger size count as damaged, because the message would be held in memory.
"""


class _Range(NamedTuple):
    queue: QueueView
    begin: int
    end: int


class StoreSource:
    """The selected messages of a topic in a store.

    Args:
        root: the store's directory.
        commit_log: the commit log's path, if it is outside of the store.
        selection: the messages to export.

    Raises:
        ExportError: the store has no such topic or queue.
        StoreError: the store can't be read.
    """

    def __init__(self, root: Path, commit_log: str | None, selection: ExportSelection) -> None:
        self._view = StoreView(root, commit_log=commit_log)
        self._selection = selection
        self._name = str(root)
        self._ranges = [self._range(queue_id) for queue_id in self._queues()]
        self._skips_by_hash = not selection.tags.is_all and selection.topic != SCHEDULE_TOPIC

    @property
    def total(self) -> int:
        """The number of offsets to read in all queues."""
        return sum(max(0, part.end - part.begin) for part in self._ranges)

    def portions(self) -> Iterator[Portion]:
        """Yield the selected messages. Raises ``StoreError``."""
        for part in self._ranges:
            for run in part.queue.entries(part.begin, part.end, max_entries=PORTION):
                yield from self._run(part.queue, run)

    # --- queues and ranges

    def _queues(self) -> list[int]:
        topic, view = self._selection.topic, self._view
        topics = view.topics()
        if topic not in topics:
            names = ", ".join(topics[:20]) + (" …" if len(topics) > 20 else "")
            raise ExportError(
                f"the store {self._name} has no queue of topic {topic!r}: it has {names or 'none'}"
            )
        queue_ids = view.queues(topic)
        numbers = [text.rpartition("/")[2] for text in self._selection.queues]
        for text in numbers:
            if text not in map(str, queue_ids):
                raise ExportError(
                    f"topic {topic} in the store {self._name} has no queue {text!r}: it has"
                    f" {', '.join(map(str, queue_ids))}"
                )
        return [queue_id for queue_id in queue_ids if not numbers or str(queue_id) in numbers]

    def _range(self, queue_id: int) -> _Range:
        queue = self._view.queue(self._selection.topic, queue_id)
        first, end, _ = queue.range()

        def place(where: Where) -> int:
            if isinstance(where, datetime):
                return queue.offset_of_time(int(where.timestamp() * 1000))
            if isinstance(where, int):
                return min(max(where, first), end)
            return first if where is client.BEGIN else end

        return _Range(queue, place(self._selection.begin), place(self._selection.end))

    # --- reading

    def _run(self, queue: QueueView, run: ViewedRun) -> Iterator[Portion]:
        where = client.MessageQueue(queue.topic, self._name, queue.queue_id)
        messages: list[Message] = []
        damage: list[str] = []
        path, size_so_far, passed = None, 0, 0
        for offset, (position, size, code) in enumerate(ENTRY.iter_unpack(run.entries), run.offset):
            if not self._skips_by_hash or code in self._selection.tags.codes:
                file = self._file_of(position, size)
                here = path if file is None else file.path
                # All records of a portion are in one log file, whose name some formats store.
                if size_so_far and (here != path or size_so_far + size > PORTION_BYTES):
                    yield Portion(messages, passed, damage, path)
                    messages, damage, size_so_far, passed = [], [], 0, 0
                if file is not None:
                    path, size_so_far = file.path, size_so_far + size
                message = self._message(where, offset, position, size, file)
                if isinstance(message, str):
                    damage.append(message)
                elif self._selection.wants(message):
                    messages.append(message)
            passed += 1
        yield Portion(messages, passed, damage, path)

    def _message(
        self,
        where: client.MessageQueue,
        offset: int,
        position: int,
        size: int,
        file: ViewFile | None,
    ) -> Message | str:
        """Return the message that a queue entry points to, or why it is left out."""
        left_out = f"message {offset} of {where} is left out:"
        if file is None:
            return f"{left_out} the log has no record of it"
        record = memoryview(bytearray(size))
        self._view.log.read_into(position, record)
        try:
            message = Message(bytes(record), 0, where, raw)
        except RecordError as error:
            return f"{left_out} {error}"
        stated = (message.topic, message.queue_id, message.queue_offset, message.physical_offset)
        if (*stated, message.size) != (where.topic, where.queue_id, offset, position, size):
            return f"{left_out} its queue entry points to a different record"
        return fault_of(message) or message

    def _file_of(self, position: int, size: int) -> ViewFile | None:
        """Return the log file that contains the record, or None for an invalid entry."""
        if not FIXED_BYTES_V4 <= size <= MAX_SIZE_BYTES or size == FILLER_SIZE:
            return None
        files = self._view.log.files
        index = bisect_right(files, position, key=lambda file: file.start) - 1
        if index < 0 or position + size > files[index].end:
            return None
        return files[index]
