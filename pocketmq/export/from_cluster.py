"""Export source: a topic's messages in a cluster, read with the client.

The queues are read one after another, from the selected position to the end at the start of the
export. If messages are deleted before they were read, the export fails, because a file with a gap
is useless.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Final

import client
from pocketmq.export.writers import (
    PORTION,
    ExportError,
    ExportSelection,
    Portion,
    Where,
    fault_of,
)

GROUP: Final = "pocketmq-export"
"""The consumer group of the export; it never commits."""

POLL_SECONDS: Final = 0.1
"""Seconds between empty portions while no message arrives, so that the caller notices signals."""


class ClusterSource:
    """The selected messages of a topic in a cluster.

    Args:
        instance: an open client instance.
        selection: the messages to export.
        queues: the queues to read.
        tell: called with a message for the user when a queue can't be read for a while.
    """

    def __init__(
        self,
        instance: client.Instance[bytes],
        selection: ExportSelection,
        queues: Sequence[client.MessageQueue],
        tell: Callable[[str], None],
    ) -> None:
        self._admin = instance.admin()
        self._consumer = instance.pull_consumer(group=GROUP, on_event=self._on_event)
        self._selection = selection
        self._queues = queues
        self._tell = tell
        self._moved: client.OffsetMoved | None = None
        self._ranges: list[tuple[client.MessageQueue, int, int]] = []

    @property
    def total(self) -> int:
        """The number of offsets to read in all queues."""
        return sum(max(0, end - begin) for _, begin, end in self._ranges)

    async def open(self) -> None:
        """Determine the offset range of each queue.

        Raises:
            PocketMQError: a queue doesn't exist, or its broker doesn't answer.
        """
        for queue in self._queues:
            begin = await self._place(queue, self._selection.begin)
            end = await self._place(queue, self._selection.end)
            self._ranges.append((queue, begin, end))

    async def portions(self) -> AsyncIterator[Portion]:
        """Yield the selected messages, and empty portions while no message arrives.

        Raises:
            ExportError: messages were deleted before they were read.
            PocketMQError: a broker refused a request.
        """
        for queue, begin, end in self._ranges:
            if begin < end:
                async for portion in self._queue(queue, begin, end):
                    yield portion

    async def _queue(
        self, queue: client.MessageQueue, begin: int, end: int
    ) -> AsyncIterator[Portion]:
        sql = self._selection.sql
        tags = self._selection.tags.text if sql is None else client.Sql(sql)
        self._consumer.assign([queue], tags=tags)
        await self._consumer.seek(queue, begin)
        self._moved = None
        position = begin
        while position < end:
            messages = await self._consumer.get_many(PORTION, timeout=POLL_SECONDS)
            self._check_kept(queue, end)
            # Messages read ahead before the assign and seek may still be returned: skip them.
            messages = [one for one in messages if one.queue == queue and one.offset >= position]
            reached = min(end, await self._consumer.position(queue))
            before, position = position, max(position, reached)
            selected, damage = [], []
            for message in messages:
                if message.offset >= end:
                    continue
                if reason := fault_of(message):
                    damage.append(reason)
                elif self._selection.wants(message):
                    selected.append(message)
            yield Portion(selected, position - before, damage)

    def _check_kept(self, queue: client.MessageQueue, end: int) -> None:
        moved = self._moved
        if moved is not None and moved.queue == queue and moved.wanted < end:
            raise ExportError(
                f"messages {moved.wanted} to {moved.new - 1} of {queue} were deleted before they"
                " could be read: start again, the export then begins with the remaining messages"
            )

    def _on_event(self, event: client.Event) -> None:
        if isinstance(event, client.OffsetMoved):
            self._moved = event
        elif isinstance(event, client.QueueWaiting):
            self._tell(f"waiting: {event.error}")

    async def _place(self, queue: client.MessageQueue, where: Where) -> int:
        first = await self._admin.min_offset(queue)
        end = await self._admin.max_offset(queue)
        if isinstance(where, datetime):
            self._consumer.assign([queue])
            await self._consumer.seek(queue, where)
            return min(max(await self._consumer.position(queue), first), end)
        if isinstance(where, int):
            return min(max(where, first), end)
        return first if where is client.BEGIN else end
