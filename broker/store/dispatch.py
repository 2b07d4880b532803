"""From a stored record to the entry of its consume queue, and on to those who wait for it.

In ASYNC mode an entry is appended in the call that stores the record. In SYNC mode readers must
not see what a crash could take back, so entries wait here until the log is on the disk.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Final, NamedTuple

from broker.store.consume_queue import ConsumeQueue
from broker.store.log_walk import LogRecord
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message import properties
from remoting.protocol.message.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from remoting.protocol.message.tags import tags_code_of
from remoting.protocol.names import SCHEDULE_TOPIC

OnArrival = Callable[[str, int, int, int], None]
"""Topic, queue id, new maximum offset, tags code."""

_DELAY: Final = properties.DELAY.encode()


class QueueEntry(NamedTuple):
    """Where a record belongs in which queue."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


class Waiting(NamedTuple):
    """Entries of a queue that become visible when the log is on the disk up to ``end_offset``."""

    end_offset: int
    queue: ConsumeQueue
    entries: bytes


def takes_queue_offset(sys_flag: int) -> bool:
    """Whether a message is one of its queue; prepared and rolled back ones are not."""
    kind = sys_flag & TRANSACTION_MASK
    return kind in {TRANSACTION_NONE, TRANSACTION_COMMIT}


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
    if topic == SCHEDULE_TOPIC and (level := _delay_level(text)) > 0:
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


def _delay_level(properties_text: bytes) -> int:
    level = properties.find(properties_text, _DELAY)
    try:
        return int(level or b"0")
    except ValueError:
        return 0


class EntryDispatcher:
    """Makes stored messages visible. Only the loop's thread uses it."""

    def __init__(self) -> None:
        self._on_arrival: OnArrival | None = None
        self._watched: Container[tuple[str, int]] | None = None
        self._waiting: deque[Waiting] = deque()

    def listen(self, on_arrival: OnArrival | None) -> None:
        """Call ``on_arrival`` for messages that become visible.

        Of a run of messages with equal tags code it is called for the last.
        """
        self._on_arrival = on_arrival

    def watch(self, queues: Container[tuple[str, int]]) -> None:
        """Call it for these queues (topic and id) and the schedule topic's only."""
        self._watched = queues

    def __len__(self) -> int:
        """Runs of messages that wait for the disk."""
        return len(self._waiting)

    def first_waiting(self) -> int:
        """Physical offset of the first message that waits; beyond all others when none does."""
        return int(ENTRY.unpack_from(self._waiting[0].entries)[0]) if self._waiting else sys.maxsize

    def publish(self, queue: ConsumeQueue, entries: bytes) -> None:
        """Make a queue's next messages visible: all of them, or ``OSError``."""
        queue.append_packed(entries)
        self.arrived(queue, entries)

    def arrived(self, queue: ConsumeQueue, entries: bytes) -> None:
        """The last messages of a queue have become visible; these are their entries."""
        if self._on_arrival is None:
            return
        # Before anything is made of the entries: few queues have somebody who waits.
        watched = self._watched
        if watched is not None and queue.key not in watched and queue.topic != SCHEDULE_TOPIC:
            return
        first = queue.max_offset - len(entries) // ENTRY.size + 1
        tags_codes = [tags_code for _, _, tags_code in ENTRY.iter_unpack(entries)]
        arrivals = {code: first + number for number, code in enumerate(tags_codes)}
        for tags_code, max_offset in arrivals.items():
            self._on_arrival(queue.topic, queue.queue_id, max_offset, tags_code)

    def hold(self, waiting: Waiting) -> None:
        """Make messages visible when the disk has them."""
        self._waiting.append(waiting)

    def release(self, durable_end: int) -> None:
        """The log is on the disk up to here. Raises ``OSError``; then the rest goes on waiting."""
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= durable_end:
            _, queue, entries = waiting[0]
            queue.append_packed(entries)
            waiting.popleft()
            self.arrived(queue, entries)

    def forget(self, topic: str) -> None:
        """Drop the messages of a topic that wait for the disk."""
        self._waiting = deque(entry for entry in self._waiting if entry.queue.topic != topic)

    def clear(self) -> None:
        """Drop all messages that wait for the disk."""
        self._waiting.clear()
