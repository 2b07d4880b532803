"""What a range of a queue takes in the log, counted by the queue's entries.

An entry has its record's size, so no record is touched. Entries are looked at slice by slice, each
in well under a millisecond, and the loop turns in between; what is not in memory is read in a
thread like any cold read. Entries that stand for no message have no bytes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple

from broker.store.cold_reads import ColdReads
from broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from remoting.protocol.byte_range import ByteAnswer, ByteQuestion
from remoting.protocol.disk.files import ENTRY_BYTES

MAX_LOOKED_AT: Final = 262_144
"""Entries that one request looks at: 5 MiB of the queue, and some 3 ms of the loop in all."""

SLICE_ENTRIES: Final = 4096
"""Entries between two turns of the loop: 25 us when no limit falls among them, else 0.1 ms."""


class _Portion(NamedTuple):
    """What a slice's beginning comes to; ``following``: the size that has no room any more."""

    entries: int
    size: int
    following: int | None


async def measure(
    cold_reads: ColdReads, owner: Hashable, queue: ConsumeQueue, question: ByteQuestion
) -> ByteAnswer:
    """How many bytes a range has, and how far a limit reaches.

    Args:
        cold_reads: of the queue's store.
        owner: who asks; see ``MessageStore.get_patiently``.
        queue: of the messages.
        question: which of them.

    Raises:
        StoreBusy: too many wait for the disk already.
        StoreError: the disk can't be read, or the queue is gone.
    """
    size = 0
    at = _within(queue, question.begin, question.end)
    end = min(question.end, queue.max_offset, at + MAX_LOOKED_AT)
    while at < end:
        rest = None if question.limit is None else question.limit - size
        longest = min(SLICE_ENTRIES, end - at)
        portion = _portion(await cold_reads.packed_entries(owner, queue, at, longest), rest)
        size += portion.size
        at += portion.entries
        if portion.following is not None:
            return ByteAnswer(size, at, portion.following)
        await asyncio.sleep(0)
        # The queue may have lost its beginning meanwhile.
        at = _within(queue, at, question.end)
    return ByteAnswer(size, at)


def _within(queue: ConsumeQueue, offset: int, end: int) -> int:
    return max(offset, min(queue.min_offset, end))


def _portion(entries: memoryview, rest: int | None) -> _Portion:
    sizes: Sequence[int] = _sizes(len(entries) // ENTRY_BYTES).unpack(entries)
    total = sum(sizes)
    if total >= FILLER_SIZE:
        sizes = [size if size < FILLER_SIZE else 0 for size in sizes]
        total = sum(sizes)
    if rest is None or total <= rest:
        return _Portion(len(sizes), total, None)
    totals = list(accumulate(sizes, initial=0))
    count = bisect_right(totals, rest) - 1
    return _Portion(count, totals[count], sizes[count])


@lru_cache(maxsize=8)
def _sizes(count: int) -> Struct:
    """Takes the sizes from so many entries; one that is below 0 is very large, like a filler's."""
    return Struct(">" + "8xI8x" * count)
