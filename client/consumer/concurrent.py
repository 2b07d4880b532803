"""Concurrent consumption: many messages of a queue at the same time, in any order.

(cf. ConsumeMessageConcurrentlyService)

A worker takes a run of consecutive messages and calls the handler for one after the other. As long
as the handler returns without waiting, nothing else is done per message, and the whole run is
settled at once. At the first message whose handler waits, fails or sets an outcome, the messages
before it are settled, those after it are returned for other workers, and the message forms a
separate run until its outcome is carried out. A batch handler gets its run as a list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Coroutine, Sequence
from typing import Any, TypeVar

from client.consumer.assigned_queue import AssignedQueue, AssignedQueues
from client.consumer.dispatcher import ALL_DONE, DEFAULT_LIMITS, FAILURES, Dispatcher
from client.consumer.handler import MessageHandler
from client.consumer.handler_pool import HandlingLimits
from client.consumer.outcome import DONE, MessageOutcome, OutcomeKind, outcome_of
from client.consumer.process_queue import Run
from client.consumer.received import ReceivedMessage
from client.consumer.send_back import CarryOut
from client.limits import RUN_MESSAGES

T = TypeVar("T")


class ConcurrentDispatcher(Dispatcher[T]):
    """Dispatches many messages of a queue concurrently."""

    def __init__(
        self,
        queues: AssignedQueues[T],
        handler: MessageHandler | None,
        carry_out: CarryOut,
        limits: HandlingLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(
            queues,
            handler,
            carry_out,
            limits,
            handle_some=self._each if queues.options.batch_size == 1 else self._batch,
        )
        batch_size = queues.options.batch_size
        self._most = RUN_MESSAGES if batch_size == 1 else batch_size

    def take(self, assigned: AssignedQueue[T]) -> Run[ReceivedMessage[T]]:
        """See ``Dispatcher``; the next message may be taken at once."""
        run = assigned.process_queue.take(1)
        assigned.put_back()
        return run

    # Called by workers

    async def _each(self, assigned: AssignedQueue[T]) -> bool:
        queue = assigned.process_queue
        began = self._loop.time()
        run = queue.take(self._most)
        assigned.put_back()
        work = self._calls(run, queue.outcomes)
        try:
            waits_for = work.send(None)
        except StopIteration as end:
            if end.value is ALL_DONE:
                self._breaker.succeeded()
                queue.finish(run)
                assigned.make_room()
                self.pool.report_blocking(self._loop.time() - began)
                return False
            outcome = DONE
        except FAILURES as error:
            outcome = outcome_of(error)
        except BaseException:
            # The worker ends, but the preceding messages are done.
            queue.cut(run, run.at - run.start)
            assigned.make_room()
            raise
        else:
            run.waits = True
            self._isolate(assigned, run)
            self.pool.report_blocking(self._loop.time() - began)
            await self._awaited(assigned, run, work, waits_for)
            return True
        self._isolate(assigned, run)
        await self.conclude(assigned, run, outcome)
        return True

    async def _calls(
        self, run: Run[ReceivedMessage[T]], outcomes: dict[int, MessageOutcome]
    ) -> object:
        """Call the handler for each message of a run, in one coroutine.

        Returns:
            ``ALL_DONE``; or, after a message whose handler waited, its result, because the messages
            after it were returned to the queue; or None after a message with a recorded outcome,
            and after one whose handler suspended the consumer.
        """
        handler = self._handler
        assert handler is not None
        for at, message in enumerate(run.messages, run.start):
            run.at = at
            value = await handler(message)
            if run.waits:
                return value
            if value is not None:
                self.pool.outcome_of_result(value)
            if outcomes and outcomes.get(message.offset, DONE) is not DONE:
                return None
            if outcomes:
                outcomes.pop(message.offset, None)
            if run.queue.paused:
                return None
        return ALL_DONE

    def _isolate(self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        """Reduce the run to the current message: settle those before, return those after it."""
        queue = assigned.process_queue
        if run.at > run.start:
            self._breaker.succeeded()
            queue.cut(run, run.at - run.start)
        queue.give_back(run, keep=1)
        assigned.make_room()
        assigned.put_back()
        if self._queues.ready_queue:
            self.pool.wake()

    async def _batch(self, assigned: AssignedQueue[T]) -> bool:
        queue, handler = assigned.process_queue, self._handler
        assert handler is not None
        began = self._loop.time()
        run = queue.take(self._most)
        assigned.put_back()
        try:
            work = handler(list(run.messages))
            waits_for = work.send(None)
        except StopIteration as end:
            self.pool.report_blocking(self._loop.time() - began)
            outcome = self.pool.outcome_of_result(end.value)
            if not queue.outcomes:
                self._breaker.succeeded()
                queue.finish(run)
                assigned.make_room()
                return False
        except FAILURES as error:
            outcome = outcome_of(error)
        else:
            self.pool.report_blocking(self._loop.time() - began)
            if self._queues.ready_queue:
                self.pool.wake()
            await self._awaited(assigned, run, work, waits_for)
            return True
        await self.conclude(assigned, run, outcome)
        return True

    async def _awaited(
        self,
        assigned: AssignedQueue[T],
        run: Run[ReceivedMessage[T]],
        work: Coroutine[Any, Any, object],
        waits_for: object,
    ) -> None:
        assigned.begin(run)
        outcome = await self.pool.finish(assigned, run, work, waits_for)
        if outcome is not None:
            await self.conclude(assigned, run, outcome)

    # Outcomes

    async def conclude(
        self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]], shared: MessageOutcome
    ) -> None:
        """See ``Dispatcher``; messages that fail while the breaker is open wait here again."""
        queue = assigned.process_queue
        if run not in queue.active:
            return
        assigned.begin(run)
        recorded = queue.outcomes
        outcomes = [(message, recorded.get(message.offset, shared)) for message in run.messages]
        queue.counts.add(outcome for _, outcome in outcomes)
        staying = self._breaker.count(outcomes)
        try:
            kept = await self._unreturned(outcomes, staying)
        finally:
            assigned.end(run)
        for message, _ in outcomes:
            queue.outcomes.pop(message.offset, None)
            if message.offset not in kept and message.offset not in staying:
                queue.failures.pop(message.offset, None)
        for single in queue.keep_only(run, kept | staying):
            if single.offset in staying:
                self._requeue(assigned, single)
            else:
                queue.failures[single.offset] = queue.failures.get(single.offset, 0) + 1
                self._loop.call_later(self._kept_pause, self._requeue, assigned, single)
        assigned.make_room()

    def done(self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        """See ``Dispatcher``."""
        self._breaker.succeeded()
        assigned.process_queue.outcomes.pop(run.offset, None)
        assigned.process_queue.failures.pop(run.offset, None)
        assigned.process_queue.finish(run)
        assigned.make_room()
        assigned.end(run)

    async def _unreturned(
        self, outcomes: Sequence[tuple[ReceivedMessage[T], MessageOutcome]], staying: Container[int]
    ) -> set[int]:
        """Send failed messages back. Returns the offsets for which that failed."""
        failed = [
            (message, outcome)
            for message, outcome in outcomes
            if outcome.verdict is not OutcomeKind.DONE and message.offset not in staying
        ]
        if not failed:
            return set()
        returned = await asyncio.gather(*(self._carry_out(*pair) for pair in failed))
        return {
            message.offset for (message, _), done in zip(failed, returned, strict=True) if not done
        }

    def _requeue(self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        assigned.process_queue.give_back(run)
        assigned.offer()
