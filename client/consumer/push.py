"""The push consumer: a group member that passes messages to a handler, or to ``async for``.

``GroupMember`` decides which queues it owns, ``AssignedQueues`` reads them, and a ``Dispatcher``
(concurrent or orderly) calls the handler and carries out the outcomes. ``PushConsumer`` creates
these parts in ``start`` and closes them in ``stop``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

from client.config import Addresses, check_arguments, check_serde
from client.consumer.assigned_queue import AssignedQueues
from client.consumer.concurrent import ConcurrentDispatcher
from client.consumer.handler import MessageHandler, on_stop_signal
from client.consumer.offset_store import BrokerOffsets, LocalOffsets, default_file
from client.consumer.options import (
    Handler,
    PushArguments,
    PushOptions,
    Subscribe,
    Wanted,
    check_handler,
    expression_of,
    subscriptions_of,
)
from client.consumer.orderly import OrderlyDispatcher
from client.consumer.received import ReceivedMessage
from client.consumer.send_back import UNLIMITED_RETRIES, CarryOut, SendBack, skip_failed
from client.errors import ConsumerStopped, UsageError
from client.events import ConsumerFailed, ConsumptionPaused, Event, deliver
from client.group.member import GroupMember
from client.group.start_offsets import OffsetStore
from client.interceptors import bind_all, close_all, show
from client.lifecycle import LifecycleState
from client.limits import CANCEL_TIMEOUT, CLOSE_TIMEOUT
from client.network.context import ClientContext, ClientPart
from client.offsets import Offsets
from client.positions import Duration, check_group, seconds
from client.serde import Serde, raw
from remoting.protocol.bodies.heartbeat import ConsumeType
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor

T = TypeVar("T")

_log = Log("client")


class PushConsumer(ClientPart, Generic[T]):
    """Consumes as a group member: ``async with PushConsumer(..., group="billing", handler=bill)``.

    A message is done when its handler returns; if the handler raises, the message is retried
    later. Without a handler, iterate: ``async for message in consumer``.

    Args:
        nameservers: ``host:port;host:port``; default: the environment variable NAMESRV_ADDR.
        group: the consumer group to join.
        subscribe: the topics, and the tags of each.
        handler: an ``async def`` runs on the event loop, a ``def`` in a thread.
        serde: deserializes message bodies to ``message.value``; without one, values are bytes.
        options: see ``client.consumer.options.PushOptions`` and ``ClientOptions``.

    Raises:
        UsageError: an argument is wrong, or no name server is given.
    """

    @overload
    def __init__(
        self: PushConsumer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[bytes] | None = None,
        serde: None = None,
        **options: Unpack[PushArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[T] | None = None,
        serde: Serde[T],
        **options: Unpack[PushArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[Any] | None = None,
        serde: Serde[Any] | None = None,
        **options: Unpack[PushArguments],
    ) -> None:
        self._prepare(group, subscribe, handler, cast("Serde[T]", serde or raw), options)
        self._attach("consumer", ClientContext(nameservers, options), shared=False)

    def _prepare(
        self,
        group: str,
        subscribe: Subscribe,
        handler: Handler[Any] | None,
        serde: Serde[T],
        options: Mapping[str, Any],
    ) -> None:
        check_group(group)
        check_serde(serde)
        check_arguments("PushConsumer", options, PushArguments)
        self.group = group
        self._subscribed = subscriptions_of(subscribe, group)
        self._handler = handler
        self._serde = serde
        self._options = PushOptions.gather(options)
        check_handler(handler, self._options, options, group)
        self._joined = False

    # Lifecycle

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
        if exc is None and self._life.failure is not None:
            raise self._life.failure

    async def start(self) -> None:
        """Join the group; the handler may be called before this returns.

        Raises:
            GroupConflict: another member of the group has settings that must be equal but differ.
            Unavailable: no name server can be reached.
            UsageError: the local offsets file can't be used.
        """
        await super().start()

    async def _join(self) -> None:
        self._context.life.check()
        self._ended = asyncio.Event()
        if around := self._options.interceptors:
            self._options = replace(self._options, interceptors=bind_all(around, self))
        self._make_parts()
        self._life.state = LifecycleState.OPEN
        self._context.add_part(self)
        try:
            await self._member.start(self._dispatcher)
        except BaseException:
            await self.stop(0.0)
            raise
        self._tasks.spawn(self._queues.commit_by_time(), "commits")
        self._tasks.spawn(self._queues.rates.sample_by_time(), "statistics")
        self._joined = True
        if self._life.failure is not None:
            await self.stop()
            raise self._life.failure

    def _make_parts(self) -> None:
        """Create the parts of a running consumer.

        Raises:
            UsageError: the strategy is unknown, or the local offsets file can't be used.
        """
        options, order = self._options, self._options.order
        self._store: OffsetStore
        if options.shared:
            self._store = BrokerOffsets(Offsets(self._context), self.group)
        else:
            file = options.local_offsets
            file = default_file(self.group) if file is None else Path(file)
            self._store = LocalOffsets(file, self.group)
        self._tasks = Supervisor(f"consumer {self.group}", on_failure=self._died)
        # The queues need the member for their locks, so it is created first; it gets the
        # dispatcher, its listener, when it starts.
        try:
            self._member = GroupMember(
                self._context,
                self.group,
                self._subscribed,
                options,
                self._store,
                Supervisor(f"member of {self.group}", on_failure=self._died),
                ConsumeType.CONSUME_PASSIVELY,
            )
        except BaseException:
            self._store.close()
            raise
        queues = self._queues = AssignedQueues(
            self._context, self._member, options, self._serde, self._tasks, self._store, self._tell
        )
        handler = self._message_handler = (
            None if self._handler is None else MessageHandler(self._handler, options, self.group)
        )
        max_retries = options.max_retries
        if order is not None:
            max_retries = UNLIMITED_RETRIES if order.max_retries is None else order.max_retries
        carry_out: CarryOut = (
            SendBack(self._context, self.group, max_retries, self._tell).carry_out
            if options.shared
            else partial(skip_failed, self.group)
        )
        self._dispatcher: ConcurrentDispatcher[T] | OrderlyDispatcher[T] = (
            ConcurrentDispatcher(queues, handler, carry_out)
            if order is None
            else OrderlyDispatcher(queues, order, handler, carry_out)
        )

    def _tell(self, event: Event) -> None:
        deliver(event, self._options.on_event, self.group)

    async def run(self) -> None:
        """Run until ``stop``, SIGTERM, SIGINT or a failure.

        Signals for which the application has a handler are not intercepted. A second signal has
        its default effect.

        Raises:
            ConsumerStopped: a background task failed; ``__cause__`` is its exception.
        """
        self._life.check()
        if self._handler is None:
            raise UsageError(
                "the consumer has no handler to run",
                group=self.group,
                hint="give it one, or iterate: async for message in consumer",
            )
        with on_stop_signal(self._ended.set):
            await self._ended.wait()
            await self.stop()
        if self._life.failure is not None:
            raise self._life.failure

    async def stop(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Stop pulling, let handlers finish, commit, release the queues, leave the group.

        Messages not finished in time are delivered again to the next owner of the queue. Called
        from a handler it only starts the stop and returns, because it would wait for itself.

        Args:
            timeout: seconds for which running handlers may continue.
        """
        work = partial(self._close, seconds(timeout))
        await self._life.close(work, wait=not self._inside())

    def _inside(self) -> bool:
        if self._life.state is LifecycleState.NEW:
            return False
        handler = self._message_handler
        return self._dispatcher.pool.inside or (handler is not None and handler.inside)

    async def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Do the same as ``stop``.

        Args:
            timeout: seconds for which running handlers may continue.
        """
        await self.stop(timeout)

    async def _close(self, timeout: float) -> None:
        self._life.state = LifecycleState.CLOSED
        self._ended.set()
        self._dispatcher.stop()
        try:
            await self._member.stop(deadline=asyncio.get_running_loop().time() + timeout)
            await self._store.save()
        finally:
            try:
                async with asyncio.timeout(CANCEL_TIMEOUT):
                    await self._tasks.close()
            except TimeoutError:
                _log.error("a handler ignores that it is cancelled", group=self.group)
            finally:
                self._dispatcher.pool.close()
                self._store.close()
                if self._message_handler is not None:
                    self._message_handler.close()
                await close_all(self._options.interceptors)
                self._context.remove_part(self)
                if self._owns_context:
                    await self._context.close()

    def _died(self, _: str, error: BaseException) -> None:
        """Handle the failure of a background task: stop, so that other members get the queues."""
        if self._life.failure is not None:
            return
        if isinstance(error, ConsumerStopped):
            stopped = error
        else:
            stopped = ConsumerStopped(
                f"a background task of the consumer died: {error!r}", group=self.group
            )
            stopped.__cause__ = error
        self._life.failure = stopped
        self._tell(ConsumerFailed(self.group, stopped))
        self._ended.set()
        if self._joined:
            self._life.begin_to_close(partial(self._close, CLOSE_TIMEOUT))
        self._dispatcher.wake()

    # Topics and queues

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues it currently owns, sorted; includes those of the group's retry topic."""
        self._life.check()
        return sorted(self._member.owned)

    @property
    def cached(self) -> dict[MessageQueue, int]:
        """How many messages of each of its queues are in memory, read ahead or being handled."""
        self._life.check()
        return {each.queue: each.process_queue.messages for each in self._queues}

    def subscribe(self, topic: str, tags: Wanted = "*") -> None:
        """Subscribe to a topic, or change its tags. All members of the group must do the same.

        Args:
            tags: which messages, as in ``subscribe=``.

        Raises:
            UsageError: ``topic`` is not a valid topic name, or ``tags`` is not a valid expression.
        """
        self._life.check()
        expression = expression_of(tags, self.group, topic)
        self._member.subscribe(topic, expression)
        self._queues.subscribe(topic, expression)
        self._subscribed[topic] = expression

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        self._life.check()
        self._member.unsubscribe(topic)
        self._subscribed.pop(topic, None)

    def suspend(self) -> None:
        """Pull nothing and start no handler until ``resume``; the consumer stays in its group."""
        self._life.check()
        self._queues.suspend()

    @property
    def paused(self) -> ConsumptionPaused | None:
        """The event of the circuit breaker that paused consumption; None: it isn't paused."""
        self._life.check()
        return self._dispatcher.pool.breaker.paused

    def resume(self) -> None:
        """Continue after ``suspend``, or after the circuit breaker paused consumption."""
        self._life.check()
        self._dispatcher.resume()

    # Iteration

    async def get(self, timeout: Duration | None = None) -> ReceivedMessage[T] | None:
        """Wait for the next message, as the iteration does; return None if none arrives in time.

        Args:
            timeout: seconds; None: without limit.

        Raises:
            ConsumerStopped: the consumer was stopped, or a background task failed.
            UsageError: the consumer has a handler, or is not subscribed to any topic.
        """
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                return await self.__anext__()
        except TimeoutError:
            return None
        except StopAsyncIteration:
            raise ConsumerStopped("the consumer was stopped", group=self.group) from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage[T]:
        """Return the next message; iteration ends when the consumer is stopped.

        Raises:
            ConsumerStopped: a background task failed.
            UsageError: the consumer has a handler, or is not subscribed to any topic.
        """
        if self._handler is not None:
            raise UsageError(
                "the consumer has a handler, which gets the messages",
                group=self.group,
                hint="await run(), or make it without handler",
            )
        self._life.check_process()
        if self._life.state is LifecycleState.NEW:
            self._life.check()
        if self._life.state is LifecycleState.OPEN and not self._subscribed:
            raise UsageError(
                "there is nothing to read: no topic is subscribed",
                group=self.group,
                hint="e.g. subscribe={'orders': '*'}",
            )
        while True:
            if self._life.failure is not None:
                raise self._life.failure
            if self._life.state is LifecycleState.CLOSED:
                raise StopAsyncIteration
            message = self._dispatcher.next_message()
            if message is not None:
                if self._options.interceptors:
                    show((message,), self._options.interceptors)
                return message
            await self._dispatcher.wait()


def shared_push_consumer(
    context: ClientContext,
    group: str,
    subscribe: Subscribe,
    handler: Handler[Any] | None,
    serde: Serde[T],
    options: Mapping[str, Any],
) -> PushConsumer[T]:
    """Return a consumer, not started yet, on an open context shared with other clients."""
    context.life.check()
    consumer: PushConsumer[T] = PushConsumer.__new__(PushConsumer)
    consumer._prepare(group, subscribe, handler, serde, options)
    consumer._attach("consumer", context, shared=True)
    return consumer


def give_up(consumer: PushConsumer[Any]) -> None:
    """Abort a stop in progress: don't wait any longer for running handlers."""
    if consumer._life.closing is not None:
        consumer._life.closing.cancel()
