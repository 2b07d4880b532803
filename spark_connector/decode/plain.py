"""Records to rows, one at a time: what every faster way has to be equal to.

It takes each field from a ``RecordView`` and knows every oddity that the view knows. The decoder
comes here when a buffer holds something that its fast way does not understand, and to find out
what exactly is wrong with a damaged one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from remoting.protocol.errors import BodyError, RecordError
from remoting.protocol.message import compression, properties
from remoting.protocol.message.record import COMPRESSED, FIXED_BYTES_V4, MAGIC_V1, MAGIC_V2, Buffer
from remoting.protocol.message.view import RecordView
from spark_connector.decode.model import (
    MAX_BATCH_INFLATED_BYTES,
    BatchTooLargeError,
    DecodedBatch,
    DecodeSettings,
    Selection,
    Starts,
)
from spark_connector.errors import DecodeError
from spark_connector.options import OnDecodeError

FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999. A stored time outside is no Spark timestamp, and becomes null."""

_START: Final = Struct(">II")
_KEYS: Final = properties.KEYS.encode()


@dataclass(slots=True)
class _Row:
    """A record on its way to be a row."""

    view: RecordView
    settings: DecodeSettings
    file: str | None
    body: bytes | None = None


@dataclass(slots=True)
class _Walk:
    """The records of a buffer, and what was seen on the way."""

    buffer: Buffer
    starts: Starts
    settings: DecodeSettings
    selection: Selection
    records: int = 0
    skipped: int = 0
    damaged: int = 0
    inflated_bytes: int = 0
    rows: list[_Row] = field(default_factory=list)
    next_offset: int = 0

    def take_all(self) -> None:
        """Look at every record and keep those wanted."""
        selection = self.selection
        self.next_offset = selection.first_offset or 0
        for view in self._views():
            offset = view.queue_offset
            self.next_offset = max(self.next_offset, offset + 1)
            if selection.first_offset is not None and offset < selection.first_offset:
                continue
            if selection.end_offset is not None and offset >= selection.end_offset:
                continue
            if selection.tags is not None and not selection.tags.matches(view.tags):
                continue
            self.rows.append(_Row(view, self.settings, selection.file, self._body(view)))
        if selection.end_offset is not None:
            self.next_offset = min(self.next_offset, selection.end_offset)

    def _views(self) -> Iterator[RecordView]:
        for position in self.starts.tolist():
            self.records += 1
            view = _view(self.buffer, position, self.settings)
            if view is None:
                self.skipped += 1
            else:
                yield view

    def _body(self, view: RecordView) -> bytes | None:
        settings = self.settings
        reason = ""
        if settings.verify_crc and not view.check_crc():
            reason = "the CRC of its body is not the one stored with it"
        elif settings.wants("body", "value"):
            try:
                return self._inflated(view)
            except BodyError as error:
                reason = str(error)
        else:
            return None
        if settings.on_decode_error is OnDecodeError.FAIL:
            raise DecodeError(
                f"the message at offset {view.queue_offset} of queue {view.queue_id} of topic "
                f"{view.topic} on broker {settings.broker_name} can't be decoded: {reason}",
                "set onDecodeError to null or raw to read on",
            )
        self.damaged += 1
        raw = settings.on_decode_error is OnDecodeError.RAW
        return bytes(view.stored_body) if raw else None

    def _inflated(self, view: RecordView) -> bytes:
        if not self.settings.decompress or not view.sys_flag & COMPRESSED:
            return bytes(view.stored_body)
        body = compression.decompress(view.stored_body, view.sys_flag)
        self.inflated_bytes += len(body)
        if self.inflated_bytes > MAX_BATCH_INFLATED_BYTES:
            raise too_large()
        return body


def positions(buffer: Buffer, settings: DecodeSettings) -> Starts:
    """Where the records of a buffer begin of which at least one is damaged.

    A damaged one is among them if what it says of its size leads to another, or to the end.

    Raises:
        DecodeError: where the records behind a damaged one begin can't be told, or decode errors
            are to fail.
    """
    position, limit = 0, len(buffer)
    starts = []
    while position < limit:
        starts.append(position)
        view = _view(buffer, position, settings)
        position += _damaged_size(buffer, position, settings) if view is None else view.size
    return np.array(starts, dtype=np.int64)


def _view(buffer: Buffer, position: int, settings: DecodeSettings) -> RecordView | None:
    """The record, or None if it is damaged and that is no error."""
    try:
        return RecordView(buffer, position)
    except RecordError as error:
        if settings.on_decode_error is OnDecodeError.FAIL:
            raise DecodeError(
                f"a record from broker {settings.broker_name} is damaged: {error}",
                "check its disk, or set onDecodeError to null to skip and count such records",
            ) from error
    return None


def _damaged_size(buffer: Buffer, position: int, settings: DecodeSettings) -> int:
    left = len(buffer) - position
    if left >= FIXED_BYTES_V4:
        size, _ = _START.unpack_from(buffer, position)
        if size >= FIXED_BYTES_V4 and (size == left or _has_magic(buffer, position + size)):
            return int(size)
    raise DecodeError(
        f"a record from broker {settings.broker_name} is damaged, {left} bytes before the end of "
        f"{len(buffer)}, and where the next one begins can't be told",
        "check the broker's disk; startingOffsets lets a query begin behind it",
    )


def _has_magic(buffer: Buffer, position: int) -> bool:
    if len(buffer) - position < FIXED_BYTES_V4:
        return False
    _, magic = _START.unpack_from(buffer, position)
    return magic in {MAGIC_V1, MAGIC_V2}


def too_large() -> BatchTooLargeError:
    """The error for bodies that inflate to more than one batch should hold."""
    return BatchTooLargeError(
        f"the bodies of a batch inflate to more than {MAX_BATCH_INFLATED_BYTES} bytes",
        "decode fewer records at once",
    )


def _micros(milliseconds: int) -> int | None:
    return milliseconds * 1000 if FIRST_MS <= milliseconds <= LAST_MS else None


def host_text(host: tuple[str, int]) -> str:
    """``10.0.0.1:4711`` or ``[::1]:4711``."""
    ip, port = host
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _keys(view: RecordView) -> str | None:
    found = properties.find(view.properties_text, _KEYS)
    return None if found is None else found.decode("utf-8", "replace")


def _key(view: RecordView) -> bytes | None:
    text = _keys(view)
    return None if text is None else text.encode()


def _headers(view: RecordView) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in view.properties.items()]


_VALUES: Final[dict[str, Callable[[_Row], Any]]] = {
    "topic": lambda row: row.view.topic,
    "brokerName": lambda row: row.settings.broker_name,
    "queueId": lambda row: row.view.queue_id,
    "queueOffset": lambda row: row.view.queue_offset,
    "body": lambda row: row.body,
    "keys": lambda row: _keys(row.view),
    "tags": lambda row: row.view.tags,
    "bornTimestamp": lambda row: _micros(row.view.born_timestamp_ms),
    "storeTimestamp": lambda row: _micros(row.view.store_timestamp_ms),
    "bornHost": lambda row: host_text(row.view.born_host),
    "reconsumeTimes": lambda row: row.view.reconsume_times,
    "sysFlag": lambda row: row.view.sys_flag,
    "flag": lambda row: row.view.flag,
    "messageId": lambda row: row.view.message_id,
    "properties": lambda row: list(row.view.properties.items()),
    "physicalOffset": lambda row: row.view.physical_offset,
    "storeSize": lambda row: row.view.size,
    "file": lambda row: row.file,
    "crcOk": lambda row: row.view.check_crc(),
    "key": lambda row: _key(row.view),
    "value": lambda row: row.body,
    "partition": lambda row: row.view.queue_id,
    "offset": lambda row: row.view.queue_offset,
    "timestamp": lambda row: _micros(row.view.store_timestamp_ms),
    "timestampType": lambda row: 1,  # noqa: ARG005  # LogAppendTime, whatever the record
    "headers": lambda row: _headers(row.view),
}


def decode(
    buffer: Buffer, starts: Starts, settings: DecodeSettings, selection: Selection
) -> DecodedBatch:
    """The rows of the records at ``starts``; see ``Decoder.decode``.

    Raises:
        DecodeError: a record is damaged or its body can't be decoded.
    """
    walk = _Walk(buffer, starts, settings, selection)
    walk.take_all()
    arrays = [_array(column.arrow, _VALUES[column.name], walk.rows) for column in settings.columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=settings.schema)
    return DecodedBatch(
        batch,
        rows=len(walk.rows),
        records=walk.records,
        skipped=walk.skipped,
        damaged=walk.damaged,
        inflated_bytes=walk.inflated_bytes,
        next_offset=walk.next_offset,
    )


def _array(kind: Any, value: Callable[[_Row], Any], rows: list[_Row]) -> Any:
    return pa.array([value(row) for row in rows], type=kind)
