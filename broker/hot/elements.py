"""The messages of a batch's body: all of them or none (cf. ``protocol.message.batch``)."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from remoting.protocol.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES
from remoting.protocol.message.batch import ELEMENT_FIXED_BYTES, ELEMENT_HEAD
from remoting.protocol.message.properties import join

_SHAPE: Final = Struct(">12xiI")
_LENGTH: Final = Struct(">H")
HEAD_BYTES: Final = ELEMENT_HEAD.size


class Shape(NamedTuple):
    """Of the messages of a batch, when it is the same for all."""

    messages: int
    body_bytes: int
    properties_bytes: int

    @property
    def step(self) -> int:
        """Bytes from one message to the next."""
        return ELEMENT_FIXED_BYTES + self.body_bytes + self.properties_bytes


def shape_of(buffer: bytes, start: int, end: int) -> Shape | None:
    """The shape that all messages of a batch have if they have the first one's; None: they can't.

    Args:
        buffer: has the batch's body from ``start`` to ``end``.
    """
    size = end - start
    if size < ELEMENT_FIXED_BYTES:
        return None
    _, body_bytes = _SHAPE.unpack_from(buffer, start)
    if ELEMENT_FIXED_BYTES + body_bytes > size:
        return None
    (properties_bytes,) = _LENGTH.unpack_from(buffer, start + HEAD_BYTES + body_bytes)
    count, rest = divmod(size, ELEMENT_FIXED_BYTES + body_bytes + properties_bytes)
    if rest or count > MAX_BATCH_MESSAGES or properties_bytes > MAX_PROPERTIES_BYTES:
        return None
    return Shape(count, body_bytes, properties_bytes)


class Element(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes


def elements_of(body: bytes, text: bytes) -> list[Element] | None:
    """The messages with the batch's own text behind theirs; None when one breaks a limit."""
    elements = []
    position, end = 0, len(body)
    while position < end:
        body_at = position + HEAD_BYTES
        if body_at + 2 > end:
            return None
        flag, length = _SHAPE.unpack_from(body, position)
        body_end = body_at + length
        if body_end + 2 > end:
            return None
        (properties_length,) = _LENGTH.unpack_from(body, body_end)
        position = body_end + 2 + properties_length
        properties = join(body[body_end + 2 : position], text)
        if position > end or len(properties) > MAX_PROPERTIES_BYTES:
            return None
        elements.append(Element(flag, body[body_at:body_end], properties))
    return elements if 0 < len(elements) <= MAX_BATCH_MESSAGES else None
