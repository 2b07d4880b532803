"""Frames of one length as the rows of a matrix; see ``hot.series``.

Imported only where numpy can be had, see ``hot.numpy_loader``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.hot.columns import put, row_of
from broker.hot.series import PLAIN, Own
from remoting.protocol.accelerated import crc32
from remoting.protocol.message.record import (
    BORN_TIMESTAMP_AT,
    CRC_AT,
    HEAD_BYTES_V4,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
)

_Bytes = NDArray[np.uint8]

_CRC_MASK: Final = 0x7FFFFFFF
_ZERO: Final = ord("0")
_NINE: Final = 9
_OPAQUE, _QUEUE, _BORN = range(3)

_PLAIN: Final = np.zeros(256, bool)
_PLAIN[row_of(PLAIN)] = True


class Like:
    """What frames have in common with one that was understood.

    Args:
        head: that frame, without its body.
        own: what may differ.
    """

    __slots__ = ("_digits", "_fixed", "_head", "_own", "_powers")

    def __init__(self, head: bytes, own: Own) -> None:
        self._head = row_of(head)
        self._own = own
        self._fixed = np.ones(len(head), bool)
        numbers = (own.opaque, own.queue, own.born)
        for start, end in (*numbers, *(span for span, _ in own.texts)):
            self._fixed[start:end] = False
        self._digits = np.concatenate([np.arange(*span) for span in numbers])
        self._powers = np.zeros((len(self._digits), len(numbers)), np.int64)
        at = 0
        for column, (start, end) in enumerate(numbers):
            width = end - start
            self._powers[at : at + width, column] = 10 ** np.arange(width)[::-1]
            at += width

    def rows(self, buffer: bytes, position: int, size: int, most: int) -> Rows:
        """The frames of ``size`` bytes from ``position`` on that are like it, ``most`` at most."""
        matrix = np.frombuffer(buffer, np.uint8, size * most, position).reshape(most, size)
        heads = matrix[:, : len(self._head)]
        wrong = heads != self._head
        wrong &= self._fixed
        digits = heads[:, self._digits] - np.uint8(_ZERO)
        odd = digits > _NINE
        opaque_start, opaque_end = self._own.opaque
        if opaque_end - opaque_start > 1:
            # JSON knows no leading zeros.
            odd[:, 0] |= digits[:, 0] == 0
        if wrong.any() or odd.any():
            most = int((wrong.any(axis=1) | odd.any(axis=1)).argmax())
        for (start, end), _ in self._own.texts:
            plain = _PLAIN[heads[:most, start:end]]
            if not plain.all():
                most = int(plain.all(axis=1).argmin())
        numbers = digits[:most].astype(np.int64) @ self._powers
        return Rows(buffer, position, matrix[:most], len(self._head), self._own, numbers)


class Rows:
    """Frames that are alike.

    Attributes:
        count: how many.
        opaques, queues: of each.
    """

    __slots__ = ("_body_at", "_buffer", "_matrix", "_numbers", "_own", "_position", "count")

    def __init__(
        self,
        buffer: bytes,
        position: int,
        matrix: _Bytes,
        body_at: int,
        own: Own,
        numbers: NDArray[np.int64],
    ) -> None:
        self._buffer = buffer
        self._position = position
        self._matrix = matrix
        self._body_at = body_at
        self._own = own
        self._numbers = numbers
        self.count = len(matrix)

    @property
    def opaques(self) -> list[int]:
        """Of each frame."""
        return list(self._numbers[:, _OPAQUE].tolist())

    @property
    def queues(self) -> list[int]:
        """The queue each goes to."""
        return list(self._numbers[:, _QUEUE].tolist())

    def records(
        self, head: bytes, topic: bytes, properties: bytes, position: int, numbers: Sequence[int]
    ) -> memoryview:
        """The records.

        Args:
            head: the fixed fields, with nothing where they differ.
            topic: its name behind its length.
            properties: those of the frame that all are like.
            position: physical offset of the first one.
            numbers: queue offset of each.
        """
        matrix, body_at = self._matrix, self._body_at
        tail = topic + len(properties).to_bytes(2, "big") + properties
        tail_at = HEAD_BYTES_V4 + matrix.shape[1] - body_at
        size = tail_at + len(tail)
        records = np.empty((self.count, size), np.uint8)
        records[:, :HEAD_BYTES_V4] = row_of(head)
        put(records, CRC_AT, np.array(self._crcs(), ">u4"))
        put(records, QUEUE_ID_AT, self._numbers[:, _QUEUE].astype(">i4"))
        put(records, QUEUE_OFFSET_AT, np.array(numbers, ">i8"))
        places = np.arange(position, position + self.count * size, size, dtype=">i8")
        put(records, PHYSICAL_OFFSET_AT, places)
        put(records, BORN_TIMESTAMP_AT, self._numbers[:, _BORN].astype(">i8"))
        records[:, HEAD_BYTES_V4:tail_at] = matrix[:, body_at:]
        records[:, tail_at:] = row_of(tail)
        properties_at = size - len(properties)
        for (start, end), place in self._own.texts:
            at = properties_at + place
            records[:, at : at + end - start] = matrix[:, start:end]
        return records.reshape(-1).data

    def _crcs(self) -> list[int]:
        buffer, size = self._buffer, self._matrix.shape[1]
        length = size - self._body_at
        first = self._position + self._body_at
        starts = range(first, first + self.count * size, size)
        return [crc32(buffer[start : start + length]) & _CRC_MASK for start in starts]
