"""Requests about the offsets of queues, for consumers and admins."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial

from client.context import ClientContext
from client.errors import UsageError
from client.limits import FIRST_COMMIT_TRIES, MAX_TIME_WALK
from client.positions import Place, Position, milliseconds
from client.remote import FOUND_OR_NOT, read_answer, read_header
from client.routes import address_of
from client.wire.offsets import (
    WALK_MESSAGES,
    RecordPage,
    commit_header,
    committed_header,
    committed_offset,
    pull_header,
    read_page,
    search_header,
)
from client.wire.pull_answer import PULL_ANSWERS
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Header
from remoting.protocol.headers.pull import (
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueueRequestHeader,
)
from remoting.protocol.queue import MessageQueue


def _offset_table(answer: Command) -> dict[str, dict[int, int]]:
    return decode(ConsumerOffsetSerializeWrapper, answer.body).offset_table


class Offsets:
    """Requests about queues' offsets over one context.

    All who commit for a group share one of these, for it keeps the commits in their order: Apache's
    brokers serve them with many threads, and of two at once the older one may win.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._committing: dict[tuple[str, MessageQueue], asyncio.Lock] = {}
        self._first: dict[tuple[str, str, str], asyncio.Lock] = {}
        self._begun: set[tuple[str, str, str]] = set()

    async def minimum(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        header = QueueRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)
        return read_header(answer, OffsetResponseHeader, queue).offset

    async def maximum(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)
        return read_header(answer, OffsetResponseHeader, queue).offset

    async def search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset that the broker finds for a store time: one near it, by its own rules."""
        header = search_header(queue, timestamp_ms)
        answer = await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return read_header(answer, OffsetResponseHeader, queue).offset

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message was stored, ms; -1 for none."""
        header = QueueRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        return read_header(answer, GetEarliestMsgStoretimeResponseHeader, queue).timestamp

    async def committed(self, queue: MessageQueue, group: str) -> int | None:
        """How far a group has committed; None: nothing yet."""
        header = committed_header(queue, group)
        answer = await self._ask(
            queue, RequestCode.QUERY_CONSUMER_OFFSET, header, accept=FOUND_OR_NOT, group=group
        )
        return read_answer(answer, committed_offset, queue)

    async def by_broker(self, queue: MessageQueue, group: str) -> int:
        """Where the broker has a group begin: committed, or its own rule for young queues.

        Raises:
            NotFound: nothing is committed, and its rule doesn't apply.
        """
        header = committed_header(queue, group, by_broker=True)
        answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header, group=group)
        return read_header(answer, OffsetResponseHeader, queue).offset

    async def in_table(self, queue: MessageQueue, group: str) -> int | None:
        """A group's offset in the broker's table of all offsets; None: nothing is committed.

        The answer is large, and the only one in which a broker of 4.x distinguishes a committed 0
        from none.
        """
        answer = await self._ask(queue, RequestCode.GET_ALL_CONSUMER_OFFSET, None, group=group)
        table = read_answer(answer, _offset_table, queue)
        return table.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)

    async def commit(self, queue: MessageQueue, group: str, offset: int) -> None:
        """Store how far a group has come; the broker has it when this returns.

        A queue's commits are made one after the other. The first commit of a topic is made alone
        and checked: of several first commits at once, even from different members, Apache's brokers
        may forget all but one
        (cf. ConsumerOffsetManager.commitOffset).
        """
        async with self._committing.setdefault((group, queue), asyncio.Lock()):
            key = (group, queue.topic, queue.broker_name)
            if key in self._begun:
                await self._commit(queue, group, offset)
                return
            async with self._first.setdefault(key, asyncio.Lock()):
                for _ in range(FIRST_COMMIT_TRIES):
                    await self._commit(queue, group, offset)
                    stored = await self.committed(queue, group)
                    # A broker of 4.x answers 0 where a young queue has nothing stored.
                    if stored or stored == offset:
                        break
                self._begun.add(key)

    async def _commit(self, queue: MessageQueue, group: str, offset: int) -> None:
        header = commit_header(queue, group, offset)
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, group=group)

    async def find(self, queue: MessageQueue, place: Position, group: str) -> int:
        """The offset of a place: an end of the queue, an instant, or an offset as it is.

        An instant means the first message stored at or after it; a broker's search gives one
        nearby, from which this walks on (cf. ConsumeQueue.getOffsetInQueueByTime).
        """
        if isinstance(place, Place):
            return await (self.minimum(queue) if place is Place.BEGIN else self.maximum(queue))
        if isinstance(place, datetime):
            return await self._at_or_after(queue, milliseconds(place), group)
        if type(place) is not int or place < 0:
            raise UsageError(
                f"{place!r} is no place in a queue",
                queue=queue,
                hint="use an offset, BEGIN, END or a datetime",
            )
        return place

    async def _at_or_after(self, queue: MessageQueue, wanted_ms: int, group: str) -> int:
        # Of several messages of one millisecond a 4.9 broker finds any: begin one before.
        offset = await self.search(queue, wanted_ms - 1)
        for _ in range(MAX_TIME_WALK // WALK_MESSAGES):
            page = await self.page(queue, group, offset, WALK_MESSAGES)
            for record in page.records:
                if record.store_timestamp_ms >= wanted_ms:
                    return record.queue_offset
            offset = page.next_offset
            if not page.records:
                break
        return offset

    async def page(self, queue: MessageQueue, group: str, offset: int, messages: int) -> RecordPage:
        """The messages from an offset on, without waiting for any.

        Args:
            group: who asks.
            messages: at most so many.
        """
        header = pull_header(queue, group, offset, messages=messages, suspend_ms=0, expression="*")
        answer = await self._ask(queue, RequestCode.PULL_MESSAGE, header, accept=PULL_ANSWERS)
        return read_answer(answer, partial(read_page, offset=offset), queue)

    async def _ask(
        self,
        queue: MessageQueue,
        code: int,
        header: Header | None,
        *,
        accept: frozenset[int] = frozenset({ResponseCode.SUCCESS}),
        group: str | None = None,
    ) -> Command:
        route = await self._context.routes.to_read(queue.topic)
        address = address_of(route, queue)
        return await self._context.remote.call(
            address, code, header, accept=accept, queue=queue, group=group
        )
