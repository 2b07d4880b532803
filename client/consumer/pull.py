"""The pull consumer: prefetches messages and returns them on demand.

The queues are either chosen by the application (``assign``), in which case the consumer only sends
heartbeats and commits offsets for its group; or shared by the members of the group (``subscribe``).
(cf. DefaultLitePullConsumer)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

from client.config import (
    Addresses,
    ConsumerArguments,
    ConsumerOptions,
    check_arguments,
    check_serde,
)
from client.consumer.group_reading import GroupReading
from client.consumer.offset_store import OffsetCommits
from client.consumer.options import Wanted, expression_of
from client.consumer.reader import QueueReader
from client.consumer.received import ReceivedMessage
from client.errors import ConsumerStopped, PocketMQError, UsageError
from client.interceptors import bind_all, close_all, show
from client.lifecycle import LifecycleState
from client.limits import CLOSE_TIMEOUT
from client.network.context import ClientContext, ClientPart
from client.offsets import Offsets
from client.positions import Duration, Position, check_group, check_topic_name, queues_of, seconds
from client.serde import Serde, raw
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor

T = TypeVar("T")

_log = Log("client")


class PullConsumer(ClientPart, Generic[T]):
    """Reads queues; used as ``async with PullConsumer("127.0.0.1:9876", group="audit")``.

    Args:
        nameservers: ``host:port;host:port``; default: the environment variable NAMESRV_ADDR.
        group: the consumer group whose committed offsets it starts from and advances.
        serde: deserializes message bodies to ``message.value``; without one, values are bytes.
        options: see ``client.config.ConsumerOptions`` and ``ClientOptions``.

    Raises:
        UsageError: an argument is wrong, or no name server is given.
    """

    @overload
    def __init__(
        self: PullConsumer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str,
        serde: None = None,
        **options: Unpack[ConsumerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        serde: Serde[T],
        **options: Unpack[ConsumerArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        serde: Serde[Any] | None = None,
        **options: Unpack[ConsumerArguments],
    ) -> None:
        self._prepare(group, cast("Serde[T]", serde or raw), options)
        self._attach("consumer", ClientContext(nameservers, options), shared=False)

    def _prepare(self, group: str, serde: Serde[T], options: Mapping[str, Any]) -> None:
        check_group(group)
        check_serde(serde)
        check_arguments("PullConsumer", options, ConsumerArguments)
        self.group = group
        self._serde = serde
        self._options = ConsumerOptions.gather(options)

    # Lifecycle

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._life.close(partial(self._close, CLOSE_TIMEOUT, clean=exc is None))
        if exc is None and self._failure is not None:
            raise self._stopped()

    def _open(self) -> None:
        self._interceptors = bind_all(self._options.interceptors, self)  # first: it may raise
        super()._open()
        self._tasks = Supervisor(f"consumer {self.group}", on_failure=self._died)
        self._offsets = Offsets(self._context)
        self._reader: QueueReader[T] = QueueReader(
            self._context,
            self.group,
            self._options,
            self._serde,
            self._tasks,
            self._find_start,
            lambda queue: self._commits.forget(queue),  # noqa: PLW0108 - made below
        )
        self._commits = OffsetCommits(self._offsets, self._reader, self.group)
        self._failure: BaseException | None = None
        self._group_reading = GroupReading(
            self._context,
            self.group,
            self._reader,
            self._options,
            self._offsets,
            self._commits.forget,
            self._died,
        )
        self._version_ms = 0
        self._context.add_consumer(self, self.group, self._subscriptions)
        if self._options.auto_commit:
            self._tasks.spawn(
                self._commits.by_time(self._options.auto_commit_period), "automatic commits"
            )

    async def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Stop reading, commit if ``auto_commit``, leave the group.

        Args:
            timeout: seconds for the commits.
        """
        await self._life.close(partial(self._close, seconds(timeout), clean=True))

    async def _close(self, timeout: float, *, clean: bool) -> None:
        if clean and self._options.auto_commit:
            self._reader.settle()
        # Close the group reading while the consumer is still open: on_lost may commit.
        await self._group_reading.close(timeout)
        self._life.state = LifecycleState.CLOSED
        self._reader.wake()
        try:
            if self._options.auto_commit:
                async with asyncio.timeout(timeout):
                    await self._commits.settled_last()
        except (PocketMQError, TimeoutError) as error:
            _log.warning("last commit failed", group=self.group, error=str(error) or "timed out")
        finally:
            await self._tasks.close()
            await close_all(self._interceptors)
            await self._context.remove_consumer(self, self.group, self._subscriptions)
            if self._owns_context:
                await self._context.close()

    def _died(self, _: str, error: BaseException) -> None:
        self._failure = self._failure or error
        self._reader.wake()

    def _stopped(self) -> ConsumerStopped:
        if self._failure is None:
            return ConsumerStopped("the consumer is closed", group=self.group)
        stopped = ConsumerStopped(
            f"a background task of the consumer died: {self._failure!r}", group=self.group
        )
        stopped.__cause__ = self._failure
        return stopped

    # Queues

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic, sorted.

        Raises:
            TopicNotFound: there is no such topic.
            NoNameServer: no name server could be reached.
        """
        self._life.check()
        check_topic_name(topic)
        route = await self._context.routes.fresh(topic)
        return list(route.readable)

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that the consumer reads, sorted."""
        self._life.check()
        return sorted(self._reader.queues)

    @property
    def cached(self) -> dict[MessageQueue, int]:
        """How many messages of each queue that it reads are read ahead."""
        self._life.check()
        return self._reader.cached

    def assign(self, queues: Iterable[MessageQueue], *, tags: Wanted = "*") -> None:
        """Read these queues from now on, and no others.

        A queue that is already read keeps its position, unless ``tags`` differs from before. A new
        one, and one with new tags, starts at the group's committed offset, or without one at
        ``start_from``. With ``auto_commit`` the application is done with the messages returned from
        queues that it gives up.

        Args:
            queues: the complete list of queues to read.
            tags: ``A || B`` for the messages with one of these tags, or ``Tags("A", "B")``; or
                ``Sql("amount > 100")``; ``*`` for all.

        Raises:
            UsageError: an argument is invalid, or topics are subscribed.
        """
        self._life.check()
        queues = queues_of(queues, self.group)
        expression = expression_of(tags, self.group)
        if self._group_reading.active:
            raise UsageError(
                "this consumer shares its queues with its group",
                group=self.group,
                hint="unsubscribe all topics first, or use a second consumer",
            )
        done = self._reader.assign(queues, expression)
        if self._options.auto_commit:
            self._commits.given_up.update(done)
        self._version_ms = self._context.clock.now_ms()
        self._context.heartbeat_soon()

    async def subscribe(self, topic: str, tags: Wanted = "*") -> None:
        """Read this member's share of a topic's queues, which the members of the group divide.

        The share changes as members join and leave; ``on_gained`` and ``on_lost`` are called for
        each change. When this returns, the first rebalance is done; messages arrive once the
        previous owners have released the queues. Subscribing to a topic again changes its tags.

        Args:
            tags: ``A || B`` for the messages with one of these tags, or ``Tags("A", "B")``; or
                ``Sql("amount > 100")``; ``*`` for all.

        Raises:
            UsageError: ``topic`` or ``tags`` is invalid, or queues are assigned.
            SubscriptionInvalid: a broker refuses the expression.
            GroupConflict: another member of the group has settings that must be equal but differ.
            NoNameServer: no name server can be reached.
        """
        self._life.check()
        expression = expression_of(tags, self.group, topic)
        if self._reader.queues and not self._group_reading.active:
            raise UsageError(
                "this consumer reads assigned queues",
                group=self.group,
                hint="assign([]) first, or use a second consumer",
            )
        if self._commits.given_up:
            await self._commits.settled()
        await self._group_reading.subscribe(topic, expression)

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic and release its queues to the group.

        Raises:
            UsageError: the topic isn't subscribed.
        """
        self._life.check()
        await self._group_reading.unsubscribe(topic)

    async def _find_start(self, queue: MessageQueue) -> int:
        committed = self._commits.given_up.get(queue)
        if committed is None:
            committed = await self._offsets.committed(queue, self.group)
        if committed is not None:
            return committed
        return await self._offsets.find(queue, self._options.start_from, self.group)

    async def seek(self, queue: MessageQueue, to: Position) -> None:
        """Continue reading an assigned queue at another position; prefetched messages are dropped.

        Args:
            to: an offset, ``BEGIN``, ``END``, or a datetime for the first message stored at or
                after that time.

        Raises:
            UsageError: the queue isn't assigned, or ``to`` is no position.
            Unavailable, RemoteError: the broker did not return the offset.
        """
        self._life.check()
        self._reader.prefetch(queue)
        offset = await self._offsets.find(queue, to, self.group)
        self._life.check()
        self._reader.seek(queue, offset)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until ``resume``. Raises UsageError."""
        self._life.check()
        for queue in queues_of(queues, self.group):
            self._reader.pause(queue)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of paused queues again. Raises UsageError."""
        self._life.check()
        for queue in queues_of(queues, self.group):
            self._reader.resume(queue)

    # Messages

    async def get_many(
        self, max_messages: int, *, timeout: Duration | None = None
    ) -> list[ReceivedMessage[T]]:
        """Wait for messages and return the next ones, in order within each queue.

        Args:
            max_messages: upper limit; fewer are returned if fewer are available.
            timeout: seconds to wait for the first message; None: without limit.

        Returns:
            The messages; an empty list if none arrived in time.

        Raises:
            ConsumerStopped: the consumer was closed, or a background task failed.
            RemoteError: a broker refuses the pulls (they are retried in the background).
            UsageError: nothing is assigned or subscribed.
        """
        if max_messages < 1:
            raise UsageError(f"max_messages can't be {max_messages}")
        self._begin_to_take()
        loop = asyncio.get_running_loop()
        end = math.inf if timeout is None else loop.time() + seconds(timeout)
        while True:
            self._check_running()
            taken = self._reader.take(max_messages)
            if taken:
                return self._shown(taken)
            self._reader.raise_refusal()
            # Another caller may have taken what this one was woken for.
            left = end - loop.time()
            if left <= 0:
                return []
            await self._reader.wait(None if timeout is None else left)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage[T]:
        """Return the next message; iteration ends when the consumer is closed.

        Raises:
            ConsumerStopped, RemoteError, UsageError: as ``get_many``.
        """
        self._begin_to_take()
        while True:
            if self._life.state is LifecycleState.CLOSED and self._failure is None:
                raise StopAsyncIteration
            self._check_running()
            if self._reader.ready:
                return self._shown(self._reader.take(1))[0]
            self._reader.raise_refusal()
            await self._reader.wait(None)

    def _check_running(self) -> None:
        if self._failure is not None or self._life.state is LifecycleState.CLOSED:
            raise self._stopped()

    def _begin_to_take(self) -> None:
        """Check that reading is possible; with ``auto_commit``, settle what was returned before.

        Asking for more messages means that the application is done with the previous ones.
        """
        self._life.check_process()
        if self._life.state is LifecycleState.NEW:
            self._life.check()
        reads = self._reader.queues or self._group_reading.active
        if not reads and self._life.closing is None and self._failure is None:
            raise UsageError(
                "there is nothing to read: no queue is assigned and no topic subscribed",
                group=self.group,
                hint="assign(await consumer.queues(topic)), or await subscribe(topic), first",
            )
        if self._options.auto_commit and self._life.state is LifecycleState.OPEN:
            self._reader.settle()

    def _shown(self, taken: list[ReceivedMessage[T]]) -> list[ReceivedMessage[T]]:
        if taken and self._interceptors:
            show(taken, self._interceptors)
        return taken

    def _subscriptions(self) -> list[SubscriptionData]:
        return self._reader.subscriptions(self._version_ms)

    # Offsets

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message to be returned.

        Raises:
            UsageError: the queue isn't assigned.
            Unavailable, RemoteError: the broker did not return the start offset.
        """
        self._life.check()
        position = self._reader.prefetch(queue).position
        return await self._find_start(queue) if position is None else position

    async def committed(
        self, queues: Iterable[MessageQueue] | None = None
    ) -> dict[MessageQueue, int | None]:
        """Read the group's committed offsets from the brokers; None: nothing is committed.

        Args:
            queues: the queues; default: all assigned ones.
        """
        self._life.check()
        chosen = self._reader.queues if queues is None else list(queues)
        offsets = await asyncio.gather(
            *(self._offsets.committed(queue, self.group) for queue in chosen)
        )
        return dict(zip(chosen, offsets, strict=True))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets; the brokers have stored them when this returns.

        Args:
            offsets: for each queue, the next offset to read; default: after all returned messages.

        Raises:
            UsageError: another member of the group owns a queue.
            Unavailable, RemoteError: a broker did not store an offset; others may have.
        """
        self._life.check()
        if offsets is None:
            await self._commits.handed_out()
            return
        if self._group_reading.active and (lost := offsets.keys() - set(self._reader.queues)):
            raise UsageError(
                "another member of the group has this queue now",
                queue=min(lost),
                group=self.group,
                hint="commit in on_lost what is done by then",
            )
        for queue in offsets:
            self._commits.given_up.pop(queue, None)
        await self._commits.commit(offsets)


def shared_pull_consumer(
    context: ClientContext, group: str, serde: Serde[T], options: Mapping[str, Any]
) -> PullConsumer[T]:
    """Return an open consumer on a context that is open and shared with other clients."""
    consumer: PullConsumer[T] = PullConsumer.__new__(PullConsumer)
    consumer._prepare(group, serde, options)
    consumer._attach("consumer", context, shared=True)
    consumer._open()
    return consumer
