"""A decoder's settings and results."""

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
"""Rows of a batch by default: Spark was fastest with them."""

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of records in a batch by default."""

MAX_BATCH_INFLATED_BYTES: Final = 2 * MAX_INFLATED_MESSAGE_BYTES
"""What the compressed bodies of one batch may inflate to, in all; two always fit."""

MAX_FALLBACK_RECORDS: Final = 64
"""Records that are read one by one because one of them is unusual; of more, halves are tried."""


class NeedsFallback(Exception):
    """Records hold something that only ``fallback`` understands: a signal, not a failure."""


class BatchTooLargeError(DecodeError):
    """The bodies of more than one record inflate to more than a batch may hold."""


@dataclass(frozen=True)
class DecodeSettings:
    """How records become rows.

    Attributes:
        columns: of the batches: any of ``COLUMNS``, ``STORE_COLUMNS`` and ``KAFKA_COLUMNS``.
        broker_name: the value of ``brokerName``.
        verify_crc: a body whose CRC is not the stored one can't be decoded. Without it, ``crcOk``
            still says so, if it is one of the columns.
        decompress: inflate compressed bodies; otherwise they are given out as stored.
        on_decode_error: what becomes of a body that can't be decoded. Records of which no row can
            be made are an error too, or are skipped and counted.
        max_inflated_bytes: what the compressed bodies of one batch may inflate to, in all.
        max_fallback_records: records that ``fallback`` reads together.
    """

    columns: tuple[Column, ...]
    broker_name: str
    verify_crc: bool = False
    decompress: bool = True
    on_decode_error: OnDecodeError = OnDecodeError.FAIL
    max_inflated_bytes: int = MAX_BATCH_INFLATED_BYTES
    max_fallback_records: int = MAX_FALLBACK_RECORDS

    @cached_property
    def schema(self) -> Any:
        """Of the batches."""
        return arrow_schema(self.columns)

    def wants(self, *names: str) -> bool:
        """Whether one of these columns is asked for."""
        return any(column.name in names for column in self.columns)

    def check_inflated(self, inflated_bytes: int) -> None:
        """Raises BatchTooLargeError when bodies inflate to more than one batch should hold."""
        if inflated_bytes > self.max_inflated_bytes:
            raise BatchTooLargeError(
                f"the bodies of a batch inflate to more than {self.max_inflated_bytes} bytes",
                "decode fewer records at once",
            )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a buffer are wanted.

    Attributes:
        first_offset: records of lower queue offsets are left out.
        end_offset: so are records from this one on.
        tags: so are records whose tag, compared exactly, it does not name.
        file: the value of the column ``file``.
    """

    first_offset: int | None = None
    end_offset: int | None = None
    tags: TagExpression | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The rows of a buffer.

    Attributes:
        batch: the ``pyarrow.RecordBatch``.
        skipped: records that no row could be made of; always 0 when decode errors fail.
        damaged: rows whose body is null or raw because it could not be decoded.
        inflated_bytes: what compressed bodies inflated to, in all.
    """

    batch: Any
    skipped: int = 0
    damaged: int = 0
    inflated_bytes: int = 0

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        count: int = self.batch.num_rows
        return count
