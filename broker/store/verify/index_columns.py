"""Entries of an index file as columns of numpy: whether all of many are as they should be.

Where they are not, the answer is no, and who asked looks at them one by one. Imported only where
numpy can be had.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.int64]

ENTRIES: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("before", ">i4")]
)
_LOW: Final = 32
_WORD: Final = 0xFFFFFFFF


def reach(data: bytearray, border: int) -> bool:
    """Whether one of some packed entries lies at or behind a physical offset."""
    return bool(np.frombuffer(data, ENTRIES)["offset"].max() >= border)


def chain(data: bytearray, first: int, newest: array[int], slots: int) -> bool:
    """Whether entries lead where a writer would have them lead; then ``newest`` is brought on.

    Args:
        data: packed entries.
        first: number of the first of them.
        newest: of each slot the entry that it leads to before them.
        slots: how many there are.
    """
    entries = np.frombuffer(data, ENTRIES)
    count = len(entries)
    chained = (entries["hash"].astype(np.int64) % slots << _LOW) | np.arange(count)
    chained.sort()
    order, slot = chained & _WORD, chained >> _LOW
    begins = np.ones(count, np.bool_)
    np.not_equal(slot[1:], slot[:-1], out=begins[1:])
    table = np.frombuffer(newest, np.int32)
    before = np.empty(count, np.int64)
    before[1:] = first + order[:-1]
    before[begins] = table[slot[begins]]
    if not np.array_equal(entries["before"][order], before):
        return False
    ends = np.append(begins[1:], True)
    table[slot[ends]] = first + order[ends]
    return True


def match(data: bytearray, hashes: _Ints, offsets: _Ints, times_ms: _Ints, begin_ms: int) -> bool:
    """Whether packed entries are those of keys, dated from a time that is not 0."""
    entries = np.frombuffer(data, ENTRIES)
    if len(entries) != len(hashes):
        return False
    seconds = np.clip((times_ms - begin_ms) // 1000, 0, 0x7FFFFFFF)
    return bool(
        np.array_equal(entries["offset"], offsets)
        and np.array_equal(entries["hash"], hashes)
        and np.array_equal(entries["seconds"], seconds)
    )


def before(data: bytearray, start: int, end: int) -> int:
    """How many entries, from one with a number on, lie before the first two behind ``end``.

    Fewer than there are only if two such follow one another.
    """
    behind = np.frombuffer(data, ENTRIES)["offset"][start:] >= end
    both = behind[:-1] & behind[1:]
    return int(np.argmax(both)) if both.any() else len(behind)
