"""Where a gained queue begins: at the stored offset, else by the rule of ``start_from``.

A group has no offset only if the broker answers so, with code 22. After any other answer, or none,
the queue waits: a busy broker must not send a group to the end of a queue. (4.x clients treat every
error as "none".)

A group without an offset begins at ``start_from``. Before that, as for RocketMQ's clients, the
broker's own rule applies: it answers 0 for a queue whose first messages are still in memory, so
that all groups read a young queue from its first message. ``exact`` turns that rule off. The
group's retry topic always begins at its first message, because all its messages are the group's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime

from client.config import GroupOptions
from client.context import ClientContext
from client.errors import NotFound
from client.events import Start
from client.offsets import Offsets
from client.positions import Place, milliseconds
from remoting.protocol.names import retry_topic
from remoting.protocol.queue import MessageQueue


class OffsetStore(ABC):
    """Stores a group's progress: at the brokers, or in a file when broadcasting."""

    @abstractmethod
    async def stored(self, queue: MessageQueue) -> int | None:
        """The stored offset of the group; None: it certainly has no offset.

        Raises:
            PocketMQError: it could not be found out.
        """

    @abstractmethod
    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset.

        Raises:
            PocketMQError: it was not stored.
        """

    async def save(self) -> None:  # noqa: B027 - most stores gather nothing
        """Write commits that were only gathered."""

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Release the store: nothing more is read or committed."""


class StartOffsets:
    """Finds where a group's queues begin.

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
            milliseconds(self._start_from)  # a naive one is refused now, not when a queue is gained

    async def find(self, queue: MessageQueue) -> Start:
        """Where ``queue`` begins.

        Raises:
            PocketMQError: it can't be found out now.
        """
        stored = await self.store.stored(queue)
        if stored == 0 and self._shared and self._exact:
            # 4.x brokers answer 0 for young queues of a group that has stored nothing.
            stored = await self._offsets.in_table(queue, self._group)
        if stored is not None:
            return Start(stored, "stored", f"stored {stored}")
        if queue.topic == retry_topic(self._group):
            return Start(0, "retry", "the retry topic's first message")
        if self._shared and not self._exact:
            try:
                is_young = await self._offsets.by_broker(queue, self._group) == 0
            except NotFound:
                is_young = False
            if is_young:
                end = await self._offsets.maximum(queue)
                return Start(0, "fallback", f"fallback 0: {end} messages")
        place = self._start_from
        offset = await self._offsets.find(queue, place, self._group)
        if place is Place.BEGIN:
            return Start(offset, "first", f"first {offset}")
        if place is Place.END:
            return Start(offset, "end", f"end {offset}")
        if isinstance(place, datetime):
            return Start(offset, "timestamp", f"{place.isoformat()}: {offset}")
        return Start(offset, "offset", f"offset {offset}")
