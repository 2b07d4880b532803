"""Where a group's progress is kept when its members share the messages: at the brokers."""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

from client.backoff import Backoff
from client.errors import PocketMQError
from client.limits import LAST_COMMIT_TIMEOUT
from client.offsets import Offsets
from client.rebalance.starts import OffsetStore
from remoting.protocol.queue import MessageQueue


class Store(OffsetStore, Protocol):
    """An offset store that may gather commits."""

    async def save(self) -> None:
        """Make what was committed last."""
        ...

    def close(self) -> None:
        """No more is read or committed."""
        ...


async def commit_last(store: OffsetStore, queue: MessageQueue, offset: int) -> None:
    """Commit for a queue that another member takes next; a broker that is away gets some time.

    Raises:
        PocketMQError: it was not committed within ``LAST_COMMIT_TIMEOUT``.
    """
    loop, backoff = asyncio.get_running_loop(), Backoff(random.Random())  # noqa: S311 - spreads load
    until = loop.time() + LAST_COMMIT_TIMEOUT
    while True:
        try:
            return await store.commit(queue, offset)
        except PocketMQError:
            pause = backoff.next()
            if loop.time() + pause > until:
                raise
            await asyncio.sleep(pause)


class BrokerOffsets:
    """The offsets of one group, each at the broker of its queue."""

    def __init__(self, offsets: Offsets, group: str) -> None:
        self._offsets = offsets
        self._group = group

    async def stored(self, queue: MessageQueue) -> int | None:
        """See ``OffsetStore``."""
        return await self._offsets.committed(queue, self._group)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """See ``OffsetStore``; the broker has it when this returns."""
        await self._offsets.commit(queue, self._group, offset)

    async def save(self) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Nothing is open."""
