"""Requests that would block the event loop: disk reads run in a thread, large answers in slices.

A page fault in a mapped file blocks the event loop. Therefore handlers of old messages run in a
mode in which a read of pages that aren't in memory raises ``NotInMemory``. The pages are then read
in a thread, and the handler runs again. It must not change anything before its last read.

An answer with very many entries is built in slices, one per iteration of the event loop. The
answers of a connection are built one after another, each after the peer has received enough of the
previous one. An answer of a single slice is built at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from broker.errors import RequestRefused
from broker.store.engine import MessageStore
from broker.store.queries import NotInMemory
from broker.store.results import StoreBusy
from remoting.errors import ConnectionLost
from remoting.protocol.bodies.body import Body, MapParts
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command

if TYPE_CHECKING:
    from remoting.connection import Connection


Answer: TypeAlias = Command | Awaitable[Command | None] | None
Handler: TypeAlias = Callable[[Command, "Connection"], Answer]

T = TypeVar("T")

SLICE_ENTRIES: Final = 256
"""Entries in one slice, which takes about 2 ms."""


def sliced(entries: Sequence[T]) -> list[Sequence[T]]:
    """Cut entries into slices."""
    return [
        entries[begin : begin + SLICE_ENTRIES] for begin in range(0, len(entries), SLICE_ENTRIES)
    ]


def sliced_by_size(entries: Iterable[tuple[T, int]]) -> list[list[T]]:
    """Cut entries into slices by their sizes, so that a slice has about ``SLICE_ENTRIES``."""
    slices: list[list[T]] = []
    room = 0
    for entry, size in entries:
        if room <= 0:
            slices.append([])
            room = SLICE_ENTRIES
        slices[-1].append(entry)
        room -= size
    return slices


class Offload:
    """Runs such requests of one broker.

    Args:
        store: the store that the handlers read.
        max_reads: reads in a thread for one request; further reads block the event loop.
    """

    __slots__ = ("_building", "_cached", "_connections", "_max_reads", "_store")

    def __init__(self, store: MessageStore, max_reads: int) -> None:
        self._store = store
        self._max_reads = max_reads
        self._building = asyncio.Lock()
        self._connections: WeakKeyDictionary[Connection, asyncio.Lock] = WeakKeyDictionary()
        self._cached: dict[int, tuple[Hashable, bytes]] = {}

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler that reads the disk in a thread instead of on the event loop."""

        def handle(command: Command, connection: Connection) -> Answer:
            try:
                return self._store.queries.from_memory(lambda: handler(command, connection))
            except NotInMemory:
                return again(command, connection)

        async def again(command: Command, connection: Connection) -> Command | None:
            answer = await self.read(connection, lambda: handler(command, connection))
            return await answer if isinstance(answer, Awaitable) else answer

        return handle

    async def read(self, owner: object, read: Callable[[], T]) -> T:
        """Return the result of ``read``; pages that it needs are read in a thread first.

        Args:
            owner: whose reads these are; each has a limit of its own.
            read: must not change anything before its last read.

        Raises:
            RequestRefused: too many reads wait.
        """
        for _ in range(self._max_reads):
            try:
                return self._store.queries.from_memory(read)
            except NotInMemory as problem:
                try:
                    await self._store.cold_reads.fetch(owner, problem.ranges)
                except StoreBusy as busy:
                    raise RequestRefused(ResponseCode.SYSTEM_BUSY, str(busy)) from busy
        return read()

    def answer(
        self,
        command: Command,
        connection: Connection,
        slices: Sequence[Sequence[T]],
        body_of: Callable[[Sequence[T]], Body],
        *,
        version: Hashable = None,
        brackets: bytes = b"{}",
    ) -> Command | Awaitable[Command | None]:
        """Answer with a body that may be large.

        Args:
            command, connection: the request and its connection.
            slices: the entries of the body's map or list; see ``sliced``.
            body_of: returns a body with only these entries.
            version: the version of the requested table; the body is cached until it changes. With
                None the body is built for each request.
            brackets: see ``MapParts``.
        """
        whole = MapParts(body_of(()), brackets=brackets)
        if len(slices) <= 1:
            return command.reply(body=whole.whole([whole.part(body_of(some)) for some in slices]))
        if (body := self._cached_body(command, version)) is not None:
            return command.reply(body=body)
        return self._build(command, connection, slices, body_of, whole, version)

    def _cached_body(self, command: Command, version: Hashable) -> bytes | None:
        cached = self._cached.get(command.code)
        return None if version is None or cached is None or cached[0] != version else cached[1]

    async def each(
        self, connection: Connection, entries: Sequence[T], read: Callable[[T], bytes]
    ) -> list[bytes]:
        """Return what ``read`` makes of each entry, one in each iteration of the event loop.

        Like the slices of ``answer``, such answers of a connection are built one after another.
        """
        async with self._turn(connection):
            return await self._parts(connection, entries, read)

    @asynccontextmanager
    async def _turn(self, connection: Connection) -> AsyncIterator[None]:
        """Wait until the peer has taken earlier answers and no other answer is being built."""
        async with self._connections.setdefault(connection, asyncio.Lock()):
            # A peer that doesn't read its answers waits here, before ``_building`` is locked, so
            # it doesn't block other connections.
            await connection.drain()
            async with self._building:
                yield

    async def _parts(
        self, connection: Connection, entries: Sequence[T], read: Callable[[T], bytes]
    ) -> list[bytes]:
        parts: list[bytes] = []
        for entry in entries:
            if parts:
                await asyncio.sleep(0)
            parts.append(await self.read(connection, partial(read, entry)))
        return parts

    async def _build(
        self,
        command: Command,
        connection: Connection,
        slices: Sequence[Sequence[T]],
        body_of: Callable[[Sequence[T]], Body],
        whole: MapParts,
        version: Hashable,
    ) -> Command | None:
        try:
            async with self._turn(connection):
                body = self._cached_body(command, version)
                if body is None:
                    parts = await self._parts(
                        connection, slices, lambda some: whole.part(body_of(some))
                    )
                    body = whole.whole(parts)
                if version is not None:
                    self._cached[command.code] = version, body
        except ConnectionLost:
            return None
        return command.reply(body=body)
