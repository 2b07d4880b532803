"""The messages of a batch as columns: for those of one size, laid out without a loop.

Imported only where numpy can be had, see ``hot.numpy_loader``.
"""

from __future__ import annotations

from functools import lru_cache
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
_Rows = NDArray[np.void]

_ELEMENT_FLAG_AT: Final = 12
_BODY_LENGTH: Final = slice(16, 20)
_FLAG_AT: Final = 16
_CRC_MASK: Final = 0x7FFFFFFF
_TAGS: Final = TAGS.encode() + NAME_END

_MAX_LAYOUTS: Final = 256
"""Shapes of messages whose layouts are kept, of a KiB each; to make one takes some 10 us."""

_COPIED_AT_ONCE: Final = 128 * 1024
"""Bytes of bodies that are taken out for their CRCs, and stay in the processor's cache."""

Fields = dict[str, tuple[str, int]]
"""Of rows of bytes: the type of a field, and where it is."""

HEAD: Final = np.dtype(f"V{HEAD_BYTES_V4}")


class Messages:
    """The messages of a batch, a row each."""

    __slots__ = ("_properties", "_rows", "_shape", "_text")

    def __init__(self, rows: _Bytes, shape: Shape, text: bytes) -> None:
        """``text`` goes behind the properties of each, with its separator if one is needed."""
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
        shape, text = self._shape, self._text
        properties = shape.properties_bytes + len(text)
        tail = topic + properties.to_bytes(2, "big")
        sent, stored = _layouts(shape.body_bytes, shape.properties_bytes, len(tail), len(text))
        messages: _Rows = self._rows.reshape(-1).view(sent)
        records: _Rows = np.empty(shape.messages, stored)
        records["head"] = np.frombuffer(head, HEAD)
        records["crc"] = crcs(messages["body"])
        records["flag"] = messages["flag"]
        records["number"] = np.arange(number, number + shape.messages)
        end = position + shape.messages * stored.itemsize
        records["place"] = np.arange(position, end, stored.itemsize)
        records["body"] = messages["body"]
        records["tail"] = void_of(tail)
        if shape.properties_bytes:
            records["properties"] = messages["properties"]
        if text:
            records["text"] = void_of(text)
        return records.view(np.uint8).data


@lru_cache(_MAX_LAYOUTS)
def _layouts(
    body_bytes: int, properties_bytes: int, tail_bytes: int, text_bytes: int
) -> tuple[np.dtype[np.void], np.dtype[np.void]]:
    """Of messages as they are sent, and of their records."""
    body, properties = f"V{body_bytes}", f"V{properties_bytes}"
    body_end = HEAD_BYTES + body_bytes
    sent: Fields = {"flag": ("V4", _ELEMENT_FLAG_AT), "body": (body, HEAD_BYTES)}
    stored: Fields = {
        "head": (HEAD.str, 0),
        "crc": (">u4", CRC_AT),
        "flag": ("V4", _FLAG_AT),
        "number": (">i8", QUEUE_OFFSET_AT),
        "place": (">i8", PHYSICAL_OFFSET_AT),
        "body": (body, HEAD_BYTES_V4),
        "tail": (f"V{tail_bytes}", HEAD_BYTES_V4 + body_bytes),
    }
    at = HEAD_BYTES_V4 + body_bytes + tail_bytes
    if properties_bytes:
        sent["properties"] = properties, body_end + 2
        stored["properties"] = properties, at
        at += properties_bytes
    if text_bytes:
        stored["text"] = f"V{text_bytes}", at
    return layout(sent, body_end + 2 + properties_bytes), layout(stored, at + text_bytes)


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
    if not shape.body_bytes:
        return None
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
    return Messages(rows, shape, text)


def row_of(data: bytes) -> _Bytes:
    """Bytes as a row."""
    return np.frombuffer(data, np.uint8)


def void_of(data: bytes) -> _Rows:
    """Bytes, not none, as a field of that length."""
    return np.frombuffer(data, f"V{len(data)}")


def layout(fields: Fields, size: int) -> np.dtype[np.void]:
    """Of rows of ``size`` bytes."""
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [at for _, at in fields.values()],
            "itemsize": size,
        }
    )


def crcs(bodies: _Rows) -> NDArray[np.uint32]:
    """What their records say of bodies of one length (cf. ``record.body_crc``)."""
    found: list[int] = []
    at_once = max(_COPIED_AT_ONCE // bodies.itemsize, 1)
    for begin in range(0, len(bodies), at_once):
        found += map(crc32, bodies[begin : begin + at_once].tolist())
    return np.fromiter(found, np.uint32, len(found)) & np.uint32(_CRC_MASK)


assert FIXED_BYTES_V4 == HEAD_BYTES_V4 + 3, "a length of one byte, and one of two, behind the head"
