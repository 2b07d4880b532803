"""The keys of many records at once, by numpy.

The records of a piece of the log are found first: a run of records of one size is recognised by
their heads, which are then a column. Topic and properties of those with equally long ones are laid
out as a matrix. Its first row is taken apart; rows that have the same names, separators and keys'
lengths as it has (all bytes but the values) have their keys in the same columns, so the hashes are
sums over columns. What is alike in no such way goes ``batch``'s way. The result is the same.

Imported only where numpy can be had, in the index's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.store.index.batch import KEY_END, Walked, hashes_of, topic_prefix
from broker.store.index.column_batch import ColumnBatch
from broker.store.index.limits import MAX_MODELS, MIN_ALIKE
from remoting.protocol.errors import RecordError
from remoting.protocol.message import properties
from remoting.protocol.message.record import (
    FIXED_BYTES_V4,
    HEAD_BYTES_V4,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    STORE_TIMESTAMP_AT_V4,
    SYS_FLAG_AT,
)
from remoting.protocol.message.sys_flag import (
    BORN_HOST_V6,
    HOSTS_V6_MASK,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)
from remoting.protocol.message.tags import java_hash

_Ints = NDArray[np.int64]
_Bytes = NDArray[np.uint8]

_START: Final = Struct(">II")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
_NOTHING: Final = (0, 0)
_MAGIC_END_AT: Final = 7
_MAGIC_END: Final = MAGIC_V1 & 0xFF
_BODY_LENGTH_AT: Final = HEAD_BYTES_V4 - 4
_STORE_TIMESTAMP_AT_V6: Final = STORE_TIMESTAMP_AT_V4 + 12
_SIGN: Final = 1 << 31
_WORD: Final = 0xFFFFFFFF

# A record's number before a key's in one integer: a text of 32 KiB has fewer keys than that.
_ORDINAL_BITS: Final = 16

_LONGEST_KEY: Final = 1024
_POWERS: Final = np.array(
    [pow(31, exponent, 1 << 32) for exponent in range(_LONGEST_KEY - 1, -1, -1)], np.uint32
)
_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()
_KEYS: Final = properties.KEYS.encode()
_ENTRY_END: Final = properties.ENTRY_END[0]
_SIDE_BY_SIDE: Final = 16
_FIRST_PRINTED: Final = 0x21
_LAST_PRINTED: Final = 0x7E
_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("before", ">i4")]
)


class _Found(NamedTuple):
    """Keys that were found.

    Attributes:
        order: number of the record, and of the key in it.
        hashes: of the keys, unsigned.
    """

    order: _Ints
    hashes: _Ints


class _Records:
    """Records in a piece of the log, as columns."""

    def __init__(self, data: memoryview, starts: _Ints, end: int) -> None:
        """Those that begin at ``starts``; the last one ends at ``end``."""
        self.data = data
        self.bytes: _Bytes = np.frombuffer(data, np.uint8)
        self.starts = starts
        self.sizes = np.diff(starts, append=end)
        self._step = int(self.sizes[0]) if are_alike(self.sizes) else 0
        flags = self._field(">i4", SYS_FLAG_AT)
        self.times_ms = self._field(">i8", STORE_TIMESTAMP_AT_V4)
        rolled_back = flags & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        elsewhere = flags & BORN_HOST_V6 != 0
        if elsewhere.any():
            far = self.column(">i8", starts[elsewhere] + _STORE_TIMESTAMP_AT_V6)
            self.times_ms[elsewhere] = far
        usual = (flags & HOSTS_V6_MASK == 0) & (self._field("u1", _MAGIC_END_AT) == _MAGIC_END)
        self.usual: NDArray[np.bool_] = usual & ~rolled_back
        self._find_tails(self._field(">u4", _BODY_LENGTH_AT))

    def _field(self, kind: str, at: int) -> _Ints:
        """The numbers that stand at this place of each record."""
        if not self._step:
            return self.column(kind, self.starts + at)
        # Evenly spaced, they are a column already.
        begin, step = int(self.starts[0]) + at, self._step
        evenly: NDArray[np.integer] = np.ndarray(
            (len(self.starts),), kind, self.data, begin, strides=(step,)
        )
        return evenly.astype(np.int64)

    def column(self, kind: str, at: _Ints) -> _Ints:
        """Numbers that stand at these places."""
        width = np.dtype(kind).itemsize
        everywhere: NDArray[np.integer] = np.ndarray(
            (len(self.data) - width + 1,), kind, self.data, strides=(1,)
        )
        return everywhere[at].astype(np.int64)

    def _find_tails(self, body: _Ints) -> None:
        """Where topics and properties lie, of usual records with bodies of these lengths."""
        starts, ends = self.starts, self.starts + self.sizes
        self.usual &= body <= self.sizes - FIXED_BYTES_V4
        self.tails = starts + HEAD_BYTES_V4 + np.where(self.usual, body, 0)
        topics = self.bytes[self.tails].astype(np.int64)
        texts_at = self.tails + 1 + topics
        self.usual &= texts_at + 2 <= ends
        texts = self.column(">u2", np.where(self.usual, texts_at, starts))
        self.usual &= texts_at + 2 + texts == ends
        self.lengths = np.where(self.usual, ends - self.tails, 0)

    def rows(self, length: int, records: _Ints) -> _Bytes:
        """Topic and properties of records as a matrix, the last of them repeated to fill it."""
        tails, count = self.tails[records], len(records)
        missing = -count % _SIDE_BY_SIDE
        if self._step and count == len(self.starts):
            evenly: _Bytes = np.ndarray(
                (count, length), np.uint8, self.data, int(tails[0]), strides=(self._step, 1)
            )
            rows = np.empty((count + missing, length), np.uint8)
            rows[:count] = evenly
            rows[count:] = evenly[-1]
            return rows
        windows: _Bytes = np.ndarray(
            (len(self.bytes) - length + 1, length), np.uint8, self.data, strides=(1, 1)
        )
        return windows[np.append(tails, tails[-1:].repeat(missing)) if missing else tails]

    def singly(self, records: _Ints) -> _Found:
        """Keys of records that are looked at one by one. Raises ``RecordError``."""
        order: list[int] = []
        hashes: list[int] = []
        for record in records.tolist():
            start = int(self.starts[record])
            _, found = hashes_of(self.data, start, start + int(self.sizes[record]))
            order += range(record << _ORDINAL_BITS, (record << _ORDINAL_BITS) + len(found))
            hashes += found
        return _Found(np.array(order, np.int64), np.array(hashes, np.int64))


class _Model:
    """Topic and properties that were taken apart.

    Attributes:
        sums: of each key its columns, and the hash of what is before it in what is hashed, times
            the power that the key's length gives it.
    """

    def __init__(self, row: bytes) -> None:
        self.possible = True
        # What a byte of another row may be: at least this, and at most so much more.
        self._least = np.frombuffer(row, np.uint8).copy()
        self._spread = np.zeros(len(row), np.uint8)
        topic_end = 1 + row[0]
        self._prefix = java_hash(topic_prefix(row[1:topic_end])) & _WORD
        self.sums: list[tuple[int, int, int]] = []
        unique, keys = self._spans(row, topic_end + 2)
        self._add(unique)
        at, end = keys
        for key in row[at:end].split(KEY_END):
            self._add((at, at + len(key)))
            at += len(key) + 1

    def _spans(self, row: bytes, at: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Where the values of UNIQ_KEY and KEYS are; all others may be anything."""
        unique = keys = (0, 0)
        for entry in row[at:].split(properties.ENTRY_END):
            name, _, value = entry.partition(properties.NAME_END)
            begin, at = at + len(entry) - len(value), at + len(entry) + 1
            if not name or not value:
                continue
            if name == _UNIQ_KEY:
                unique = (begin, begin + len(value))
            elif name == _KEYS:
                keys = (begin, begin + len(value))
            else:
                self._allow(begin, begin + len(value), _ENTRY_END + 1, 0xFF)
        return unique, keys

    def _add(self, span: tuple[int, int]) -> None:
        begin, end = span
        if begin == end:
            return
        self.possible &= end - begin <= _LONGEST_KEY
        # A space would separate keys; what is beyond ASCII is not one unit for a byte.
        self._allow(begin, end, _FIRST_PRINTED, _LAST_PRINTED)
        self.sums.append((begin, end, self._prefix * pow(31, end - begin, 1 << 32) & _WORD))

    def _allow(self, begin: int, end: int, least: int, most: int) -> None:
        self._least[begin:end] = least
        self._spread[begin:end] = most - least

    def misfits(self, rows: _Bytes) -> NDArray[np.bool_] | None:
        """Which rows have other names, separators or keys' places; None: none has."""
        return out_of_bounds(rows, self._least, self._spread)

    def hashes(self, rows: _Bytes) -> _Ints:
        """Of the keys, a row for each record: see ``key_hash``."""
        found = np.empty((len(rows), len(self.sums)), np.uint32)
        for column, (begin, end, prefix) in enumerate(self.sums):
            powers = _POWERS[begin - end :]
            found[:, column] = np.einsum(
                "ij,j->i", rows[:, begin:end], powers, dtype=np.uint32, casting="unsafe"
            )
            found[:, column] += np.uint32(prefix)
        absolute = np.abs(found.view(np.int32).astype(np.int64))
        absolute[absolute == _SIGN] = 0
        return absolute


def walk(data: memoryview, base: int) -> Walked:
    """See ``batch.walk``."""
    starts, used = find_starts(data, base)
    if not len(starts):
        return Walked(ColumnBatch(starts, starts, starts), 0)
    records = _Records(data, starts, used)
    try:
        pieces = list(_keys_of(records))
    except RecordError:
        return Walked(ColumnBatch(starts[:0], starts[:0], starts[:0]), 0)
    order = np.concatenate([piece.order for piece in pieces])
    hashes = np.concatenate([piece.hashes for piece in pieces])
    if len(pieces) > 1:
        by_place = np.argsort(order)
        order, hashes = order[by_place], hashes[by_place]
    numbers = order >> _ORDINAL_BITS
    return Walked(ColumnBatch(hashes, base + starts[numbers], records.times_ms[numbers]), used)


def _keys_of(records: _Records) -> Iterator[_Found]:
    # Those that were rolled back too: they have no keys, but their lengths must agree.
    single = [np.flatnonzero(~records.usual)]
    for length, group in by_length(records.lengths):
        left = group
        for _ in range(MAX_MODELS):
            if len(left) < MIN_ALIKE:
                break
            rows = records.rows(length, left)
            model = _Model(rows[0].tobytes())
            odd = model.misfits(rows)
            if not model.possible or (odd is not None and odd[0]):
                break
            count = len(left)
            if odd is None:
                yield _of_model(model, rows[:count], left)
                left = left[:0]
            else:
                odd = odd[:count]
                yield _of_model(model, rows[:count][~odd], left[~odd])
                left = left[odd]
        single.append(left)
    yield records.singly(np.sort(np.concatenate(single)))


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


def _of_model(model: _Model, rows: _Bytes, records: _Ints) -> _Found:
    order = (records[:, np.newaxis] << _ORDINAL_BITS) + np.arange(len(model.sums))
    return _Found(order.reshape(-1), model.hashes(rows).reshape(-1))


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
