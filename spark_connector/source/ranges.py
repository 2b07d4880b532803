"""Ranges of queue offsets: dividing a limit among queues, and splitting ranges into tasks.

Ranges are plain data, so they can be pickled and compared. Offsets are dense, so the pieces of a
range are adjacent, none is empty, and their sizes differ by at most one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import pairwise
from operator import itemgetter

from remoting.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class RangePartition:
    """The messages ``[start, end)`` of one queue.

    Attributes:
        topic, broker_name, queue_id: the queue.
        start, end: queue offsets, the end excluded.
        addresses: the addresses of its broker, ``host:port``, the master first.
    """

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    addresses: tuple[str, ...]

    @property
    def queue(self) -> MessageQueue:
        """The queue of the range."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def offsets(self) -> int:
        """The number of offsets, which is the most messages it can have."""
        return self.end - self.start


def share(available: Sequence[int], limit: int) -> list[int]:
    """Divide a limit among queues, in proportion to their available messages.

    The remainder of rounding down goes to the largest fractions. Every queue with messages gets at
    least one, so that small queues don't starve beside large ones. So with more such queues than
    ``limit`` the sum exceeds the limit.

    Args:
        available: the number of available messages of each queue.
        limit: the sum of the shares.

    Returns:
        The share of each queue.
    """
    total = sum(available)
    if total <= limit:
        return list(available)
    shares = [min(size, max(1, limit * size // total)) if size else 0 for size in available]
    rest = limit - sum(shares)
    if rest >= 0:
        _give(shares, available, limit, total, rest)
    else:
        _take(shares, -rest)
    return shares


def _give(given: list[int], available: Sequence[int], limit: int, total: int, rest: int) -> None:
    """Distribute what rounding down left: at most one more for each."""
    by_remainder = sorted(
        (index for index in range(len(given)) if given[index] < available[index]),
        key=lambda index: (-(limit * available[index] % total), index),
    )
    for index in by_remainder[:rest]:
        given[index] += 1


def _take(given: list[int], excess: int) -> None:
    """Reduce the largest shares by the excess that the minimum of one has caused."""
    for index in sorted(range(len(given)), key=lambda index: -given[index]):
        taken = min(excess, max(0, given[index] - 1))
        given[index] -= taken
        excess -= taken


def split(
    ranges: Iterable[RangePartition], *, min_partitions: int = 1, max_records: int
) -> list[RangePartition]:
    """Split ranges into pieces of at most ``max_records`` offsets.

    Args:
        ranges: one per queue; empty ones are dropped.
        min_partitions: the least number of pieces, if there are as many offsets; larger ranges are
            split into more pieces.
        max_records: the most offsets of a piece.
    """
    ranges = [whole for whole in ranges if whole.offsets > 0]
    counts = [-(-whole.offsets // max_records) for whole in ranges]
    if sum(counts) < min_partitions:
        # A share may be below the number of pieces that max_records requires.
        shares = share([whole.offsets for whole in ranges], min_partitions)
        counts = list(map(max, counts, shares))
    return [
        piece for whole, count in zip(ranges, counts, strict=True) for piece in _cut(whole, count)
    ]


def gather(pieces: Sequence[RangePartition], most: int) -> list[list[RangePartition]]:
    """Distribute pieces over at most ``most`` lists with about equal numbers of offsets."""
    if len(pieces) <= most:
        return [[piece] for piece in pieces]
    # The next largest piece goes to the list that has the fewest offsets.
    lists: list[tuple[int, int, list[RangePartition]]] = [(0, n, []) for n in range(most)]
    for piece in sorted(pieces, key=lambda piece: -piece.offsets):
        offsets, number, shared = lists[0]
        shared.append(piece)
        heapreplace(lists, (offsets + piece.offsets, number, shared))
    return [shared for _, _, shared in sorted(lists, key=itemgetter(1))]


def _cut(whole: RangePartition, count: int) -> list[RangePartition]:
    edges = [whole.start + whole.offsets * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]
