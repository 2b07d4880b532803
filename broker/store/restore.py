"""Restoring damaged consume-queue entries from the log.

An entry may be zeroed, have an impossible size, or point to another record or to none. The log
still has its message, between the messages of the entries before and behind it. So the log is
walked there, record by record, until all wanted messages are found.

The search runs in a thread (``find_entries``) and uses ``pread``, so that it does not block other
threads while it waits for the disk. The loop's thread writes the entries (``Restorer``). If the log
does not have the message, within the search's limits, its entry becomes a filler, as in recovery.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import sub
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import structlog

from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig
from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.limits import StoreLimits
from broker.store.log_view import Damage, LogView
from broker.store.raw_files import FileRow, ViewLimits
from broker.store.record_validator import LIGHT_PREFIX, RecordValidator
from broker.store.redispatch import row_of
from broker.store.results import StoreBusy, StoreError, StoreStats
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, FILLER
from remoting.protocol.errors import RecordError
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.protocol.message.record import FIXED_BYTES_V4, locate

# Queue id, queue offset and physical offset of a record.
_NUMBERS: Final = Struct(">12xi4xqq")

_log = structlog.get_logger("store")


class Search(NamedTuple):
    """Parameters of a search for messages of one queue.

    Attributes:
        log: the directory of the commit log.
        queue: the directory of the queue.
        topic, queue_id: of the messages.
        claims: physical offset and size in each damaged entry, by queue offset, ascending.
        begin, end: ``min_offset`` and ``max_offset`` of the queue.
        log_end: physical offset where the log ends.
        levels_ms: of ``messageDelayLevel``; see ``redispatch.entry_of``.
        limits: of the store.
    """

    log: Path
    queue: Path
    topic: str
    queue_id: int
    claims: Mapping[int, tuple[int, int]]
    begin: int
    end: int
    log_end: int
    levels_ms: tuple[int, ...]
    limits: StoreLimits


class Restorer:
    """Plans searches and writes restored entries. Only the loop's thread uses it."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        validator: RecordValidator,
        stats: StoreStats,
        config: StoreConfig,
    ) -> None:
        self._commit_log = log
        self._queues = queues
        self._validator = validator
        self._stats = stats
        self._config = config
        self._named: set[tuple[str, int]] = set()

    def plan(
        self, topic: str, queue_id: int, numbers: Sequence[int]
    ) -> tuple[ConsumeQueue, Search] | None:
        """Plan the search for messages whose entries are damaged.

        Args:
            topic: of the messages.
            queue_id: of the messages.
            numbers: queue offsets of the messages, ascending.

        Returns:
            The queue and the search; None when the queue or the entries don't exist any more.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return None
        claims = {
            number: stored[:2]
            for number in numbers
            if number >= queue.first_offset and (stored := queue.stored(number)) is not None
        }
        if not claims:
            return None
        return queue, Search(
            log=self._commit_log.directory,
            queue=queue.directory,
            topic=topic,
            queue_id=queue_id,
            claims=claims,
            begin=queue.min_offset,
            end=queue.max_offset,
            log_end=self._commit_log.end,
            levels_ms=self._config.delay_levels_ms,
            limits=self._config.limits,
        )

    def settle(self, queue: ConsumeQueue, search: Search, found: Mapping[int, bytes]) -> None:
        """Repair the entries of a search, or mark their messages as damaged or lost.

        Args:
            queue: of the entries.
            search: the search that was made.
            found: the packed entries found, by queue offset.

        Raises:
            StoreBusy: an entry can't be written.
        """
        try:
            for number in search.claims:
                # Retention may have deleted the entry meanwhile.
                if number >= queue.first_offset and (there := queue.stored(number)) is not None:
                    self._settle(queue, number, there, found.get(number))
        except OSError as error:
            raise StoreBusy(
                f"a damaged entry of {queue.directory} can't be restored"
                f" ({error.strerror or error}): check the disk"
            ) from error

    def _settle(
        self,
        queue: ConsumeQueue,
        number: int,
        there: tuple[int, int, int],
        entry: bytes | None,
    ) -> None:
        place, size, _ = there
        log = self._commit_log
        if entry is not None and entry != ENTRY.pack(*there):
            queue.repair(number, entry)
            self._count(queue, number)
        elif entry is not None:
            # The entry is right, so the record is damaged, or was only misread before.
            self._validator.give_up(place)
        elif size < FIXED_BYTES_V4 or place < 0 or place + size > log.end:
            queue.repair(number, FILLER)
            self._validator.lost(queue, number, place, size)
        elif place < log.start:
            # The message has been deleted by retention.
            queue.repair(number, FILLER)
        else:
            self._validator.give_up(place)

    def _count(self, queue: ConsumeQueue, number: int) -> None:
        """Count a restored entry, and log the first one of its queue."""
        self._stats.restored_entries += 1
        key = queue.topic, queue.queue_id
        if key in self._named or len(self._named) >= self._config.limits.max_named_damage:
            return
        self._named.add(key)
        _log.warning(
            "a damaged entry of a consume queue was restored from the log; more of this queue are"
            " counted, but not named; check the disk, and the store with 'pocketmq store verify'",
            topic=queue.topic,
            queue=queue.queue_id,
            offset=number,
            directory=str(queue.directory),
        )


def find_entries(search: Search, goes_on: Callable[[], bool]) -> dict[int, bytes]:
    """Search the log for messages; return their packed entries by queue offset. Blocks.

    Args:
        search: the parameters.
        goes_on: called after each chunk of the log; False aborts the search.

    Raises:
        StoreBusy: the search failed or was aborted, and may succeed later.
    """
    if search.topic.startswith(LIGHT_PREFIX):
        # Its entries point to records of other topics, with other queue offsets.
        return {}
    # No record is larger than a frame.
    limits = ViewLimits(longest_bytes=MAX_FRAME_BYTES)
    log = FileRow([search.log], "the commit log", limits)
    queue = FileRow([search.queue], f"queue {search.queue_id} of topic {search.topic}")
    view = LogView(log, synced_ms=0)
    finder = _Finder(search, view, queue, goes_on)
    try:
        finder.run()
    except StoreError as error:
        # A read error of the disk is permanent, so return what was found. Others may be temporary.
        if getattr(error.__cause__, "errno", None) != errno.EIO:
            raise StoreBusy(f"entries of {search.queue} can't be restored now: {error}") from error
    finally:
        log.close()
        queue.close()
    return finder.undisputed()


class _Finder:
    """Runs one search.

    Attributes:
        claims: as in the search, with other damaged entries found beside them.
        wanted: queue offsets of the messages to find by walking the log.
        found: packed entries by queue offset.
    """

    def __init__(
        self, search: Search, log: LogView, queue: FileRow, goes_on: Callable[[], bool]
    ) -> None:
        self._search = search
        self._log = log
        self._queue = queue
        self._goes_on = goes_on
        self._topic = search.topic.encode()
        self.claims = dict(search.claims)
        self.wanted: set[int] = set()
        self.found: dict[int, bytes] = {}

    def run(self) -> None:
        """Search where the entries point to, then between the neighbours' messages."""
        search = self._search
        first, last = min(search.claims), max(search.claims)
        before = self._neighbour(range(first - 1, search.begin - 1, -1))
        behind = self._neighbour(range(last + 1, search.end))
        end = search.log_end if behind is None else behind[0]
        begin = None if before is None else sum(before)
        for number, (place, size) in self.claims.items():
            # An entry of zeros points to offset 0, where there may be a message of the same queue
            # offset from before its topic was deleted and created again.
            if size >= FIXED_BYTES_V4 or (begin is not None and begin <= place < end):
                entry = self._entry_at(place, number)
                if entry is not None:
                    self.found[number] = entry
            if number not in self.found and not self._is_damaged_record(place, size, number):
                self.wanted.add(number)
        if self.wanted and begin is not None:
            self._walk(begin, end, stops=behind is None)
        elif self.wanted:
            # If the topic was deleted and created again, the log may have messages with the same
            # queue offsets from before. They lie before the others, so the last one found counts.
            begin = self._log.first_start(
                max(self._log.start, end - self._search.limits.max_restore_bytes), end
            )
            self._walk(begin, end, stops=False, is_unique=False)

    def undisputed(self) -> dict[int, bytes]:
        """Return the entries found, without those whose record another message's entry points to.

        In such a record the queue offset, which no checksum covers, may be damaged; the entry is
        kept if the other message was found elsewhere.
        """
        owners = {place: n for n, (place, size) in self.claims.items() if size >= FIXED_BYTES_V4}
        return {
            number: entry
            for number, entry in self.found.items()
            if (owner := owners.get(ENTRY.unpack(entry)[0], number)) == number
            or owner in self.found
        }

    def _is_damaged_record(self, place: int, size: int, number: int) -> bool:
        """Return whether the entry points to the right record, so that only that is damaged."""
        end = place + size
        if not (
            self._log.start <= place and size >= FIXED_BYTES_V4 and end <= self._search.log_end
        ):
            return False
        record = memoryview(bytearray(min(size, MAX_FRAME_BYTES)))
        try:
            self._log.read_into(place, record)
            *_, topic_at, topic_end, _ = locate(record, 0, len(record))
            is_of_topic = record[topic_at:topic_end] == self._topic
        except RecordError:
            # The record's lengths are damaged.
            is_of_topic = True
        except StoreError as error:
            if error.__cause__ is not None:
                raise
            return False
        said = _NUMBERS.unpack_from(record)
        return is_of_topic and said == (self._search.queue_id, number, place)

    def _walk(self, begin: int, end: int, *, stops: bool, is_unique: bool = True) -> None:
        """Walk the log and collect the entries of the wanted messages.

        Args:
            begin: physical offset where a record begins.
            end: physical offset where a record begins, or the log ends.
            stops: stop at a message of the queue behind the last wanted one.
            is_unique: there is only one message per queue offset, so stop when all are found.
        """
        last = max(self.wanted)
        for found in self._log.walk(
            begin,
            min(end, begin + self._search.limits.max_restore_bytes),
            chunk_bytes=self._search.limits.restore_chunk_bytes,
        ):
            if not self._goes_on():
                raise StoreBusy("the search was aborted: try again in a moment")
            if isinstance(found, Damage):
                continue
            sizes = map(sub, (*found.starts[1:], len(found.data)), found.starts)
            for start, size in zip(found.starts, sizes, strict=True):
                queue_id, number, _ = _NUMBERS.unpack_from(found.data, start)
                is_wanted = number in self.wanted
                if queue_id != self._search.queue_id or not (
                    is_wanted or (stops and number > last)
                ):
                    continue
                entry = self._entry(found.data, start, size, found.position, number)
                if entry is None:
                    continue
                if not is_wanted:
                    return
                self.found[number] = entry
            if is_unique and self.found.keys() >= self.wanted:
                return

    def _neighbour(self, numbers: Iterable[int]) -> tuple[int, int] | None:
        """Return physical offset and size of the first message whose entry and record match."""
        for number in islice(numbers, self._search.limits.max_neighbours):
            try:
                entry = self._queue.read(number * ENTRY_BYTES, ENTRY_BYTES)
            except StoreError as error:
                if error.__cause__ is None:
                    # The queue has no file there.
                    return None
                raise
            place, size, _ = ENTRY.unpack(entry)
            if size > 0 and self._entry_at(place, number) is not None:
                return place, size
            if bytes(entry) != FILLER:
                self.claims[number] = place, size
        return None

    def _entry_at(self, place: int, number: int) -> bytes | None:
        """Return the packed entry of a message if its record is at physical offset ``place``."""
        if not self._log.start <= place < self._search.log_end:
            return None
        record = self._log.record_at(place)
        return None if record is None else self._entry(record.raw, 0, record.size, place, number)

    def _entry(self, data: memoryview, at: int, size: int, base: int, number: int) -> bytes | None:
        """Return the packed entry of a message if its record is at ``at`` of ``data``, or None.

        ``base`` is the physical offset of ``data``; see ``row_of``.
        """
        try:
            *_, topic_at, topic_end, _ = locate(data, at, at + size)
            if data[topic_at:topic_end] != self._topic:
                return None
            row = row_of(data, at, size, base, self._search.levels_ms)
        except RecordError:
            return None
        entry = row.entry
        if entry is None or entry[:3] != (self._search.topic, self._search.queue_id, number):
            return None
        return ENTRY.pack(base + at, size, entry.tags_code)
