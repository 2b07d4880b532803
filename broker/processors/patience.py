"""Handlers that look at old messages: what only the disk has is read in a thread first.

A page fault in a map stops the loop. So such a handler runs against what is in memory; where that
is not enough it is run anew after each read. It must change nothing before it has looked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from broker.errors import Refused
from broker.store.errors import StoreBusy
from broker.store.lookups import NotInMemory
from broker.store.message_store import MessageStore
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
        Refused: too many wait for the disk.
    """
    for _ in range(MAX_READS):
        try:
            return store.from_memory(look)
        except NotInMemory as problem:
            try:
                await store.fetch(owner, problem.ranges)
            except StoreBusy as busy:
                raise Refused(ResponseCode.SYSTEM_BUSY, str(busy)) from busy
    return look()
