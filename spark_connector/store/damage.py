"""What is in a store and is no message: an error, or by choice a row of its own.

Such a row has what is known of it (where it lies, which number its queue gave it), null in all
other columns and ``crcOk`` false; with ``onDecodeError=raw`` the bytes are its body. So the result
shows what was passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_connector.errors import DecodeError
from spark_connector.planning.ranges import OnDecodeError
from spark_connector.schema import Column, arrow_schema
from spark_connector.store.options import StoreOptions

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
    """A batch that tells of what can't be read.

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
