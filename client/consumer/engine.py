"""What works behind a push consumer: its membership, its queues, and the way to its handler.

The member says which queues are its own; the intake reads them; a way (``ConcurrentDispatcher`` or
``OrderlyDispatcher``) hands messages to the handler, or ``Iteration`` to the application, and
carries out what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from client.consumer.concurrent import ConcurrentDispatcher
from client.consumer.crew import as_async, is_async
from client.consumer.intake import AssignedQueue, AssignedQueues
from client.consumer.iteration import Iteration
from client.consumer.offset_store import BrokerOffsets, LocalOffsets, Store, default_file
from client.consumer.options import Handler, PushOptions
from client.consumer.orderly import OrderlyDispatcher, QueueLanes
from client.consumer.send_back import ENDLESS, Returns, SendBack, Unshared
from client.consumer.threads import HandlerThreads
from client.context import ClientContext
from client.errors import ConsumerStopped
from client.events import ConsumerFailed, ConsumptionPaused, Event
from client.limits import CANCEL_TIMEOUT
from client.offsets import Offsets
from client.rebalance.member import GroupMember, Start
from client.rebalance.reports import Running
from client.serde import Serde
from remoting.log import Log
from remoting.protocol.bodies.clients import ProcessQueueInfo
from remoting.protocol.bodies.description import BlockedQueue
from remoting.protocol.bodies.heartbeat import ConsumeType
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

T = TypeVar("T")

_log = Log("client")

_ALL = TagExpression.parse("*")

ENDLESS_TIMES: Final = -1
"""How RocketMQ's ``maxReconsumeTimes`` of an ordered consumer says: for ever."""


class ConsumerEngine(Generic[T]):
    """The works of one consumer, from ``start`` to ``stop``; the ``Assignee`` of its member.

    Args:
        on_end: called when a background task has died: nothing goes on from then.

    Raises:
        UsageError: the strategy is unknown, or the local offsets can't be used.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        subscribed: dict[str, TagExpression],
        handler: Handler[Any] | None,
        serde: Serde[T],
        options: PushOptions,
        on_end: Callable[[ConsumerStopped], None],
    ) -> None:
        self._context = context
        self._group = group
        self._handler = handler
        self._options = options
        self._on_end = on_end
        self._closing = False
        self._failed = False
        self._loop = asyncio.get_running_loop()
        self._store = self._offset_store()
        self._tasks = Supervisor(f"consumer {group}", on_failure=self._died)
        self._intake: AssignedQueues[T] = AssignedQueues(
            context, group, options, serde, self._tasks, self._store, self._tell
        )
        try:
            self.member = self._make_member(subscribed)
        except BaseException:
            self._store.close()
            raise
        self._threads: HandlerThreads | None = None
        self._way = self._make_way()
        self.iteration: Iteration[T] = Iteration(self._intake, self._way, self._tasks)
        self._intake.on_ready = self._way.crew.wake if handler else self.iteration.wake
        self._intake.on_forgotten = self.member.heartbeat_broker

    def _make_member(self, subscribed: dict[str, TagExpression]) -> GroupMember:
        options = self._options
        return GroupMember(
            self._context,
            self._group,
            self,
            subscriptions=subscribed,
            strategy=options.strategy,
            model=options.model,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            start_from=options.start_from,
            exact=options.exact,
            on_conflict=options.on_conflict,
            handover_timeout=options.handover_timeout,
            tell=self._tell,
            offsets=self._store,
            blocked=self._blocked,
            running=self._running,
            on_failure=self._died,
        )

    def _offset_store(self) -> Store:
        if self._options.shared:
            return BrokerOffsets(Offsets(self._context), self._group)
        file = self._options.local_offsets
        return LocalOffsets(default_file(self._group) if file is None else Path(file), self._group)

    def _make_way(self) -> ConcurrentDispatcher[T] | OrderlyDispatcher[T]:
        options, order, handler = self._options, self._options.order, self._handler
        call = None
        cancels = True
        if handler is not None:
            # A thread can't be cancelled, so its dispatcher gives up the message without it.
            cancels = is_async(handler)
            if not cancels:
                self._threads = HandlerThreads(f"{self._group}-handler", options.concurrency)
            call = as_async(
                handler, self._threads, options.interceptors, batches=options.batch_size > 1
            )
        if order is None:
            return ConcurrentDispatcher(
                self._intake,
                options,
                self._tasks,
                self._group,
                call,
                self._returns(options.max_retries),
                cancels=cancels,
            )
        holds_lock = self.member.holds_lock if options.shared else _always
        return OrderlyDispatcher(
            self._intake,
            options,
            order,
            self._tasks,
            self._group,
            call,
            self._returns(ENDLESS if order.max_retries is None else order.max_retries),
            QueueLanes(self._intake, self._tasks, self._store, holds_lock),
            cancels=cancels,
            now_ms=self._context.clock.now_ms,
            on_blocked=self._context.heartbeat_soon,
        )

    def _returns(self, max_retries: int) -> Returns:
        if not self._options.shared:
            return Unshared(self._group)
        return SendBack(self._context, self._group, max_retries, self._tell)

    # Life

    @property
    def inside(self) -> bool:
        """Whether this runs within a handler."""
        return self._way.crew.inside or (self._threads is not None and self._threads.inside)

    async def start(self) -> None:
        """Join the group and begin. Raises GroupConflict, Unavailable."""
        await self.member.start()
        self._tasks.spawn(self._commit_by_time(), "commits")

    async def stop(self, timeout: float) -> None:
        """Give every queue up, finished and committed, and leave the group."""
        self._closing = True
        self.iteration.wake()
        try:
            await self.member.stop(deadline=self._loop.time() + timeout)
            await self._store.save()
        finally:
            try:
                async with asyncio.timeout(CANCEL_TIMEOUT):
                    await self._tasks.close()
            except TimeoutError:
                _log.error("a handler ignores that it is cancelled", group=self._group)
            self._store.close()
            if self._threads is not None:
                self._threads.close()

    def _died(self, _: str, error: BaseException) -> None:
        if self._failed:
            return
        self._failed = True
        stopped = error
        if not isinstance(stopped, ConsumerStopped):
            stopped = ConsumerStopped(
                f"a background task of the consumer died: {error!r}", group=self._group
            )
            stopped.__cause__ = error
        self._tell(ConsumerFailed(self._group, stopped))
        self._on_end(stopped)
        self.iteration.wake()

    async def _commit_by_time(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_period)
            await self._intake.commit_all()

    def _tell(self, event: Event) -> None:
        if self._options.on_event is None:
            return
        try:
            self._options.on_event(event)
        except Exception:  # noqa: BLE001 - the application's fault must not stop the consuming
            _log.exception("on_event failed", group=self._group)

    def _blocked(self) -> list[BlockedQueue]:
        return self._way.blocked if isinstance(self._way, OrderlyDispatcher) else []

    def _running(self) -> Running:
        options, order = self._options, self._options.order
        retries = options.max_retries if order is None else order.max_retries
        return Running(
            settings={
                "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
                "consumeMessageBatchMaxSize": str(options.batch_size),
                "maxReconsumeTimes": str(ENDLESS_TIMES if retries is None else retries),
                "pullThresholdForQueue": str(options.prefetch_messages),
                "consumeConcurrentlyMaxSpan": str(options.max_span),
            },
            queues={
                held.queue.queue: ProcessQueueInfo(
                    commit_offset=held.queue.commit_point or 0,
                    cached_msg_count=held.queue.messages,
                    cached_msg_size_in_mib=held.queue.bytes >> 20,
                    locked=self.member.holds_lock(held.queue.queue),
                )
                for held in self._intake
            },
        )

    # Reading

    def subscribe(self, topic: str, expression: TagExpression) -> None:
        """Read a topic too, or other messages of it."""
        known = self.member.expression(topic)
        self.member.subscribe(topic, expression)
        if known is not None and known != expression:
            self._intake.subscribe(topic, expression)

    def suspend(self) -> None:
        """Fetch nothing and hand out nothing."""
        self._intake.suspend()

    @property
    def paused(self) -> ConsumptionPaused | None:
        """Why the breaker has paused it."""
        return self._intake.breaker.paused

    def resume(self) -> None:
        """Go on."""
        self._intake.resume()

    # What its member tells it

    @property
    def ordered(self) -> bool:
        """Whether a queue is read only while its lock is held."""
        return self._options.order is not None

    def gained(self, queue: MessageQueue, start: Start) -> None:
        """Its member has got a queue: see ``Assignee``."""
        expression = self.member.expression(queue.topic) or _ALL
        held = self._intake.gain(queue, start, expression)
        self._way.gained(held)

    async def lost(self, queue: MessageQueue, *, deadline: float) -> None:
        """Its member has to give a queue up: see ``Assignee``."""
        held = self._intake.find(queue)
        if held is None:
            return
        self._intake.stop(held)
        finished = await held.until(lambda: self._quiet(held), deadline)
        try:
            await self._intake.commit_last(held)
        finally:
            self._way.lost(held)
            self._intake.forget(held)
            if not finished:
                await self._abandon(held)

    async def _abandon(self, held: AssignedQueue[T]) -> None:
        """Give up handlers that didn't finish. Raises TimeoutError when order needs their end."""
        _log.warning(
            "handlers didn't finish in time, their messages come again",
            group=self._group,
            queue=str(held.queue.queue),
            handlers=self._way.crew.abandon(held),
        )
        soon = self._loop.time() + CANCEL_TIMEOUT
        if self.ordered and self._handler and not await held.until(lambda: not held.handling, soon):
            raise TimeoutError

    def _quiet(self, held: AssignedQueue[T]) -> bool:
        if self._handler is None and self._closing:
            return not held.in_hand
        return not held.handling

    def locked(self, queue: MessageQueue, held: bool) -> None:
        """Its member has lost or regained a queue's lock: see ``Assignee``."""
        mine = self._intake.find(queue)
        if mine is not None and isinstance(self._way, OrderlyDispatcher):
            self._way.locked(mine, held)


def _always(_: MessageQueue) -> bool:
    return True
