"""The settings and results of the decoder."""

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
"""The positions at which records begin in a buffer."""

MAX_BATCH_ROWS: Final = 2_000
"""The most rows of a batch by default: the size with the highest throughput in Spark."""

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of records in a batch by default."""

MAX_BATCH_INFLATED_BYTES: Final = 2 * MAX_INFLATED_MESSAGE_BYTES
"""The most inflated bytes of the compressed bodies of one batch; two bodies always fit."""

MAX_FALLBACK_RECORDS: Final = 64
"""The most records that ``fallback`` decodes together; more are halved first."""


class NeedsFallback(Exception):
    """Records need ``fallback``: a signal for the decoder, not an error."""


class BatchTooLargeError(DecodeError):
    """The bodies of more than one record inflate to more than a batch may hold."""


@dataclass(frozen=True)
class DecodeSettings:
    """How records become rows.

    Attributes:
        columns: the columns of the batches, any of ``COLUMNS``, ``STORE_COLUMNS`` and
            ``KAFKA_COLUMNS``.
        broker_name: the value of ``brokerName``.
        verify_crc: treat a body with a wrong CRC as damaged. Without it, a wrong CRC is visible
            only in the column ``crcOk``.
        decompress: inflate compressed bodies; otherwise they are returned as stored.
        on_decode_error: what happens to damaged bodies. Records that can't be decoded raise an
            error with ``FAIL``; otherwise they are skipped and counted.
        max_inflated_bytes: the most inflated bytes of the compressed bodies of one batch.
        max_fallback_records: the most records that ``fallback`` decodes together.
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
        """The ``pyarrow.Schema`` of the batches."""
        return arrow_schema(self.columns)

    def wants(self, *names: str) -> bool:
        """Return whether one of these columns is required."""
        return any(column.name in names for column in self.columns)

    def check_inflated(self, inflated_bytes: int) -> None:
        """Raise BatchTooLargeError if the inflated bodies are too large for one batch."""
        if inflated_bytes > self.max_inflated_bytes:
            raise BatchTooLargeError(
                f"the bodies of a batch inflate to more than {self.max_inflated_bytes} bytes",
                "decode fewer records at once",
            )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a buffer are decoded, and the file they are from.

    Attributes:
        first_offset, end_offset: the range of queue offsets, ``end_offset`` excluded.
        tags: the tag expression, compared exactly.
        file: the value of the column ``file``.
    """

    first_offset: int | None = None
    end_offset: int | None = None
    tags: TagExpression | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """Decoded records.

    Attributes:
        batch: the ``pyarrow.RecordBatch``.
        skipped: the number of records that could not be decoded; 0 if decode errors fail.
        damaged: the number of rows whose body is null or raw because it is damaged.
        inflated_bytes: the inflated size of all compressed bodies.
    """

    batch: Any
    skipped: int = 0
    damaged: int = 0
    inflated_bytes: int = 0

    @property
    def rows(self) -> int:
        """The number of rows of the batch."""
        count: int = self.batch.num_rows
        return count
