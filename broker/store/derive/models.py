"""Topic and properties of many records at once, by numpy.

Records with equally long topic and properties are laid out as a matrix of these. Its first row is
taken apart; rows that have the same names and separators, and topic, tag and keys of the same
lengths, have them in the same columns, so their hashes are sums over columns (see
``index.columns``, which does so for keys alone).

Imported only where numpy can be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.store.index.batch import KEY_END, topic_prefix
from broker.store.index.columns import by_length, out_of_bounds
from broker.store.index.limits import MIN_ALIKE
from remoting.protocol.message import properties
from remoting.protocol.message.tags import java_hash
from remoting.protocol.names import SCHEDULE_TOPIC, validate_topic

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_Bytes = NDArray[np.uint8]

_WORD: Final = 0xFFFFFFFF
_SIGN: Final = 1 << 31
_LONGEST: Final = 1024
_MAX_MODELS: Final = 64
_SIDE_BY_SIDE: Final = 16
_POWERS: Final = np.array([pow(31, n, 1 << 32) for n in range(_LONGEST - 1, -1, -1)], np.uint32)
_TAGS: Final = properties.TAGS.encode()
_KEYS: Final = properties.KEYS.encode()
_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()


class Alike(NamedTuple):
    """Records that are alike.

    Attributes:
        records: their numbers.
        topics: that ``which`` counts.
        which: the topic of each.
        codes: their tags codes.
        hashes: of each key a column of its hashes.
    """

    records: Ints
    topics: list[str]
    which: Ints
    codes: Ints
    hashes: list[Ints]


class Model:
    """Topic and properties that were taken apart."""

    def __init__(self, row: bytes) -> None:
        self._least = np.frombuffer(row, np.uint8).copy()
        self._spread = np.zeros(len(row), np.uint8)
        end = self._topic_end = 1 + row[0]
        # A zero that is not of a length is odd: a disk may have lost what stood there.
        self.possible = end > 1 and 0 not in row[1:end] and 0 not in row[end + 2 :]
        self._allow(1, end, 0x21, 0x7E)
        self._tag = (0, 0)
        self._sums: list[tuple[int, int]] = []
        self._take_apart(row, end + 2)

    def _take_apart(self, row: bytes, at: int) -> None:
        spans: dict[bytes, tuple[int, int]] = {}
        for entry in row[at:].split(properties.ENTRY_END):
            name, _, value = entry.partition(properties.NAME_END)
            begin, at = at + len(entry) - len(value), at + len(entry) + 1
            if not name or not value:
                continue
            if name in {_UNIQ_KEY, _KEYS, _TAGS}:
                spans[name] = (begin, begin + len(value))
            else:
                self._allow(begin, begin + len(value), properties.ENTRY_END[0] + 1, 0xFF)
        if _TAGS in spans:
            self._tag = spans[_TAGS]
            self._text(*self._tag, 0x20)
        if _UNIQ_KEY in spans:
            self._sums.append(spans[_UNIQ_KEY])
            self._text(*spans[_UNIQ_KEY], 0x20)
        at, end = spans.get(_KEYS, (0, 0))
        for key in row[at:end].split(KEY_END):
            if key:
                self._sums.append((at, at + len(key)))
                self._text(at, at + len(key), 0x21)
            at += len(key) + 1

    def _text(self, begin: int, end: int, least: int) -> None:
        self.possible &= end - begin <= _LONGEST
        self._allow(begin, end, least, 0x7E)

    def _allow(self, begin: int, end: int, least: int, most: int) -> None:
        self._least[begin:end] = least
        self._spread[begin:end] = most - least

    def fits(self, rows: _Bytes) -> Mask | None:
        """Which rows have the same parts; None: all. There are as many as go side by side."""
        odd = out_of_bounds(rows, self._least, self._spread)
        return None if odd is None else ~odd

    def codes(self, rows: _Bytes) -> Ints:
        """Hashes of the tags."""
        begin, end = self._tag
        return _hash(rows, begin, end).view(np.int32).astype(np.int64)

    def topics_of(self, rows: _Bytes, group: Ints) -> tuple[_Bytes, Ints, list[str], Ints]:
        """Rows and records with a topic that is as usual, their topics, and which each has."""
        texts = np.ascontiguousarray(rows[:, 1 : self._topic_end]).view(f"S{self._topic_end - 1}")
        found, which = np.unique(texts[:, 0], return_inverse=True)
        names = [name.decode("utf-8", "replace") for name in found.tolist()]
        good = np.array([name != SCHEDULE_TOPIC and _is_plain_topic(name) for name in names])
        if not good.all():
            kept = good[which]
            rows, group, which = rows[kept], group[kept], which[kept]
        return rows, group, names, which

    def key_hashes(self, rows: _Bytes, names: list[str], which: Ints) -> Iterator[Ints]:
        """Of each key a column of its hashes."""
        prefixes = np.array([_prefix_hash(name) for name in names], np.uint32)[which]
        for begin, end in self._sums:
            prefix = prefixes * np.uint32(pow(31, end - begin, 1 << 32))
            found = np.abs((_hash(rows, begin, end) + prefix).view(np.int32).astype(np.int64))
            found[found == _SIGN] = 0
            yield found


@lru_cache(maxsize=4096)
def _prefix_hash(topic: str) -> int:
    return java_hash(topic_prefix(topic.encode())) & _WORD


@lru_cache(maxsize=4096)
def _is_plain_topic(topic: str) -> bool:
    try:
        validate_topic(topic)
    except ValueError:
        return False
    return True


def _hash(rows: _Bytes, begin: int, end: int) -> NDArray[np.uint32]:
    powers = _POWERS[_LONGEST - (end - begin) :]
    found: NDArray[np.uint32] = np.einsum(
        "ij,j->i", rows[:, begin:end], powers, dtype=np.uint32, casting="unsafe"
    )
    return found


def alike(data: memoryview, tails: Ints, lengths: Ints) -> Iterator[Alike]:
    """Those records of a piece of the log that have others like them.

    Args:
        data: the piece.
        tails: where topic and properties of each begin.
        lengths: how long these are; 0 for a record that is not to be looked at.
    """
    for model, rows, group in _models(data, tails, lengths):
        chosen, records, topics, which = model.topics_of(rows, group)
        if len(records):
            hashes = list(model.key_hashes(chosen, topics, which))
            yield Alike(records, topics, which, model.codes(chosen), hashes)


def _models(data: memoryview, tails: Ints, lengths: Ints) -> Iterator[tuple[Model, _Bytes, Ints]]:
    """Records that are alike, and topic and properties of each."""
    for length, group in by_length(lengths):
        left = group
        for _ in range(_MAX_MODELS):
            if len(left) < MIN_ALIKE:
                break
            rows = _rows(data, tails[left], length)
            model = Model(rows[0].tobytes())
            fits = model.fits(rows)
            if not model.possible or (fits is not None and not fits[0]):
                break
            rows = rows[: len(left)]
            if fits is None:
                yield model, rows, left
                break
            fits = fits[: len(left)]
            yield model, rows[fits], left[fits]
            left = left[~fits]


def _rows(data: memoryview, tails: Ints, length: int) -> _Bytes:
    windows: _Bytes = np.ndarray((len(data) - length + 1, length), np.uint8, data, strides=(1, 1))
    missing = -len(tails) % _SIDE_BY_SIDE
    return windows[np.append(tails, tails[-1:].repeat(missing)) if missing else tails]
