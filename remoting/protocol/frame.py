"""Frames: cutting them from a stream of bytes, and writing them.

====================  ====================  ==================================================
 offset                size                  field (big endian)
====================  ====================  ==================================================
 0                     4                     total length: of everything after this field
 4                     1                     serialize type: 0 JSON, 1 ROCKETMQ, 2 msgpack
 5                     3                     header length
 8                     header length         header
 8 + header length     the rest              body; an empty one means "no body"
====================  ====================  ==================================================

``cut`` finds a frame and copies nothing; ``decode`` makes a command of it. Whatever a peer sends,
the only exception is ``FrameError``, raised as soon as the first eight bytes show it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from remoting.protocol.codecs import json as json_codec
from remoting.protocol.codecs import msgpack as msgpack_codec
from remoting.protocol.codecs import rocketmq as rocketmq_codec
from remoting.protocol.codes import SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES

PREFIX_BYTES: Final = 8
"""Length field, serialize type and header length."""

_LENGTH: Final = struct.Struct(">I")
_PREFIX: Final = struct.Struct(">II")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF
_LARGEST_LENGTH: Final = 0x7FFFFFFF

_SERIALIZE_TYPES: Final = tuple(SerializeType)
_DECODERS: Final = (
    json_codec.decode_header,
    rocketmq_codec.decode_header,
    msgpack_codec.decode_header,
)
_ENCODERS: Final = (
    json_codec.encode_header,
    rocketmq_codec.encode_header,
    msgpack_codec.encode_header,
)


class Frame(NamedTuple):
    """One whole frame within a buffer."""

    serialize: SerializeType
    header: memoryview
    body: memoryview
    end: int
    """The position after the frame: where the next one begins."""


def needed(
    buffer: bytes | bytearray | memoryview,
    position: int = 0,
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> int:
    """The bytes of the whole frame at ``position``; 4 while even its length is missing.

    Raises:
        FrameError: no frame can begin with these bytes.
    """
    available = len(buffer) - position
    if available < _LENGTH.size:
        return _LENGTH.size
    if available < PREFIX_BYTES:
        (length,) = _LENGTH.unpack_from(buffer, position)
        _check_length(length, max_frame_bytes)
    else:
        length, type_and_header_length = _PREFIX.unpack_from(buffer, position)
        _check_prefix(length, type_and_header_length, max_frame_bytes)
    return _LENGTH.size + int(length)


def cut(
    buffer: bytes | bytearray | memoryview,
    position: int = 0,
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> Frame | None:
    """The frame that begins at ``position``, or ``None`` while bytes of it are missing.

    Header and body are views of ``buffer``, which can't be resized while they live.

    Raises:
        FrameError: no frame can begin with these bytes.
    """
    available = len(buffer) - position
    if available < PREFIX_BYTES:
        if available >= _LENGTH.size:
            _check_length(_LENGTH.unpack_from(buffer, position)[0], max_frame_bytes)
        return None
    length, type_and_header_length = _PREFIX.unpack_from(buffer, position)
    header_length = _check_prefix(length, type_and_header_length, max_frame_bytes)
    end = position + _LENGTH.size + length
    if end > len(buffer):
        return None
    view = memoryview(buffer)
    body_start = position + PREFIX_BYTES + header_length
    return Frame(
        _SERIALIZE_TYPES[type_and_header_length >> 24],
        view[position + PREFIX_BYTES : body_start],
        view[body_start:end],
        end,
    )


def _check_length(length: int, max_frame_bytes: int) -> None:
    if length < _LENGTH.size:
        raise FrameError(f"a frame's length of {length} leaves no room for its header")
    # A negative length is a very large one here.
    if length > max_frame_bytes - _LENGTH.size:
        raise FrameError(f"a frame of {length + _LENGTH.size} bytes is above {max_frame_bytes}")


def _check_prefix(length: int, type_and_header_length: int, max_frame_bytes: int) -> int:
    """The header's length, once all three numbers make sense."""
    _check_length(length, max_frame_bytes)
    serialize = type_and_header_length >> 24
    if serialize >= len(_SERIALIZE_TYPES):
        raise FrameError(f"unknown serialize type {serialize}")
    header_length = type_and_header_length & _HEADER_LENGTH_MASK
    if header_length > length - _LENGTH.size:
        raise FrameError(f"a header of {header_length} bytes in a frame of {length} bytes")
    if header_length > MAX_HEADER_BYTES:
        raise FrameError(f"a header of {header_length} bytes is above {MAX_HEADER_BYTES}")
    return header_length


def decode(frame: Frame) -> Command:
    """The command in a frame. Its body is a view of the buffer the frame was cut from.

    Raises:
        FrameError: the header is undecodable.
    """
    command = _DECODERS[frame.serialize](frame.header)
    if frame.body:
        command.body = frame.body
        command.body_at = frame.end - len(frame.body)
    return command


def encode(command: Command) -> bytes:
    """The whole frame of a command. Raises ``ValueError`` when it fits into no frame."""
    body = command.body
    header = _ENCODERS[command.serialize](command)
    return b"".join((_prefix(command, len(header), len(body)), header, body))


def encode_head(command: Command, body_length: int) -> bytes:
    """The frame of a command up to its body, which the caller writes behind it.

    Raises ``ValueError`` when the frame's lengths can't be written.
    """
    header = _ENCODERS[command.serialize](command)
    return _prefix(command, len(header), body_length) + header


def _prefix(command: Command, header_length: int, body_length: int) -> bytes:
    length = _LENGTH.size + header_length + body_length
    if header_length > _HEADER_LENGTH_MASK or length > _LARGEST_LENGTH:
        raise ValueError(
            f"command {command.code}: a header of {header_length} and a body of {body_length} bytes"
            " fit into no frame"
        )
    return _PREFIX.pack(length, command.serialize << 24 | header_length)
