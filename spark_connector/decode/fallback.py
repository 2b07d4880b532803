"""Decodes records one at a time: the reference for ``fast``, and its fallback.

It reads each field with a ``RecordView`` and supports everything that the view supports. The
decoder uses it for records that ``fast`` does not support, and to report what is wrong with damaged
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from client.producer.columns import RESERVED
from remoting.addresses import address_text
from remoting.protocol.errors import BodyError, RecordError
from remoting.protocol.message import compression, properties
from remoting.protocol.message.record import COMPRESSED, FIXED_BYTES_V4, MAGIC_V1, MAGIC_V2, Buffer
from remoting.protocol.message.view import RecordView, property_text
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
"""The years 1 to 9999 in ms since 1970. Times outside are no valid Spark timestamps: null."""

_START: Final = Struct(">II")
_KEYS: Final = properties.KEYS.encode()


@dataclass(slots=True)
class _Row:
    """A selected record, its decoded body and the values that are the same for all rows."""

    view: RecordView
    settings: DecodeSettings
    file: str | None
    body: bytes | None = None


@dataclass(slots=True)
class _Bodies:
    """Decodes bodies, and counts damaged ones and inflated bytes."""

    settings: DecodeSettings
    damaged: int = 0
    inflated_bytes: int = 0

    def of(self, view: RecordView) -> bytes | None:
        """Return a record's body.

        Returns:
            None if no column needs it; for a damaged body None or its raw bytes.

        Raises:
            DecodeError: the body is damaged, and decode errors are to fail.
        """
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
    """Find the positions of the records of a buffer with at least one damaged record.

    A damaged record is included if its size field leads to another record, or to the end.

    Raises:
        DecodeError: the start of the record after a damaged one can't be determined, or decode
            errors are to fail.
    """
    position, limit = 0, len(buffer)
    starts = []
    while position < limit:
        starts.append(position)
        view = _view(buffer, position, settings)
        position += _damaged_size(buffer, position, settings) if view is None else view.size
    return np.array(starts, dtype=np.int64)


def _view(buffer: Buffer, position: int, settings: DecodeSettings) -> RecordView | None:
    """Return the record, or None if it is damaged and decode errors are not to fail."""
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
    """Return the size of a damaged record, if it is followed by another one or by the end.

    Raises:
        DecodeError: it isn't, so the size can't be trusted.
    """
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
        f"{len(buffer)}, and where the next one begins can't be determined",
        "check the broker's disk; startingOffsets lets a query begin behind it",
    )


def _micros(milliseconds: int) -> int | None:
    return milliseconds * 1000 if FIRST_MS <= milliseconds <= LAST_MS else None


def _key(view: RecordView) -> bytes | None:
    text = property_text(view, _KEYS)
    return None if text is None else text.encode()


_VALUES: Final[dict[str, Callable[[_Row], Any]]] = {
    "topic": lambda row: row.view.topic,
    "brokerName": lambda row: row.settings.broker_name,
    "queueId": lambda row: row.view.queue_id,
    "queueOffset": lambda row: row.view.queue_offset,
    "body": lambda row: row.body,
    "keys": lambda row: property_text(row.view, _KEYS),
    "tags": lambda row: row.view.tags,
    "bornTimestamp": lambda row: _micros(row.view.born_timestamp_ms),
    "storeTimestamp": lambda row: _micros(row.view.store_timestamp_ms),
    "bornHost": lambda row: address_text(row.view.born_host),
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
    "headers": lambda row: [
        (key, text.encode()) for key, text in row.view.properties.items() if key not in RESERVED
    ],
}


def decode(
    buffer: Buffer, starts: Starts, settings: DecodeSettings, selection: Selection
) -> DecodedBatch:
    """Decode the records at ``starts`` to one batch; see ``Decoder.batches``.

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
