"""Appending messages to the log and their entries to the queues. Only the loop's thread appends.

``MessageWriter`` appends one message or a batch. So that it never stops halfway, it first checks
the message, then reserves space in the queue and in the log (either may find the disk full); after
that nothing can fail.

``Appender`` appends all messages of one socket read together: one write to the log, one to each
queue. The caller builds the records and assigns the queue offsets. It calls ``takes``, ``open`` for
each queue, ``reserve``, ``store``, then ``publish`` for each queue, in this order: everything that
can fail comes before ``store``. When one of these refuses, the caller passes the messages to
``MessageStore.put``, which returns the reason. Between ``reserve`` and the last ``publish`` nothing
else may append.

``EntryDispatcher`` makes messages visible: at once in ASYNC mode, after the sync in SYNC mode.
"""

from __future__ import annotations

import struct
import sys
from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.disk_state import StoreContext
from broker.store.limits import SECTOR_BYTES
from broker.store.results import BatchPutResult, PendingMessage, PutResult, PutStatus
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES
from remoting.protocol.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_LENGTH
from remoting.protocol.message.record import (
    HOST_BYTES_V4,
    HOST_BYTES_V6,
    TRANSACTION_MASK,
    encode_record,
    host_bytes,
    record_size,
    takes_queue_offset,
)
from remoting.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

FOLLOWS: Final = "this broker is a slave, which takes messages from its master alone"
"""Why a store with ``StoreConfig.follows`` refuses messages."""

OnArrival = Callable[[str, int, int, int], None]
"""Topic, queue id, new maximum offset, tags code."""

_LOST_SECTOR: Final = bytes(SECTOR_BYTES)

_ALWAYS_WATCHED: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})


class Waiting(NamedTuple):
    """Entries of a queue that become visible once the log is confirmed up to ``end_offset``."""

    end_offset: int
    queue: ConsumeQueue
    entries: bytes


class EntryDispatcher:
    """Makes stored messages visible. Only the loop's thread uses it.

    Attributes:
        on_arrival: called for messages that become visible. Of messages that become visible
            together it is called once per tags code, for the last.
        watched: the queues (topic, id) for which it is called, besides those of delayed messages;
            None: for all.
    """

    def __init__(self) -> None:
        self.on_arrival: OnArrival | None = None
        self.watched: Container[tuple[str, int]] | None = None
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        """Return how many groups of entries wait for a sync."""
        return len(self._waiting)

    def first_waiting(self) -> int:
        """Return the physical offset of the first waiting message, ``sys.maxsize`` for none."""
        return int(ENTRY.unpack_from(self._waiting[0].entries)[0]) if self._waiting else sys.maxsize

    def publish(self, queue: ConsumeQueue, entries: bytes) -> None:
        """Make a queue's next messages visible: all of them, or none and ``OSError``."""
        queue.append_packed(entries)
        self.arrived(queue, entries)

    def arrived(self, queue: ConsumeQueue, entries: bytes) -> None:
        """Call ``on_arrival`` for a queue's last messages, whose entries are ``entries``."""
        if self.on_arrival is None:
            return
        # Checked before the entries are unpacked: few queues have a pull that waits.
        watched = self.watched
        if watched is not None and queue.key not in watched and queue.topic not in _ALWAYS_WATCHED:
            return
        first = queue.max_offset - len(entries) // ENTRY.size + 1
        tags_codes = [tags_code for _, _, tags_code in ENTRY.iter_unpack(entries)]
        arrivals = {code: first + number for number, code in enumerate(tags_codes)}
        for tags_code, max_offset in arrivals.items():
            self.on_arrival(queue.topic, queue.queue_id, max_offset, tags_code)

    def hold(self, waiting: Waiting) -> None:
        """Make messages visible once they are confirmed; see ``release``."""
        # ``release`` and safe points rely on the log's order.
        assert not self._waiting or self._waiting[-1].end_offset <= waiting.end_offset
        self._waiting.append(waiting)

    def release(self, confirmed: int) -> None:
        """Make the messages visible that the log holds up to physical offset ``confirmed``.

        Raises:
            OSError: an entry can't be written; it and those behind it still wait.
        """
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= confirmed:
            _, queue, entries = waiting[0]
            queue.append_packed(entries)
            waiting.popleft()
            self.arrived(queue, entries)

    def settle(self) -> None:
        """Write the waiting entries of a store that closes, without a call. Raises ``OSError``."""
        self.on_arrival = None
        self.release(sys.maxsize)

    def waiting(self, topic: str) -> list[tuple[int, bytes]]:
        """Return a topic's waiting entries, packed, by queue id, in the order of the log."""
        return [(q.queue_id, entries) for _, q, entries in self._waiting if q.topic == topic]

    def forget(self, topic: str, kept: Container[int]) -> None:
        """Drop the waiting entries of a topic, except those of the queues ``kept``."""
        self._waiting = deque(
            entry
            for entry in self._waiting
            if entry.queue.topic != topic or entry.queue.queue_id in kept
        )

    def clear(self) -> None:
        """Drop all waiting entries."""
        self._waiting.clear()


class Appender:
    """Appends the messages of one socket read; see the module for the order of the calls.

    Attributes:
        defers: see ``StoreConfig.defers``.
        waits: see ``StoreConfig.waits``.
    """

    __slots__ = (
        *("_disk", "_dispatcher", "_log", "_longest_record", "_on_stored", "_stats", "_writer"),
        "defers",
        "waits",
    )

    def __init__(
        self,
        context: StoreContext,
        log: CommitLog,
        dispatcher: EntryDispatcher,
        writer: MessageWriter,
        on_stored: Callable[[], None],
    ) -> None:
        """Create the appender of an open store.

        Args:
            context: of the store.
            log: of the store.
            dispatcher: makes the messages visible.
            writer: tells the store time of the next records, and whether any are taken.
            on_stored: in SYNC mode, called after each ``store``.
        """
        self._log = log
        self._longest_record = log.longest_record
        self._dispatcher = dispatcher
        self._disk = context.disk
        self._stats = context.stats
        self._writer = writer
        self._on_stored = on_stored if context.config.defers else None
        self.defers = context.config.defers
        self.waits = context.config.waits

    def takes(self, size: int) -> bool:
        """Return whether the store accepts ``size`` bytes of contiguous records."""
        is_sound = self._disk.trouble is None and self._writer.refusal is None
        return is_sound and size <= self._longest_record

    def open(self, queue: ConsumeQueue, count: int) -> tuple[int, int, memoryview | None]:
        """Make room for ``count`` more entries of a queue.

        Returns:
            The queue offset of the next message, the number of entries that fit, which may be less
            or more than ``count``, and the mapped bytes for them, None in SYNC mode. The file stays
            mapped while the caller holds the bytes.

        Raises:
            OSError: the disk refuses.
        """
        if self.defers:
            return queue.next_offset, queue.room(count), None
        if queue.max_offset != queue.next_offset:
            return queue.next_offset, 0, None
        place = queue.place(count)
        return queue.next_offset, len(place) // ENTRY_BYTES, place

    def reserve(self, size: int) -> tuple[int, int, int]:
        """Reserve ``size`` bytes of the log.

        Returns:
            The physical offset where they begin, the one up to which more records may follow, and
            the store time to put into the records.

        Raises:
            OSError: the disk refuses.
        """
        position = self._log.reserve(size)
        return position, self._log.room_end, self._writer.next_store_ms()

    def store(self, position: int, records: memoryview, count: int) -> None:
        """Store ``count`` records at the reserved offset ``position``."""
        self._log.store(position, records)
        self._stats.puts += count
        self._stats.put_bytes += len(records)
        if self._on_stored is not None:
            self._on_stored()

    def watch(self, on_stored: Callable[[], None] | None) -> None:
        """Call ``on_stored`` after each ``store`` from now on; None for no call."""
        self._on_stored = on_stored

    def publish(
        self,
        queue: ConsumeQueue,
        place: memoryview | None,
        entries: bytes,
        end: int,
    ) -> None:
        """Make stored messages visible; in SYNC mode, once the log is synced up to ``end``.

        Call it for the queues in the order of their first records: a safe point ends before the
        first record in the dispatcher's queue, and a start after a crash reads the log from there.
        """
        queue.next_offset += len(entries) // ENTRY_BYTES
        if place is None:
            self._dispatcher.hold(Waiting(end, queue, entries))
        else:
            queue.append_at(place, entries)
            self._dispatcher.arrived(queue, entries)


class PutRefused(Exception):
    """A message is not stored; the text is the error for the sender."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class MessageWriter:
    """Appends a message or a batch to the log and its queue.

    Attributes:
        last_store_ms: store time of the last record, ms since the epoch.
        refusal: why no messages are taken, in either way; None: they are.
    """

    def __init__(
        self,
        context: StoreContext,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: EntryDispatcher,
        *,
        last_store_ms: int,
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        config = context.config
        self._disk = context.disk
        self._now_ms = context.clock.now_ms
        self._stats = context.stats
        self.refusal = FOLLOWS if config.follows else None
        self._max_body = config.max_message_size
        self._max_step_back_ms = config.limits.max_clock_step_back_ms
        self._defers = config.defers
        self._host: Final = host_bytes(*config.store_host)
        self.last_store_ms = last_store_ms

    # --- putting

    def put(self, message: PendingMessage) -> PutResult:
        """Store one message; see ``MessageStore.put``."""
        try:
            self._check(message, len(message.body))
            queue = self._queue(message)
            size = self._size(message, queue)
            position = self._place(queue, 1, size)
            numbered = takes_queue_offset(message.sys_flag)
            queue_offset = queue.next_offset if numbered else 0
            store_ms = self.next_store_ms()
            record = self._record(message, queue, queue_offset, position, store_ms)
        except PutRefused as refused:
            self._stats.refused_puts += 1
            return PutResult(refused.status, message=str(refused))
        self._log.store(position, record)
        end = position + size
        self._stats.puts += 1
        self._stats.put_bytes += size
        if numbered:
            queue.next_offset += 1
            due_in_ms = message.due_in_ms
            tags_code = message.tags_code if due_in_ms is None else store_ms + due_in_ms
            self._publish(queue, ENTRY.pack(position, size, tags_code), end)
        return PutResult(PutStatus.OK, position, queue_offset, store_ms, end)

    def put_batch(self, messages: Sequence[PendingMessage]) -> BatchPutResult:
        """Store messages of one queue; see ``MessageStore.put_batch``."""
        try:
            queue = self._check_batch(messages)
            sizes = [self._size(message, queue) for message in messages]
            total = sum(sizes)
            begin = self._place(queue, len(messages), total)
            first = queue.next_offset
            store_ms = self.next_store_ms()
            positions = list(accumulate(sizes[:-1], initial=begin))
            records = [
                self._record(message, queue, first + number, position, store_ms)
                for number, (message, position) in enumerate(zip(messages, positions, strict=True))
            ]
        except PutRefused as refused:
            self._stats.refused_puts += 1
            return BatchPutResult(refused.status, message=str(refused))
        self._log.store(begin, b"".join(records))
        end = begin + total
        self._stats.puts += len(messages)
        self._stats.put_bytes += total
        queue.next_offset += len(messages)
        codes = [message.tags_code for message in messages]
        self._publish(queue, b"".join(map(ENTRY.pack, positions, sizes, codes)), end)
        return BatchPutResult(PutStatus.OK, positions, first, store_ms, end)

    def _publish(self, queue: ConsumeQueue, entries: bytes, end: int) -> None:
        """Make messages visible; in SYNC mode, once the log is synced up to ``end``."""
        if self._defers:
            self._dispatcher.hold(Waiting(end, queue, entries))
        else:
            self._dispatcher.publish(queue, entries)

    # --- checks, in the order of DefaultMessageStore.putMessage

    def _check(self, message: PendingMessage, body_bytes: int) -> None:
        # Raises PutRefused, also when the store accepts no messages at present.
        if self.refusal is not None:
            raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, self.refusal)
        if self._disk.trouble is not None and not self._disk.may_try():
            raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, self._disk.trouble)
        if len(message.topic) > MAX_TOPIC_LENGTH:
            _illegal(
                f"the topic {message.topic[:40]}... has {len(message.topic)} characters: use at"
                f" most {MAX_TOPIC_LENGTH}"
            )
        if len(message.properties) > MAX_PROPERTIES_BYTES:
            raise PutRefused(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                f"the properties of a message to topic {message.topic} take"
                f" {len(message.properties)} bytes: use at most {MAX_PROPERTIES_BYTES}",
            )
        # After a crash, recovery would take them for lost (``log_walk``), and end the log there.
        # Records that a slave copies are not checked: its log must be the same as the master's.
        if _LOST_SECTOR in message.properties or message.properties.endswith(b"\0"):
            _illegal(
                f"the properties of a message to topic {message.topic} have {SECTOR_BYTES} zero"
                " bytes in a row, or one at the end, which after a crash would look like a lost"
                " part of the disk: put them into the body, or encode them"
            )
        if body_bytes > self._max_body:
            _illegal(
                f"the body of a message to topic {message.topic} has {body_bytes} bytes: send at"
                f" most {self._max_body}, or raise maxMessageSize of the broker"
            )

    def _check_batch(self, messages: Sequence[PendingMessage]) -> ConsumeQueue:
        if not messages:
            _illegal("a batch holds no message: send at least one")
        first = messages[0]
        bodies = sum(len(message.body) for message in messages)
        for message in messages:
            self._check(message, bodies)
            if message.topic != first.topic or message.queue_id != first.queue_id:
                _illegal(
                    f"a batch to queue {first.queue_id} of topic {first.topic} holds a message to"
                    f" queue {message.queue_id} of {message.topic}: send one batch per queue"
                )
            if message.sys_flag & TRANSACTION_MASK:
                _illegal(
                    f"a batch to topic {first.topic} is transactional: send its messages singly"
                )
        return self._queue(first)

    def _queue(self, message: PendingMessage) -> ConsumeQueue:
        queue = self._queues.get((message.topic, message.queue_id))
        if queue is None:
            try:
                queue = self._queues.get_or_create(message.topic, message.queue_id)
            except ValueError as error:
                raise PutRefused(PutStatus.MESSAGE_ILLEGAL, str(error)) from error
        return queue

    # --- reserving space, building the record

    def _size(self, message: PendingMessage, queue: ConsumeQueue) -> int:
        host_length = len(message.born_host) or len(self._host)
        store_host_length = len(message.store_host) or len(self._host)
        if not {host_length, store_host_length} <= {HOST_BYTES_V4, HOST_BYTES_V6}:
            _illegal(
                f"the born host or store host of a message to topic {message.topic} is not 8 or 20"
                " bytes"
            )
        return record_size(
            len(message.body),
            len(queue.topic_bytes),
            len(message.properties),
            born_host_length=host_length,
            store_host_length=store_host_length,
        )

    def _place(self, queue: ConsumeQueue, count: int, size: int) -> int:
        if size > self._log.longest_record:
            _illegal(
                f"{count} messages to topic {queue.topic} take {size} bytes, more than a"
                f" commit-log file holds: send less at once or raise mappedFileSizeCommitLog"
            )
        try:
            queue.prepare(count)
        except OSError as error:
            self._no_place(queue.directory, error)
        try:
            position = self._log.reserve(size)
        except OSError as error:
            self._no_place(self._log.directory, error)
        try:
            # Again: rolling the log maps a file, which may have unmapped the queue's.
            queue.prepare(count)
        except OSError as error:
            self._no_place(queue.directory, error)
        if self._disk.trouble is not None:
            self._disk.accepted()
        return position

    def _no_place(self, directory: Path, error: OSError) -> NoReturn:
        reason = self._disk.refused(directory, error)
        raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, reason) from error

    def refuse(self, reason: str | None) -> None:
        """Refuse all messages from now on, with this reason; None: take them again."""
        self.refusal = reason

    def stored_at(self, store_ms: int) -> None:
        """Note the store time of a record that was appended otherwise, ms since the epoch."""
        self.last_store_ms = max(self.last_store_ms, store_ms)

    def next_store_ms(self) -> int:
        """Return the store time of the next record, ms since the epoch.

        It never decreases unless the clock was set back by more than ``max_clock_step_back_ms``.
        """
        now = self._now_ms()
        last = self.last_store_ms
        if now < last <= now + self._max_step_back_ms:
            return last
        self.last_store_ms = now
        return now

    def _record(
        self,
        message: PendingMessage,
        queue: ConsumeQueue,
        queue_offset: int,
        position: int,
        store_ms: int,
    ) -> bytes:
        try:
            return encode_record(
                topic=queue.topic_bytes,
                body=message.body,
                properties=message.properties,
                born_host=message.born_host or self._host,
                store_host=message.store_host or self._host,
                queue_id=message.queue_id,
                flag=message.flag,
                queue_offset=queue_offset,
                physical_offset=position,
                sys_flag=message.sys_flag,
                born_timestamp_ms=message.born_timestamp_ms,
                store_timestamp_ms=store_ms,
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
            )
        except (struct.error, ValueError) as error:
            _illegal(f"a message to topic {message.topic} can't be stored: {error}")


def _illegal(reason: str) -> NoReturn:
    raise PutRefused(PutStatus.MESSAGE_ILLEGAL, reason)
