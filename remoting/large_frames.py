"""Large frames: while much of one is missing, it is read into a buffer of a pool.

``LargeFrameReader`` has the transport read into that buffer, and copies the frame out of it when it
is complete. The buffer is at most ``_GROWTH`` times as large as what has arrived and no larger than
the frame: a peer that announces much and sends little takes little. All of it counts as held by the
peer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import Final, Protocol

from remoting.limits import BEGIN_BYTES, ConnectionLimits
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import PREFIX_BYTES, needed

_GROWTH: Final = 4
_MAX_SPARE_BYTES: Final = BEGIN_BYTES * _GROWTH**3


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


class Receiver(Protocol):
    """What a ``LargeFrameReader`` needs of its connection."""

    def read_by(self, protocol: asyncio.BaseProtocol) -> None:
        """Have the transport give what it reads to another protocol."""
        ...

    def read_again(self) -> None:
        """Have the transport give what it reads to the connection."""
        ...

    def on_partial_frame(self, count: int) -> None:
        """A part of a large frame was read."""
        ...

    def data_received(self, data: bytes, counted: int = 0) -> None:
        """A whole frame was read, of which so many bytes were counted already."""
        ...

    def eof_received(self) -> bool:
        """See ``asyncio.Protocol``, as the next three."""
        ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class LargeFrameReader(asyncio.BufferedProtocol):
    """Takes the place of a connection at its transport while large frames come.

    Attributes:
        filled: bytes that are here.
    """

    __slots__ = ("_buffer", "_buffers", "_connection", "_limits", "_need", "filled")

    def __init__(self, connection: Receiver, buffers: BufferPool, limits: ConnectionLimits) -> None:
        self._connection = connection
        self._buffers = buffers
        self._limits = limits
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
            self._connection.read_again()
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
