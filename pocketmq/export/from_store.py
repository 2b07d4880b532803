"""Messages of a topic from a store's directory, without a broker.

Queue after queue, entries lead to records. A record has to be the one that its entry describes, and
its CRC has to match; otherwise its message is left out, and reported.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import client
from broker.store.consume_queue import FILLER_SIZE
from broker.storetools.view import QueueView, StoreView, ViewedRun
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

PORTION_BYTES: Final = 4 * 1024 * 1024
"""Records of a portion, unless a single one is larger."""

MAX_SIZE_BYTES: Final = 64 * 1024 * 1024
"""Entries with a larger size count as damaged: their messages would be held in memory."""


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
        where = client.MessageQueue(queue.topic, self._name, queue.queue_id)
        messages: list[Message] = []
        damage: list[str] = []
        path, size_so_far, passed = None, 0, 0
        for offset, (position, size, code) in enumerate(ENTRY.iter_unpack(run.entries), run.offset):
            if not self._skips_by_hash or code in self._selection.tags.codes:
                file = self._file_of(position, size)
                here = path if file is None else file.path
                # A portion is of one file of the log, whose name some formats have.
                if size_so_far and (here != path or size_so_far + size > PORTION_BYTES):
                    yield Portion(messages, passed, damage, path)
                    messages, damage, size_so_far, passed = [], [], 0, 0
                if file is not None:
                    path, size_so_far = file.path, size_so_far + size
                found = self._message(where, offset, position, size, file)
                if isinstance(found, str):
                    damage.append(found)
                elif self._selection.wants(found):
                    messages.append(found)
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
        """The message that an entry leads to, or why it is left out."""
        left_out = f"message {offset} of {where} is left out:"
        if file is None:
            return f"{left_out} there is no record of it in the log"
        record = memoryview(bytearray(size))
        self._view.log.read_into(position, record)
        try:
            message = Message(bytes(record), 0, where, raw)
        except RecordError as error:
            return f"{left_out} {error}"
        told = (message.topic, message.queue_id, message.queue_offset, message.physical_offset)
        if (*told, message.size) != (where.topic, where.queue_id, offset, position, size):
            return f"{left_out} the record that its queue points at is not it"
        return fault_of(message) or message

    def _file_of(self, position: int, size: int) -> ViewFile | None:
        """The log file that an entry points into; None for an entry that points nowhere."""
        if not FIXED_BYTES_V4 <= size <= MAX_SIZE_BYTES or size == FILLER_SIZE:
            return None
        files = self._view.log.files
        index = bisect_right(files, position, key=lambda file: file.start) - 1
        if index < 0 or position + size > files[index].end:
            return None
        return files[index]
