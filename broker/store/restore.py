"""Restoring damaged consume-queue entries from the log.

An entry may be zeroed, have a size that no record has, or a place where the log has another record
or none. The log still has its message, between those of the entries before and behind it. So the
log is walked there, from record to record, until all that are looked for have been found.

This is done in a thread (``find_entries``), and with ``pread``: what is not in memory holds up
nobody else. The entries are written by the loop's thread (``Restorer``). One whose message the log
does not have, within bounds, becomes that of no message, as recovery writes them.
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
from broker.store.record_validator import LIGHT_PREFIX, RecordValidator
from broker.store.redispatch import row_of
from broker.store.results import StoreBusy, StoreError, StoreStats
from broker.storetools.view_files import FileRow, ViewLimits
from broker.storetools.view_log import Damage, LogView
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, FILLER
from remoting.protocol.errors import RecordError
from remoting.protocol.limits import MAX_FRAME_BYTES
from remoting.protocol.message.record import FIXED_BYTES_V4, locate

# Queue id, number and place of a record.
_NUMBERS: Final = Struct(">12xi4xqq")

_log = structlog.get_logger("store")


class Search(NamedTuple):
    """Which messages of a queue are looked for, and where.

    Attributes:
        log: the directory of the commit log.
        queue: the directory of the queue.
        topic, queue_id: of the messages.
        claims: of each message, by its number, the place and size that its entry says; ascending.
        begin, end: numbers of the queue's messages.
        log_end: where the log ends.
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
    """Restores entries of one store; only the loop's thread comes here."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        soundness: RecordValidator,
        stats: StoreStats,
        config: StoreConfig,
    ) -> None:
        self._commit_log = log
        self._queues = queues
        self._validator = soundness
        self._stats = stats
        self._config = config
        self._named: set[tuple[str, int]] = set()

    def plan(
        self, topic: str, queue_id: int, numbers: Sequence[int]
    ) -> tuple[ConsumeQueue, Search] | None:
        """What it takes to look for messages whose entries are damaged; None: the queue is gone.

        Args:
            topic: of the messages.
            queue_id: of the messages.
            numbers: of the messages, ascending.
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
        """Put entries right, or give them up.

        Args:
            queue: whose entries.
            search: what was looked for.
            found: the entries of those messages that the log has.

        Raises:
            StoreBusy: an entry can't be written.
        """
        try:
            for number in search.claims:
                # Retention may have been here.
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
            # What was wrong with the record is so no more, or else is not the entry's fault.
            self._validator.give_up(place)
        elif size < FIXED_BYTES_V4 or place < 0 or place + size > log.end:
            queue.repair(number, FILLER)
            self._validator.lost(queue, number, place, size)
        elif place < log.start:
            # It was deleted for its age.
            queue.repair(number, FILLER)
        else:
            self._validator.give_up(place)

    def _count(self, queue: ConsumeQueue, number: int) -> None:
        """Count a restored entry, and name the first one of its queue."""
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
    """The entries that the log calls for, of those messages that it has.

    Args:
        search: what is looked for.
        goes_on: asked now and then; False ends the search.

    Raises:
        StoreBusy: it could not be done now.
    """
    if search.topic.startswith(LIGHT_PREFIX):
        # The records are of other topics and have other numbers.
        return {}
    # A broker's records are no larger than a frame.
    limits = ViewLimits(longest_bytes=MAX_FRAME_BYTES)
    log = FileRow([search.log], "the commit log", limits)
    queue = FileRow([search.queue], f"queue {search.queue_id} of topic {search.topic}")
    view = LogView(log, synced_ms=0)
    finder = _Finder(search, view, queue, goes_on)
    try:
        finder.run()
    except StoreError as error:
        # What the disk can't read will not be there in a moment either. All else may.
        if getattr(error.__cause__, "errno", None) != errno.EIO:
            raise StoreBusy(f"entries of {search.queue} can't be restored now: {error}") from error
    finally:
        log.close()
        queue.close()
    return finder.undisputed()


class _Finder:
    """One search.

    Attributes:
        claims: of the search, and of other entries among those that are not sound.
        wanted: numbers of the messages that are still looked for.
        found: packed entries by number.
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
        """Look where the entries say, then between their neighbours."""
        search = self._search
        first, last = min(search.claims), max(search.claims)
        before = self._neighbour(range(first - 1, search.begin - 1, -1))
        behind = self._neighbour(range(last + 1, search.end))
        end = search.log_end if behind is None else behind[0]
        begin = None if before is None else sum(before)
        for number, (place, size) in self.claims.items():
            # An entry of zeros leads to the log's first record, of this queue's first life perhaps.
            if size >= FIXED_BYTES_V4 or (begin is not None and begin <= place < end):
                entry = self._entry_at(place, number)
                if entry is not None:
                    self.found[number] = entry
            if number not in self.found and not self._is_damaged_record(place, size, number):
                self.wanted.add(number)
        if self.wanted and begin is not None:
            self._walk(begin, end, stops=behind is None)
        elif self.wanted:
            # In a topic that was deleted and made again, messages of its first life have the same
            # numbers, but lie before all others: the last ones that are found count.
            begin = self._log.first_start(
                max(self._log.start, end - self._search.limits.max_restore_bytes), end
            )
            self._walk(begin, end, stops=False, is_unique=False)

    def undisputed(self) -> dict[int, bytes]:
        """What was found, but for records that the entry of another message leads to.

        It may be such a record's number that is damaged, which no checksum covers, unless the other
        message was found elsewhere.
        """
        owners = {place: n for n, (place, size) in self.claims.items() if size >= FIXED_BYTES_V4}
        return {
            number: entry
            for number, entry in self.found.items()
            if (owner := owners.get(ENTRY.unpack(entry)[0], number)) == number
            or owner in self.found
        }

    def _is_damaged_record(self, place: int, size: int, number: int) -> bool:
        """Whether a record is the one that was meant, so that no other has to be looked for."""
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
            # Its lengths are damaged.
            is_of_topic = True
        except StoreError as error:
            if error.__cause__ is not None:
                raise
            return False
        said = _NUMBERS.unpack_from(record)
        return is_of_topic and said == (self._search.queue_id, number, place)

    def _walk(self, begin: int, end: int, *, stops: bool, is_unique: bool = True) -> None:
        """Walk the log from a record on.

        Args:
            begin: where a record begins.
            end: where one begins, or the log ends.
            stops: whether to end at a later message of the queue than those that are looked for.
            is_unique: whether there is but one message of a number.
        """
        last = max(self.wanted)
        for found in self._log.walk(
            begin,
            min(end, begin + self._search.limits.max_restore_bytes),
            chunk_bytes=self._search.limits.restore_chunk_bytes,
        ):
            if not self._goes_on():
                raise StoreBusy("the search has been given up: try again in a moment")
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
        """Place and size of the first of some messages that the log has where its entry says."""
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
        """The entry of a message, if the log has it at a place."""
        if not self._log.start <= place < self._search.log_end:
            return None
        record = self._log.record_at(place)
        return None if record is None else self._entry(record.raw, 0, record.size, place, number)

    def _entry(self, data: memoryview, at: int, size: int, base: int, number: int) -> bytes | None:
        """The entry of a message, if its record begins at ``at`` of ``data``; see ``row_of``."""
        try:
            *_, topic_at, topic_end, _ = locate(data, at, at + size)
            if data[topic_at:topic_end] != self._topic:
                return None
            row = row_of(data, at, size, base, self._search.levels_ms)
        except RecordError:
            return None
        key = row.topic, row.queue_id, row.queue_offset
        if row.wrong is not None or key != (self._search.topic, self._search.queue_id, number):
            return None
        return ENTRY.pack(base + at, size, row.tags_code)
