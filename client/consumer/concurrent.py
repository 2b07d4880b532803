"""Handling many messages of a queue at once, in any order (cf. ConsumeMessageConcurrentlyService).

A worker takes a run of neighbours and calls the handler for each, one after the other. As long as
handlers return at once nothing else is done per message; the run is settled as one. At the first
message whose handler waits, fails or settles by itself, those before are settled, those behind
given back for other workers, and the message is a run of its own until its outcome is carried out.
A batch handler gets its run as one list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from client.consumer.crew import AsyncHandler, HandlerPool
from client.consumer.intake import AssignedQueue, AssignedQueues
from client.consumer.options import PushOptions
from client.consumer.outcome import DONE, MessageOutcome, OutcomeKind, outcome_of
from client.consumer.process_queue import Run
from client.consumer.received import ReceivedMessage
from client.consumer.send_back import Returns
from client.limits import KEPT_PAUSE, RUN_MESSAGES
from remoting.tasks import Supervisor

T = TypeVar("T")

FAILURES: Final = (Exception, asyncio.CancelledError)
"""What a handler's first step may raise that is about its messages alone."""

ALL_DONE: Final = object()
"""The handler returned for every message of a run, and none settled itself otherwise."""


class ConcurrentDispatcher(Generic[T]):
    """The concurrent way of one consumer.

    Args:
        handler: None when messages are iterated over.
        cancels: whether a handler that takes too long can be cancelled.
        returns: where messages go that weren't handled.
        kept_pause: seconds until a message is handled again that could not be sent back.
    """

    def __init__(
        self,
        intake: AssignedQueues[T],
        options: PushOptions,
        tasks: Supervisor,
        group: str,
        handler: AsyncHandler | None,
        returns: Returns,
        *,
        cancels: bool,
        kept_pause: float = KEPT_PAUSE,
    ) -> None:
        self._intake = intake
        self._breaker = intake.breaker
        self._handler = handler
        self._returns = returns
        self._kept_pause = kept_pause
        self._batches = options.batch_size > 1
        self._most = options.batch_size if self._batches else RUN_MESSAGES
        self._loop = asyncio.get_running_loop()
        self.crew: HandlerPool[T] = HandlerPool(
            intake,
            tasks,
            group,
            size=options.concurrency,
            timeout=options.consume_timeout,
            cancels=cancels,
            turn=self._batch if self._batches else self._each,
            give_up=self.give_up,
        )

    def gained(self, held: AssignedQueue[T]) -> None:
        """A queue has come: nothing has to be known of it."""

    def lost(self, held: AssignedQueue[T]) -> None:
        """A queue has gone."""

    def take(self, held: AssignedQueue[T]) -> Run[ReceivedMessage[T]]:
        """A message for iteration; others may take the next."""
        run = held.queue.take(1)
        self._intake.put_back(held)
        return run

    # Turns of workers

    async def _each(self, held: AssignedQueue[T]) -> bool:
        queue = held.queue
        began = self._loop.time()
        run = queue.take(self._most)
        self._intake.put_back(held)
        work = self._calls(run, queue.outcomes)
        try:
            waits_for = work.send(None)
        except StopIteration as end:
            if end.value is ALL_DONE:
                self._breaker.worked()
                queue.finish(run)
                self._intake.settled(held)
                self.crew.kept_loop(self._loop.time() - began)
                return False
            outcome = DONE
        except FAILURES as error:
            outcome = outcome_of(error)
        except BaseException:
            # The worker ends; what was handled before is done all the same.
            queue.cut(run, run.at - run.start)
            self._intake.settled(held)
            raise
        else:
            run.waits = True
            self._isolate(held, run)
            self.crew.kept_loop(self._loop.time() - began)
            await self._awaited(held, run, work, waits_for)
            return True
        self._isolate(held, run)
        await self.conclude(held, run, outcome)
        return True

    async def _calls(
        self, run: Run[ReceivedMessage[T]], outcomes: dict[int, MessageOutcome]
    ) -> object:
        """Call the handler for each message: one coroutine to drive for a whole run.

        It ends with ``ALL_DONE``; at a message that settled itself; or, once one has waited, with
        what the handler returned for it, for those behind were given back.
        """
        handler = self._handler
        assert handler is not None
        for at, message in enumerate(run.messages, run.start):
            run.at = at
            value = await handler(message)
            if run.waits:
                return value
            if value is not None:
                self.crew.returned(value)
            if outcomes and outcomes.get(message.offset, DONE) is not DONE:
                return None
            if outcomes:
                outcomes.pop(message.offset, None)
        return ALL_DONE

    def _isolate(self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        """Make the message at hand a run of its own."""
        queue = held.queue
        if run.at > run.start:
            self._breaker.worked()
            queue.cut(run, run.at - run.start)
        queue.give_back(run, keep=1)
        self._intake.settled(held)
        self._intake.put_back(held)
        if self._intake.ready:
            self.crew.wake()

    async def _batch(self, held: AssignedQueue[T]) -> bool:
        queue, handler = held.queue, self._handler
        assert handler is not None
        began = self._loop.time()
        run = queue.take(self._most)
        self._intake.put_back(held)
        try:
            work = handler(list(run.messages))
            waits_for = work.send(None)
        except StopIteration as end:
            self.crew.kept_loop(self._loop.time() - began)
            outcome = self.crew.returned(end.value)
            if not queue.outcomes:
                self._breaker.worked()
                queue.finish(run)
                self._intake.settled(held)
                return False
        except FAILURES as error:
            outcome = outcome_of(error)
        else:
            self.crew.kept_loop(self._loop.time() - began)
            if self._intake.ready:
                self.crew.wake()
            await self._awaited(held, run, work, waits_for)
            return True
        await self.conclude(held, run, outcome)
        return True

    async def _awaited(
        self,
        held: AssignedQueue[T],
        run: Run[ReceivedMessage[T]],
        work: Coroutine[Any, Any, object],
        waits_for: object,
    ) -> None:
        held.handling.add(run)
        outcome = await self.crew.finish(held, run, work, waits_for)
        if outcome is not None:
            await self.conclude(held, run, outcome)

    # Outcomes

    async def give_up(
        self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]], outcome: MessageOutcome
    ) -> None:
        """Carry out an outcome without waiting for who has the run."""
        await self.conclude(held, run, outcome)

    async def conclude(
        self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]], shared: MessageOutcome
    ) -> None:
        """Carry out what became of a run's messages.

        Those that fail while the breaker has paused consumption wait again as they are.

        Args:
            shared: the outcome of those that weren't settled by themselves.
        """
        queue = held.queue
        if run not in queue.active:
            return
        held.handling.add(run)
        given = queue.outcomes
        outcomes = [(message, given.get(message.offset, shared)) for message in run.messages]
        staying = self._breaker.staying(outcomes)
        try:
            kept = await self._unreturned(outcomes, staying)
        finally:
            held.handling.discard(run)
            held.changed()
        for message, _ in outcomes:
            queue.outcomes.pop(message.offset, None)
            if message.offset not in kept and message.offset not in staying:
                queue.failures.pop(message.offset, None)
        for single in queue.keep_only(run, kept | staying):
            if single.offset in staying:
                self._again(held, single)
            else:
                queue.failures[single.offset] = queue.failures.get(single.offset, 0) + 1
                self._loop.call_later(self._kept_pause, self._again, held, single)
        self._intake.settled(held)

    def done(self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        """A message of iteration is done with."""
        self._breaker.worked()
        held.queue.outcomes.pop(run.offset, None)
        held.queue.failures.pop(run.offset, None)
        held.queue.finish(run)
        self._intake.settled(held)
        held.handling.discard(run)
        held.changed()

    async def _unreturned(
        self, outcomes: Sequence[tuple[ReceivedMessage[T], MessageOutcome]], staying: Container[int]
    ) -> set[int]:
        """Return what has to be; gives the offsets of what could not be returned."""
        failed = [
            (message, outcome)
            for message, outcome in outcomes
            if outcome.verdict is not OutcomeKind.DONE and message.offset not in staying
        ]
        if not failed:
            return set()
        returned = await asyncio.gather(*(self._returns.carry_out(*pair) for pair in failed))
        return {
            message.offset for (message, _), done in zip(failed, returned, strict=True) if not done
        }

    def _again(self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        held.queue.give_back(run)
        self._intake.offer(held)
