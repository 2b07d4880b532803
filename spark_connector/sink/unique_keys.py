"""The unique keys of messages, by which readers recognise duplicates.

=============  =====================================================================
by position    hash of (query, batch, partition), 24 digits, and the row, 8 digits:
               the same when Spark repeats a task or a micro-batch
by column      the value itself if it has the format of a RocketMQ id, else its hash
random         different in each repetition
=============  =====================================================================

Keys have 32 upper-case hexadecimal digits, like those of RocketMQ's producers. A value taken from
the column may also have 56, the format with an IPv6 address.
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
"""Creates keys: (number of the first row, ``uniqKey`` column or None, count) -> binary array."""


@dataclass(frozen=True, slots=True)
class PositionKeys:
    """Creates keys by position; ignores a ``uniqKey`` column.

    Attributes:
        run: the id of the run: query and micro-batch, or a random id for a batch write.
        partition: the task's partition.
    """

    run: str
    partition: int

    def __call__(self, first: int, column: Any, count: int) -> Any:
        """Return the keys of ``count`` rows."""
        del column
        rows = np.arange(first, first + count, dtype=np.int64)
        keys = np.empty((count, 2 * _KEY_BYTES), dtype=np.uint8)
        keys[:, 2 * _PREFIX_BYTES :] = _hex((rows % _ROWS).astype(">u4").view(np.uint8), _ROW_BYTES)
        for era in range(first // _ROWS, (first + max(count, 1) - 1) // _ROWS + 1):
            text = f"{self.run}\0{self.partition}\0{era}".encode()
            digest = blake2b(text, digest_size=_PREFIX_BYTES).hexdigest().upper()
            prefix = np.frombuffer(digest.encode(), dtype=np.uint8)
            keys[rows // _ROWS == era, : 2 * _PREFIX_BYTES] = prefix
        return binary_of_rows(keys)


def random_keys(first: int, column: Any, count: int) -> Any:
    """Return ``count`` random keys."""
    del first, column
    noise = np.frombuffer(os.urandom(_KEY_BYTES * count), dtype=np.uint8)
    return binary_of_rows(_hex(noise, _KEY_BYTES))


@dataclass(frozen=True, slots=True)
class ColumnKeys:
    """Creates keys by column; ``otherwise`` creates those of rows without a value."""

    otherwise: UniqueKeys

    def __call__(self, first: int, column: Any, count: int) -> Any:
        """Return the keys of rows."""
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
    """Return the unique key for a value that does not have the format of one."""
    return blake2b(value, digest_size=_KEY_BYTES).hexdigest().upper().encode()


def _hex(data: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Return bytes as hexadecimal digits, one row for every ``width`` bytes."""
    nibbles = np.empty((len(data), 2), dtype=np.uint8)
    nibbles[:, 0] = data >> 4
    nibbles[:, 1] = data & 15
    return _DIGITS[nibbles].reshape(-1, 2 * width)
