"""What one task reads, and how a limit and a range are divided among queues and tasks.

Ranges are plain data, so they can be pickled and compared. Offsets are dense, so a range is cut
exactly: the pieces lie end to end, none is empty, and their sizes differ by at most one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from remoting.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class RangePartition:
    """The messages ``[start, end)`` of one queue.

    Attributes:
        topic, broker_name, queue_id: the queue.
        start, end: queue offsets; the end is excluded.
        addresses: where its broker serves it, ``host:port``, the master first.
    """

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    addresses: tuple[str, ...]

    @property
    def queue(self) -> MessageQueue:
        """The queue as errors and logs name it."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def offsets(self) -> int:
        """How many offsets it has: the most messages it can give."""
        return self.end - self.start


def share(available: Sequence[int], limit: int) -> list[int]:
    """How much of each may be taken so that ``limit`` is taken in all.

    Each gets its part in proportion, what rounding leaves goes to those it was taken from most, and
    nobody who has something gets nothing: a small queue beside large ones must not starve. So when
    there are more queues than ``limit``, one of each is taken, and that is more than ``limit``.
    """
    total = sum(available)
    if total <= limit:
        return list(available)
    given = [min(size, max(1, limit * size // total)) if size else 0 for size in available]
    rest = limit - sum(given)
    if rest >= 0:
        _give(given, available, limit, total, rest)
    else:
        _take(given, -rest)
    return given


def _give(given: list[int], available: Sequence[int], limit: int, total: int, rest: int) -> None:
    """Hand out what rounding down left: at most one more for each."""
    by_remainder = sorted(
        (index for index in range(len(given)) if given[index] < available[index]),
        key=lambda index: (-(limit * available[index] % total), index),
    )
    for index in by_remainder[:rest]:
        given[index] += 1


def _take(given: list[int], excess: int) -> None:
    """Take back what the ones for small queues are too much, from the largest shares."""
    for index in sorted(range(len(given)), key=lambda index: -given[index]):
        taken = min(excess, max(0, given[index] - 1))
        given[index] -= taken
        excess -= taken


def split(
    ranges: Iterable[RangePartition], *, min_partitions: int = 1, max_records: int
) -> list[RangePartition]:
    """Cut ranges so that no piece has more than ``max_records`` offsets.

    Args:
        ranges: one for each queue; empty ones are left out.
        min_partitions: at least so many pieces, if there are that many offsets; the larger ranges
            get more of them.
        max_records: offsets in one piece at most.
    """
    wanted = [one for one in ranges if one.offsets > 0]
    counts = [-(-one.offsets // max_records) for one in wanted]
    if sum(counts) < min_partitions:
        counts = share([one.offsets for one in wanted], min_partitions)
        # Sharing may take from a range the pieces that its size asks for.
        counts = [
            max(count, -(-one.offsets // max_records))
            for one, count in zip(wanted, counts, strict=True)
        ]
    return [piece for one, count in zip(wanted, counts, strict=True) for piece in _cut(one, count)]


def _cut(whole: RangePartition, count: int) -> list[RangePartition]:
    edges = [whole.start + whole.offsets * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]
