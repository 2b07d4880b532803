"""What many records call for at once, by numpy; the result is that of ``rows``.

Records with equally long topic and properties are laid out as a matrix of these. Its first row is
taken apart; rows that have the same topic, names and separators, and a tag and keys of the same
lengths, have them in the same columns, so their hashes are sums over columns (see
``index.columns``, which does so for keys alone). What is alike in no such way goes ``rows``' way.

Imported only where numpy can be had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.store.index.batch import KEY_END, topic_prefix
from broker.store.index.limits import MIN_ALIKE
from broker.store.verify.entries import MAX_GATHERED, EntryRun, QueueKey
from broker.store.verify.rows import row_of
from remoting.protocol.accelerated import crc32
from remoting.protocol.errors import RecordError
from remoting.protocol.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_LENGTH
from remoting.protocol.message import properties
from remoting.protocol.message.record import FIXED_BYTES_V4, HEAD_BYTES_V4, MAGIC_V1
from remoting.protocol.message.sys_flag import (
    HOSTS_V6_MASK,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from remoting.protocol.message.tags import java_hash
from remoting.protocol.names import SCHEDULE_TOPIC, validate_topic

_Ints = NDArray[np.int64]
_Bytes = NDArray[np.uint8]
_Mask = NDArray[np.bool_]

_HEAD: Final = np.dtype(
    [
        ("size", ">u4"),
        ("magic", ">u4"),
        ("crc", ">u4"),
        ("queue", ">i4"),
        ("flag", ">i4"),
        ("offset", ">i8"),
        ("physical", ">i8"),
        ("sys", ">i4"),
        ("born", ">i8"),
        ("host", "S8"),
        ("stored", ">i8"),
        ("host2", "S8"),
        ("times", ">i4"),
        ("prepared", ">i8"),
        ("body", ">u4"),
    ]
)
ENTRIES: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("code", ">i8")])

_PACKED: Final = np.dtype(f"V{ENTRIES.itemsize}")
_WORD: Final = 0xFFFFFFFF
_CRC_BITS: Final = 0x7FFFFFFF
_SIGN: Final = 1 << 31
_LONGEST: Final = 1024
_MAX_MODELS: Final = 64
_ORDINAL_BITS: Final = 16
_SIDE_BY_SIDE: Final = 16
_POWERS: Final = np.array([pow(31, n, 1 << 32) for n in range(_LONGEST - 1, -1, -1)], np.uint32)
_TAGS: Final = properties.TAGS.encode()
_KEYS: Final = properties.KEYS.encode()
_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()
_NOTHING: Final = np.empty(0, np.int64)


class Columns(NamedTuple):
    """What the records of a piece of the log call for.

    Attributes:
        topics: that ``topic`` counts.
        topic: -1 for a record that is of no queue.
        key_records, key_hashes: of each key the number of its record, and its hash.
        wrong: records that can't be trusted, and why.
        bad: the first record whose lengths don't make up its size; it and all later ones are left
            out. None for none.
    """

    starts: _Ints
    sizes: _Ints
    stored_ms: _Ints
    topics: list[str]
    topic: _Ints
    queue: _Ints
    offset: _Ints
    code: _Ints
    key_records: _Ints
    key_hashes: _Ints
    wrong: list[tuple[int, str]]
    bad: int | None


def look(data: memoryview, base: int, starts: _Ints, end: int, levels_ms: Sequence[int]) -> Columns:
    """Look at the records of a piece of the log.

    Args:
        data: the piece.
        base: physical offset of its first byte.
        starts: where records begin in it; one ends where the next one begins.
        end: where the last one ends.
        levels_ms: delay levels.
    """
    sizes = np.diff(starts, append=end)
    heads, lengths, usual = _heads(data, starts, sizes)
    topic, code = np.full(len(starts), -1, np.int64), np.zeros(len(starts), np.int64)
    topics: list[str] = []
    numbers: dict[str, int] = {}
    order: list[_Ints] = []
    hashes: list[_Ints] = []
    flags = heads["sys"].astype(np.int64)
    kind = flags & TRANSACTION_MASK
    queued = (kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)
    indexed = kind != TRANSACTION_ROLLBACK
    offset, queue = heads["offset"].astype(np.int64), heads["queue"].astype(np.int64)
    stored = heads["stored"].astype(np.int64)
    usual &= (offset >= 0) & (offset <= (base + starts) // FIXED_BYTES_V4) & (queue >= 0) | ~queued
    usual &= ~_fails_crc(data, heads, starts, usual)
    done = np.zeros(len(starts), np.bool_)
    for model, rows, group in _models(data, starts + HEAD_BYTES_V4 + heads["body"], lengths, usual):
        done[group] = True
        number = numbers.setdefault(model.topic, len(topics))
        if number == len(topics):
            topics.append(model.topic)
        topic[group] = number
        code[group] = model.codes(rows)
        for place, column in enumerate(model.key_hashes(rows)):
            chosen = indexed[group]
            order.append((group[chosen] << _ORDINAL_BITS) + place)
            hashes.append(column[chosen])
    topic[~queued] = -1
    wrong: list[tuple[int, str]] = []
    bad = None
    for record in np.flatnonzero(~done).tolist():
        at, size = int(starts[record]), int(sizes[record])
        try:
            row = row_of(data, at, size, base, levels_ms)
        except RecordError:
            bad = record
            break
        if row.wrong is not None:
            wrong.append((record, row.wrong))
        stored[record], code[record] = row.store_ms, row.tags_code
        topic[record] = -1
        if row.topic is not None:
            topic[record] = numbers.setdefault(row.topic, len(topics))
            if topic[record] == len(topics):
                topics.append(row.topic)
        if row.hashes:
            order.append((record << _ORDINAL_BITS) + np.arange(len(row.hashes)))
            hashes.append(np.array(row.hashes, np.int64))
    keys, key_hashes = _sorted(order, hashes)
    found = Columns(
        starts, sizes, stored, topics, topic, queue, offset, code, keys, key_hashes, wrong, bad
    )
    return found if bad is None else _before(found, bad)


def _before(found: Columns, bad: int) -> Columns:
    keys = int(np.searchsorted(found.key_records, bad))
    return found._replace(
        starts=found.starts[:bad],
        sizes=found.sizes[:bad],
        stored_ms=found.stored_ms[:bad],
        topic=found.topic[:bad],
        queue=found.queue[:bad],
        offset=found.offset[:bad],
        code=found.code[:bad],
        key_records=found.key_records[:keys],
        key_hashes=found.key_hashes[:keys],
        wrong=[one for one in found.wrong if one[0] < bad],
    )


def _sorted(order: list[_Ints], hashes: list[_Ints]) -> tuple[_Ints, _Ints]:
    if not order:
        return _NOTHING, _NOTHING
    together, values = np.concatenate(order), np.concatenate(hashes)
    if len(order) > 1:
        places = np.argsort(together, kind="stable")
        together, values = together[places], values[places]
    return together >> _ORDINAL_BITS, values


def _heads(data: memoryview, starts: _Ints, sizes: _Ints) -> tuple[NDArray[np.void], _Ints, _Mask]:
    """Heads, lengths of topic and properties, and which records are as usual."""
    flat: _Bytes = np.frombuffer(data, np.uint8)
    step = int(sizes[0])
    if len(starts) > 1 and (sizes == step).all():
        everywhere: NDArray[np.void] = np.ndarray(
            (len(starts),), _HEAD, data, int(starts[0]), strides=(step,)
        )
        heads = everywhere.copy()
    else:
        windows: _Bytes = np.ndarray(
            (max(len(data) - HEAD_BYTES_V4 + 1, 0), HEAD_BYTES_V4), np.uint8, data, strides=(1, 1)
        )
        heads = np.ascontiguousarray(windows[starts]).view(_HEAD)[:, 0]
    body = heads["body"].astype(np.int64)
    usual = (heads["magic"] == MAGIC_V1) & (heads["sys"] & HOSTS_V6_MASK == 0)
    usual &= body <= sizes - FIXED_BYTES_V4
    ends = starts + sizes
    tails = np.where(usual, starts + HEAD_BYTES_V4 + body, starts)
    texts = tails + 1 + flat[tails]
    usual &= (texts + 2 <= ends) & (flat[tails] <= MAX_TOPIC_LENGTH)
    texts = np.where(usual, texts, starts)
    length = flat[texts].astype(np.int64) << 8 | flat[texts + 1]
    usual &= (texts + 2 + length == ends) & (length <= MAX_PROPERTIES_BYTES)
    return heads, np.where(usual, ends - tails, 0), usual


def _fails_crc(data: memoryview, heads: NDArray[np.void], starts: _Ints, usual: _Mask) -> _Mask:
    begins = starts + HEAD_BYTES_V4
    ends = np.where(usual, begins + heads["body"], begins)
    cut = data.__getitem__
    slices = map(slice, begins.tolist(), ends.tolist())
    found = np.fromiter(map(crc32, map(cut, slices)), np.uint32, len(starts))
    failed: _Mask = usual & (found & _CRC_BITS != heads["crc"])
    return failed


class _Model:
    """Topic and properties that were taken apart."""

    def __init__(self, row: bytes) -> None:
        self._least = np.frombuffer(row, np.uint8).copy()
        self._spread = np.zeros(len(row), np.uint8)
        end = 1 + row[0]
        self.topic = row[1:end].decode("utf-8", "replace")
        self.possible = self.topic != SCHEDULE_TOPIC and _is_plain_topic(self.topic)
        self._prefix = java_hash(topic_prefix(row[1:end])) & _WORD
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

    def fits(self, rows: _Bytes) -> _Mask | None:
        """Which rows have the same parts; None: all. There are as many as go side by side."""
        wide = rows.reshape(-1, _SIDE_BY_SIDE * rows.shape[1])
        above = wide - np.tile(self._least, _SIDE_BY_SIDE)
        bad = above > np.tile(self._spread, _SIDE_BY_SIDE)
        if not bad.any():
            return None
        found: _Mask = ~np.any(bad.reshape(rows.shape), axis=1)
        return found

    def codes(self, rows: _Bytes) -> _Ints:
        """Hashes of the tags."""
        begin, end = self._tag
        return _hash(rows, begin, end, 0).view(np.int32).astype(np.int64)

    def key_hashes(self, rows: _Bytes) -> Iterator[_Ints]:
        """Of each key a column of its hashes."""
        for begin, end in self._sums:
            prefix = self._prefix * pow(31, end - begin, 1 << 32) & _WORD
            found = np.abs(_hash(rows, begin, end, prefix).view(np.int32).astype(np.int64))
            found[found == _SIGN] = 0
            yield found


def _is_plain_topic(topic: str) -> bool:
    try:
        validate_topic(topic)
    except ValueError:
        return False
    return True


def _hash(rows: _Bytes, begin: int, end: int, prefix: int) -> NDArray[np.uint32]:
    powers = _POWERS[_LONGEST - (end - begin) :]
    found: NDArray[np.uint32] = np.einsum(
        "ij,j->i", rows[:, begin:end], powers, dtype=np.uint32, casting="unsafe"
    )
    return found + np.uint32(prefix)


def _models(
    data: memoryview, tails: _Ints, lengths: _Ints, usual: _Mask
) -> Iterator[tuple[_Model, _Bytes, _Ints]]:
    """Records that are alike, and topic and properties of each."""
    for length, group in _alike(np.where(usual, lengths, 0)):
        left = group
        for _ in range(_MAX_MODELS):
            if len(left) < MIN_ALIKE:
                break
            rows = _rows(data, tails[left], length)
            model = _Model(rows[0].tobytes())
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


def _alike(lengths: _Ints) -> Iterator[tuple[int, _Ints]]:
    if (lengths == lengths[0]).all():
        if lengths[0]:
            yield int(lengths[0]), np.arange(len(lengths))
        return
    order = np.argsort(lengths, kind="stable")
    borders = np.flatnonzero(np.diff(lengths[order])) + 1
    for group in np.split(order, borders):
        if lengths[group[0]]:
            yield int(lengths[group[0]]), group


def _rows(data: memoryview, tails: _Ints, length: int) -> _Bytes:
    windows: _Bytes = np.ndarray((len(data) - length + 1, length), np.uint8, data, strides=(1, 1))
    missing = -len(tails) % _SIDE_BY_SIDE
    return windows[np.append(tails, tails[-1:].repeat(missing)) if missing else tails]


class ColumnGathering:
    """Entries as columns; see ``entries``."""

    def __init__(self) -> None:
        self._numbers: dict[QueueKey, int] = {}
        self._queues: list[_Ints] = []
        self._offsets: list[_Ints] = []
        self._entries: list[NDArray[np.void]] = []
        self._count = 0

    def add(self, found: Columns, base: int) -> None:
        """Records of a piece of the log that begins at ``base``."""
        chosen = found.topic >= 0
        if not chosen.any():
            return
        every = bool(chosen.all())
        topic = found.topic if every else found.topic[chosen]
        pairs, inverse = np.unique(
            topic << 32 | (found.queue if every else found.queue[chosen]), return_inverse=True
        )
        known = np.array([self._number(found.topics, pair) for pair in pairs.tolist()])
        entries = np.empty(len(topic), ENTRIES)
        entries["position"] = base + (found.starts if every else found.starts[chosen])
        entries["size"] = found.sizes if every else found.sizes[chosen]
        entries["code"] = found.code if every else found.code[chosen]
        self._queues.append(known[inverse])
        self._offsets.append(found.offset if every else found.offset[chosen])
        # As bytes: put together, numbers would take the order of this machine.
        self._entries.append(entries.view(_PACKED))
        self._count += len(entries)

    def _number(self, topics: list[str], pair: int) -> int:
        key = topics[pair >> 32], pair & _WORD
        return self._numbers.setdefault(key, len(self._numbers))

    def full(self) -> bool:
        """See ``entries.Gathering``."""
        return self._count >= MAX_GATHERED

    def take(self) -> Iterator[EntryRun]:
        """See ``entries.Gathering``."""
        if not self._count:
            return
        queues = np.concatenate(self._queues)
        order = np.argsort(queues, kind="stable")
        offsets, entries = (
            np.concatenate(self._offsets)[order],
            np.concatenate(self._entries)[order],
        )
        queues = queues[order]
        self._queues, self._offsets, self._entries, self._count = [], [], [], 0
        breaks = (np.diff(queues) != 0) | (np.diff(offsets) != 1)
        borders = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(queues)]
        keys = list(self._numbers)
        for begin, end in pairwise(borders):
            yield EntryRun(keys[queues[begin]], int(offsets[begin]), entries[begin:end].tobytes())
