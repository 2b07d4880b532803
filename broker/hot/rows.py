"""Frames of one length as the rows of a matrix; see ``hot.series``.

Imported only where numpy can be had, see ``hot.numpy_loader``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.hot.columns import HEAD, Fields, crcs, layout, row_of, void_of
from broker.hot.series import PLAIN, Own
from remoting.protocol.message.record import (
    BORN_TIMESTAMP_AT,
    CRC_AT,
    HEAD_BYTES_V4,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
)

_Bytes = NDArray[np.uint8]

_LENGTH_BYTES: Final = 4
_ZERO: Final = ord("0")
_NINE: Final = ord("9")
_OPAQUE, _QUEUE, _BORN = range(3)

_PLAIN: Final = np.zeros(256, bool)
_PLAIN[row_of(PLAIN)] = True


class Like:
    """What frames have in common with one that was understood.

    Args:
        head: that frame, without its body.
        own: what may differ.
    """

    __slots__ = (
        "_digits",
        "_frame",
        "_head",
        "_is_long",
        "_mask",
        "_masked",
        "_own",
        "_powers",
        "_records",
        "_size",
        "_texts",
        "_zeros",
    )

    def __init__(self, head: bytes, own: Own) -> None:
        self._head = row_of(head)
        self._size = _LENGTH_BYTES + int.from_bytes(head[:_LENGTH_BYTES], "big")
        self._texts: Fields = {
            f"text {number}": (f"V{end - start}", start)
            for number, ((start, end), _) in enumerate(own.texts)
        }
        body = f"V{self._size - len(head)}", len(head)
        self._frame = layout({"body": body, **self._texts}, self._size)
        self._records: dict[tuple[int, int], np.dtype[np.void]] = {}
        self._own = own
        self._is_long = own.opaque[1] - own.opaque[0] > 1
        self._mask = np.full(len(head), 0xFF, np.uint8)
        numbers = (own.opaque, own.queue, own.born)
        for start, end in (*numbers, *(span for span, _ in own.texts)):
            self._mask[start:end] = 0
        self._masked = (self._head & self._mask).tobytes()
        self._digits = np.concatenate([np.arange(*span) for span in numbers])
        self._powers = np.zeros((len(self._digits), len(numbers)), np.int64)
        at = 0
        for column, (start, end) in enumerate(numbers):
            width = end - start
            self._powers[at : at + width, column] = 10 ** np.arange(width)[::-1]
            at += width
        self._zeros = _ZERO * self._powers.sum(axis=0)

    def rows(self, buffer: bytes, position: int, size: int, most: int) -> Rows | None:
        """The frames of ``size`` bytes from ``position`` on that are like it, ``most`` at most.

        Returns:
            None when that is not its size.
        """
        if size != self._size:
            return None
        matrix = np.frombuffer(buffer, np.uint8, size * most, position).reshape(most, size)
        heads = matrix[:, : len(self._head)]
        digits = heads[:, self._digits]
        frames = np.frombuffer(buffer, self._frame, most, position)
        if not self._are_alike(heads, digits, frames):
            most = self._count_alike(heads, digits)
            digits, frames = digits[:most], frames[:most]
        numbers = digits.astype(np.int64) @ self._powers - self._zeros
        return Rows(self, frames, numbers)

    def _are_alike(self, heads: _Bytes, digits: _Bytes, frames: NDArray[np.void]) -> bool:
        """Whether all frames are like it: a shorter look than for the first that is not."""
        return (
            (heads & self._mask).tobytes() == self._masked * len(frames)
            and digits.tobytes().isdigit()
            and not (self._is_long and b"0" in digits[:, 0].tobytes())
            and not any(frames[name].tobytes().translate(None, PLAIN) for name in self._texts)
        )

    def _count_alike(self, heads: _Bytes, digits: _Bytes) -> int:
        """How many frames come before the first that is not like it."""
        odd = np.any((heads & self._mask) != self._head & self._mask, axis=1)
        odd |= np.any((digits < _ZERO) | (digits > _NINE), axis=1)
        if self._is_long:
            # JSON knows no leading zeros.
            odd |= digits[:, 0] == _ZERO
        for (start, end), _ in self._own.texts:
            odd |= ~_PLAIN[heads[:, start:end]].all(axis=1)
        return int(odd.argmax()) if odd.any() else len(odd)

    def records(self, tail_bytes: int, properties_bytes: int) -> np.dtype[np.void]:
        """The layout of its likes' records.

        Args:
            tail_bytes: of all behind the body.
            properties_bytes: of the properties, which are the last of that.
        """
        key = tail_bytes, properties_bytes
        known = self._records.get(key)
        if known is None:
            body_bytes = self._size - len(self._head)
            size = HEAD_BYTES_V4 + body_bytes + tail_bytes
            fields: Fields = {
                "head": (HEAD.str, 0),
                "crc": (">u4", CRC_AT),
                "queue": (">i4", QUEUE_ID_AT),
                "number": (">i8", QUEUE_OFFSET_AT),
                "place": (">i8", PHYSICAL_OFFSET_AT),
                "born": (">i8", BORN_TIMESTAMP_AT),
                "body": (f"V{body_bytes}", HEAD_BYTES_V4),
                "tail": (f"V{tail_bytes}", size - tail_bytes),
            }
            texts = zip(self._texts.items(), self._own.texts, strict=True)
            for (name, (kind, _)), (_, place) in texts:
                fields[name] = kind, size - properties_bytes + place
            known = self._records[key] = layout(fields, size)
        return known

    @property
    def texts(self) -> Iterable[str]:
        """The fields that frames and records have alike."""
        return self._texts


class Rows:
    """Frames that are alike.

    Attributes:
        count: how many.
        opaques, queues: of each.
    """

    __slots__ = ("_frames", "_like", "_numbers", "count")

    def __init__(self, like: Like, frames: NDArray[np.void], numbers: NDArray[np.int64]) -> None:
        self._like = like
        self._frames = frames
        self._numbers = numbers
        self.count = len(frames)

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
        frames = self._frames
        tail = topic + len(properties).to_bytes(2, "big") + properties
        stored = self._like.records(len(tail), len(properties))
        records: NDArray[np.void] = np.empty(self.count, stored)
        records["head"] = np.frombuffer(head, HEAD)
        records["crc"] = crcs(frames["body"])
        records["queue"] = self._numbers[:, _QUEUE]
        records["number"] = numbers
        end = position + self.count * stored.itemsize
        records["place"] = np.arange(position, end, stored.itemsize)
        records["born"] = self._numbers[:, _BORN]
        records["body"] = frames["body"]
        records["tail"] = void_of(tail)
        for name in self._like.texts:
            records[name] = frames[name]
        return records.view(np.uint8).data
