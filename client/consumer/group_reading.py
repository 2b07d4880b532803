"""Group membership of a pull consumer that shares its queues with the other members.

When a queue is lost, no more of its messages are returned. The application gets time to finish:
``on_lost`` is called, and with automatic commits its next request for messages means that it is
done with the previous ones. Then the offset is committed, and the queue is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from client.config import ConsumerOptions
from client.consumer.offset_store import BrokerOffsets, commit_last
from client.consumer.reader import QueueReader
from client.errors import ConsumerStopped, UsageError
from client.events import Event, Start
from client.group.assignment import AssignmentListener
from client.group.member import GroupMember
from client.group.reports import Running
from client.limits import LOST_GRACE
from client.network.context import ClientContext
from client.offsets import Offsets
from remoting.protocol.bodies.clients import ProcessQueueInfo
from remoting.protocol.bodies.heartbeat import ConsumeType
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor

_log = Log("client")


class GroupReading(AssignmentListener):
    """The membership of one pull consumer.

    Args:
        offsets: shared with the consumer's other commits.
        forgotten: called with each queue that is no longer read.
        on_failure: called when a background task of the member fails.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        reader: QueueReader[Any],
        options: ConsumerOptions,
        offsets: Offsets,
        forgotten: Callable[[MessageQueue], None],
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._context = context
        self._group = group
        self._reader = reader
        self._options = options
        self._forgotten = forgotten
        self._on_failure = on_failure
        self._offsets = BrokerOffsets(offsets, group)
        self._member: GroupMember | None = None
        self._topics: dict[str, TagExpression] = {}
        self._changing = asyncio.Lock()
        self._dropped = asyncio.Event()
        self._open = True

    @property
    def active(self) -> bool:
        """Whether any topic is subscribed."""
        return bool(self._topics)

    async def subscribe(self, topic: str, expression: TagExpression) -> None:
        """Read this member's share of a topic; returns after the first rebalance."""
        async with self._changing:
            if not self._open:
                raise ConsumerStopped("the consumer is being closed", group=self._group)
            before = self._topics.get(topic)
            self._topics[topic] = expression
            try:
                await self._subscribe(topic, expression)
            except BaseException:
                if before is None:
                    del self._topics[topic]
                else:
                    self._topics[topic] = before
                if self._member is not None:
                    if before is None:
                        self._member.unsubscribe(topic)
                    else:
                        self._member.subscribe(topic, before)
                raise
            for queue in self._of(topic) if before is not None else ():
                self._reader.filter(queue, expression)

    async def _subscribe(self, topic: str, expression: TagExpression) -> None:
        if self._member is not None:
            self._member.subscribe(topic, expression)
            await self._member.settled()
            return
        member = GroupMember(
            self._context,
            self._group,
            {topic: expression},
            self._options,
            self._offsets,
            Supervisor(f"member of {self._group}", on_failure=self._on_failure),
            ConsumeType.CONSUME_ACTIVELY,
        )
        try:
            await member.start(self)
        except BaseException:
            await member.stop(deadline=0.0)
            raise
        self._member = member

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic; none of its messages is returned afterwards.

        With automatic commits the application is done with those returned before.
        """
        async with self._changing:
            if self._topics.pop(topic, None) is None or self._member is None:
                raise UsageError("the topic is not subscribed", topic=topic, group=self._group)
            for queue in self._of(topic):
                self._reader.settle_queue(queue)
                self._reader.halt(queue)
            if self._topics:
                self._member.unsubscribe(topic)
                await self._member.settled()
                # The member keeps what it hasn't given up when the topic is subscribed again:
                # nobody would read it.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._options.handover_timeout + LOST_GRACE):
                        while self._of(topic):
                            await self._dropped.wait()
            else:
                await self._stop(self._options.handover_timeout)

    async def close(self, timeout: float) -> None:
        """Release all queues and leave the group, without waiting for the application."""
        self._open = False
        async with self._changing:
            self._topics.clear()
            await self._stop(timeout)

    async def _stop(self, timeout: float) -> None:
        member, self._member = self._member, None
        if member is not None:
            await member.stop(deadline=asyncio.get_running_loop().time() + timeout)

    def _of(self, topic: str) -> list[MessageQueue]:
        return [queue for queue in self._reader.queues if queue.topic == topic]

    # Called by the member (``AssignmentListener``)

    def gained(self, queue: MessageQueue, start: Start) -> None:
        """Call ``on_gained`` and read the queue from ``start`` on."""
        expression = self._topics.get(queue.topic)
        if expression is None:
            return
        if self._options.on_gained is not None:
            try:
                self._options.on_gained(queue)
            except Exception:  # noqa: BLE001 - a faulty callback must not stop the reading
                _log.exception("on_gained failed", group=self._group, queue=str(queue))
        self._reader.add(queue, expression, start.offset)

    async def lost(self, queue: MessageQueue, *, deadline: float) -> None:
        """Let the application finish, commit, and drop the queue."""
        if queue not in self._reader.queues:
            return
        self._reader.halt(queue)
        try:
            await self._tell_lost(queue, deadline)
            if self._options.auto_commit:
                if self._open:
                    await self._reader.finished(queue, deadline)
                offset = self._reader.settled().get(queue)
                if offset is not None:
                    await commit_last(self._offsets, queue, offset)
        finally:
            self._reader.drop(queue)
            self._forgotten(queue)
            self._dropped.set()
            self._dropped.clear()

    async def _tell_lost(self, queue: MessageQueue, deadline: float) -> None:
        if self._options.on_lost is None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                telling = self._options.on_lost(queue)
                if inspect.isawaitable(telling):
                    await telling
        except TimeoutError:
            _log.warning("on_lost took too long", group=self._group, queue=str(queue))
        except Exception:  # noqa: BLE001 - a faulty callback must not keep the queue
            _log.exception("on_lost failed", group=self._group, queue=str(queue))

    def tell(self, event: Event) -> None:
        """Pass an event to the application."""
        self._reader.tell(event)

    def running(self) -> Running:
        """Return the state of the queues, for administration requests."""
        return Running(queues={queue: self._info(queue) for queue in self._reader.queues})

    def _info(self, queue: MessageQueue) -> ProcessQueueInfo:
        sink = self._reader.prefetch(queue)
        position = sink.position or 0
        return ProcessQueueInfo(
            commit_offset=position if sink.settled is None else sink.settled,
            cached_msg_min_offset=position,
            cached_msg_max_offset=sink.next_pull or 0,
            cached_msg_count=sink.messages,
            cached_msg_size_in_mib=sink.bytes >> 20,
            locked=self._member is not None and self._member.holds_lock(queue),
        )
