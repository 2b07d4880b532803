"""Pieces of a buffer as Arrow arrays, without a Python object for each.

An array of variable length is a block of bytes and the positions where values end and the next
begin, so values have to be adjacent. Those of records are not: there are gaps between them. But
wanted piece, gap, wanted piece, gap ... are adjacent, and make up an array over the buffer as it
lies there, without a copy. Taking every other element of it copies the wanted ones together, in
C++ and at the speed of memory.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from remoting.protocol.message.record import host_of
from spark_connector.decode.model import UnusualError
from spark_connector.decode.plain import host_text

_ASCII_END: Final = 0x80
_HEX: Final = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), dtype=np.uint16)
_OFFSET_ID_BYTES: Final = 16

# What pyarrow.compute.take() looks up and makes at each call.
_TAKE: Final = pc.get_function("take")
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)


def pieces(buffer: Any, begins: NDArray[Any], ends: NDArray[Any]) -> Any:
    """The bytes between positions, as a binary array of its own.

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


def block_of(array: Any) -> NDArray[np.uint8]:
    """The adjacent bytes of a binary or string array that is not a slice."""
    ends = offsets_of(array)
    data = array.buffers()[2]
    if data is None or not len(ends) or not ends[-1]:
        return np.empty(0, dtype=np.uint8)
    return np.frombuffer(data, dtype=np.uint8, count=int(ends[-1]))


def offsets_of(array: Any) -> NDArray[np.int32]:
    """The positions of a binary or string array that is not a slice, in its block."""
    return np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1)


def as_text(array: Any) -> Any:
    """A binary array as an array of strings.

    Raises:
        UnusualError: a value is not UTF-8.
    """
    block = block_of(array)
    if not block.size or block.max() < _ASCII_END:
        return array.view(pa.string())
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise UnusualError from error


def hosts_v4(hosts: NDArray[np.uint64]) -> Any:
    """``ip:port`` of hosts of eight bytes each; few of many are different."""
    if not np.count_nonzero(hosts != hosts[0]):
        return pa.repeat(host_text(host_of(hosts[0].tobytes())), len(hosts))
    encoded = pa.array(hosts).dictionary_encode()
    known = np.array(encoded.dictionary.to_pylist(), dtype=np.uint64)
    texts = [host_text(host_of(host.tobytes())) for host in known]
    return pa.array(texts, pa.string()).take(encoded.indices)


def offset_ids_v4(hosts: NDArray[Any], physical_offsets: NDArray[Any]) -> Any:
    """The offset ids of messages: eight bytes of host, eight of physical offset, in hexadecimal."""
    number = len(hosts)
    raw = np.empty((number, 2), dtype="V8")
    raw[:, 0] = hosts
    raw[:, 1] = physical_offsets.astype(">i8").view("V8")
    digits = _HEX[raw.view(np.uint8)]
    offsets = np.arange(number + 1, dtype=np.int32) * (2 * _OFFSET_ID_BYTES)
    return pa.Array.from_buffers(
        pa.string(), number, [None, pa.py_buffer(offsets), pa.py_buffer(np.ravel(digits))]
    )
