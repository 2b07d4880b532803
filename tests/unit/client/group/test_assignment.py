"""The queues that a member takes and gives up while it changes many of them in portions."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from client.consumer.options import PushOptions
from client.events import Event, Start
from client.group.assignment import AssignmentListener, AssignmentManager
from client.group.reports import Running
from client.limits import CHANGE_PATIENCE, CHANGED_AT_ONCE, ORDERED_DRAIN_TIMEOUT
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import Supervisor
from tests.support.virtual_time import virtual

MANY = [MessageQueue("T", "a", number) for number in range(3 * CHANGED_AT_ONCE)]
LAST = MessageQueue("T", "a", len(MANY))


class Consumer(AssignmentListener):
    """Counts what it gains and loses; its start offsets and its handlers take their time."""

    def __init__(self, *, ordered: bool = False) -> None:
        self.ordered = ordered
        self.gains: Counter[MessageQueue] = Counter()
        self.starts: list[int] = []
        self.losses: Counter[MessageQueue] = Counter()
        self.failures: list[BaseException] = []
        self.handlers_take = 0.0
        self.starts_take: dict[MessageQueue, float] = {}
        self.store = SimpleNamespace(commit=self.commit)
        self.tasks = Supervisor("test", on_failure=lambda _, error: self.failures.append(error))
        starts: Any = self
        context: Any = None
        self.manager = AssignmentManager(
            context,
            "g",
            self,
            self.tasks,
            starts,
            PushOptions(model="broadcasting"),
            self.rebalance,
        )

    async def rebalance(self) -> None:
        """Not called: broadcasting has no locks."""

    async def find(self, queue: MessageQueue) -> Start:
        await asyncio.sleep(self.starts_take.get(queue, 0.0))
        return Start(0, "first", "")

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Accept the offset of a restart."""

    def gained(self, queue: MessageQueue, start: Start) -> None:
        self.gains[queue] += 1
        self.starts.append(start.offset)

    async def lost(self, queue: MessageQueue, *, deadline: float) -> None:
        await asyncio.sleep(self.handlers_take)
        self.losses[queue] += 1

    def tell(self, event: Event) -> None:
        """Nobody looks at the events."""

    def running(self) -> Running:
        return Running()


@virtual
async def test_a_queue_that_returns_while_others_are_taken_is_taken_once() -> None:
    consumer = Consumer()
    consumer.manager.change([LAST])
    await asyncio.sleep(1)
    consumer.handlers_take = 2 * CHANGE_PATIENCE
    consumer.starts_take = dict.fromkeys(MANY, 10 * CHANGE_PATIENCE)
    consumer.manager.change([])
    await asyncio.sleep(0)
    consumer.manager.change([*MANY, LAST])
    await asyncio.sleep(10)
    assert consumer.gains == Counter([LAST, LAST, *MANY])
    assert consumer.losses == Counter([LAST])
    assert consumer.failures == []
    await consumer.tasks.close()


@virtual
async def test_a_queue_that_is_reset_while_all_are_given_up_is_given_up_once() -> None:
    consumer = Consumer()
    consumer.manager.change([*MANY, LAST])
    await asyncio.sleep(10)
    consumer.handlers_take = 10 * CHANGE_PATIENCE
    consumer.manager.change([])
    await asyncio.sleep(0)
    consumer.manager.restart({LAST: Start(7, "reset", "")})
    await asyncio.sleep(10)
    assert consumer.losses == Counter([*MANY, LAST])
    assert consumer.manager.owned == frozenset()
    assert consumer.failures == []
    await consumer.tasks.close()


@virtual
async def test_the_last_reset_counts_if_a_queue_still_drains_after_another() -> None:
    consumer = Consumer()
    consumer.manager.change([LAST])
    await asyncio.sleep(1)
    consumer.handlers_take = 3
    consumer.manager.restart({LAST: Start(5, "reset", "")})
    await asyncio.sleep(1)
    consumer.manager.restart({LAST: Start(7, "reset", "")})
    await asyncio.sleep(10)
    assert consumer.starts == [0, 7]
    await consumer.tasks.close()


@virtual
async def test_a_reset_of_a_queue_that_is_being_taken_counts() -> None:
    consumer = Consumer()
    consumer.starts_take[LAST] = 3
    consumer.manager.change([LAST])
    await asyncio.sleep(1)
    consumer.manager.restart({LAST: Start(7, "reset", "")})
    await asyncio.sleep(10)
    assert consumer.starts == [7]
    await consumer.tasks.close()


@virtual
async def test_an_ordered_queue_is_not_taken_again_after_a_reset_while_its_handler_runs() -> None:
    consumer = Consumer(ordered=True)
    consumer.manager.change([LAST])
    await asyncio.sleep(1)
    consumer.handlers_take = ORDERED_DRAIN_TIMEOUT - 1
    consumer.manager.restart({LAST: Start(7, "reset", "")})
    await asyncio.sleep(ORDERED_DRAIN_TIMEOUT - 2)
    assert consumer.starts == [0]
    await asyncio.sleep(10)
    assert consumer.starts == [0, 7]
    await consumer.tasks.close()
