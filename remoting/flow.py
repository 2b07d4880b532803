"""Back-pressure of one connection, counted in our own bytes.

Towards us: a ``Gate`` stands before the transport's reading. It has a bar for each reason to rest
and opens when the last one is lifted. Away from us: an ``Outbox`` gathers what is sent within one
read, or one turn of the loop, so that it leaves as one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from remoting.errors import ConnectionLost

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


class Gate:
    """Pauses and resumes the reading of a transport; says whether what was read may be worked.

    Attributes:
        bars: the reasons that hold now.
        works: whether frames that were read may be worked.
    """

    __slots__ = ("_transport", "bars", "works")

    def __init__(self, transport: asyncio.ReadTransport) -> None:
        self._transport = transport
        self.bars = 0
        self.works = True

    def bar(self, reason: Reason) -> None:
        """Stop reading for ``reason``."""
        if not self.bars and not self._transport.is_closing():
            self._transport.pause_reading()
        self._set(self.bars | reason)

    def lift(self, reason: Reason) -> bool:
        """Take ``reason`` away. True if it was there and frames may be worked again."""
        if not self.bars & reason:
            return False
        self._set(self.bars & ~reason)
        if not self.bars and not self._transport.is_closing():
            self._transport.resume_reading()
        return self.works

    def _set(self, bars: int) -> None:
        self.bars = bars
        self.works = not bars & _STOPS_WORK


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


class DrainWaiters:
    """Those who wait until a peer has taken enough of what was sent."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Until ``release`` or ``fail``."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def release(self) -> None:
        """Let all go on."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, address: str, reason: str) -> None:
        """Raise ConnectionLost in all."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(ConnectionLost(address, reason))
