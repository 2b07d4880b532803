"""Arrow arrays of variable length and the NumPy arrays inside them, without copies where possible.

An Arrow array of variable length is a block of bytes and the positions where values end and the
next begin, so values have to be adjacent.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# What pyarrow.compute.take() looks up and makes at each call.
_TAKE: Final = pc.get_function("take")
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)


def join_slices(buffer: Any, begins: NDArray[Any], ends: NDArray[Any]) -> Any:
    """The bytes between positions, as a binary array of its own.

    Wanted slices have gaps between them. But piece, gap, piece, gap ... are adjacent, and form an
    array over the buffer without a copy. Taking every other element of it copies the join_slices
    together, in C++ and at the speed of memory.

    Args:
        buffer: anything with the buffer protocol, of less than 2 GiB.
        begins: ascending, at least one.
        ends: none before its begin or behind the next begin.
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
    """A copy of the elements at these indices, all of which there are."""
    return _TAKE.call([array, pa.array(indices)], _UNCHECKED)


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
    """Where the values of a binary or string array begin and end in its block of bytes."""
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1]


def bytes_of(array: Any) -> NDArray[np.uint8]:
    """The bytes of all values of a binary or string array, one behind the other."""
    offsets, data = offsets_of(array), array.buffers()[2]
    if data is None:
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]


def lengths_of(array: Any) -> NDArray[np.int64]:
    """The length of each value of a binary array without nulls."""
    return np.diff(offsets_of(array)).astype(np.int64)


def mask_of(array: Any) -> NDArray[np.bool_]:
    """A boolean Arrow array without nulls as NumPy's."""
    mask: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return mask
