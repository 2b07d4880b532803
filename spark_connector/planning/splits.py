"""Ranges cut into tasks: exactly, because offsets are dense.

The pieces of a range lie end to end, none is empty, and their sizes differ by at most one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from spark_connector.planning.ranges import RangePartition
from spark_connector.planning.shares import share


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
