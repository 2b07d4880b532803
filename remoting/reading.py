"""How a connection reads: when not at all, and large frames into a buffer of their own.

Back-pressure is counted in our own bytes. ``ReadPause`` stops reading while there is any reason to.

While much of a frame is missing, ``LargeFrameReader`` has the transport read into a buffer of a
pool, and copies the frame out of it when it is complete. The buffer is at most ``_GROWTH`` times as
large as what has arrived and no larger than the frame: a peer that announces much and sends little
takes little. All of it counts as held by the peer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from remoting.limits import BEGIN_BYTES
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import PREFIX_BYTES, needed

if TYPE_CHECKING:
    from remoting.connection import Connection

_GROWTH: Final = 4
_MAX_SPARE_BYTES: Final = BEGIN_BYTES * _GROWTH**3


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


class ReadPause:
    """Pauses and resumes the reading of a transport; says whether what was read may be worked.

    Attributes:
        reasons: the reasons that hold now.
        allows_work: whether frames that were read may be worked.
    """

    __slots__ = ("_transport", "allows_work", "reasons")

    def __init__(self, transport: asyncio.ReadTransport) -> None:
        self._transport = transport
        self.reasons = 0
        self.allows_work = True

    def pause(self, reason: Reason) -> None:
        """Stop reading for ``reason``."""
        if not self.reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self.reasons |= reason
        self.allows_work = not self.reasons & _STOPS_WORK

    def resume(self, reason: Reason) -> bool:
        """Take ``reason`` away. True if it was there and frames may be worked again."""
        if not self.reasons & reason:
            return False
        self.reasons &= ~reason
        self.allows_work = not self.reasons & _STOPS_WORK
        if not self.reasons and not self._transport.is_closing():
            self._transport.resume_reading()
        return self.allows_work


class BufferPool:
    """One spare buffer for an endpoint's connections: most large frames come one by one."""

    __slots__ = ("_smallest", "_spare")

    def __init__(self, smallest: int = BEGIN_BYTES) -> None:
        self._smallest = smallest
        self._spare = memoryview(b"")

    def take(self, size: int, most: int = sys.maxsize) -> memoryview:
        """A buffer of at least ``size`` bytes; a new one has ``most`` at most."""
        spare, self._spare = self._spare, memoryview(b"")
        if len(spare) >= size:
            return spare
        capacity = self._smallest
        while capacity < size:
            capacity *= _GROWTH
        return memoryview(bytearray(min(capacity, most)))

    def give(self, buffer: memoryview) -> None:
        """Take back a buffer that is no longer used."""
        if len(self._spare) < len(buffer) <= _MAX_SPARE_BYTES:
            self._spare = buffer


class LargeFrameReader(asyncio.BufferedProtocol):
    """Takes the place of a connection at its transport while large frames come.

    Attributes:
        filled: bytes that are here.
    """

    __slots__ = ("_buffer", "_buffers", "_connection", "_limits", "_need", "filled")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffers = connection.endpoint.buffers
        self._limits = connection.endpoint.limits
        self._buffer: memoryview | None = None
        self._need = 0
        self.filled = 0

    @property
    def held(self) -> int:
        """Bytes of memory taken."""
        return 0 if self._buffer is None else len(self._buffer)

    def begin(self, need: int, parts: Iterable[bytes | bytearray]) -> None:
        """Have the rest of a frame of ``need`` bytes read here; its beginning is in parts."""
        self._need = need
        for part in parts:
            end = self.filled + len(part)
            self._with_capacity(end)[self.filled : end] = part
            self.filled = end
        self._connection.read_by(self)

    def clear(self) -> None:
        """Forget what is here."""
        if self._buffer is not None:
            self._buffers.give(self._buffer)
            self._buffer = None
        self._need = self.filled = 0

    def _with_capacity(self, size: int) -> memoryview:
        """The buffer; larger than before, if it was smaller than that."""
        old = self._buffer
        if old is not None and len(old) >= size:
            return old
        buffer = self._buffer = self._buffers.take(size, self._need or self._limits.begin_bytes)
        if old is not None:
            buffer[: self.filled] = old[: self.filled]
            self._buffers.give(old)
        return buffer

    # What the transport calls

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - what fits is known here
        """Where to read to: not beyond the end of the frame."""
        buffer = self._with_capacity(self.filled + 1 if self._need else self._limits.begin_bytes)
        return buffer[self.filled : self._need or self._limits.begin_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        """So much was read."""
        self.filled += nbytes
        self._connection.on_partial_frame(nbytes)
        buffer = self._buffer
        if buffer is None or not (self._need or self._measure(buffer)):
            return
        if self.filled >= self._need:
            frame = bytes(buffer[: self.filled])
            self.clear()
            self._connection.data_received(frame, counted=len(frame))

    def _measure(self, buffer: memoryview) -> bool:
        """Find out how long the frame is; False when too little of it is here."""
        if self.filled < PREFIX_BYTES:
            return False
        try:
            need = needed(buffer[: self.filled], max_frame_bytes=self._limits.max_frame_bytes)
        except FrameError:
            # The connection finds the same fault and reports it.
            need = 0
        if need - self.filled < self._limits.large_rest_bytes:
            # The connection reads again, and gets what is here.
            self._connection.read_by(self._connection)
            self._need = self.filled
        else:
            self._need = need
        return True

    def eof_received(self) -> bool:
        """See ``Connection``."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``Connection``."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """See ``Connection``."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """See ``Connection``."""
        self._connection.resume_writing()
