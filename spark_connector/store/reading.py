"""Reads one task's part of a store as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final

import numpy as np

from broker.store.log_view import Damage, LogChunk
from broker.store.raw_files import StoreChanged
from broker.store.results import StoreError
from broker.storetools.view import StoreView
from remoting.protocol.disk.files import ENTRY, FILLER
from remoting.protocol.errors import RecordError
from remoting.protocol.message.view import RecordView
from remoting.protocol.names import SCHEDULE_TOPIC
from spark_connector.decode.decoder import Decoder
from spark_connector.decode.model import MAX_BATCH_BYTES, MAX_BATCH_ROWS, DecodeSettings
from spark_connector.errors import ConnectorError, DataLossError
from spark_connector.options import OnDecodeError
from spark_connector.schema import Column
from spark_connector.source.ranges import RangePartition
from spark_connector.store.gathering import (
    MAX_RAW_BYTES,
    Gatherer,
    Lost,
    Numbers,
    QueueEntries,
    are_of,
    are_readable,
    are_whole,
    entries_of,
    merged,
    rows_of,
)
from spark_connector.store.options import StoreOptions
from spark_connector.store.planning import Piece, QueuePieces

MAX_SIZE_BYTES: Final = 64 * 1024 * 1024
"""Consume queue entries with a larger size count as damaged, as a message is read into memory."""

# The size and the physical offset in the head of a record.
_HEAD: Final = Struct(">I24xq")
_FILLER_SIZE: Final[int] = ENTRY.unpack(FILLER)[1]


def open_view(options: StoreOptions) -> StoreView:
    """Open the store named in the options. Raises StoreError."""
    return StoreView(Path(options.path), commit_log=options.commit_log_path)


def connector_error(error: StoreError) -> ConnectorError:
    """Convert a store's error to one of the connector."""
    return (
        DataLossError(str(error)) if isinstance(error, StoreChanged) else ConnectorError(str(error))
    )


class StoreTask:
    """Reads parts of a store.

    Args:
        options: the options of the query.
        columns: the columns of the batches, from ``STORE_COLUMNS``.
    """

    def __init__(self, options: StoreOptions, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns
        self._tags = options.tag_expression
        self._shows_raw = options.on_decode_error is OnDecodeError.RAW
        settings = DecodeSettings(
            columns,
            options.broker_name,
            verify_crc=options.verify_crc,
            decompress=options.decompress,
            on_decode_error=options.on_decode_error,
        )
        self._decoder = Decoder(settings)

    def read(self, piece: Piece) -> Iterator[Any]:
        """Yield the messages of a piece as ``pyarrow.RecordBatch``, in order, none empty.

        Raises:
            DataLossError: messages were deleted by retention after planning.
            DecodeError: a record can't be decoded, and decode errors are to fail.
            ConnectorError: the store can't be read.
        """
        try:
            self._view = open_view(self._options)
            if isinstance(piece, QueuePieces):
                yield from self._queues(piece.ranges)
            else:
                for part in self._view.log.walk(piece.begin, piece.end):
                    yield from self._part(part)
        except StoreError as error:
            raise connector_error(error) from error

    # --- queues

    def _queues(self, ranges: Sequence[RangePartition]) -> Iterator[Any]:
        gatherer = Gatherer(self._view.log)
        queue_ids = np.array([part.queue_id for part in ranges], dtype=np.int64)
        for entries in self._entries(ranges):
            readable = self._readable(entries)
            if not readable.all():
                lost = entries[~readable]
                yield self._lost_entries(lost, ranges, "there is no record where it should be")
            for gathered in gatherer.gather(entries[readable]):
                whole = are_whole(gathered, queue_ids)
                starts = gathered.starts
                if not whole.all():
                    lost = gathered.entries[~whole]
                    reason = "the record there is not the one its queue entry describes"
                    yield self._lost_entries(lost, ranges, reason, gathered.file)
                    starts = starts[whole]
                yield from self._decoded(gathered.buffer, starts, gathered.file)

    def _entries(self, ranges: Sequence[RangePartition]) -> Iterator[QueueEntries]:
        """Yield the selected entries; those of small queues are merged up to a batch's rows."""
        waiting: list[QueueEntries] = []
        count = 0
        for number, part in enumerate(ranges):
            for run in self._view.queue(part.topic, part.queue_id).entries(part.start, part.end):
                entries = entries_of(run, number)
                if self._tags is not None and part.topic != SCHEDULE_TOPIC:
                    # Entries of the schedule topic have the delivery time instead of a tag hash.
                    entries = entries[np.isin(entries["tags_code"], list(self._tags.codes))]
                self._check_kept(entries, part)
                waiting.append(entries)
                count += len(entries)
                if count >= MAX_BATCH_ROWS:
                    yield merged(waiting)
                    waiting, count = [], 0
        if waiting:
            yield merged(waiting)

    def _check_kept(self, entries: QueueEntries, part: RangePartition) -> None:
        start = self._view.log.start
        gone = entries["offset"][(entries["position"] < start) & (entries["size"] != _FILLER_SIZE)]
        if len(gone):
            raise DataLossError(
                f"message {gone[0]} of queue {part.queue_id} of topic {part.topic} in the store "
                f"{self._options.path} was deleted: the commit log now begins at {start}",
                "retention deleted it after the query was planned: run it again, or read a copy",
            )

    def _readable(self, entries: QueueEntries) -> Any:
        files = self._view.log.files
        starts = np.array([file.start for file in files], dtype=np.int64)
        ends = np.array([file.end for file in files], dtype=np.int64)
        fits = are_readable(entries["position"], entries["size"], starts, ends)
        return fits & (entries["size"] <= MAX_SIZE_BYTES)

    def _lost_entries(
        self,
        entries: QueueEntries,
        ranges: Sequence[RangePartition],
        reason: str,
        file: str | None = None,
    ) -> Any:
        lost = []
        for index in range(len(entries)):
            part = ranges[int(entries["queue"][index])]
            size = int(entries["size"][index])
            known = size != _FILLER_SIZE
            lost.append(
                Lost(
                    int(entries["position"][index]) if known else None,
                    size if known else None,
                    file,
                    reason,
                    part.topic,
                    part.queue_id,
                    int(entries["offset"][index]),
                )
            )
        return rows_of(lost, self._columns, self._options)

    # --- the log

    def _part(self, found: LogChunk | Damage) -> Iterator[Any]:
        position = found.begin if isinstance(found, Damage) else found.position
        holders = (one for one in self._view.log.files if one.start <= position < one.end)
        file = next((one.path for one in holders), None)
        if isinstance(found, Damage):
            yield self._damage(found, file)
            return
        starts = np.array(found.starts, dtype=np.int64)
        if self._options.topics is not None:
            starts = starts[are_of(found.data, starts, self._options.topics)]
        yield from self._decoded(found.data, starts, file)

    def _damage(self, found: Damage, file: str | None) -> Any:
        raw = None
        size = found.end - found.begin
        if self._shows_raw and file is not None:
            shown = memoryview(bytearray(min(size, MAX_RAW_BYTES)))
            self._view.log.read_into(found.begin, shown)
            raw = bytes(shown)
        lost = Lost(found.begin, size, file, found.reason, raw=raw)
        return rows_of([lost], self._columns, self._options)

    # --- both

    def _decoded(self, buffer: memoryview, starts: Numbers, file: str | None) -> Iterator[Any]:
        if not len(starts):
            return
        skipped = 0
        for decoded in self._decoder.batches(
            buffer,
            starts=starts,
            tags=self._tags,
            file=file,
            max_rows=MAX_BATCH_ROWS,
            max_bytes=MAX_BATCH_BYTES,
        ):
            skipped += decoded.skipped
            if decoded.rows:
                yield decoded.batch
        if skipped:
            yield self._undecodable(buffer, starts, file)

    def _undecodable(self, buffer: memoryview, starts: Numbers, file: str | None) -> Any:
        lost = []
        for start in starts.tolist():
            try:
                RecordView(buffer, start)
            except RecordError as error:
                size, position = _HEAD.unpack_from(buffer, start)
                raw = bytes(buffer[start : start + size]) if self._shows_raw else None
                lost.append(Lost(position, size, file, str(error), raw=raw))
        return rows_of(lost, self._columns, self._options)
