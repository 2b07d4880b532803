"""Requests for the offsets of queues, used by consumers and admins."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from client.errors import UsageError
from client.limits import FIRST_COMMIT_TRIES, MAX_FIRST_COMMITS, MAX_TIME_WALK, REPORT_PERIOD
from client.network.context import ClientContext
from client.network.remote import FOUND_OR_NOT, read_answer, read_header
from client.network.routes import address_of
from client.positions import Place, Position, milliseconds
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
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.runtime.clock import SystemClock
from remoting.runtime.log import Log, RateLimitedLog

_log = Log("client")

EVERY_TAG: Final = TagExpression.parse(None)

RESET_STANDS: Final = "Offset has been previously reset"
"""Remark of the answer to a commit that the broker ignores (cf. ConsumerManageProcessor of 5.x)."""


class Offsets:
    """Requests for queue offsets over one context.

    All callers that commit for one group must share an object, because it keeps their commits in
    order: Apache's brokers serve requests with several threads, and of two concurrent commits the
    older one may be stored last.

    Args:
        max_first_commits: see ``MAX_FIRST_COMMITS``.
    """

    def __init__(
        self, context: ClientContext, *, max_first_commits: int = MAX_FIRST_COMMITS
    ) -> None:
        self._context = context
        self._max_first_commits = max_first_commits
        # Locks exist for as long as a commit holds them or waits for them.
        self._locks: WeakValueDictionary[tuple[object, ...], asyncio.Lock] = WeakValueDictionary()
        self._begun: set[tuple[str, str, str]] = set()
        self._unseen = RateLimitedLog(SystemClock(), _log.warning, interval=REPORT_PERIOD, burst=1)

    async def minimum(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that is not deleted."""
        header = QueueRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)
        return read_header(answer, OffsetResponseHeader, queue).offset

    async def maximum(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)
        return read_header(answer, OffsetResponseHeader, queue).offset

    async def search(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset that the broker finds for a store time: one near it."""
        header = search_header(queue, timestamp_ms)
        answer = await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return read_header(answer, OffsetResponseHeader, queue).offset

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the oldest message was stored, in ms since 1970; -1 for an empty queue."""
        header = QueueRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        return read_header(answer, GetEarliestMsgStoretimeResponseHeader, queue).timestamp

    async def committed(self, queue: MessageQueue, group: str) -> int | None:
        """Return the group's committed offset, or None."""
        header = committed_header(queue, group)
        answer = await self._ask(
            queue, RequestCode.QUERY_CONSUMER_OFFSET, header, accept=FOUND_OR_NOT, group=group
        )
        return read_answer(answer, committed_offset, queue)

    async def by_broker(self, queue: MessageQueue, group: str) -> int:
        """Return the offset at which the broker lets a group start.

        That is the committed one, or 0 for a queue whose first messages are still in memory.

        Raises:
            NotFound: nothing is committed, and the first messages are not in memory.
        """
        header = committed_header(queue, group, by_broker=True)
        answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header, group=group)
        return read_header(answer, OffsetResponseHeader, queue).offset

    async def in_table(self, queue: MessageQueue, group: str) -> int | None:
        """Return a group's offset from the broker's table of all offsets, or None.

        The answer is large, but it is the only one in which a 4.x broker distinguishes a committed
        0 from no committed offset.
        """
        answer = await self._ask(queue, RequestCode.GET_ALL_CONSUMER_OFFSET, None, group=group)
        offsets = read_answer(
            answer, lambda answer: decode(ConsumerOffsetSerializeWrapper, answer.body), queue
        )
        return offsets.offset_table.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)

    async def commit(self, queue: MessageQueue, group: str, offset: int) -> bool:
        """Commit an offset for a group; the broker has it when this returns.

        The commits of a queue are made one after another. The first commit of a topic runs alone
        and is read back: if several first commits reach an Apache broker at once, even from
        different members, the broker may lose all but one (cf. ConsumerOffsetManager.commitOffset).

        Returns:
            False if the broker keeps a reset that no member has noticed yet, as RocketMQ 5's do.
        """
        async with self._locks.setdefault((group, queue), asyncio.Lock()):
            topic = (group, queue.topic, queue.broker_name)
            if topic in self._begun:
                return await self._commit(queue, group, offset)
            async with self._locks.setdefault(topic, asyncio.Lock()):
                for _ in range(FIRST_COMMIT_TRIES):
                    if not await self._commit(queue, group, offset):
                        return False
                    stored = await self.committed(queue, group)
                    # A 4.x broker may answer 0 if nothing is committed: then only a commit of 0 is
                    # accepted as stored.
                    if stored or stored == offset:
                        break
                else:
                    self._unseen.write(
                        "the broker doesn't show a committed offset, so the group may repeat "
                        "messages; check that the group exists there, and its consumerOffset.json",
                        group=group,
                        queue=str(queue),
                        offset=offset,
                    )
                    return True
                if len(self._begun) >= self._max_first_commits:
                    self._begun.clear()
                self._begun.add(topic)
        return True

    async def _commit(self, queue: MessageQueue, group: str, offset: int) -> bool:
        header = commit_header(queue, group, offset)
        answer = await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, group=group)
        return answer.remark != RESET_STANDS

    async def find(self, queue: MessageQueue, place: Position, group: str) -> int:
        """Return the offset of a position: an end of the queue, a time, or an offset as it is.

        A time means the first message stored at or after it. The broker's search returns an offset
        nearby, from which this reads on (cf. ConsumeQueue.getOffsetInQueueByTime).
        """
        if isinstance(place, Place):
            return await (self.minimum(queue) if place is Place.BEGIN else self.maximum(queue))
        if isinstance(place, datetime):
            return await self._at_or_after(queue, milliseconds(place), group)
        if type(place) is not int or place < 0:
            raise UsageError(
                f"{place!r} is not a position in a queue",
                queue=queue,
                hint="use an offset, BEGIN, END or a datetime",
            )
        return place

    async def _at_or_after(self, queue: MessageQueue, wanted_ms: int, group: str) -> int:
        # Of several messages stored in one millisecond, a 4.9 broker finds any: start 1 ms before.
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

    async def page(
        self,
        queue: MessageQueue,
        group: str,
        offset: int,
        messages: int,
        wanted: TagExpression = EVERY_TAG,
    ) -> RecordPage:
        """Return the messages from an offset on, without waiting for new ones.

        Args:
            group: the consumer group to pull as.
            messages: the maximum number of messages.
            wanted: what the broker filters by.
        """
        header = pull_header(
            queue,
            group,
            offset,
            messages=messages,
            expression=wanted.text,
            expression_type=wanted.kind,
        )
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
