"""Large frames: read to where they are put together, instead of in chunks that are joined.

While ``LARGE_REST_BYTES`` or more of a frame are awaited, its connection's transport reads into a
*room*, memory that is used again for each such frame, and the frame is copied out of it once it is
whole. Chunks would be copied twice, each into memory that has to be found first. When the next
frame is a large one, too, it lands likewise; else the connection reads as usual again.

A room is at most ``_GROWTH`` times as large as what has come, and no larger than its frame: who
announces much and sends little takes little. All of it counts as held by the peer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from remoting.protocol.errors import FrameError
from remoting.protocol.frame import PREFIX_BYTES, needed

if TYPE_CHECKING:
    from remoting.link import Link

LARGE_REST_BYTES: Final = 128 * 1024
"""What lacks less comes in one more read."""

BEGIN_BYTES: Final = 64 * 1024
"""That are here before a frame lands, or are read of one whose length isn't known yet."""

_GROWTH: Final = 4
_MAX_SPARE_BYTES: Final = BEGIN_BYTES * _GROWTH**3


class Rooms:
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


class Landing(asyncio.BufferedProtocol):
    """Takes the place of a link at its transport while large frames come.

    Attributes:
        filled: bytes that are here.
    """

    __slots__ = ("_link", "_need", "_room", "_rooms", "filled")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._rooms = link.endpoint.rooms
        self._room: memoryview | None = None
        self._need = 0
        self.filled = 0

    @property
    def held(self) -> int:
        """Bytes of memory taken."""
        return 0 if self._room is None else len(self._room)

    def begin(self, need: int, parts: Iterable[bytes | bytearray]) -> None:
        """Have the rest of a frame of ``need`` bytes read here; its beginning is in parts."""
        self._need = need
        for part in parts:
            end = self.filled + len(part)
            self._with_room(end)[self.filled : end] = part
            self.filled = end
        self._link.read_by(self)

    def clear(self) -> None:
        """Forget what is here."""
        if self._room is not None:
            self._rooms.give(self._room)
            self._room = None
        self._need = self.filled = 0

    def _with_room(self, size: int) -> memoryview:
        """The room; larger than before, if it was smaller than that."""
        old = self._room
        if old is not None and len(old) >= size:
            return old
        room = self._room = self._rooms.take(size, self._need or BEGIN_BYTES)
        if old is not None:
            room[: self.filled] = old[: self.filled]
            self._rooms.give(old)
        return room

    # What the transport calls

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - what fits is known here
        """Where to read to: not beyond the end of the frame."""
        room = self._with_room(self.filled + 1 if self._need else BEGIN_BYTES)
        return room[self.filled : self._need or BEGIN_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """So much was read."""
        self.filled += nbytes
        self._link.landed(nbytes)
        room = self._room
        if room is None or not (self._need or self._measure(room)):
            return
        if self.filled >= self._need:
            frame = bytes(room[: self.filled])
            self.clear()
            self._link.data_received(frame, landed=len(frame))

    def _measure(self, room: memoryview) -> bool:
        """Find out how long the frame is; False when too little of it is here."""
        if self.filled < PREFIX_BYTES:
            return False
        limit = self._link.endpoint.limits.max_frame_bytes
        try:
            need = needed(room[: self.filled], max_frame_bytes=limit)
        except FrameError:
            # Who takes it finds the same, and says so.
            need = 0
        if need - self.filled < LARGE_REST_BYTES:
            self._leave()
        else:
            self._need = need
        return True

    def _leave(self) -> None:
        """The link reads again, and gets what is here."""
        self._link.read_by(self._link)
        self._need = self.filled

    def eof_received(self) -> bool:
        """See ``Link``."""
        return self._link.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``Link``."""
        self._link.connection_lost(exc)

    def pause_writing(self) -> None:
        """See ``Link``."""
        self._link.pause_writing()

    def resume_writing(self) -> None:
        """See ``Link``."""
        self._link.resume_writing()
