"""What a decoder is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from remoting.protocol.limits import MAX_INFLATED_MESSAGE_BYTES
from remoting.protocol.message.tags import TagExpression
from spark_connector.errors import DecodeError
from spark_connector.options import OnDecodeError
from spark_connector.schema import Column, arrow_schema

Starts: TypeAlias = NDArray[np.int64]
"""Where records begin in a buffer."""

MAX_BATCH_ROWS: Final = 2_000
"""Rows of a batch, unless told: what Spark was fastest with."""

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of records in a batch, unless told."""

MAX_BATCH_INFLATED_BYTES: Final = 2 * MAX_INFLATED_MESSAGE_BYTES
"""What the compressed bodies of one batch may inflate to, in all; two always fit."""

MAX_PLAIN_RECORDS: Final = 64
"""Records that are read one by one because one of them is unusual; of more, halves are tried."""


class NeedsFallback(Exception):
    """Records hold something that only the plain way understands: a signal, not a failure."""


class BatchTooLargeError(DecodeError):
    """The bodies of more than one record inflate to more than a batch may hold."""


@dataclass(frozen=True)
class DecodeSettings:
    """What stays the same from buffer to buffer; see ``Decoder``."""

    columns: tuple[Column, ...]
    broker_name: str
    verify_crc: bool = False
    decompress: bool = True
    on_decode_error: OnDecodeError = OnDecodeError.FAIL

    @cached_property
    def schema(self) -> Any:
        """Of the batches."""
        return arrow_schema(self.columns)

    def wants(self, *names: str) -> bool:
        """Whether one of these columns is asked for."""
        return any(column.name in names for column in self.columns)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a buffer are wanted; see ``Decoder.decode``."""

    first_offset: int | None = None
    end_offset: int | None = None
    tags: TagExpression | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The rows of a buffer.

    Attributes:
        batch: the ``pyarrow.RecordBatch``.
        rows: how many it has.
        records: how many records were looked at; those that are neither rows nor ``skipped`` were
            left out because of their offset or their tag.
        skipped: records that no row could be made of; always 0 when decode errors fail.
        damaged: rows whose body is null or raw because it could not be decoded.
        inflated_bytes: what compressed bodies inflated to, in all.
        next_offset: the queue offset behind the last record looked at, at most ``end_offset``;
            ``first_offset`` (or 0) if there was none.
    """

    batch: Any
    rows: int
    records: int
    skipped: int
    damaged: int
    inflated_bytes: int
    next_offset: int
