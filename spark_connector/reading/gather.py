"""Answers of several pulls side by side in one buffer, which is used again and again.

Decoding a few thousand messages at once costs half of decoding them in handfuls, and memory that is
already there costs nothing. So bodies are received into the free part of this buffer, and decoded
together when there is enough. What is decoded keeps no reference to it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from remoting.protocol.message.record import FIXED_BYTES_V4, QUEUE_OFFSET_AT

_SIZE: Final = Struct(">i")
_OFFSET: Final = Struct(">q")


class Gather:
    """Bodies of answers, in order.

    Args:
        size: bytes at first; it grows to what is met.

    Attributes:
        used: bytes of the bodies so far.
        first, end: the offsets they cover, the end excluded.
    """

    def __init__(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))
        self.used = 0
        self.first = self.end = 0

    @property
    def view(self) -> memoryview:
        """All bodies."""
        return self._memory[: self.used]

    @property
    def expected(self) -> int:
        """How many messages they bring if none is missing or was left out."""
        return self.end - self.first if self.used else 0

    def room(self, length: int) -> memoryview:
        """Where the next body may be received; nothing is kept of it before ``add``."""
        needed = self.used + length
        if needed > len(self._memory):
            larger = memoryview(bytearray(max(needed, len(self._memory) * 2)))
            larger[: self.used] = self.view
            self._memory = larger
        return self._memory[self.used : needed]

    def add(self, body: memoryview, first: int, end: int) -> None:
        """Keep a body, received into ``room`` or elsewhere; messages below ``first`` are left out.

        What follows must begin where this ends; after a gap the buffer has to be cleared first.
        """
        assert not self.used or first == self.end
        begin = start_of(body, first)
        length = len(body) - begin
        room = self.room(length)
        # Of a body that is where it belongs already nothing is moved.
        if begin or body.obj is not room.obj:
            room[:] = body[begin:]
        if not self.used:
            self.first = first
        self.used += length
        self.end = end

    def clear(self) -> None:
        """All has been decoded."""
        self.used = 0


def start_of(body: memoryview, first: int) -> int:
    """Where in a row of records the first one of the offset ``first`` or above begins.

    That is also where the row can't be followed any more: the decoder has to say what is wrong.
    """
    at = 0
    while len(body) - at >= FIXED_BYTES_V4:
        (size,) = _SIZE.unpack_from(body, at)
        if size < FIXED_BYTES_V4 or _OFFSET.unpack_from(body, at + QUEUE_OFFSET_AT)[0] >= first:
            break
        at += size
    return min(at, len(body))
