"""Members join, leave, crash and are cut off, brokers restart: the invariants hold throughout."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from remoting.protocol.queue import MessageQueue
from tests.support.sizes import size
from tests.support.virtual_time import virtual
from tests.unit.client.world import World

QUEUES = 6
STEPS = size(test=12, ci=25, soak=25)


async def watch(world: World) -> None:
    """Assert throughout that no queue has two readers with its lock."""
    while True:
        holders: Counter[MessageQueue] = Counter(
            queue
            for consumer in world.consumers.values()
            if consumer.member is not None
            for queue in consumer.reading
            if consumer.member.holds_lock(queue)
        )
        assert all(count == 1 for count in holders.values()), holders
        await asyncio.sleep(0.05)


async def step(
    world: World, choose: random.Random, number: int, options: dict[str, object]
) -> None:
    living = [one for one in world.consumers.values() if one.member is not None]
    what = choose.choice(["join", "join", "leave", "crash", "vanish", "restart", "wait"])
    if what == "join" and len(living) < 5:
        await world.consumer(f"c{number:02}", **options).start()
    elif what == "leave" and living:
        await choose.choice(living).stop()
    elif what in {"crash", "vanish"} and living:
        await choose.choice(living).crash(quietly=what == "vanish")
    elif what == "restart":
        broker = choose.choice(list(world.brokers.values()))
        broker.crash()
        await asyncio.sleep(choose.uniform(0.0, 3.0))
        broker.boot()
        broker.up = True
        for one in living:
            if one.member is not None:
                await one.client.heartbeats.connect(broker.address, 1.0)
    for consumer in world.consumers.values():
        consumer.handler_takes = choose.uniform(0.0, 2.0)
    await asyncio.sleep(choose.choice([0.0, 0.3, 2.0, 8.0, 30.0]))
    for broker in world.brokers.values():
        broker.scan()


@pytest.mark.parametrize("strategy", ["AVG", "STICKY"])
@pytest.mark.parametrize("seed", range(size(test=2, ci=6, soak=100)))
@virtual
async def test_an_ordered_queue_never_has_two_owners_and_ends_with_one(
    tmp_path: Path, seed: int, strategy: str
):
    choose = random.Random(seed)
    async with World(tmp_path) as world:
        world.broker("broker-a", T=QUEUES)
        world.broker("broker-b", T=QUEUES)
        options: dict[str, object] = {"ordered": True, "strategy": strategy}
        await world.consumer("c00", **options).start()
        watching = asyncio.ensure_future(watch(world))
        for number in range(1, STEPS):
            await step(world, choose, number, options)
            assert not watching.done(), watching.exception()
        await world.consumer("last", **options).start()
        for _ in range(20):
            await asyncio.sleep(10)
            for broker in world.brokers.values():
                broker.scan()
        watching.cancel()
        owners = Counter(
            queue
            for consumer in world.consumers.values()
            if consumer.member is not None
            for queue in consumer.reading
            if queue.topic == "T"
        )
        expected = [
            MessageQueue("T", broker, number)
            for broker in ("broker-a", "broker-b")
            for number in range(QUEUES)
        ]
        assert sorted(owners.elements()) == expected
