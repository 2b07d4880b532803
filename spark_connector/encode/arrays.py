"""Small conversions between numpy and Arrow that cost no copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def binary_of_rows(rows: NDArray[np.uint8]) -> Any:
    """A two-dimensional array of bytes as a binary array, a value per row."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return binary_of(offsets, pa.py_buffer(np.ascontiguousarray(rows)))


def binary_of(offsets: NDArray[np.int32], data: Any) -> Any:
    """A binary array from its offsets and its buffer."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), data]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def offsets_of(array: Any) -> NDArray[np.int32]:
    """Where the values of a binary array begin and end in its data buffer."""
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1]


def bytes_of(array: Any) -> NDArray[np.uint8]:
    """The bytes of all values of a binary array, one behind the other."""
    offsets, data = offsets_of(array), array.buffers()[2]
    if data is None:
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]


def lengths_of(array: Any) -> NDArray[np.int64]:
    """The length of each value of a binary array without nulls."""
    return np.diff(offsets_of(array)).astype(np.int64)


def mask_of(array: Any) -> NDArray[np.bool_]:
    """A boolean Arrow array without nulls as numpy's."""
    mask: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return mask
