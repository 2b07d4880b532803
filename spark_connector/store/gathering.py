"""The messages of a queue, gathered from their positions in the log.

Messages of other queues lie between those of one. Small gaps are read along, across large ones each
message is read alone; either way the bytes go into one buffer, which is used again, and the decoder
gets the position of each record in it. Many records are checked at once, before any is decoded.

A damaged record is an error, or by choice a row of its own: with what is known of it (its position,
the number in its queue), null in all other columns and ``crcOk`` false; with ``onDecodeError=raw``
the bytes are its body. So the result shows what was skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broker.storetools.view import LogView, ViewedRun
from remoting.protocol.message.record import (
    BORN_HOST_V6,
    FIXED_BYTES_V4,
    HEAD_BYTES_V4,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    SYS_FLAG_AT,
)
from spark_connector.errors import DecodeError
from spark_connector.options import OnDecodeError
from spark_connector.schema import Column, arrow_schema
from spark_connector.store.options import StoreOptions

Numbers = NDArray[np.int64]

MAX_GAP_BYTES: Final = 4096
"""Bytes of others between two messages that are read along: about what one more call costs."""

GATHER_BYTES: Final = 8 * 1024 * 1024
"""Bytes gathered at once, unless a single message is larger."""

ENTRY_TYPE: Final[Any] = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """QueueEntries of queues as columns.

    ``queues`` says which queue of those that are read, ``offsets`` which message of it;
    ``positions`` are physical offsets, ``sizes`` are in bytes.
    """

    queues: Numbers
    offsets: Numbers
    positions: Numbers
    sizes: Numbers
    tags_codes: Numbers

    @classmethod
    def of(cls, run: ViewedRun, queue: int) -> QueueEntries:
        """The entries of a run of the queue with this index."""
        raw = np.frombuffer(run.entries, dtype=ENTRY_TYPE)
        return cls(
            np.full(len(raw), queue, dtype=np.int64),
            np.arange(run.offset, run.offset + len(raw), dtype=np.int64),
            raw["position"].astype(np.int64),
            raw["size"].astype(np.int64),
            raw["tags_code"].astype(np.int64),
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self.offsets)

    @classmethod
    def merged(cls, parts: Sequence[QueueEntries]) -> QueueEntries:
        """QueueEntries of several runs; those of more than one queue by their place in the log."""
        if len(parts) == 1:
            return parts[0]
        columns = (field.name for field in fields(cls))
        whole = cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))
        if (whole.queues == whole.queues[:1]).all():
            return whole
        return whole.where(np.argsort(whole.positions, kind="stable"))

    def where(self, chosen: Any) -> QueueEntries:
        """Those that a mask, an index array or a slice chooses."""
        return QueueEntries(
            self.queues[chosen],
            self.offsets[chosen],
            self.positions[chosen],
            self.sizes[chosen],
            self.tags_codes[chosen],
        )


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records in a buffer: those of ``entries`` begin at ``starts``; all are of one log file.

    The buffer is good until the next ones are asked for.
    """

    buffer: memoryview
    starts: Numbers
    entries: QueueEntries
    file: str


class Gatherer:
    """Reads the records of entries, in their order."""

    def __init__(self, log: LogView) -> None:
        self._log = log
        self._memory = memoryview(bytearray(GATHER_BYTES))

    def gather(self, entries: QueueEntries) -> Iterator[Gathered]:
        """The records of entries, all of which lie within the log's files.

        Raises:
            StoreChanged: retention took some meanwhile.
            StoreError: they can't be read.
        """
        files = self._log.files
        file_ends = np.array([file.end for file in files], dtype=np.int64)
        file_of = np.searchsorted(file_ends, entries.positions, side="right")
        ends = entries.positions + entries.sizes
        gaps = entries.positions[1:] - ends[:-1]
        # A new read begins at each: another file, back, or too far ahead.
        breaks = np.ones(len(entries), dtype=bool)
        breaks[1:] = (gaps < 0) | (gaps > MAX_GAP_BYTES) | (file_of[1:] != file_of[:-1])
        taken = entries.sizes.copy()
        taken[1:] += np.where(breaks[1:], 0, gaps)
        used = np.cumsum(taken)
        done = 0
        while done < len(entries):
            before = int(used[done - 1]) if done else 0
            stop = int(np.searchsorted(used, before + GATHER_BYTES, side="right"))
            other = np.flatnonzero(file_of[done:] != file_of[done])
            stop = max(done + 1, min(stop, done + int(other[0]) if len(other) else stop))
            part = slice(done, stop)
            yield self._read(
                entries.where(part), breaks[part], ends[part], files[int(file_of[done])].path
            )
            done = stop

    def _read(self, entries: QueueEntries, breaks: Any, ends: Numbers, file: str) -> Gathered:
        breaks[0] = True
        firsts = np.flatnonzero(breaks)
        lasts = np.append(firsts[1:], len(breaks)) - 1
        begins = entries.positions[firsts]
        lengths = ends[lasts] - begins
        places = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        if total > len(self._memory):
            self._memory = memoryview(bytearray(total))
        for begin, length, place in zip(
            begins.tolist(), lengths.tolist(), places.tolist(), strict=True
        ):
            self._log.read_into(begin, self._memory[place : place + length])
        shift = np.repeat(places - begins, lasts - firsts + 1)
        return Gathered(self._memory[:total], entries.positions + shift, entries, file)


_V6_EXTRA: Final = 12


def are_whole(gathered: Gathered, queue_ids: Numbers) -> Any:
    """Which records are those that their entries say: size, place, queue and number agree.

    Args:
        gathered: the records.
        queue_ids: by the index that entries have.
    """
    buffer, starts, entries = gathered.buffer, gathered.starts, gathered.entries
    return (
        (_numbers(buffer, starts, ">u4") == entries.sizes)
        & (_is_magic(_numbers(buffer, starts + 4, ">u4")))
        & (_numbers(buffer, starts + QUEUE_ID_AT, ">i4") == queue_ids[entries.queues])
        & (_numbers(buffer, starts + QUEUE_OFFSET_AT, ">i8") == entries.offsets)
        & (_numbers(buffer, starts + PHYSICAL_OFFSET_AT, ">i8") == entries.positions)
    )


def are_of(buffer: memoryview, starts: Numbers, topics: Sequence[str]) -> Any:
    """Which records are of one of these topics; so are those whose topic can't be told.

    Args:
        buffer: holds the whole records.
        starts: where they begin.
        topics: the names.
    """
    ends = starts + _numbers(buffer, starts, ">u4")
    flags = _numbers(buffer, starts + SYS_FLAG_AT, ">u4")
    extra = _V6_EXTRA * (flags & BORN_HOST_V6 != 0) + _V6_EXTRA * (flags & STORE_HOST_V6 != 0)
    body_at = starts + HEAD_BYTES_V4 + extra
    told = body_at <= ends
    at = np.where(told, body_at, starts + HEAD_BYTES_V4)
    at = at + _numbers(buffer, at - 4, ">u4")
    told &= at + 2 <= ends
    at = np.where(told, at, starts)
    wide = _numbers(buffer, starts + 4, ">u4") == MAGIC_V2
    lengths = np.where(wide, _numbers(buffer, at, ">u2"), _numbers(buffer, at, ">u1"))
    topic_at = at + 1 + wide
    told &= topic_at + lengths + 2 <= ends
    kept = ~told
    for topic in topics:
        name = topic.encode()
        same = told & (lengths == len(name))
        if same.any():
            kept[same] |= _texts(buffer, topic_at[same], len(name)) == name
    return kept


def are_readable(positions: Numbers, sizes: Numbers, starts: Numbers, ends: Numbers) -> Any:
    """Which entries point into one log file.

    Args:
        positions: physical offsets of the entries.
        sizes: bytes they say.
        starts: of the log's files, ascending.
        ends: of the same.
    """
    index = np.searchsorted(starts, positions, side="right") - 1
    inside = index >= 0
    file_ends = ends[np.maximum(index, 0)] if len(ends) else positions * 0
    return inside & (sizes >= FIXED_BYTES_V4) & (positions + sizes <= file_ends)


def _numbers(buffer: memoryview, places: Numbers, kind: str) -> Numbers:
    width = np.dtype(kind).itemsize
    every: Any = np.ndarray((max(0, len(buffer) - width + 1),), kind, buffer, strides=(1,))
    found: Numbers = every[places].astype(np.int64)
    return found


def _is_magic(magics: Numbers) -> Any:
    return (magics == MAGIC_V1) | (magics == MAGIC_V2)


def _texts(buffer: memoryview, places: Numbers, length: int) -> Any:
    every: Any = np.ndarray((len(buffer) - length + 1,), f"S{length}", buffer, strides=(1,))
    return every[places]


MAX_RAW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of damage that one row shows."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A message, or a stretch of the log, that can't be read.

    Attributes:
        position: where it lies in the log; None when nobody knows.
        size: bytes.
        file: of the log.
        reason: what is wrong, in words that follow a colon.
        topic, queue_id, queue_offset: of the message, if a queue says so.
        raw: the bytes, if they are to be shown.
    """

    position: int | None
    size: int | None
    file: str | None
    reason: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    raw: bytes | None = None

    @property
    def what(self) -> str:
        """What an error calls it."""
        if self.topic is not None:
            return f"message {self.queue_offset} of queue {self.queue_id} of topic {self.topic}"
        return f"what lies at {self.position} of the log"


def rows_of(lost: Sequence[Lost], columns: Sequence[Column], options: StoreOptions) -> Any:
    """A batch that names what can't be read.

    Raises:
        DecodeError: the query wants none of it.
    """
    if options.on_decode_error is OnDecodeError.FAIL:
        first = lost[0]
        raise DecodeError(
            f"{first.what} in the store {options.path} can't be read: {first.reason}",
            "set onDecodeError to null or raw to get such messages as rows with crcOk=false",
        )
    arrays = [
        pa.array([_value(column.name, one, options) for one in lost], type=column.arrow)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


_VALUES: Final[dict[str, Callable[[Lost, StoreOptions], Any]]] = {
    "topic": lambda one, _: one.topic,
    "brokerName": lambda _, options: options.broker_name,
    "queueId": lambda one, _: one.queue_id,
    "queueOffset": lambda one, _: one.queue_offset,
    "body": lambda one, _: one.raw,
    "physicalOffset": lambda one, _: one.position,
    "storeSize": lambda one, _: one.size,
    "file": lambda one, _: one.file,
    "crcOk": lambda _one, _options: False,
}


def _value(name: str, one: Lost, options: StoreOptions) -> Any:
    value = _VALUES.get(name)
    return None if value is None else value(one, options)
