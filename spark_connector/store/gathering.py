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
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broker.storetools.view import LogView, ViewedRun
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
"""Bytes of others between two messages that are read along: about what one more call costs."""

GATHER_BYTES: Final = 8 * 1024 * 1024
"""Bytes gathered at once, unless a single message is larger."""

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
"""Entries of queues, an array element each.

``queue`` is the number of the queue among those that are read, ``offset`` the message's number in
it; ``position`` is a physical offset, ``size`` is in bytes.
"""


def entries_of(run: ViewedRun, queue: int) -> QueueEntries:
    """The entries of a run of the queue with this number."""
    raw = np.frombuffer(run.entries, dtype=_ON_DISK)
    found = np.empty(len(raw), dtype=_IN_MEMORY)
    found["queue"] = queue
    found["offset"] = np.arange(run.offset, run.offset + len(raw))
    for name in _ON_DISK.names:
        found[name] = raw[name]
    return found


def merged(parts: Sequence[QueueEntries]) -> QueueEntries:
    """Entries of several runs; those of more than one queue by their place in the log."""
    if len(parts) == 1:
        return parts[0]
    whole = np.concatenate(parts)
    if (whole["queue"] == whole["queue"][:1]).all():
        return whole
    return whole[np.argsort(whole["position"], kind="stable")]


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
    """Reads the records of entries, in their order.

    Args:
        log: has the records.
        max_gap_bytes: bytes of others between two messages that are read along.
        gather_bytes: gathered at once, unless a single message is larger.
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
        """The records of entries, all of which lie within the log's files.

        Raises:
            StoreChanged: retention took some meanwhile.
            StoreError: they can't be read.
        """
        files = self._log.files
        file_ends = np.array([file.end for file in files], dtype=np.int64)
        file_of = np.searchsorted(file_ends, entries["position"], side="right")
        ends = entries["position"] + entries["size"]
        gaps = entries["position"][1:] - ends[:-1]
        # A new read begins at each: another file, back, or too far ahead.
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
        for begin, length, place in zip(
            begins.tolist(), lengths.tolist(), places.tolist(), strict=True
        ):
            self._log.read_into(begin, self._memory[place : place + length])
        shift = np.repeat(places - begins, lasts - firsts + 1)
        return Gathered(self._memory[:total], entries["position"] + shift, entries, file)


def are_whole(gathered: Gathered, queue_ids: Numbers) -> Any:
    """Which records are those that their entries point at: size, place, queue and number agree.

    Args:
        gathered: the records.
        queue_ids: by the number that entries have.
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
    """Which records are of one of these topics; so are those whose topic can't be told.

    Args:
        buffer: holds the whole records.
        starts: where they begin.
        topics: the names.
    """
    if not len(starts):
        return np.zeros(0, dtype=np.bool_)
    try:
        layout = locate(buffer, starts)
    except NeedsFallback:
        # One of them is damaged: look at each.
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
        pa.array(
            [_VALUES[column.name](one, options) for one in lost]
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
