"""Reads the records that consume queue entries point at, and makes rows for damaged ones.

The messages of a queue are not adjacent in the commit log. Small gaps between them are read too;
after larger ones a new read begins. All bytes go into one reused buffer, and the decoder gets the
position of each record in it. Records are checked against their entries before they are decoded.

A damaged record raises an error, or, depending on ``onDecodeError``, becomes a row with what is
known about it (its physical offset, its queue offset), null in all other columns and ``crcOk``
false. With ``raw`` the body has its bytes. So the result shows what could not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broker.store.log_view import LogView
from broker.storetools.view import ViewedRun
from remoting.protocol.errors import RecordError
from remoting.protocol.message.record import FIXED_BYTES_V4, MAGIC_V1, MAGIC_V2
from remoting.protocol.message.view import RecordView
from spark_connector.arrow import join_slices, mask_of
from spark_connector.decode.layout import FIRST, gather, locate
from spark_connector.decode.model import NeedsFallback
from spark_connector.errors import DecodeError
from spark_connector.options import OnDecodeError
from spark_connector.schema import Column, arrow_schema
from spark_connector.store.options import StoreOptions

Numbers = NDArray[np.int64]

MAX_GAP_BYTES: Final = 4096
"""The largest gap between two messages that is read too: it costs about as much as another call."""

GATHER_BYTES: Final = 8 * 1024 * 1024
"""The most bytes gathered at a time, unless a single message is larger."""

_ON_DISK: Final[Any] = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_IN_MEMORY: Final[Any] = np.dtype(
    [
        ("queue", np.int64),
        ("offset", np.int64),
        ("position", np.int64),
        ("size", np.int64),
        ("tags_code", np.int64),
    ]
)

QueueEntries = NDArray[Any]
"""A structured array with an element per consume queue entry.

``queue`` is the index of the queue among the ranges of the task, ``offset`` the queue offset,
``position`` the physical offset, ``size`` the size of the record in bytes.
"""


def entries_of(run: ViewedRun, queue: int) -> QueueEntries:
    """Convert a run of entries of the queue with this index."""
    raw = np.frombuffer(run.entries, dtype=_ON_DISK)
    entries = np.empty(len(raw), dtype=_IN_MEMORY)
    entries["queue"] = queue
    entries["offset"] = np.arange(run.offset, run.offset + len(raw))
    for name in _ON_DISK.names:
        entries[name] = raw[name]
    return entries


def merged(parts: Sequence[QueueEntries]) -> QueueEntries:
    """Concatenate entries; those of several queues are sorted by their physical offset."""
    if len(parts) == 1:
        return parts[0]
    whole = np.concatenate(parts)
    if (whole["queue"] == whole["queue"][:1]).all():
        return whole
    return whole[np.argsort(whole["position"], kind="stable")]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records in a buffer, all from one file of the commit log.

    The buffer is valid until the next records are gathered.

    Attributes:
        buffer: the buffer.
        starts: the position of each record in it.
        entries: the entry of each record.
        file: the path of the file.
    """

    buffer: memoryview
    starts: Numbers
    entries: QueueEntries
    file: str


class Gatherer:
    """Reads the records of entries, in the order of the entries.

    Args:
        log: the commit log.
        max_gap_bytes: the largest gap between two messages that is read too.
        gather_bytes: the most bytes gathered at a time, unless a single message is larger.
    """

    def __init__(
        self,
        log: LogView,
        *,
        max_gap_bytes: int = MAX_GAP_BYTES,
        gather_bytes: int = GATHER_BYTES,
    ) -> None:
        self._log = log
        self._max_gap_bytes = max_gap_bytes
        self._gather_bytes = gather_bytes
        self._memory = memoryview(bytearray(gather_bytes))

    def gather(self, entries: QueueEntries) -> Iterator[Gathered]:
        """Yield the records of entries, all of which are within the log's files.

        Raises:
            StoreChanged: records were deleted by retention in the meantime.
            StoreError: the log can't be read.
        """
        files = self._log.files
        file_ends = np.array([file.end for file in files], dtype=np.int64)
        file_of = np.searchsorted(file_ends, entries["position"], side="right")
        ends = entries["position"] + entries["size"]
        gaps = entries["position"][1:] - ends[:-1]
        # A new read begins in another file, at a lower position, or after a large gap.
        breaks = np.ones(len(entries), dtype=bool)
        breaks[1:] = (gaps < 0) | (gaps > self._max_gap_bytes) | (file_of[1:] != file_of[:-1])
        taken = entries["size"].copy()
        taken[1:] += np.where(breaks[1:], 0, gaps)
        used = np.cumsum(taken)
        done = 0
        while done < len(entries):
            before = int(used[done - 1]) if done else 0
            stop = int(np.searchsorted(used, before + self._gather_bytes, side="right"))
            other = np.flatnonzero(file_of[done:] != file_of[done])
            stop = max(done + 1, min(stop, done + int(other[0]) if len(other) else stop))
            part = slice(done, stop)
            yield self._read(
                entries[part], breaks[part], ends[part], files[int(file_of[done])].path
            )
            done = stop

    def _read(self, entries: QueueEntries, breaks: Any, ends: Numbers, file: str) -> Gathered:
        breaks[0] = True
        firsts = np.flatnonzero(breaks)
        lasts = np.append(firsts[1:], len(breaks)) - 1
        begins = entries["position"][firsts]
        lengths = ends[lasts] - begins
        places = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        if total > len(self._memory):
            self._memory = memoryview(bytearray(total))
        for begin, length, position in zip(
            begins.tolist(), lengths.tolist(), places.tolist(), strict=True
        ):
            self._log.read_into(begin, self._memory[position : position + length])
        shift = np.repeat(places - begins, lasts - firsts + 1)
        return Gathered(self._memory[:total], entries["position"] + shift, entries, file)


def are_whole(gathered: Gathered, queue_ids: Numbers) -> Any:
    """Return which records match their entries in size, position, queue id and queue offset.

    Args:
        gathered: the records.
        queue_ids: the queue ids by the index used in entries.
    """
    head, entries = gather(gathered.buffer, gathered.starts, FIRST), gathered.entries
    return (
        (head["size"] == entries["size"])
        & ((head["magic"] == MAGIC_V1) | (head["magic"] == MAGIC_V2))
        & (head["queue_id"] == queue_ids[entries["queue"]])
        & (head["queue_offset"] == entries["offset"])
        & (head["physical_offset"] == entries["position"])
    )


def are_of(buffer: memoryview, starts: Numbers, topics: Sequence[str]) -> NDArray[np.bool_]:
    """Return which records have one of these topics, including damaged records.

    Args:
        buffer: a buffer with complete records.
        starts: the positions of the records.
        topics: the topic names.
    """
    if not len(starts):
        return np.zeros(0, dtype=np.bool_)
    try:
        layout = locate(buffer, starts)
    except NeedsFallback:
        # A record is damaged: check them one by one.
        return np.array([_may_be_of(buffer, start, topics) for start in starts.tolist()])
    names = join_slices(buffer, layout.topic_at, layout.topic_end)
    wanted = pa.array([topic.encode() for topic in topics], pa.binary())
    return mask_of(pc.is_in(names, value_set=wanted))


def _may_be_of(buffer: memoryview, start: int, topics: Sequence[str]) -> bool:
    try:
        return RecordView(buffer, start).topic in topics
    except RecordError:
        return True


def are_readable(positions: Numbers, sizes: Numbers, starts: Numbers, ends: Numbers) -> Any:
    """Return which entries have a plausible size and lie within one file of the commit log.

    Args:
        positions: the physical offsets of the entries.
        sizes: the sizes of the entries in bytes.
        starts, ends: the bounds of the files of the commit log, ascending.
    """
    index = np.searchsorted(starts, positions, side="right") - 1
    inside = index >= 0
    file_ends = ends[np.maximum(index, 0)] if len(ends) else positions * 0
    return inside & (sizes >= FIXED_BYTES_V4) & (positions + sizes <= file_ends)


MAX_RAW_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of a damaged part of the commit log in one row."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A message, or a part of the commit log, that can't be read.

    Attributes:
        position: its physical offset, or None if it is unknown.
        size: its size in bytes, or None if it is unknown.
        file: the file of the commit log.
        reason: what is wrong, in words that follow a colon.
        topic, queue_id, queue_offset: the message, if a consume queue has an entry for it.
        raw: its bytes, if they are to be shown.
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
        """The message or position, for errors."""
        if self.topic is not None:
            return f"message {self.queue_offset} of queue {self.queue_id} of topic {self.topic}"
        return f"the part at {self.position} of the commit log"


def rows_of(lost: Sequence[Lost], columns: Sequence[Column], options: StoreOptions) -> Any:
    """Return a batch with a row for each lost message or part of the log.

    Raises:
        DecodeError: decode errors are to fail.
    """
    if options.on_decode_error is OnDecodeError.FAIL:
        first = lost[0]
        raise DecodeError(
            f"{first.what} in the store {options.path} can't be read: {first.reason}",
            "set onDecodeError to null or raw to get such messages as rows with crcOk=false",
        )
    arrays = [
        pa.array(
            [_VALUES[column.name](message, options) for message in lost]
            if column.name in _VALUES
            else [None] * len(lost),
            type=column.arrow,
        )
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
