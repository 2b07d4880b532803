"""Consecutive messages that lie near to each other in one file of the log: looked at as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count, pairwise
from operator import add, ne
from typing import Final, NamedTuple

from broker.store.commit_log import CommitLog
from broker.store.limits import GRANULE_BYTES
from broker.store.results import FileRange

MIN_RUNS_MESSAGES: Final = 65
"""From here on adjacent records are looked for: Apache's clients pull 32 at a time, ours 512."""


class Span(NamedTuple):
    """Some of a get's messages.

    Attributes:
        place: from the first one's begin to the last one's end, with what may lie between.
        low: index of the first one.
        high: index behind the last one.
    """

    place: FileRange
    low: int
    high: int


def spans_of(log: CommitLog, starts: Sequence[int], sizes: Sequence[int]) -> list[Span]:
    """The spans of consecutive messages; none when one of them is in no file, or not in one whole.

    Messages are near when no granule lies between them that neither has a part in.

    Args:
        log: what they lie in.
        starts: physical offset of each.
        sizes: of each.
    """
    spans = []
    file = None
    low = begin = end = limit = base = 0
    for index, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        behind = start + size
        if end <= start <= end + GRANULE_BYTES and behind <= limit:
            end = behind
            continue
        if file is not None:
            spans.append(Span(FileRange(file, begin - base, end - base), low, index))
        file = log.file_at(start)
        if file is None or behind > file.start + file.size:
            return []
        low, begin, end, base = index, start, behind, file.start
        limit = base + file.size
    if file is not None:
        spans.append(Span(FileRange(file, begin - base, end - base), low, len(starts)))
    return spans


def slices_of(
    view: memoryview, base: int, starts: Sequence[int], sizes: Sequence[int]
) -> list[memoryview]:
    """Slices of a file that begins at physical offset ``base``: its records, one after the other.

    Of a few records each has its own: queues in turns leave no two side by side. Of many, those
    that are adjacent come as one, as a producer's batches left them.
    """
    if len(starts) < MIN_RUNS_MESSAGES:
        return [
            view[start - base : start - base + size]
            for start, size in zip(starts, sizes, strict=True)
        ]
    ends = list(map(add, starts, sizes))
    breaks = compress(count(1), map(ne, ends, starts[1:]))
    bounds = pairwise((0, *breaks, len(starts)))
    return [view[starts[low] - base : ends[high - 1] - base] for low, high in bounds]
