"""Messages handed out one by one, to whoever iterates over the consumer."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from client.consumer.concurrent import ConcurrentDispatcher
from client.consumer.intake import AssignedQueue, AssignedQueues
from client.consumer.orderly import OrderlyDispatcher
from client.consumer.outcome import DONE, OutcomeKind
from client.consumer.process_queue import Run
from client.consumer.received import ReceivedMessage
from remoting.tasks import Supervisor

T = TypeVar("T")


class Iteration(Generic[T]):
    """The takers of one consumer.

    Args:
        way: concurrent or in order.
    """

    def __init__(
        self,
        intake: AssignedQueues[T],
        way: ConcurrentDispatcher[T] | OrderlyDispatcher[T],
        tasks: Supervisor,
    ) -> None:
        self._intake = intake
        self._way = way
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()

    def take(self) -> ReceivedMessage[T] | None:
        """The next message; None: there is none now."""
        while (held := self._intake.next()) is not None:
            run = self._way.take(held)
            if run is not None:
                held.on_outcome = self._settled
                held.handling.add(run)
                self._way.crew.began(held, run)
                return run.messages[0]
        return None

    async def wait(self) -> None:
        """Until ``wake`` is called."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def wake(self) -> None:
        """There is a message, or an end: let all who wait look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _settled(self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        if run not in held.queue.active:
            return
        self._way.crew.ended(run)
        if held.queue.outcomes.get(run.offset, DONE).verdict is OutcomeKind.DONE:
            self._way.done(held, run)
        else:
            self._tasks.spawn(self._way.give_up(held, run, DONE), "carrying out an outcome")
