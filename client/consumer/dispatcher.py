"""Base class of concurrent and orderly consumption (cf. ConsumeMessageService).

A dispatcher passes the messages of the assigned queues to a handler, or one by one to an iteration,
and carries out their outcomes. It is also the ``AssignmentListener`` of the group member: it starts
the queues that the member gains, and drains those that it loses.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from client.consumer.assigned_queue import AssignedQueue, AssignedQueues
from client.consumer.direct import handle_directly
from client.consumer.handler import MessageHandler
from client.consumer.handler_pool import HandlerPool, HandlingLimits
from client.consumer.outcome import DONE, MessageOutcome, OutcomeKind
from client.consumer.process_queue import Run
from client.consumer.received import ReceivedMessage
from client.consumer.send_back import CarryOut
from client.events import Event, Start
from client.group.assignment import AssignmentListener
from client.group.reports import Running
from client.interceptors import show_outcome
from client.limits import CANCEL_TIMEOUT
from remoting.protocol.bodies.clients import ConsumeMessageDirectlyResult, ProcessQueueInfo
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log

T = TypeVar("T")

_log = Log("client")

FAILURES: Final = (Exception, asyncio.CancelledError)
"""Exceptions of a handler's first step that only make its messages fail; others end the worker."""

ALL_DONE: Final = object()
"""Result of ``_calls``: the handler returned for every message of the run, none needs attention."""

DEFAULT_LIMITS: Final = HandlingLimits()

_ENDLESS_RETRIES: Final = -1
"""The ``maxReconsumeTimes`` with which RocketMQ's ordered consumers retry without limit."""


class Dispatcher(AssignmentListener, Generic[T]):
    """Dispatches the messages of one consumer; the ``AssignmentListener`` of its member.

    Args:
        handler: None: the application iterates over the messages.
        carry_out: retries or dead-letters failed messages.
        handle_some: handles some messages of a queue in a worker, see ``HandlerPool``.

    Attributes:
        pool: the workers.
    """

    def __init__(
        self,
        queues: AssignedQueues[T],
        handler: MessageHandler | None,
        carry_out: CarryOut,
        limits: HandlingLimits,
        *,
        handle_some: Callable[[AssignedQueue[T]], Awaitable[bool]],
    ) -> None:
        self._queues = queues
        self._handler = None if handler is None else handler.call
        self._carry_out = carry_out
        self._kept_pause = limits.kept_pause
        self._batches = queues.options.batch_size > 1
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.pool: HandlerPool[T] = HandlerPool(
            queues, handler, limits, handle_some=handle_some, give_up=self.give_up
        )
        self._breaker = self.pool.breaker
        if handler is None:
            queues.serve(self.wake, self._outcome_given)
        else:
            queues.serve(self.pool.wake)

    @abstractmethod
    async def conclude(
        self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]], shared: MessageOutcome
    ) -> None:
        """Carry out the outcomes of a run's messages.

        Args:
            shared: the outcome of the messages for which none is recorded.
        """

    async def give_up(
        self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]], outcome: MessageOutcome
    ) -> None:
        """Carry out an outcome although the handler of the run may still be running."""
        await self.conclude(assigned, run, outcome)

    def resume(self) -> None:
        """Resume consumption after ``suspend`` or after the circuit breaker paused it."""
        self._breaker.reset()
        self._queues.resume()

    def stop(self) -> None:
        """Prepare to stop: end the iteration; only messages in a ``with`` block are waited for."""
        self._closing = True
        self.wake()

    # Iteration

    @abstractmethod
    def take(self, assigned: AssignedQueue[T]) -> Run[ReceivedMessage[T]] | None:
        """Take one message of a queue for iteration; None: none may be taken now."""

    @abstractmethod
    def done(self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        """Settle a message of the iteration as done."""

    def next_message(self) -> ReceivedMessage[T] | None:
        """Return the next message of the iteration; None: there is none now."""
        while (assigned := self._queues.next()) is not None:
            run = self.take(assigned)
            if run is not None:
                assigned.begin(run)
                assigned.worked(now := self._loop.time(), now)
                self.pool.call_began(assigned, run)
                return run.messages[0]
        return None

    async def wait(self) -> None:
        """Wait until ``wake`` is called."""
        await self._woken.wait()

    def wake(self) -> None:
        """Wake all callers of ``wait``: there is a message, or the iteration ends."""
        self._woken.set()
        self._woken.clear()

    def _outcome_given(self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        queue = assigned.process_queue
        if run not in queue.active:
            return
        self.pool.call_ended(run)
        if around := self._queues.options.interceptors:
            show_outcome(run.messages[0], around)
        if queue.outcomes.get(run.offset, DONE).verdict is OutcomeKind.DONE:
            self.done(assigned, run)
        else:
            # Use a task: sending back takes a request, and the application must not wait for it.
            self._queues.tasks.spawn(self.give_up(assigned, run, DONE), "carrying out an outcome")

    # Called by the member (``AssignmentListener``)

    def gained(self, queue: MessageQueue, start: Start) -> None:
        """See ``AssignmentListener``."""
        self._queues.gain(queue, start)

    async def lost(self, queue: MessageQueue, *, deadline: float) -> None:
        """See ``AssignmentListener``."""
        assigned = self._queues.find(queue)
        if assigned is None:
            return

        def is_quiet() -> bool:
            # The iteration has ended, so only messages in a ``with`` block can still be settled.
            if self._handler is None and self._closing:
                outcomes = assigned.process_queue.outcomes
                carried_out = all(run.offset not in outcomes for run in assigned.handling)
                return carried_out and not assigned.in_hand
            return not assigned.handling

        assigned.drain()
        finished = await assigned.until(is_quiet, deadline)
        try:
            await assigned.commit_last()
        finally:
            assigned.revoke()
            if not finished:
                await self._abandon(assigned)

    async def _abandon(self, assigned: AssignedQueue[T]) -> None:
        """Abandon the handlers that didn't finish in time.

        Raises:
            TimeoutError: the queue is ordered and a handler is still running, so that the next
                owner must not start.
        """
        _log.warning(
            "handlers didn't finish in time, their messages are delivered again",
            group=self._queues.group,
            queue=str(assigned.queue),
            handlers=self.pool.abandon(assigned),
        )
        if self.ordered and self._handler is not None:
            soon = self._loop.time() + CANCEL_TIMEOUT
            if not await assigned.until(lambda: not assigned.handling, soon):
                raise TimeoutError

    def tell(self, event: Event) -> None:
        """See ``AssignmentListener``."""
        self._queues.tell(event)

    def handle_now(
        self, record: bytes, broker: str
    ) -> Awaitable[ConsumeMessageDirectlyResult] | None:
        """See ``AssignmentListener``."""
        queues = self._queues
        if self._handler is None or self._closing:
            return None
        return handle_directly(self._handler, record, broker, queues.serde, queues.options)

    def running(self) -> Running:
        """See ``AssignmentListener``."""
        options, order = self._queues.options, self._queues.options.order
        retries = options.max_retries if order is None else order.max_retries
        loop_began_ms = self._queues.context.clock.now_ms() - self._loop.time() * 1000
        return Running(
            settings={
                "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
                "consumeMessageBatchMaxSize": str(options.batch_size),
                "maxReconsumeTimes": str(_ENDLESS_RETRIES if retries is None else retries),
                "pullThresholdForQueue": str(options.prefetch_messages),
                "consumeConcurrentlyMaxSpan": str(options.max_span),
            },
            queues={
                assigned.queue: ProcessQueueInfo(
                    commit_offset=assigned.process_queue.commit_point or 0,
                    cached_msg_count=assigned.process_queue.messages,
                    cached_msg_size_in_mib=assigned.process_queue.bytes >> 20,
                    locked=self._queues.member.holds_lock(assigned.queue),
                    last_pull_timestamp=round(loop_began_ms + assigned.pulled_at * 1000),
                    last_consume_timestamp=round(loop_began_ms + assigned.handled_at * 1000),
                )
                for assigned in self._queues
            },
            topics=self._queues.rates.by_topic(),
        )
