"""Conversions between Arrow binary arrays and NumPy arrays, without copies where possible.

An Arrow binary or string array has one data buffer and an array of offsets, each of which is the
end of one value and the start of the next. So its values are adjacent in the data buffer.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# pyarrow.compute.take() looks up the function and creates the options at each call.
_TAKE: Final = pc.get_function("take")
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)


def join_slices(buffer: Any, begins: NDArray[Any], ends: NDArray[Any]) -> Any:
    """Copy slices of a buffer into a binary array, one value per slice.

    There may be gaps between the slices. Slices and gaps alternate and are adjacent, so together
    they are a valid Arrow array over the buffer without a copy. Taking every other element of that
    array copies the slices in C++.

    Args:
        buffer: any object with the buffer protocol, of less than 2 GiB.
        begins: start of each slice, ascending; at least one.
        ends: end of each slice: not before its start or after the start of the next slice.
    """
    number = len(begins)
    offsets = np.empty(2 * number, dtype=np.int32)
    offsets[0::2] = begins
    offsets[1::2] = ends
    mixed = pa.Array.from_buffers(
        pa.binary(), 2 * number - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    )
    return take(mixed, np.arange(0, 2 * number, 2, dtype=np.int32))


def take(array: Any, indices: NDArray[np.int32]) -> Any:
    """Return a copy of the elements at these indices, which are not checked against the length."""
    return _TAKE.call([array, pa.array(indices)], _UNCHECKED)


def binary_of_rows(rows: NDArray[np.uint8]) -> Any:
    """Return a two-dimensional array of bytes as a binary array with one value per row."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return binary_of(offsets, pa.py_buffer(np.ascontiguousarray(rows)))


def binary_of(offsets: NDArray[np.int32], data: Any) -> Any:
    """Return a binary array made of its offsets and its data buffer."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), data]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def offsets_of(array: Any) -> NDArray[np.int32]:
    """Return the offsets of a binary or string array: the bounds of its values in its buffer."""
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1]


def bytes_of(array: Any) -> NDArray[np.uint8]:
    """Return the concatenated bytes of all values of a binary or string array."""
    offsets, data = offsets_of(array), array.buffers()[2]
    if data is None:
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]


def lengths_of(array: Any) -> NDArray[np.int64]:
    """Return the length of each value of a binary array without nulls, in bytes."""
    return np.diff(offsets_of(array)).astype(np.int64)


def mask_of(array: Any) -> NDArray[np.bool_]:
    """Return a boolean Arrow array without nulls as a NumPy array."""
    mask: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return mask
