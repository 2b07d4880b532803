"""Bytes in and out of one connection, without an event loop.

Reads arrive in any cut. While nothing is left over, frames are handled where they lie, without a
copy. ``Inbox`` keeps the rest of an incomplete frame as a list of chunks and joins them once: a
frame of 16 MiB in 64 KiB reads is copied once, not 256 times. Small reads are gathered into one
chunk, or a peer that sends byte by byte would cost forty times what it sends.

While ``LARGE_REST_BYTES`` or more of a frame are missing, ``LargeFrameReader`` has the transport
read into a buffer of a pool, and copies the frame out of it when it is complete. The buffer is at
most ``_GROWTH`` times as large as what has arrived and no larger than the frame: a peer that
announces much and sends little takes little. All of it counts as held by the peer.

Back-pressure is counted in our own bytes. ``ReadPause`` stops reading while there is any reason to;
``Outbox`` gathers what is sent within one read, or one turn of the loop, into one write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final, Protocol

from remoting.protocol.frame import PREFIX_BYTES, needed

Buffer = bytes | bytearray | memoryview


GATHER_BYTES: Final = 16 * 1024
"""Parts of this size on average are written as they are."""


class Reason(IntEnum):
    """Why nothing is read from a peer; bits, of which several may be set.

    No ``IntFlag``: its operators are Python code, and these run for every frame.
    """

    BACKLOG = 1
    """It was read faster than it was worked."""
    UNSENT = 2
    """The peer does not take its answers."""
    IN_PROGRESS = 4
    """Too many of its requests are being done."""
    CLOSING = 8
    """Nothing more is wanted from it."""


_STOPS_WORK: Final = Reason.UNSENT | Reason.IN_PROGRESS | Reason.CLOSING


class Reading(Protocol):
    """The part of a transport that ``ReadPause`` uses."""

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        ...

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...


class ReadPause:
    """Pauses and resumes the reading of a transport; says whether what was read may be worked.

    Attributes:
        reasons: the reasons that hold now.
        allows_work: whether frames that were read may be worked.
    """

    __slots__ = ("_transport", "allows_work", "reasons")

    def __init__(self, transport: Reading) -> None:
        self._transport = transport
        self.reasons = 0
        self.allows_work = True

    def pause(self, reason: Reason) -> None:
        """Stop reading for ``reason``."""
        if not self.reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self._set(self.reasons | reason)

    def resume(self, reason: Reason) -> bool:
        """Take ``reason`` away. True if it was there and frames may be worked again."""
        if not self.reasons & reason:
            return False
        self._set(self.reasons & ~reason)
        if not self.reasons and not self._transport.is_closing():
            self._transport.resume_reading()
        return self.allows_work

    def _set(self, reasons: int) -> None:
        self.reasons = reasons
        self.allows_work = not reasons & _STOPS_WORK


class Outbox:
    """What is to be written, in order, as one piece."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self.size = 0

    def add(self, part: Buffer) -> None:
        """Append ``part``; it is not copied before it is written."""
        if part:
            self._parts.append(part)
            self.size += len(part)

    def extend(self, parts: Iterable[Buffer]) -> None:
        """Append several parts at once."""
        before = len(self._parts)
        self._parts += parts
        self.size += sum(map(len, self._parts[before:]))

    def take(self) -> list[Buffer]:
        """Everything, as one buffer unless the parts are large.

        Joining small ones is measurably faster than a gathering write of them.
        """
        parts = self._parts
        if self.size < GATHER_BYTES * len(parts) and len(parts) > 1:
            parts = [b"".join(parts)]
        self.clear()
        return parts

    def clear(self) -> None:
        """Forget everything."""
        self._parts = []
        self.size = 0


_LENGTH: Final = Struct(">I")
_SMALL_READ_BYTES: Final = 4096
_CHUNK_BYTES: Final = 64 * 1024


class Inbox:
    """The buffer being worked, the position in it, and the chunks behind it.

    ``add`` and ``advance`` raise FrameError when no frame can begin with these bytes. Of a frame
    that is whole only the length is looked at: who works it sees the rest.

    Attributes:
        ready: whether there is a whole frame, at ``position`` of ``buffer``.
        empty: whether there is nothing.
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
        """Take a read."""
        if self.empty:
            self.buffer = data
            self.position = 0
            self._measure()
            return
        self._keep(data)
        if len(self) >= self._need > len(self.buffer) - self.position:
            self._join()

    def advance(self, position: int) -> None:
        """What lies before ``position`` has been worked."""
        end = len(self.buffer)
        assert self.position <= position <= end, "a feed consumes what it was given"
        self.position = position
        if position == end and not self._chunks_bytes:
            self.clear()
        else:
            self._measure()

    @property
    def missing(self) -> int:
        """Bytes that the frame at the position lacks, or its length, when that is missing."""
        return max(self._need - len(self), 0)

    def take_rest(self) -> tuple[int, list[bytes | bytearray]]:
        """Give away the incomplete frame, the only thing there is: its bytes, and what is here."""
        need, parts = self._need, [self.buffer[self.position :], *self._chunks]
        self.clear()
        return need, parts

    def clear(self) -> None:
        """Forget everything."""
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
        """Make one buffer of the rest and the chunks behind it."""
        self.buffer = b"".join((memoryview(self.buffer)[self.position :], *self._chunks))
        self.position = 0
        self._chunks.clear()
        self._chunks_bytes = 0
        self._measure()

    def _measure(self) -> None:
        """Find out what the frame at the position needs, and get it into one piece if it is here.

        A rest that has to wait is cut off: it must not keep a long read alive.
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


LARGE_REST_BYTES: Final = 128 * 1024
"""What lacks less comes in one more read."""

BEGIN_BYTES: Final = 64 * 1024
"""That are here before a frame lands, or are read of one whose length isn't known yet."""

_GROWTH: Final = 4
_MAX_SPARE_BYTES: Final = BEGIN_BYTES * _GROWTH**3


class BufferPool:
    """One room that the connections of an endpoint share: most frames land one after the other."""

    __slots__ = ("_spare",)

    def __init__(self) -> None:
        self._spare = memoryview(b"")

    def take(self, size: int, most: int = sys.maxsize) -> memoryview:
        """A room of at least so many bytes; a new one has ``most`` at most."""
        spare, self._spare = self._spare, memoryview(b"")
        if len(spare) >= size:
            return spare
        room_bytes = BEGIN_BYTES
        while room_bytes < size:
            room_bytes *= _GROWTH
        return memoryview(bytearray(min(room_bytes, most)))

    def give(self, room: memoryview) -> None:
        """It is no longer used."""
        if len(self._spare) < len(room) <= _MAX_SPARE_BYTES:
            self._spare = room
