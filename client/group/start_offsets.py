"""The start offset of a gained queue: the stored offset, or without one that of ``start_from``.

A group has no stored offset only if the broker responds with code 22 (QUERY_NOT_FOUND). After any
other error the queue waits and the request is repeated, so that an overloaded broker can't make a
group skip to the end of a queue. (4.x clients treat every error as "no offset".)

A group without a stored offset starts at ``start_from``, with two exceptions. As for RocketMQ's
clients, a rule of the broker has precedence: it returns 0 for a queue whose first messages are
still in memory, so that every group reads a new queue from its first message; ``exact`` disables
that. The group's retry topic always starts at its first message, because all its messages are for
the group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime

from client.config import GroupOptions
from client.errors import NotFound
from client.events import Start
from client.network.context import ClientContext
from client.offsets import Offsets
from client.positions import Place, milliseconds
from remoting.protocol.names import retry_topic
from remoting.protocol.queue import MessageQueue


class OffsetStore(ABC):
    """Stores the offsets of a group, at the brokers, or in a local file for broadcasting."""

    @abstractmethod
    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset; None: it certainly has none.

        Raises:
            PocketMQError: it could not be determined.
        """

    @abstractmethod
    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset.

        Raises:
            PocketMQError: it was not stored.
        """

    async def save(self) -> None:  # noqa: B027 - optional
        """Write commits that ``commit`` has only buffered."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release the store's resources; it must not be used afterwards."""


class StartOffsets:
    """Determines the start offsets of a group's queues.

    Args:
        offsets: the stored offsets of the group.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        offsets: OffsetStore,
        options: GroupOptions,
    ) -> None:
        self._group = group
        self.store = offsets
        self._offsets = Offsets(context)
        self._start_from = options.start_from
        self._exact = options.exact
        self._shared = options.shared
        if isinstance(self._start_from, datetime):
            milliseconds(self._start_from)  # raise for a naive datetime now, not in ``find``

    async def find(self, queue: MessageQueue) -> Start:
        """Return where to start reading ``queue``.

        Raises:
            PocketMQError: a broker did not return what is needed.
        """
        stored = await self.store.stored(queue)
        if stored == 0 and self._shared and self._exact:
            # 4.x brokers return 0 for a group without a stored offset if the queue is new; look the
            # offset up in the broker's offset table.
            stored = await self._offsets.in_table(queue, self._group)
        if stored is not None:
            return Start(stored, "stored", f"stored {stored}")
        if queue.topic == retry_topic(self._group):
            return Start(0, "retry", "the retry topic's first message")
        if self._shared and not self._exact:
            try:
                is_new = await self._offsets.by_broker(queue, self._group) == 0
            except NotFound:
                is_new = False
            if is_new:
                end = await self._offsets.maximum(queue)
                return Start(0, "fallback", f"fallback 0: {end} messages")
        start_from = self._start_from
        offset = await self._offsets.find(queue, start_from, self._group)
        if start_from is Place.BEGIN:
            return Start(offset, "first", f"first {offset}")
        if start_from is Place.END:
            return Start(offset, "end", f"end {offset}")
        if isinstance(start_from, datetime):
            return Start(offset, "timestamp", f"{start_from.isoformat()}: {offset}")
        return Start(offset, "offset", f"offset {offset}")
