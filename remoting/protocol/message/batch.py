"""The body of SEND_BATCH_MESSAGE: several messages of one topic in one request.

Each element: int32 size of the element, int32 0, int32 0, int32 flag, int32 body length, body,
int16 properties length, properties. All other fields of a record are taken from the request's
header. A reader uses the lengths of body and properties and ignores the first three numbers, as
RocketMQ does (cf. MessageDecoder.decodeMessage).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple

from remoting.protocol import core
from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES

ELEMENT_HEAD: Final = Struct(">iiiiI")
"""Size, 0, 0, flag, body length."""

ELEMENT_FIXED_BYTES: Final = ELEMENT_HEAD.size + 2
"""The size of an element with an empty body and properties: 22 bytes."""

_SHAPE: Final = Struct(">12xiI")
_LENGTH: Final = Struct(">H")


class BatchElement(NamedTuple):
    """One message of a batch; its parts are views of the batch's body."""

    flag: int
    body: memoryview
    properties: memoryview


def encode(elements: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body of a batch.

    Args:
        elements: flag, body and properties text of each message.

    Raises:
        ValueError: a message's properties take more than 32767 bytes.
    """
    parts: list[bytes] = []
    for flag, body, properties in elements:
        length = len(properties)
        if length > MAX_PROPERTIES_BYTES:
            raise ValueError(
                f"the properties of a message take {length} bytes, more than {MAX_PROPERTIES_BYTES}"
            )
        size = ELEMENT_FIXED_BYTES + len(body) + len(properties)
        parts += (
            ELEMENT_HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def _encode_columns(bodies: list[bytes], properties: list[bytes]) -> bytes:
    return encode(zip(repeat(0), bodies, properties, strict=False))


encode_columns: Callable[[list[bytes], list[bytes]], bytes] = _encode_columns
"""Return the body of a batch whose messages have flag 0, from their bodies and properties texts.

Raises:
    ValueError: a message's properties take more than 32767 bytes.
"""

if not core.WHY:
    # The compiled module exists only if ``WHY`` is empty.
    from remoting.protocol.core import messages

    encode_columns = messages.encode_columns


def iter_elements(body: bytes | memoryview) -> Iterator[BatchElement]:
    """Yield the messages of a batch, in order.

    Raises:
        BodyError: an element is truncated, or there are more than ``MAX_BATCH_MESSAGES``. Earlier
            elements were yielded by then: a caller that needs all or none makes a list first.
    """
    view = memoryview(body)
    position, end, number = 0, len(view), 0
    while position < end:
        number += 1
        if number > MAX_BATCH_MESSAGES:
            raise BodyError(f"the batch has more than {MAX_BATCH_MESSAGES} messages")
        body_at = position + ELEMENT_HEAD.size
        if body_at + 2 > end:
            raise BodyError(f"message {number} of the batch is cut off at byte {end}")
        flag, body_length = _SHAPE.unpack_from(view, position)
        body_end = body_at + body_length
        if body_end + 2 > end:
            raise BodyError(f"message {number} of the batch has a body length of {body_length}")
        (properties_length,) = _LENGTH.unpack_from(view, body_end)
        position = body_end + 2 + properties_length
        if properties_length > MAX_PROPERTIES_BYTES or position > end:
            raise BodyError(
                f"message {number} of the batch has a properties length of {properties_length}"
            )
        yield BatchElement(flag, view[body_at:body_end], view[body_end + 2 : position])
