"""Pausing a connection's reads, and reading large frames into pooled buffers.

``ReadPause`` stops reading while at least one reason for it applies.

While much of a frame is missing, ``LargeFrameReader`` makes the transport read into a buffer of a
pool, and copies the frame out of it when it is complete. The buffer is at most ``_GROWTH`` times as
large as what has arrived, and no larger than the frame, so a peer that announces a large frame and
sends little of it takes little memory. The whole buffer counts as held for the peer.
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
    """The reasons not to read from a peer, as bits that can be combined.

    Not an ``IntFlag``: its operators are Python code, and these run for every frame.
    """

    BACKLOG = 1
    """More was read than has been processed."""
    UNSENT = 2
    """The peer does not read its answers."""
    IN_PROGRESS = 4
    """Too many of its requests are in progress."""
    CLOSING = 8
    """The connection is closing."""


_STOPS_WORK: Final = Reason.UNSENT | Reason.IN_PROGRESS | Reason.CLOSING


class ReadPause:
    """Pauses and resumes the reads of a transport.

    Attributes:
        reasons: the bits of ``Reason`` that apply now.
        allows_work: whether frames already read may be processed.
    """

    __slots__ = ("_transport", "allows_work", "reasons")

    def __init__(self, transport: asyncio.ReadTransport) -> None:
        self._transport = transport
        self.reasons = 0
        self.allows_work = True

    def pause(self, reason: Reason) -> None:
        """Add ``reason`` and stop reading."""
        if not self.reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self.reasons |= reason
        self.allows_work = not self.reasons & _STOPS_WORK

    def resume(self, reason: Reason) -> bool:
        """Remove ``reason``. True if it was set and frames may be processed again."""
        if not self.reasons & reason:
            return False
        self.reasons &= ~reason
        self.allows_work = not self.reasons & _STOPS_WORK
        if not self.reasons and not self._transport.is_closing():
            self._transport.resume_reading()
        return self.allows_work


class BufferPool:
    """At most one spare buffer for an endpoint: most large frames arrive one at a time."""

    __slots__ = ("_smallest", "_spare")

    def __init__(self, smallest: int = BEGIN_BYTES) -> None:
        self._smallest = smallest
        self._spare = memoryview(b"")

    def take(self, size: int, most: int = sys.maxsize) -> memoryview:
        """Return a buffer of at least ``size`` bytes; a new one has at most ``most`` bytes."""
        spare, self._spare = self._spare, memoryview(b"")
        if len(spare) >= size:
            return spare
        capacity = self._smallest
        while capacity < size:
            capacity *= _GROWTH
        return memoryview(bytearray(min(capacity, most)))

    def give(self, buffer: memoryview) -> None:
        """Keep a buffer as the spare one, if it is larger than that and not too large."""
        if len(self._spare) < len(buffer) <= _MAX_SPARE_BYTES:
            self._spare = buffer


class LargeFrameReader(asyncio.BufferedProtocol):
    """The transport's protocol in place of ``Connection`` while large frames arrive.

    Attributes:
        filled: the bytes of the frame read so far.
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
        """The size of the buffer in bytes, 0 without one."""
        return 0 if self._buffer is None else len(self._buffer)

    def begin(self, need: int, parts: Iterable[bytes | bytearray]) -> None:
        """Read the rest of a frame of ``need`` bytes that begins with ``parts``."""
        self._need = need
        for part in parts:
            end = self.filled + len(part)
            self._with_capacity(end)[self.filled : end] = part
            self.filled = end
        self._connection.set_protocol(self)

    def clear(self) -> None:
        """Drop what was read and give the buffer back."""
        if self._buffer is not None:
            self._buffers.give(self._buffer)
            self._buffer = None
        self._need = self.filled = 0

    def _with_capacity(self, size: int) -> memoryview:
        """Return the buffer, replaced by a larger one if it has less than ``size`` bytes."""
        old = self._buffer
        if old is not None and len(old) >= size:
            return old
        buffer = self._buffer = self._buffers.take(size, self._need)
        if old is not None:
            buffer[: self.filled] = old[: self.filled]
            self._buffers.give(old)
        return buffer

    # Callbacks of the transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the frame sets the size
        """Return the memory to read into, which ends at the end of the frame."""
        if self._need:
            return self._with_capacity(self.filled + 1)[self.filled : self._need]
        if self._buffer is None:
            # Not the pool's spare one, which is larger: an idle connection keeps this one.
            self._buffer = memoryview(bytearray(self._limits.begin_bytes))
        return self._buffer[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count ``nbytes`` that were read, and pass the frame on when it is complete."""
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
        """Read the frame's length from its prefix; False while the prefix is incomplete."""
        if self.filled < PREFIX_BYTES:
            return False
        try:
            need = needed(buffer[: self.filled], max_frame_bytes=self._limits.max_frame_bytes)
        except FrameError:
            # The connection will find the same error and report it.
            need = 0
        if need - self.filled < self._limits.large_rest_bytes:
            # Little is missing: switch back to the connection, which gets what was read so far.
            self._connection.set_protocol(self._connection)
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
