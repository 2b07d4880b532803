"""The unique keys of messages: what readers recognise a message by that was sent twice.

=============  =====================================================================
by position    hash of (query, batch, partition), 24 digits, and the row, 8 digits:
               the same again when Spark runs a task or a micro-batch again
by column      the value itself if it is an id of RocketMQ's already, else its hash
at random      never the same again
=============  =====================================================================

All are 32 upper-case hexadecimal digits, as RocketMQ's producers make them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_connector.arrow import binary_of_rows

_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
_PREFIX_BYTES: Final = 12
_ROW_BYTES: Final = 4
_ROWS: Final = 1 << (8 * _ROW_BYTES)
_KEY_BYTES: Final = 16
_LIKE_AN_ID: Final = "^([0-9A-F]{32}|[0-9A-F]{56})$"

UniqueKeys = Callable[[int, Any, int], Any]
"""Keys for rows: number of the first row, the ``uniqKey`` column or None, how many -> binary."""


@dataclass(frozen=True, slots=True)
class PositionKeys:
    """Keys by position; a ``uniqKey`` column is not looked at.

    Attributes:
        run: what is written: query and batch, or one run of a batch job.
        partition: the task's partition.
    """

    run: str
    partition: int

    def __call__(self, first: int, column: Any, count: int) -> Any:
        """The keys of rows."""
        del column
        rows = np.arange(first, first + count, dtype=np.int64)
        keys = np.empty((count, 2 * _KEY_BYTES), dtype=np.uint8)
        keys[:, 2 * _PREFIX_BYTES :] = _hex((rows % _ROWS).astype(">u4").view(np.uint8), _ROW_BYTES)
        for era in range(first // _ROWS, (first + max(count, 1) - 1) // _ROWS + 1):
            keys[rows // _ROWS == era, : 2 * _PREFIX_BYTES] = self._prefix(era)
        return binary_of_rows(keys)

    def _prefix(self, era: int) -> NDArray[np.uint8]:
        text = f"{self.run}\0{self.partition}\0{era}".encode()
        digest = blake2b(text, digest_size=_PREFIX_BYTES).hexdigest().upper()
        return np.frombuffer(digest.encode(), dtype=np.uint8)


def random_keys(first: int, column: Any, count: int) -> Any:
    """Keys at random."""
    del first, column
    noise = np.frombuffer(os.urandom(_KEY_BYTES * count), dtype=np.uint8)
    return binary_of_rows(_hex(noise, _KEY_BYTES))


@dataclass(frozen=True, slots=True)
class ColumnKeys:
    """Keys by column; rows without a value get one by ``otherwise``."""

    otherwise: UniqueKeys

    def __call__(self, first: int, column: Any, count: int) -> Any:
        """The keys of rows."""
        text = column.cast(pa.string())
        fits = pc.fill_null(pc.match_substring_regex(text, _LIKE_AN_ID), False)
        if pc.all(fits).as_py():
            return column
        others = column.filter(pc.invert(fits)).to_pylist()
        hashes = [key_of(value) if value else None for value in others]
        replaced = pc.replace_with_mask(column, pc.invert(fits), pa.array(hashes, type=pa.binary()))
        if replaced.null_count == 0:
            return replaced
        return pc.coalesce(replaced, self.otherwise(first, None, count))


def key_of(value: bytes) -> bytes:
    """The unique key of a value that is not one itself."""
    return blake2b(value, digest_size=_KEY_BYTES).hexdigest().upper().encode()


def _hex(data: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Bytes as digits, a row for each ``width`` of them."""
    nibbles = np.empty((len(data), 2), dtype=np.uint8)
    nibbles[:, 0] = data >> 4
    nibbles[:, 1] = data & 15
    return _DIGITS[nibbles].reshape(-1, 2 * width)
