"""What many records call for at once, by numpy; the result is that of ``rows``.

Heads are columns; topic and properties are taken apart together where they are alike (``models``).
What is not as usual goes ``rows``' way.

Imported only where numpy can be had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.store.derive.entries import MAX_GATHERED
from broker.store.derive.models import Ints, Mask, alike
from broker.store.derive.rows import row_of
from broker.store.derive.runs import EntryRun, QueueKey
from remoting.protocol.accelerated import crc32
from remoting.protocol.errors import RecordError
from remoting.protocol.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_LENGTH
from remoting.protocol.message.record import FIXED_BYTES_V4, HEAD_BYTES_V4, MAGIC_V1
from remoting.protocol.message.sys_flag import (
    HOSTS_V6_MASK,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)

_Bytes = NDArray[np.uint8]

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
_ORDINAL_BITS: Final = 16
_NOTHING: Final = np.empty(0, np.int64)


class Columns(NamedTuple):
    """What the records of a piece of the log call for.

    Attributes:
        topics: that ``topic`` counts.
        topic: -1 for a record that is of no queue.
        key_records, key_hashes: of each key the number of its record, and its hash.
        single: records that had to be looked at one by one.
        wrong: records that can't be trusted, and why.
        bad: the first record whose lengths don't make up its size; it and all later ones are left
            out. None for none.
    """

    starts: Ints
    sizes: Ints
    stored_ms: Ints
    topics: list[str]
    topic: Ints
    queue: Ints
    offset: Ints
    code: Ints
    key_records: Ints
    key_hashes: Ints
    single: Ints
    wrong: list[tuple[int, str]]
    bad: int | None


def look(data: memoryview, base: int, starts: Ints, end: int, levels_ms: Sequence[int]) -> Columns:
    """Look at the records of a piece of the log.

    Args:
        data: the piece.
        base: physical offset of its first byte.
        starts: where records begin in it; one ends where the next one begins.
        end: where the last one ends.
        levels_ms: delay levels.
    """
    found = _Look(data, base, starts, np.diff(starts, append=end), levels_ms)
    found.together()
    found.singly()
    return found.columns()


class _Look:
    def __init__(
        self, data: memoryview, base: int, starts: Ints, sizes: Ints, levels_ms: Sequence[int]
    ) -> None:
        self._data = data
        self._base = base
        self._starts = starts
        self._sizes = sizes
        self._levels_ms = levels_ms
        heads, lengths, usual = _heads(data, starts, sizes)
        kind = heads["sys"].astype(np.int64) & TRANSACTION_MASK
        self._queued = (kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)
        self._indexed = kind != TRANSACTION_ROLLBACK
        self._queue = heads["queue"].astype(np.int64)
        self._offset = heads["offset"].astype(np.int64)
        self._stored = heads["stored"].astype(np.int64)
        possible = (self._offset >= 0) & (self._offset <= (base + starts) // FIXED_BYTES_V4)
        usual &= possible & (self._queue >= 0) | ~self._queued
        usual &= ~_fails_crc(data, heads, starts, usual)
        self._tails = starts + HEAD_BYTES_V4 + heads["body"]
        self._lengths = np.where(usual, lengths, 0)
        self._topic = np.full(len(starts), -1, np.int64)
        self._code = np.zeros(len(starts), np.int64)
        self._done = np.zeros(len(starts), np.bool_)
        self._topics: dict[str, int] = {}
        self._order: list[Ints] = []
        self._hashes: list[Ints] = []
        self._wrong: list[tuple[int, str]] = []
        self._bad: int | None = None

    def _number(self, topic: str) -> int:
        return self._topics.setdefault(topic, len(self._topics))

    def together(self) -> None:
        """Records that have others like them."""
        for group in alike(self._data, self._tails, self._lengths):
            records = group.records
            self._done[records] = True
            numbers = np.array([self._number(topic) for topic in group.topics])
            self._topic[records] = numbers[group.which]
            self._code[records] = group.codes
            chosen = self._indexed[records]
            for place, column in enumerate(group.hashes):
                self._order.append((records[chosen] << _ORDINAL_BITS) + place)
                self._hashes.append(column[chosen])
        self._topic[~self._queued] = -1

    def singly(self) -> None:
        """The others."""
        for record in np.flatnonzero(~self._done).tolist():
            at, size = int(self._starts[record]), int(self._sizes[record])
            try:
                row = row_of(self._data, at, size, self._base, self._levels_ms)
            except RecordError:
                self._bad = record
                return
            if row.wrong is not None:
                self._wrong.append((record, row.wrong))
            self._stored[record], self._code[record] = row.store_ms, row.tags_code
            self._topic[record] = -1 if row.topic is None else self._number(row.topic)
            if row.hashes:
                self._order.append((record << _ORDINAL_BITS) + np.arange(len(row.hashes)))
                self._hashes.append(np.array(row.hashes, np.int64))

    def columns(self) -> Columns:
        """What came of it."""
        records, hashes = _sorted(self._order, self._hashes)
        found = Columns(
            self._starts,
            self._sizes,
            self._stored,
            list(self._topics),
            self._topic,
            self._queue,
            self._offset,
            self._code,
            records,
            hashes,
            np.flatnonzero(~self._done),
            self._wrong,
            self._bad,
        )
        return found if self._bad is None else before(found, self._bad)


def before(found: Columns, bad: int) -> Columns:
    """Those of the records that come before number ``bad``."""
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
        single=found.single[found.single < bad],
        wrong=[one for one in found.wrong if one[0] < bad],
    )


def _sorted(order: list[Ints], hashes: list[Ints]) -> tuple[Ints, Ints]:
    if not order:
        return _NOTHING, _NOTHING
    together, values = np.concatenate(order), np.concatenate(hashes)
    if len(order) > 1:
        places = np.argsort(together, kind="stable")
        together, values = together[places], values[places]
    return together >> _ORDINAL_BITS, values


def _heads(data: memoryview, starts: Ints, sizes: Ints) -> tuple[NDArray[np.void], Ints, Mask]:
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


def _fails_crc(data: memoryview, heads: NDArray[np.void], starts: Ints, usual: Mask) -> Mask:
    begins = starts + HEAD_BYTES_V4
    ends = np.where(usual, begins + heads["body"], begins)
    cut = data.__getitem__
    slices = map(slice, begins.tolist(), ends.tolist())
    found = np.fromiter(map(crc32, map(cut, slices)), np.uint32, len(starts))
    failed: Mask = usual & (found & _CRC_BITS != heads["crc"])
    return failed


class ColumnGathering:
    """Entries as columns; see ``entries``."""

    def __init__(self) -> None:
        self._numbers: dict[QueueKey, int] = {}
        self._queues: list[Ints] = []
        self._offsets: list[Ints] = []
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
