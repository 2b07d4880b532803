"""What a pull consumer has committed, and its automatic commits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from client.consumer.reader import QueueReader
from client.errors import PocketMQError
from client.offsets import Offsets
from client.wire.backoff import Backoff
from remoting.log import Log
from remoting.protocol.queue import MessageQueue

_log = Log("client")


class OffsetCommits:
    """The commits of one pull consumer; what a broker has already isn't sent again.

    Attributes:
        committed: the offsets that brokers have of this consumer.
    """

    def __init__(self, offsets: Offsets, reader: QueueReader[Any], group: str) -> None:
        self._offsets = offsets
        self._reader = reader
        self._group = group
        self.committed: dict[MessageQueue, int] = {}
        self._automatic = asyncio.Lock()

    def forget(self, queue: MessageQueue) -> None:
        """Others may commit for this queue from now on."""
        self.committed.pop(queue, None)

    async def handed_out(self) -> None:
        """Commit all that was handed out. Raises as ``commit``."""
        await self.commit(self._new(self._reader.positions()))

    async def settled(self) -> None:
        """Commit what the application is done with. Raises as ``commit``."""
        await self.commit(self._new(self._reader.settled()))

    async def settled_last(self) -> None:
        """The same, and no more by time; one that is on its way is waited for, to come after it."""
        await self._automatic.acquire()
        await self.settled()

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets; brokers have them when this returns.

        Raises:
            Unavailable, RemoteError: a broker did not take one; others may have.
        """
        outcomes = await asyncio.gather(
            *(self._offsets.commit(queue, self._group, at) for queue, at in offsets.items()),
            return_exceptions=True,
        )
        for (queue, offset), outcome in zip(offsets.items(), outcomes, strict=True):
            if outcome is None:
                self.committed[queue] = offset
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def by_time(self, period: float) -> None:
        """Commit what the application is done with each ``period`` seconds, for ever."""
        backoff = Backoff(random.Random())  # noqa: S311 - spreads load
        while True:
            await asyncio.sleep(period)
            try:
                async with self._automatic:
                    await self.settled()
            except PocketMQError as error:
                _log.warning("automatic commit failed", group=self._group, error=str(error))
                await asyncio.sleep(backoff.next())
            else:
                backoff.reset()

    def _new(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        return {q: at for q, at in offsets.items() if self.committed.get(q) != at}
