"""Answers of hot requests: templates made once by the general encoder, filled in by ``bytes %``.

They are cut out of an encoded answer, so they can't differ from what the general path sends.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import PREFIX_BYTES, encode
from remoting.protocol.headers.base import Header
from remoting.protocol.headers.send import SendMessageResponseHeader

PREFIX: Final = Struct(">II")

MAX_TEMPLATES: Final = 1_024
"""Kinds of answers to sends that are kept, of some 400 bytes each."""

_OPAQUE: Final = 1_912_345_678
_TEXT: Final = "\ue000"
_NUMBER: Final = 8_123_456_789_012_345_678
_REST_OF_PREFIX: Final = 4


def framed(header: bytes, body_length: int = 0) -> bytes:
    """The frame of a JSON header, up to its body."""
    length = len(header)
    return PREFIX.pack(_REST_OF_PREFIX + length + body_length, length) + header


def framed_template(header: bytes, length: int) -> bytes:
    """The template of a frame, made of that of its header, which is so long once filled in."""
    prefix = PREFIX.pack(_REST_OF_PREFIX + length, length)
    return prefix.replace(b"%", b"%%") + header


def template(
    code: int,
    *,
    remark: str | None = None,
    header: Header | None = None,
    extra: tuple[tuple[str, str], ...] = (),
    holes: tuple[tuple[object, bytes], ...] = (),
) -> bytes:
    """The JSON header of an answer with ``%d`` for its opaque, and ``holes`` filled likewise."""
    request = Command(0, _OPAQUE)
    frame = encode(request.reply(code, remark, header=header, extra=extra))
    text = frame[PREFIX_BYTES:].replace(b"%", b"%%")
    for value, hole in ((_OPAQUE, b"%d"), *holes):
        before, found, after = text.partition(str(value).encode())
        assert found, "an answer has a place for what is filled in"
        text = before + hole + after
    return text


class SendAnswers:
    """Answers to sends.

    Args:
        packed_host: the broker's in message ids.
        extra: the fields that every answer to a send carries.
    """

    __slots__ = ("_extra", "_id", "_known")

    def __init__(self, packed_host: bytes, extra: tuple[tuple[str, str], ...]) -> None:
        self._extra = extra
        self._known: dict[tuple[int, bytes], bytes] = {}
        self._id = packed_host.hex().upper().encode() + b"%016X"

    def one(self, queue_id: int) -> bytes:
        """Of one message; takes physical offset, queue offset and opaque."""
        return self._template(queue_id, self._id)

    def many(self, queue_id: int) -> bytes:
        """Of a batch; takes the ids as one text, queue offset and opaque."""
        return self._template(queue_id, b"%b")

    def ids(self, count: int) -> bytes:
        """The ids of ``count`` messages; takes their physical offsets."""
        return b",".join([self._id] * count)

    def _template(self, queue_id: int, message_id: bytes) -> bytes:
        # Topics by the thousands have the same few numbers of queues.
        found = self._known.get((queue_id, message_id))
        if found is None:
            if len(self._known) >= MAX_TEMPLATES:
                self._known.clear()
            found = self._known[queue_id, message_id] = self._make(queue_id, message_id)
        return found

    def _make(self, queue_id: int, message_id: bytes) -> bytes:
        header = SendMessageResponseHeader(msg_id=_TEXT, queue_id=queue_id, queue_offset=_NUMBER)
        return template(
            ResponseCode.SUCCESS,
            header=header,
            extra=self._extra,
            holes=((_TEXT, message_id), (_NUMBER, b"%d")),
        )


def less_durable(answer: bytes) -> bytes:
    """The header of an answer whose message was stored but not flushed in time."""
    success = b'{"code":%d,' % ResponseCode.SUCCESS
    assert answer.startswith(success)
    return b'{"code":%d,' % ResponseCode.FLUSH_DISK_TIMEOUT + answer[len(success) :]
