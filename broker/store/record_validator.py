"""Validates records before they are delivered.

Records that may have been read from the disk (``page_cache.needs_check``) are compared with their
queue entry (physical offset, size, queue offset, queue, topic), and their body with its CRC. No
checksum covers properties, hosts and timestamps.

A damaged record is left out, counted and logged once; the records behind it are delivered. Since
the queue entry may be damaged instead, the log is first searched for the message (``restore``).

Only the loop's thread uses a ``RecordValidator``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from struct import Struct
from typing import Any, Final

import structlog

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.limits import StoreLimits
from broker.store.page_cache import PageCacheTracker
from broker.store.results import Run, StoreStats
from remoting.protocol.accelerated import crc32
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message.record import (
    FIXED_BYTES_V4,
    HEAD_BYTES_V4,
    HOSTS_V6_MASK,
    MAGIC_V1,
    MAGIC_V2,
    Buffer,
    FoundRecord,
    Invalid,
    examine,
    locate,
)

TagsCodes = frozenset[int]
"""Tags codes of the messages that a filter accepts."""

# Size, magic, CRC, queue id, queue offset, physical offset, system flag and body length of a record
# whose hosts are both IPv4.
_HEAD: Final = Struct(">IIIi4xqqi44xI")
_head: Final = _HEAD.unpack_from
_NUMBERS: Final = Struct(">II4xi4xqq")

LIGHT_PREFIX: Final = "%LMQ%"
"""Prefix of light message queues (LMQ) of other brokers, whose entries point to messages of other
topics."""

_log = structlog.get_logger("store")


class RecordValidator:
    """Validates the records of one store, and counts and logs the damaged ones."""

    def __init__(
        self, log: CommitLog, page_cache: PageCacheTracker, stats: StoreStats, limits: StoreLimits
    ) -> None:
        self._log = log
        self._page_cache = page_cache
        self._stats = stats
        self._max_named = limits.max_named_damage
        self._named: set[Hashable] = set()
        # Physical offsets of damaged records whose messages the log has been searched for, in vain.
        self._searched: set[int] = set()

    def are_sound(
        self, queue: ConsumeQueue, offset: int, entries: memoryview, runs: Sequence[Run]
    ) -> bool:
        """Return whether all records that entries point to are good; fast, for the common case.

        It returns False as well if they lie in more than one file, or one is of a rare kind;
        ``filter_valid`` then examines each of them.

        Args:
            queue: of the messages.
            offset: queue offset of the first one.
            entries: consecutive entries, which all point into the log.
            runs: the same records, adjacent ones joined.
        """
        file = self._log.file_at(runs[0][0])
        if file is None or not all(
            file.start <= begin and end <= file.start + file.size for begin, end, _ in runs
        ):
            return False
        try:
            view = file.view
        except OSError:
            return False
        end = offset + len(entries) // ENTRY.size
        low, high = self._page_cache.checked_run(queue) or (offset, offset)
        if not low <= offset <= high:
            low = high = offset
        if high < end:
            rows = list(ENTRY.iter_unpack(entries))[high - offset :]
            starts, sizes, _ = zip(*rows, strict=True)
            high += validate_run(view, file.start, starts, sizes, queue, high)
            self._page_cache.remember_checked(queue, low, high)
        return high >= end

    def filter_valid(  # noqa: PLR0912 - one pass over entries
        self, queue: ConsumeQueue, offset: int, entries: memoryview, codes: TagsCodes | None
    ) -> tuple[list[Run], int, list[int]]:
        """Return the good records that entries point to.

        Entries that point outside the log, or to a file that can't be read, are left out too.

        Returns:
            The records; the number of records known to be damaged; and the queue offsets of damaged
            messages for which the log has not been searched yet, since the entry may be at fault.
        """
        before = self._page_cache.checked_run(queue)
        low, high = before or (offset, offset)
        runs: list[Run] = []
        broken: list[int] = []
        view, base, limit, damaged, run_end = memoryview(b""), 0, 0, 0, -1
        for number, (start, size, tags_code) in enumerate(ENTRY.iter_unpack(entries), offset):
            if (codes is not None and tags_code not in codes) or size < FIXED_BYTES_V4:
                continue
            flaw = ""
            if not (base <= start and start + size <= limit):
                file = self._log.file_at(start)
                if file is None or start + size > self._log.end:
                    continue
                if start + size > file.start + file.size:
                    flaw = "it would go beyond the end of its file"
                else:
                    try:
                        view = file.view
                    except OSError:
                        continue
                    base, limit = file.start, min(file.start + file.size, self._log.end)
            if not flaw and not low <= number < high:
                flaw = validate_record(view, start - base, size, start, queue, number)
                if not flaw:
                    low, high = (low if number == high else number), number + 1
            if flaw and (start in self._searched or len(self._searched) >= self._max_named):
                damaged += 1
                self._damaged(queue.topic, queue.queue_id, number, start, flaw)
            elif flaw:
                broken.append(number)
            if flaw:
                continue
            if start == run_end:
                run_at, _, count = runs[-1]
                runs[-1] = run_at, start + size, count + 1
            else:
                runs.append((start, start + size, 1))
            run_end = start + size
        # A filter validates only few messages: don't let that replace a longer remembered run.
        if codes is None or before is None or before[0] == low:
            self._page_cache.remember_checked(queue, low, high)
        return runs, damaged, broken

    def give_up(self, place: int) -> None:
        """Treat the record at a physical offset as damaged: the log has no other for its entry."""
        self._searched.add(place)

    def lost(self, queue: ConsumeQueue, number: int, place: int, size: int) -> None:
        """Count and log a message whose entry is damaged and whose record the log does not have.

        Args:
            queue: of the message.
            number: its queue offset.
            place, size: physical offset and size from the entry.
        """
        flaw = (
            f"its queue entry is damaged (offset {place}, size {size}), and the log has no record"
            " of it between those of its neighbours"
        )
        key = queue.topic, queue.queue_id, number
        self._damaged(queue.topic, queue.queue_id, number, place, flaw, key=key)

    def is_sound(self, record: memoryview | None, head: memoryview, place: int) -> bool:
        """Return whether the record at physical offset ``place`` is good; if damaged, count it.

        Args:
            record: with the length in its header; None when the log is shorter.
            head: its first ``FIXED_BYTES_V4`` bytes.
            place: its physical offset.
        """
        scan = None if record is None else examine(record, 0)
        if isinstance(scan, FoundRecord):
            return True
        size, magic, queue_id, number, _ = _NUMBERS.unpack_from(head)
        # A client may ask for any offset: without a magic number there is no record to be damaged.
        if magic in {MAGIC_V1, MAGIC_V2}:
            reason = scan.reason if isinstance(scan, Invalid) else f"it can't have {size} bytes"
            self._damaged("", queue_id, number, place, reason)
        return False

    def _damaged(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        place: int,
        flaw: str,
        *,
        key: Hashable | None = None,
    ) -> None:
        """Count and log a damaged message, the first time it is met.

        ``key`` identifies it, by default its physical offset ``place``.
        """
        named = self._named
        if key is None:
            key = place
        if key in named:
            return
        self._stats.damaged_messages += 1
        if len(named) >= self._max_named:
            return
        named.add(key)
        file = self._log.file_at(place)
        _log.error(
            "a damaged message is not delivered; check the store with 'pocketmq store verify'",
            topic=topic,
            queue=queue_id,
            offset=offset,
            place=place,
            file="" if file is None else str(file.path),
            reason=flaw,
        )
        if len(named) == self._max_named:
            _log.error("more damaged messages are counted, but not named", named=len(named))


def validate_record(
    view: Buffer,
    at: int,
    size: int,
    place: int,
    queue: ConsumeQueue,
    number: int,
) -> str:
    """Return what is wrong with a record, for the log; empty when it is good.

    Args:
        view: holds ``size`` bytes from ``at`` on.
        at: where in ``view`` the record begins.
        size: from its queue entry.
        place: its physical offset.
        queue: to which it belongs.
        number: its queue offset.
    """
    if validate_run(view, place - at, (place,), (size,), queue, number):
        return ""
    return _look_closer(view, at, size, place, queue, number)


def validate_run(
    view: Buffer,
    base: int,
    starts: Sequence[int],
    sizes: Sequence[int],
    queue: ConsumeQueue,
    number: int,
) -> int:
    """Return how many consecutive messages, from the first on, have good records of the usual kind.

    These have version 1 and IPv4 hosts; ``validate_record`` also handles the others.

    Args:
        view: holds all of the records.
        base: physical offset of its first byte.
        starts: physical offset of each record.
        sizes: size of each record, from its entry.
        queue: to which they belong.
        number: queue offset of the first one.
    """
    queue_id = queue.queue_id
    tail = bytes((len(queue.topic_bytes),)) + queue.topic_bytes
    behind_body = _behind_body(len(tail))
    most = number
    for start, size in zip(starts, sizes, strict=True):
        at = start - base
        said, magic, crc, said_queue, said_number, said_place, sys_flag, length = _head(view, at)
        body_at = at + HEAD_BYTES_V4
        body_end = body_at + length
        left = at + size - body_end - len(tail) - 2
        if (
            said != size
            or said_place != start
            or said_number != most
            or said_queue != queue_id
            or magic != MAGIC_V1
            or sys_flag & HOSTS_V6_MASK
            or left < 0
            or behind_body(view, body_end) != (tail, left)
            or crc32(view[body_at:body_end]) & 0x7FFFFFFF != crc
        ):
            break
        most += 1
    return most - number


def _look_closer(
    view: Buffer, at: int, size: int, place: int, queue: ConsumeQueue, number: int
) -> str:
    """Return what is wrong with a record of any kind; arguments as ``validate_record``."""
    scan = examine(view, at, limit=at + size)
    if isinstance(scan, Invalid):
        return scan.reason
    if not isinstance(scan, FoundRecord):
        return "there is no record"
    if scan.size != size:
        return f"it has {scan.size} bytes, but {size} according to its queue entry"
    _, _, queue_id, said_number, said_place = _NUMBERS.unpack_from(view, at)
    if said_place != place:
        return f"its physical offset is {said_place}"
    if queue.topic.startswith(LIGHT_PREFIX):
        return ""
    if (queue_id, said_number) != (queue.queue_id, number):
        return f"it has queue offset {said_number} of queue {queue_id}"
    _, _, _, topic_at, topic_end, _ = locate(view, at, at + size)
    topic = bytes(view[topic_at:topic_end])
    if topic != queue.topic_bytes:
        return f"its topic is {topic.decode('utf-8', 'replace')}"
    return ""


@cache
def _behind_body(topic_bytes: int) -> Callable[[Buffer, int], tuple[Any, ...]]:
    """Return an unpacker for what follows the body: topic with its length, properties' length.

    Args:
        topic_bytes: bytes of the topic and its length together.
    """
    return Struct(f">{topic_bytes}sh").unpack_from
