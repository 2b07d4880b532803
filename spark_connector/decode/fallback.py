"""Records to rows, one at a time: the reference for the fast path, and its fallback.

It takes each field from a ``RecordView`` and handles every oddity that the view handles. The
decoder uses it when a buffer holds something that the fast path does not understand, and to find
out what exactly is wrong with a damaged one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from remoting.protocol.errors import BodyError, RecordError
from remoting.protocol.message import compression, properties
from remoting.protocol.message.record import COMPRESSED, FIXED_BYTES_V4, MAGIC_V1, MAGIC_V2, Buffer
from remoting.protocol.message.view import RecordView
from spark_connector.decode.model import (
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
    """A record that becomes a row."""

    view: RecordView
    settings: DecodeSettings
    file: str | None
    body: bytes | None = None


@dataclass(slots=True)
class _Bodies:
    """Decodes bodies, and counts what it meets."""

    settings: DecodeSettings
    damaged: int = 0
    inflated_bytes: int = 0

    def of(self, view: RecordView) -> bytes | None:
        """A record's body; None if nobody wants it or, by the settings, if it is damaged."""
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
        self.settings.check_inflated(self.inflated_bytes)
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
    """The size of a damaged record, if another one, or the end, follows it."""
    left = len(buffer) - position
    if left >= FIXED_BYTES_V4:
        size: int = _START.unpack_from(buffer, position)[0]
        if size == left:
            return size
        if FIXED_BYTES_V4 <= size <= left - FIXED_BYTES_V4:
            _, magic = _START.unpack_from(buffer, position + size)
            if magic in {MAGIC_V1, MAGIC_V2}:
                return size
    raise DecodeError(
        f"a record from broker {settings.broker_name} is damaged, {left} bytes before the end of "
        f"{len(buffer)}, and where the next one begins can't be told",
        "check the broker's disk; startingOffsets lets a query begin behind it",
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
    "headers": lambda row: [(key, text.encode()) for key, text in row.view.properties.items()],
}


def decode(
    buffer: Buffer, starts: Starts, settings: DecodeSettings, selection: Selection
) -> DecodedBatch:
    """The rows of the records at ``starts``; see ``Decoder.decode``.

    Raises:
        DecodeError: a record is damaged or its body can't be decoded.
    """
    bodies = _Bodies(settings)
    rows: list[_Row] = []
    skipped = 0
    for position in starts.tolist():
        view = _view(buffer, position, settings)
        if view is None:
            skipped += 1
        elif _is_wanted(view, selection):
            rows.append(_Row(view, settings, selection.file, bodies.of(view)))
    arrays = [
        pa.array([_VALUES[column.name](row) for row in rows], type=column.arrow)
        for column in settings.columns
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=settings.schema)
    return DecodedBatch(batch, skipped, bodies.damaged, bodies.inflated_bytes)


def _is_wanted(view: RecordView, selection: Selection) -> bool:
    offset = view.queue_offset
    return (
        (selection.first_offset is None or offset >= selection.first_offset)
        and (selection.end_offset is None or offset < selection.end_offset)
        and (selection.tags is None or selection.tags.matches(view.tags))
    )
