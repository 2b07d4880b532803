"""Requests that would block others: read in a thread first, or answered in slices.

A page fault in a map stops the loop. So a handler that looks at old messages runs against what is
in memory, and runs again after each read in a thread. It must change nothing before it has all it
reads.

An answer with very many entries is made one slice per turn of the loop. The answers of a connection
are made one after the other, each when the peer has taken enough of the one before; those of
several connections take turns. An answer of a single slice is made at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from broker.processors.errors import RequestRefused
from broker.store.message_store import MessageStore
from broker.store.queries import NotInMemory
from broker.store.results import StoreBusy
from remoting.errors import ConnectionLost
from remoting.protocol.bodies.body import MapParts
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command

if TYPE_CHECKING:
    from remoting.connection import Connection


Answer: TypeAlias = Command | Awaitable[Command | None] | None
Handler: TypeAlias = Callable[[Command, "Connection"], Answer]

T = TypeVar("T")

MAX_READS: Final = 256
"""Reads for one request: a search by time takes two for each halving. Then it waits where it is."""


def patient(store: MessageStore, handler: Handler) -> Handler:
    """The handler, without waiting for the disk on the loop."""

    def handle(command: Command, connection: Connection) -> Answer:
        try:
            return store.from_memory(lambda: handler(command, connection))
        except NotInMemory:
            return again(command, connection)

    async def again(command: Command, connection: Connection) -> Command | None:
        answer = await from_store(store, connection, lambda: handler(command, connection))
        return await answer if isinstance(answer, Awaitable) else answer

    return handle


async def from_store(store: MessageStore, owner: Connection, look: Callable[[], T]) -> T:
    """What a look at a store gives; what it lacks in memory is read in a thread for ``owner``.

    Raises:
        RequestRefused: too many wait for the disk.
    """
    for _ in range(MAX_READS):
        try:
            return store.from_memory(look)
        except NotInMemory as problem:
            try:
                await store.fetch(owner, problem.ranges)
            except StoreBusy as busy:
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, str(busy)) from busy
    return look()


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
