"""Frames: splitting a byte stream into them, encoding them, and agreeing on the header codec.

====================  ====================  ==================================================
 offset                size                  field (big endian)
====================  ====================  ==================================================
 0                     4                     total length: of everything after this field
 4                     1                     serialize type: 0 JSON, 1 ROCKETMQ, 2 msgpack
 5                     3                     header length
 8                     header length         header
 8 + header length     the rest              body; an empty one means "no body"
====================  ====================  ==================================================

``cut`` finds a frame without copying it; ``decode`` makes a command of it. For any input the only
exception is ``FrameError``; an invalid prefix is reported as soon as its bytes have arrived.

A read may end anywhere in a frame. Frames that arrived whole are processed in the buffer of the
read, without a copy. ``Inbox`` keeps an incomplete frame as a list of chunks and joins them once: a
frame of 16 MiB in 64 KiB reads is copied once, not 256 times. Small reads are appended to one
chunk, because a list of one-byte chunks takes forty times the memory of its content. ``Outbox``
collects what is sent while one read is processed, or in one iteration of the loop, into one write.

Two PocketMQ peers agree on the msgpack header, per connection: the client puts
``pmqCodecs=msgpack`` into the ext fields of its first route request or heartbeat (never of a
frequent request); a server that supports it puts the same field into its answer. From then on the
client writes type 2, and the server answers type 2 with type 2. Other peers ignore the unknown ext
field, and the connection stays with JSON. Requests sent by the server are always JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from remoting.protocol.codecs import json as json_codec
from remoting.protocol.codecs import msgpack as msgpack_codec
from remoting.protocol.codecs import rocketmq as rocketmq_codec
from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES

Buffer = bytes | bytearray | memoryview

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
    buffer: Buffer,
    position: int = 0,
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> int:
    """Return the size of the whole frame at ``position``; 4 while its length field is incomplete.

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
    buffer: Buffer,
    position: int = 0,
    *,
    max_frame_bytes: int = MAX_FRAME_BYTES,
) -> Frame | None:
    """Return the frame that begins at ``position``, or ``None`` while it is incomplete.

    Header and body are views of ``buffer``; a bytearray can't be resized while they exist.

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


_TLS_HANDSHAKE: Final = 0x1603
"""The first two bytes of a TLS connection: a handshake record, and the major version."""


def _check_length(length: int, max_frame_bytes: int) -> None:
    if length < _LENGTH.size:
        raise FrameError(f"a frame's length of {length} leaves no room for its header")
    # The field is read as unsigned, so a negative length is a very large one.
    if length > max_frame_bytes - _LENGTH.size:
        if length >> 16 == _TLS_HANDSHAKE:
            raise FrameError(
                "a TLS handshake, but TLS is off here: set tls.server.certPath and "
                "tls.server.keyPath, and tls.server.mode to permissive or enforcing"
            )
        raise FrameError(f"a frame of {length + _LENGTH.size} bytes is above {max_frame_bytes}")


def _check_prefix(length: int, type_and_header_length: int, max_frame_bytes: int) -> int:
    """Check length, serialize type and header length; return the header length."""
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
    """Return the command in a frame. Its body is a view of the frame's buffer.

    Raises:
        FrameError: the header is undecodable.
    """
    command = _DECODERS[frame.serialize](frame.header)
    if frame.body:
        command.body = frame.body
        command.body_at = frame.end - len(frame.body)
    return command


def encode(command: Command) -> bytes:
    """Return the whole frame of a command. Raises ``ValueError`` if it exceeds a frame."""
    body = command.body
    header = _ENCODERS[command.serialize](command)
    return b"".join((_prefix(command, len(header), len(body)), header, body))


def with_code(frames: Buffer, code: int) -> bytes:
    """Return whole answers with another response code."""
    changed, position = [], 0
    while (frame := cut(frames, position)) is not None:
        command = decode(frame)
        command.code = code
        changed.append(encode(command))
        position = frame.end
    return b"".join(changed)


def encode_head(command: Command, body_length: int) -> bytes:
    """Return the frame of a command without its body, which the caller writes after it.

    Raises ``ValueError`` if a length does not fit into its field.
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


_SMALL_READ_BYTES: Final = 4096
_CHUNK_BYTES: Final = 64 * 1024


class Inbox:
    """The bytes read and not yet processed: a buffer, the position in it, and chunks after it.

    ``add`` and ``advance`` raise FrameError when no frame can begin with these bytes. Of a whole
    frame they check only the length; ``cut`` and ``decode`` check the rest.

    Attributes:
        ready: whether there is a whole frame, at ``position`` of ``buffer``.
        empty: whether there are no bytes.
    """

    __slots__ = (
        "_chunks",
        "_chunks_bytes",
        "_max_frame_bytes",
        "_need",
        "buffer",
        "empty",
        "position",
        "ready",
    )

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self.buffer = b""
        self.position = 0
        self._chunks: list[bytes | bytearray] = []
        self._chunks_bytes = 0
        self._need = needed(b"")
        self.ready = False
        self.empty = True

    def __len__(self) -> int:
        return len(self.buffer) - self.position + self._chunks_bytes

    def add(self, data: bytes) -> None:
        """Append the bytes of a read."""
        if self.empty:
            self.buffer = data
            self.position = 0
            self._measure()
            return
        self._keep(data)
        if len(self) >= self._need > len(self.buffer) - self.position:
            self._join()

    def advance(self, position: int) -> None:
        """Discard the bytes before ``position``, which have been processed."""
        end = len(self.buffer)
        assert self.position <= position <= end, "a feed consumes what it was given"
        self.position = position
        if position == end and not self._chunks_bytes:
            self.clear()
        else:
            self._measure()

    @property
    def missing(self) -> int:
        """The number of bytes missing from the next frame, or from its length field."""
        return max(self._need - len(self), 0)

    def take_rest(self) -> tuple[int, list[bytes | bytearray]]:
        """Remove the incomplete frame: return its size in bytes and the parts that have arrived.

        There must be nothing else in the inbox.
        """
        need, parts = self._need, [self.buffer[self.position :], *self._chunks]
        self.clear()
        return need, parts

    def clear(self) -> None:
        """Remove everything."""
        self.buffer = b""
        self.position = 0
        if self._chunks_bytes:
            self._chunks.clear()
            self._chunks_bytes = 0
        self._need = _LENGTH.size
        self.ready = False
        self.empty = True

    def _keep(self, data: bytes) -> None:
        chunks = self._chunks
        self._chunks_bytes += len(data)
        if len(data) >= _SMALL_READ_BYTES:
            chunks.append(data)
            return
        last = chunks[-1] if chunks else None
        if isinstance(last, bytearray) and len(last) < _CHUNK_BYTES:
            last += data
        else:
            chunks.append(bytearray(data))

    def _join(self) -> None:
        """Join the unprocessed bytes and the chunks into one buffer."""
        self.buffer = b"".join((memoryview(self.buffer)[self.position :], *self._chunks))
        self.position = 0
        self._chunks.clear()
        self._chunks_bytes = 0
        self._measure()

    def _measure(self) -> None:
        """Determine the size of the next frame, and join its chunks if it is complete.

        The beginning of an incomplete frame is copied, so that it does not keep a large read in
        memory.
        """
        self.empty = False
        have = len(self.buffer) - self.position
        if have >= PREFIX_BYTES:
            (length,) = _LENGTH.unpack_from(self.buffer, self.position)
            need = _LENGTH.size + length
            if PREFIX_BYTES <= need <= have and need <= self._max_frame_bytes:
                self._need = need
                self.ready = True
                return
        self.ready = False
        need = needed(self.buffer, self.position, max_frame_bytes=self._max_frame_bytes)
        self._need = need
        if need <= have + self._chunks_bytes:
            self._join()
        elif self.position:
            self.buffer = self.buffer[self.position :]
            self.position = 0


GATHER_BYTES: Final = 16 * 1024
"""Parts at least this large on average are written without joining them."""


class Outbox:
    """The parts to be written next, in order."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self.size = 0

    def add(self, part: Buffer) -> None:
        """Append ``part`` without copying it."""
        if part:
            self._parts.append(part)
            self.size += len(part)

    def extend(self, parts: Iterable[Buffer]) -> None:
        """Append several parts without copying them."""
        before = len(self._parts)
        self._parts += parts
        self.size += sum(map(len, self._parts[before:]))

    def take(self) -> list[Buffer]:
        """Remove and return everything, as one buffer unless the parts are large.

        Joining small parts is measurably faster than writing them with ``writelines``.
        """
        parts = self._parts
        if self.size < GATHER_BYTES * len(parts) and len(parts) > 1:
            parts = [b"".join(parts)]
        self.clear()
        return parts

    def clear(self) -> None:
        """Remove everything."""
        self._parts = []
        self.size = 0


FIELD: Final = "pmqCodecs"
VALUE: Final = "msgpack"
CARRIERS: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT})
"""Requests that may carry an offer."""

_PAIR: Final = (FIELD, VALUE)


def _has_pair(command: Command) -> bool:
    return any(key == FIELD and VALUE in value.split(",") for key, value in command.fields.items())


class CodecNegotiation:
    """The agreement of one connection's ends on the msgpack header."""

    __slots__ = ("_accepts", "_asked", "_offers", "_owed", "_writes", "agreed")

    def __init__(self, *, offers: bool, accepts: bool) -> None:
        self.agreed = False
        """Whether frames of type 2 may be received."""
        self._writes = False
        self._offers = offers
        self._accepts = accepts
        self._asked: int | None = None
        self._owed: int | None = None

    def encode_request(
        self, command: Command, sign: Callable[[Command], Command] | None = None
    ) -> bytes:
        """Return a request's frame without its body; the first suitable one carries the offer.

        ``sign`` signs it when all its fields are set. The command itself is unchanged afterwards:
        it may be sent again over another connection.
        """
        if self._writes:
            if command.serialize != SerializeType.JSON:
                return _head(command, sign)
            command.serialize = SerializeType.MSGPACK
            try:
                return _head(command, sign)
            finally:
                command.serialize = SerializeType.JSON
        if self._offers and command.code in CARRIERS and not command.is_oneway:
            self._offers = False
            self._asked = command.opaque
            return _with_pair(command, lambda offering: _head(offering, sign))
        return _head(command, sign)

    def see_response(self, command: Command) -> None:
        """Check whether a response accepts this client's offer."""
        if command.opaque == self._asked:
            self._asked = None
            self.agreed = self._writes = _has_pair(command)

    def see_request(self, command: Command) -> None:
        """Check whether a request carries an offer to this server."""
        if (
            self._accepts
            and command.code in CARRIERS
            and not command.is_oneway
            and _has_pair(command)
        ):
            self._owed = command.opaque

    def encode_answer(self, command: Command) -> bytes:
        """Return the frame of an answer; the answer to an offer carries the acceptance."""
        if self._owed is None or command.opaque != self._owed or not command.is_response:
            return encode(command)
        self._owed = None
        self.agreed = True
        return _with_pair(command, encode)


def _head(command: Command, sign: Callable[[Command], Command] | None) -> bytes:
    if sign is not None:
        command = sign(command)
    return encode_head(command, len(command.body))


def _with_pair(command: Command, encoder: Callable[[Command], bytes]) -> bytes:
    pairs = command.pairs
    command.pairs = (*(pairs or ()), _PAIR)
    try:
        return encoder(command)
    finally:
        command.pairs = pairs
