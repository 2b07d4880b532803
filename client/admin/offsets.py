"""Offsets of queues, and how far groups have committed in them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime

from client.admin.base import AdminBase
from client.names import check_group
from client.places import instant, milliseconds
from remoting.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.queue import MessageQueue


class OffsetAdmin(AdminBase):
    """The part of ``Admin`` about offsets."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted."""
        self._life.check()
        return list((await self._context.routes.fresh(topic)).readable)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        self._life.check()
        return await self._offsets.minimum(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        self._life.check()
        return await self._offsets.maximum(queue)

    async def search_offset(self, queue: MessageQueue, at: datetime) -> int:
        """The offset the broker finds for a store time, by its own rules: one near it."""
        self._life.check()
        return await self._offsets.search(queue, milliseconds(at))

    async def earliest_stored_at(self, queue: MessageQueue) -> datetime | None:
        """When the oldest message was stored, UTC; None for an empty queue."""
        self._life.check()
        stored_ms = await self._offsets.earliest_store_time(queue)
        return instant(stored_ms) if stored_ms >= 0 else None

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """What a group has committed in each queue of a topic; None: nothing."""
        check_group(group)
        queues = await self.queues(topic)
        found = await asyncio.gather(*(self._offsets.committed(queue, group) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set how far a group has come. Its running consumers don't notice."""
        self._life.check()
        check_group(group)
        for queue, offset in offsets.items():
            await self._offsets.commit(queue, group, offset)

    async def all_offsets(self, address: str) -> dict[str, dict[int, int]]:
        """Every committed offset at one broker: ``topic@group`` to queue id to offset."""
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        answer = await self._remote.call(address, code)
        return self._decode(ConsumerOffsetSerializeWrapper, answer, code, address).offset_table
