"""The messages of a batch as columns: for those of one size, laid out without a loop.

Imported only where numpy can be had, see ``hot.numpy_loader``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.hot.elements import HEAD_BYTES, Shape
from remoting.protocol.accelerated import crc32
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message.properties import ENTRY_END, NAME_END, TAGS, join
from remoting.protocol.message.record import (
    CRC_AT,
    FIXED_BYTES_V4,
    HEAD_BYTES_V4,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
)
from remoting.protocol.message.tags import tags_code_of

_Bytes = NDArray[np.uint8]

_FLAG: Final = slice(12, 16)
_BODY_LENGTH: Final = slice(16, 20)
_FLAG_AT: Final = 16
_CRC_MASK: Final = 0x7FFFFFFF
_TAGS: Final = TAGS.encode() + NAME_END


class Messages:
    """The messages of a batch, a row each."""

    __slots__ = ("_buffer", "_properties", "_rows", "_shape", "_start", "_text")

    def __init__(self, buffer: bytes, start: int, shape: Shape, rows: _Bytes, text: bytes) -> None:
        """``text`` goes behind the properties of each, with its separator if one is needed."""
        self._buffer = buffer
        self._start = start
        self._shape = shape
        self._rows = rows
        self._text = text
        self._properties = rows[:, shape.step - shape.properties_bytes :]

    @property
    def variable_bytes(self) -> int:
        """Bytes of each record's body and properties."""
        return self._shape.body_bytes + self._shape.properties_bytes + len(self._text)

    def tags_codes(self) -> list[int]:
        """Of each message."""
        count, own = self._shape.messages, self._properties.tobytes()
        if _TAGS not in own:
            return [tags_code_of(self._text)] * count
        step, text = self._shape.properties_bytes, self._text
        return [tags_code_of(own[at : at + step] + text) for at in range(0, count * step, step)]

    def records(self, head: bytes, topic: bytes, number: int, position: int) -> memoryview:
        """The records.

        Args:
            head: the fixed fields of the first one.
            topic: its name behind its length.
            number: queue offset of the first one.
            position: physical offset of the first one.
        """
        shape, rows = self._shape, self._rows
        properties = len(self._text) + shape.properties_bytes
        tail = topic + properties.to_bytes(2, "big")
        tail_at = HEAD_BYTES_V4 + shape.body_bytes
        own_at = tail_at + len(tail)
        size = own_at + properties
        records = np.empty((shape.messages, size), np.uint8)
        records[:, :HEAD_BYTES_V4] = row_of(head)
        put(records, CRC_AT, np.array(self._crcs(), ">u4"))
        records[:, _FLAG_AT : _FLAG_AT + 4] = rows[:, _FLAG]
        count = np.arange(shape.messages, dtype=np.int64)
        put(records, QUEUE_OFFSET_AT, (number + count).astype(">i8"))
        put(records, PHYSICAL_OFFSET_AT, (position + size * count).astype(">i8"))
        records[:, HEAD_BYTES_V4:tail_at] = rows[:, HEAD_BYTES : HEAD_BYTES + shape.body_bytes]
        records[:, tail_at:own_at] = row_of(tail)
        records[:, own_at : own_at + shape.properties_bytes] = self._properties
        records[:, own_at + shape.properties_bytes :] = row_of(self._text)
        return records.reshape(-1).data

    def _crcs(self) -> list[int]:
        buffer, shape = self._buffer, self._shape
        length, first = shape.body_bytes, self._start + HEAD_BYTES
        starts = range(first, first + shape.messages * shape.step, shape.step)
        return [crc32(buffer[start : start + length]) & _CRC_MASK for start in starts]


def messages_of(buffer: bytes, start: int, shape: Shape, text: bytes) -> Messages | None:
    """The messages of a batch if all have the ``shape`` of the first; else None.

    Args:
        buffer: has the batch's body from ``start`` on.
        shape: of its first message, of which it is a multiple.
        text: goes behind the properties of each.
    """
    size = shape.messages * shape.step
    rows = np.frombuffer(buffer, np.uint8, size, start).reshape(shape.messages, shape.step)
    length_at = HEAD_BYTES + shape.body_bytes
    for part in (_BODY_LENGTH, slice(length_at, length_at + 2)):
        if not (rows[:, part] == rows[0, part]).all():
            return None
    if shape.properties_bytes:
        ends = rows[:, -1] == ENTRY_END[0]
        if ends.any() != ends.all():
            return None
        text = join(bytes(rows[0, -1:]), text)[1:]
    if shape.properties_bytes + len(text) > MAX_PROPERTIES_BYTES:
        return None
    return Messages(buffer, start, shape, rows, text)


def row_of(data: bytes) -> _Bytes:
    """Bytes as a row."""
    return np.frombuffer(data, np.uint8)


def put(records: _Bytes, at: int, column: NDArray[np.generic]) -> None:
    """A number into each row, with its own byte order."""
    width = column.itemsize
    records[:, at : at + width] = column.view(np.uint8).reshape(-1, width)


assert FIXED_BYTES_V4 == HEAD_BYTES_V4 + 3, "a length of one byte, and one of two, behind the head"
