"""Appending a master's log to a slave's, byte for byte. Only the loop's thread does it.

A slave's log holds the master's bytes at the master's offsets: records, blank records, and what is
behind those. It always ends with a whole record, as a master's does, so that recovery, checkpoints
and readers need not distinguish the two. ``LogFollower`` therefore appends the whole records at
the beginning of what it gets, and leaves an incomplete one to the caller.

The queue entries are derived from the records, as recovery does it (``redispatch``). A record with
a lower queue offset than expected belongs to a topic that was deleted and created again at the
master: what the slave has of the old topic becomes void. It may have messages of the new one, in
queues that the old one did not use, and others wait, e.g. for their time: these stay.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from struct import Struct
from typing import Final

import structlog

from broker.store.append import EntryDispatcher, Waiting
from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.disk_state import StoreContext
from broker.store.log_walk import EntryRun
from broker.store.redispatch import derive
from broker.store.results import StoreError
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES
from remoting.protocol.errors import RecordError
from remoting.protocol.message.record import (
    FIXED_BYTES_V4,
    MAGIC_BLANK,
    MIN_TAIL_BYTES,
    find_heads,
    locate,
)

MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
"""Largest record, or blank end of a file, that a slave waits for in memory."""

_START: Final = Struct(">II")

_log = structlog.get_logger("store")


class LogDiffers(StoreError):
    """What a master sends can't follow this log: another store, or another file size."""


class LogFollower:
    """Appends a master's bytes to the log, and the entries of its records to the queues.

    Attributes:
        last: physical offset of the last record of the log, unless the log is empty.
    """

    def __init__(
        self,
        context: StoreContext,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: EntryDispatcher,
        *,
        on_stored: Callable[[int], None],
        delete_topic: Callable[[str, int, Container[int]], object],
    ) -> None:
        """Create a follower of an open store.

        Args:
            context: of the store.
            log: gets the bytes.
            queues: get the entries.
            dispatcher: makes the messages visible.
            on_stored: called with the store time of the last record, ms since the epoch.
            delete_topic: makes the messages of a topic void; see ``MessageStore.delete_topic``.
        """
        self._log = log
        self.last = log.opened_tail
        self._queues = queues
        self._dispatcher = dispatcher
        self._disk = context.disk
        self._stats = context.stats
        self._levels_ms = context.config.delay_levels_ms
        self._defers = context.config.defers
        self._on_stored = on_stored
        self._delete_topic = delete_topic
        self._on_recreated: Callable[[str], object] = lambda _: None

    def when_recreated(self, call: Callable[[str], object]) -> None:
        """Call this with each topic that the master has deleted and created again.

        Its old messages are void here by then.
        """
        self._on_recreated = call

    def begin(self, position: int) -> None:
        """Let an empty log begin at the physical offset ``position``, where a file begins.

        Raises:
            LogDiffers: no file of this store begins there.
        """
        if position % self._log.file_size:
            raise LogDiffers(
                f"the master's log begins at {position}, where no file of"
                f" {self._log.file_size} bytes begins: use the master's mappedFileSizeCommitLog"
            )
        self._log.begin(position)

    def append(self, data: bytes | bytearray | memoryview, known: int = 0) -> int:
        """Append the whole records at the beginning of the master's next bytes; return their size.

        Args:
            data: what follows the end of this log; it may end anywhere.
            known: physical offset where the master's log ends at least.

        Raises:
            LogDiffers: this is not the continuation of the log.
            StoreError: the disk refuses.
        """
        position = self._log.end
        with memoryview(data) as view:
            size, records, last, last_ms, runs = derive(view, position, self._levels_ms)
            if not records:
                return self._append_other(view, position, known)
            recreated = self._first_recreated(runs)
            if recreated is not None:
                (topic, queue_id), at = recreated
                if at > position:
                    return self.append(view[: at - position])
                self._delete_topic(topic, *self._split(topic, queue_id))
                self._on_recreated(topic)
                return self.append(view[:size])
            self._append_records(view[:size], runs)
            self._stats.puts += records
            self._stats.put_bytes += size
        self.last = last
        self._on_stored(last_ms)
        return size

    def _first_recreated(self, runs: Sequence[EntryRun]) -> tuple[tuple[str, int], int] | None:
        """Return the first queue that begins again, and the physical offset of its first record."""
        ends: dict[tuple[str, int], int] = {}
        recreated: list[tuple[int, tuple[str, int]]] = []
        for key, first, entries in runs:
            queue = self._queues.get(key)
            end = ends.get(key, 0 if queue is None else queue.next_offset)
            if first < end:
                recreated.append((int(ENTRY.unpack_from(entries)[0]), key))
            ends[key] = first + len(entries) // ENTRY_BYTES
        if not recreated:
            return None
        at, key = min(recreated)
        return key, at

    def _split(self, topic: str, restarted: int) -> tuple[int, set[int]]:
        """Tell a deleted topic's messages from those of the new one, by a queue that begins again.

        Return where the log has the old topic's last message, as far as can be told, and which
        queues belong to the new one: they have begun behind that.
        """
        spans: dict[int, tuple[int, int]] = {}
        for queue in self._queues.all():
            if queue.topic == topic and queue.max_offset > queue.min_offset:
                first = None if queue.min_offset else queue.stored(0)
                spans[queue.queue_id] = (first[0] if first else -1), queue.last_physical_end()
        for queue_id, entries in self._dispatcher.waiting(topic):
            begin, *_ = ENTRY.unpack_from(entries)
            position, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_BYTES)
            spans[queue_id] = spans.get(queue_id, (begin, 0))[0], position + size
        _, end = spans.pop(restarted, (-1, self._log.start))
        kept: set[int] = set()
        for queue_id, (begin, queue_end) in sorted(spans.items(), key=lambda item: item[1]):
            if begin < end:
                end = max(end, queue_end)
            else:
                kept.add(queue_id)
        return min(end, self._log.end), kept

    def _append_records(self, data: memoryview, runs: Sequence[EntryRun]) -> None:
        position = self._log.end
        self._check_room(position, len(data))
        lengths: dict[ConsumeQueue, int] = {}
        given: list[tuple[ConsumeQueue, bytes]] = []
        try:
            for (topic, queue_id), first, entries in runs:
                try:
                    queue = self._queues.get_or_create(topic, queue_id)
                except ValueError as error:
                    _log.error("a record of the master has no queue here", reason=str(error))
                    continue
                if queue not in lengths and first > queue.next_offset:
                    self._skip(queue, first)
                lengths[queue] = lengths.get(queue, 0) + len(entries) // ENTRY_BYTES
                given.append((queue, bytes(entries)))
            for queue, count in lengths.items():
                queue.prepare(count)
            reserved = self._log.reserve(len(data))
            assert reserved == position
            for queue, count in lengths.items():
                # Again: rolling the log maps a file, which may have unmapped the queue's.
                queue.prepare(count)
        except OSError as error:
            raise StoreError(self._disk.refused(self._log.directory, error)) from error
        if self._disk.trouble is not None:
            self._disk.accepted()
        self._log.store(position, data)
        end = position + len(data)
        for queue, packed in given:
            queue.next_offset += len(packed) // ENTRY_BYTES
            if self._defers:
                self._dispatcher.hold(Waiting(end, queue, packed))
            else:
                self._dispatcher.publish(queue, packed)

    def _skip(self, queue: ConsumeQueue, first: int) -> None:
        """Let a queue go on at a later offset: the log lacks the messages before. ``OSError``."""
        if queue.max_offset != queue.next_offset:
            raise StoreError(f"queue {queue.queue_id} of topic {queue.topic} waits for the disk")
        if queue.next_offset:
            _log.warning(
                "the master's log lacks messages of a queue",
                topic=queue.topic,
                queue=queue.queue_id,
                first=queue.next_offset,
                number=first - queue.next_offset,
            )
        queue.reach(first)

    def _append_other(self, data: memoryview, position: int, known: int) -> int:
        """Append a blank record or a damaged one; return its size, 0 if it is not whole yet."""
        if len(data) < _START.size:
            return 0
        size, magic = _START.unpack_from(data)
        rest = self._log.file_size - position % self._log.file_size
        most = min(rest, MAX_PENDING_BYTES)
        fits = (MIN_TAIL_BYTES if magic == MAGIC_BLANK else FIXED_BYTES_V4) <= size <= most
        if fits and magic == MAGIC_BLANK and size != rest:
            raise LogDiffers(
                f"the master's file ends at {position + size}, and this one at {position + rest}:"
                " use the master's mappedFileSizeCommitLog"
            )
        if fits and len(data) < size:
            return 0
        try:
            if fits and magic == MAGIC_BLANK:
                self._log.close_file(data[:size])
                return int(size)
            try:
                locate(data, 0, min(size, most, len(data)))
            except RecordError as error:
                size = self._before_next(data[:most], position)
                # The bytes in which the next record begins may be on their way.
                if not size and len(data) >= min(most, known - position):
                    raise LogDiffers(
                        f"the master has no record at offset {position}, where this log ends:"
                        f" {error}"
                    ) from error
            if size:
                # The master's disk has damaged it: a copy has to be the same, without an entry.
                _log.error("the master sends a damaged record", offset=position, size=size)
                self._append_records(data[:size], ())
        except OSError as error:
            raise StoreError(self._disk.refused(self._log.directory, error)) from error
        return int(size)

    def _before_next(self, data: memoryview, position: int) -> int:
        """Return the size of what is before the next record; 0 if that isn't here."""

        def read(at: int, length: int) -> memoryview:
            return data[at - position : at - position + length]

        end = position + len(data)
        heads = find_heads(read, position + 1, end, end=end, step=len(data))
        return next(heads, position) - position

    def _check_room(self, position: int, size: int) -> None:
        # The log would end its file with a blank record of its own.
        used = position % self._log.file_size
        if used + size + MIN_TAIL_BYTES > self._log.file_size:
            raise LogDiffers(
                f"the master's file goes on at {position + size}, where this one ends: use the"
                " master's mappedFileSizeCommitLog"
            )
