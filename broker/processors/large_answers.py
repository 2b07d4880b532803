"""Answers with very many entries, made a slice at a time so that nobody else has to wait for them.

A turn of the loop makes one slice of one answer. The answers of a connection are made one after the
other, each when the peer has taken enough of the one before; those of several connections take
turns. An answer of a single slice is made at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

from broker.processors.patience import from_store
from broker.store.message_store import MessageStore
from remoting.errors import ConnectionLost
from remoting.protocol.bodies.body import MapParts
from remoting.protocol.command import Command

if TYPE_CHECKING:
    from remoting.connection import Connection

T = TypeVar("T")

SLICE_ENTRIES: Final = 256
"""Entries of one slice: 2 ms."""


def sliced(entries: Sequence[T]) -> list[Sequence[T]]:
    """Entries in slices."""
    return [
        entries[begin : begin + SLICE_ENTRIES] for begin in range(0, len(entries), SLICE_ENTRIES)
    ]


class LargeAnswers:
    """Makes the large answers of one broker.

    Args:
        store: what slices look at; what is not in memory is read in a thread first.
    """

    __slots__ = ("_cached", "_connections", "_making", "_store")

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._making = asyncio.Lock()
        self._connections: WeakKeyDictionary[Connection, asyncio.Lock] = WeakKeyDictionary()
        self._cached: dict[int, tuple[Hashable, bytes]] = {}

    def answer(
        self,
        command: Command,
        connection: Connection,
        whole: MapParts,
        slices: Sequence[Callable[[], bytes]],
        *,
        version: Hashable = None,
    ) -> Command | Awaitable[Command | None]:
        """Answer with a body.

        Args:
            command, connection: the request, and where it came from.
            whole: puts the slices together.
            slices: each gives the text of some entries.
            version: of the table that the request is for; its body is kept until there is another
                version. None: each answer is made anew.
        """
        if len(slices) <= 1:
            return command.reply(body=whole.whole([look() for look in slices]))
        if (body := self._known(command, version)) is not None:
            return command.reply(body=body)
        return self._make(command, connection, whole, slices, version)

    def _known(self, command: Command, version: Hashable) -> bytes | None:
        known = self._cached.get(command.code)
        return None if version is None or known is None or known[0] != version else known[1]

    async def _make(
        self,
        command: Command,
        connection: Connection,
        whole: MapParts,
        slices: Sequence[Callable[[], bytes]],
        version: Hashable,
    ) -> Command | None:
        own = self._connections.setdefault(connection, asyncio.Lock())
        try:
            async with own:
                await connection.drain()
                async with self._making:
                    body = self._known(command, version)
                    if body is None:
                        body = whole.whole([await self._slice(connection, look) for look in slices])
                    if version is not None:
                        self._cached[command.code] = version, body
        except ConnectionLost:
            return None
        return command.reply(body=body)

    async def _slice(self, connection: Connection, look: Callable[[], bytes]) -> bytes:
        text = await from_store(self._store, connection, look)
        await asyncio.sleep(0)
        return text
