"""Checks that records are what was stored, before they leave the store.

Records that may have come from a disk (``page_cache.needs_check``) are compared with their queue
entry (position, size, number, queue, topic) and with their own CRC. Nothing in a record covers its
properties, hosts and times.

A damaged record is left out, counted and named once; those behind it are served. But the queue's
entry may be damaged instead: first the log is searched for the message (``restore``).

Only the loop's thread comes here.
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
"""Queues of other brokers whose entries point to messages of other topics."""

_log = structlog.get_logger("store")


class RecordValidator:
    """Tells sound records from damaged ones, for one store."""

    def __init__(
        self, log: CommitLog, page_cache: PageCacheTracker, stats: StoreStats, limits: StoreLimits
    ) -> None:
        self._log = log
        self._page_cache = page_cache
        self._stats = stats
        self._max_named = limits.max_named_damage
        self._named: set[Hashable] = set()
        # Places of records that are damaged, or else their entries are: the log has no others.
        self._searched: set[int] = set()

    def are_sound(
        self,
        queue: ConsumeQueue,
        offset: int,
        starts: Sequence[int],
        sizes: Sequence[int],
        view: memoryview,
        base: int,
    ) -> bool:
        """Whether all of some consecutive messages are sound.

        Args:
            queue: whose messages.
            offset: number of the first one.
            starts: physical offset of each.
            sizes: of each, by its entry.
            view: a file that holds all of them.
            base: the file's first physical offset.
        """
        low, high = self._page_cache.checked(queue) or (offset, offset)
        if not low <= offset <= high:
            low = high = offset
        known, end = high - offset, offset + len(starts)
        if known:
            starts, sizes = starts[known:], sizes[known:]
        if high < end:
            high += validate_run(view, base, starts, sizes, queue, high)
            self._page_cache.remember_checked(queue, low, high)
        return high >= end

    def filter_valid(  # noqa: PLR0912 - one pass over entries
        self, queue: ConsumeQueue, offset: int, entries: memoryview, codes: TagsCodes | None
    ) -> tuple[list[Run], int, list[int]]:
        """The records that entries point to, but for the damaged ones.

        Entries that point outside the log, or to a file that can't be read, are left out too.

        Returns:
            The records, how many are known to be damaged, and the numbers of those whose entries
            may be damaged instead.
        """
        before = self._page_cache.checked(queue)
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
        # The few messages of a filter must not replace what is known of all.
        if codes is None or before is None or before[0] == low:
            self._page_cache.remember_checked(queue, low, high)
        return runs, damaged, broken

    def give_up(self, place: int) -> None:
        """Count the record at a place as damaged: the log has no other one for its entry."""
        self._searched.add(place)

    def lost(self, queue: ConsumeQueue, number: int, place: int, size: int) -> None:
        """Count and name a message whose entry is damaged and whose record the log does not have.

        Args:
            queue: of the message.
            number: its own there.
            place, size: from the entry.
        """
        flaw = (
            f"its queue's entry is damaged (place {place}, size {size}), and the log has no record"
            " of it between those of its neighbours"
        )
        key = queue.topic, queue.queue_id, number
        self._damaged(queue.topic, queue.queue_id, number, place, flaw, key=key)

    def is_sound(self, record: memoryview | None, head: memoryview, place: int) -> bool:
        """Whether the record that begins at ``place`` is sound.

        Args:
            record: of the length in its head; None when the log is shorter.
            head: its first bytes, those of the shortest record.
        """
        scan = None if record is None else examine(record, 0)
        if isinstance(scan, FoundRecord):
            return True
        size, magic, queue_id, number, _ = _NUMBERS.unpack_from(head)
        # A client may ask for any offset: without a magic there never was a record.
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
        """Count a damaged message, and name it, the first time it is met.

        It is known again by its place, or by ``key``.
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
    """What is wrong with a record; nothing when it is sound.

    Args:
        view: holds as many bytes from ``at`` on as the record has.
        at: where it begins.
        size: its length by its queue.
        place: its physical offset.
        queue: the one that it belongs to.
        number: its own there.
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
    """How many consecutive messages, from the first one on, are records of the usual kind, sound.

    Args:
        view: holds all of them.
        base: its first physical offset.
        starts: physical offset of each.
        sizes: of each, by its entry.
        queue: the one that they belong to.
        number: of the first one there.
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
    """The same for any record."""
    scan = examine(view, at, limit=at + size)
    if isinstance(scan, Invalid):
        return scan.reason
    if not isinstance(scan, FoundRecord):
        return "there is no record"
    if scan.size != size:
        return f"it has {scan.size} bytes, and {size} by its queue"
    _, _, queue_id, said_number, said_place = _NUMBERS.unpack_from(view, at)
    if said_place != place:
        return f"it says that it is at {said_place}"
    if queue.topic.startswith(LIGHT_PREFIX):
        return ""
    if (queue_id, said_number) != (queue.queue_id, number):
        return f"it says that it is message {said_number} of queue {queue_id}"
    _, _, _, topic_at, topic_end, _ = locate(view, at, at + size)
    topic = bytes(view[topic_at:topic_end])
    if topic != queue.topic_bytes:
        return f"it says that its topic is {topic.decode('utf-8', 'replace')}"
    return ""


@cache
def _behind_body(topic_bytes: int) -> Callable[[Buffer, int], tuple[Any, ...]]:
    """Reads what stands behind a usual body: the topic with its length, and the properties' length.

    Args:
        topic_bytes: how long those of the topic and its length are.
    """
    return Struct(f">{topic_bytes}sh").unpack_from
