"""Records of a piece of the log by their shapes, by numpy: where they begin, which are alike."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.store.index.limits import MIN_ALIKE
from remoting.protocol.message.record import (
    FIXED_BYTES_V4,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
)

_Ints = NDArray[np.int64]
_Bytes = NDArray[np.uint8]

_START: Final = Struct(">II")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
_NOTHING: Final = (0, 0)
_SIDE_BY_SIDE: Final = 16


def out_of_bounds(rows: _Bytes, least: _Bytes, spread: _Bytes) -> NDArray[np.bool_] | None:
    """Which rows have a byte below its column's least, or that exceeds it by more than the spread.

    Args:
        rows: as many as go side by side, see ``_Records.rows``.
        least: of each column.
        spread: of each column, at most 255 less the least.

    Returns:
        None when there is none.
    """
    # Many rows side by side: numpy has to begin anew for each row it is given.
    wide = rows.reshape(-1, _SIDE_BY_SIDE * rows.shape[1])
    low, most = np.tile(least, _SIDE_BY_SIDE), np.tile(least + spread, _SIDE_BY_SIDE)
    if not ((wide.min(axis=0) < low).any() or (wide.max(axis=0) > most).any()):
        return None
    odd: NDArray[np.bool_] = np.any((rows < least) | (rows > least + spread), axis=1)
    return odd


def are_alike(numbers: _Ints) -> bool:
    """Whether all of them, if there are any, are the same."""
    return bool((numbers == numbers[:1]).all())


def by_length(lengths: _Ints) -> Iterator[tuple[int, _Ints]]:
    """Each length other than 0, and the numbers of the records that have it."""
    if len(lengths) and are_alike(lengths):
        if lengths[0]:
            yield int(lengths[0]), np.arange(len(lengths))
        return
    order = np.argsort(lengths, kind="stable")
    borders = np.flatnonzero(np.diff(lengths[order])) + 1
    for group in np.split(order, borders) if len(order) else ():
        if lengths[group[0]]:
            yield int(lengths[group[0]]), group


def find_starts(data: memoryview, base: int) -> tuple[_Ints, int]:
    """Where whole records begin, and where the last one of them ends.

    Args:
        data: a piece of the log.
        base: physical offset of its first byte.
    """
    pieces: list[_Ints] = []
    single: list[int] = []
    at, last = 0, len(data) - FIXED_BYTES_V4
    head = _START.unpack_from(data) if last >= 0 else _NOTHING
    while at <= last:
        size, magic = head
        following = at + size
        if magic not in _MAGICS or size < FIXED_BYTES_V4 or following > len(data):
            break
        before, head = head, _START.unpack_from(data, following) if following <= last else _NOTHING
        if head == before and (run := _run_of(data, at, size)) >= MIN_ALIKE:
            pieces += [np.array(single, np.int64), np.arange(at, at + run * size, size)]
            single = []
            at += run * size
            head = _START.unpack_from(data, at) if at <= last else _NOTHING
        else:
            single.append(at)
            at = following
    pieces.append(np.array(single, np.int64))
    return _where_they_say(data, base, np.concatenate(pieces), at)


def _run_of(data: memoryview, at: int, size: int) -> int:
    """How many records with the size of the one at a place follow each other there."""
    count = (len(data) - at) // size
    # In the machine's own order of bytes: they are only compared.
    heads: NDArray[np.unsignedinteger] = np.ndarray((count,), "=u8", data, at, strides=(size,))
    equal = heads == heads[0]
    return count if equal.all() else int(np.argmin(equal))


def _where_they_say(data: memoryview, base: int, starts: _Ints, end: int) -> tuple[_Ints, int]:
    """Those before the first that does not lie where it says it does."""
    if not len(starts):
        return starts, 0
    everywhere: NDArray[np.signedinteger] = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    wrong = everywhere[starts + PHYSICAL_OFFSET_AT] != base + starts
    if not wrong.any():
        return starts, end
    first = int(np.argmax(wrong))
    return starts[:first], int(starts[first])
