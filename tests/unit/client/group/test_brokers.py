"""Groups over several brokers: which is queried, and what happens when one is down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from client.events import QueueLost, QueueWaiting, RebalanceFailed
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.queue import MessageQueue
from tests.support.virtual_time import virtual
from tests.unit.client.world import World


@asynccontextmanager
async def two_brokers(root: Path, queues: int = 4) -> AsyncIterator[World]:
    async with World(root) as world:
        world.broker("broker-a", T=queues)
        world.broker("broker-b", T=queues)
        yield world


def reads(world: World, name: str) -> set[str]:
    return {
        f"{queue.broker_name[-1]}{queue.queue_id}"
        for queue in world.consumers[name].reading
        if queue.topic == "T"
    }


@virtual
async def test_eight_queues_of_two_brokers_are_divided_like_rocketmq_does(tmp_path: Path):
    async with two_brokers(tmp_path) as world:
        await world.consumer("x").start()
        await world.consumer("y").start()
        await asyncio.sleep(2)
        assert reads(world, "x") == {"a0", "a1", "a2", "a3"}
        assert reads(world, "y") == {"b0", "b1", "b2", "b3"}


@virtual
async def test_all_members_query_the_same_broker_and_the_next_when_it_is_down(tmp_path: Path):
    async with two_brokers(tmp_path) as world:
        await world.consumer("x").start()
        await world.consumer("y").start()
        await asyncio.sleep(2)
        asked = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        assert world.brokers["broker-b"].count(asked) == 0
        world.brokers["broker-a"].crash()
        await world.consumer("z").start()
        await asyncio.sleep(60)
        assert world.brokers["broker-b"].count(asked) > 2
        shares = [reads(world, name) for name in "xyz"]
        assert {"b0", "b1", "b2", "b3"} <= set().union(*shares)
        assert sum(map(len, shares)) == len(set().union(*shares))


@virtual
async def test_a_queue_whose_broker_is_down_holds_up_no_other(tmp_path: Path):
    async with two_brokers(tmp_path) as world:
        world.brokers["broker-b"].crash()
        consumer = await world.consumer("x", ordered=True).start()
        await asyncio.sleep(3)
        assert reads(world, "x") == {"a0", "a1", "a2", "a3"}
        waiting = {event.queue.broker_name for event in consumer.events_of(QueueWaiting)}
        assert waiting == {"broker-b"}
        world.brokers["broker-b"].restart()
        await asyncio.sleep(5)
        assert len(reads(world, "x")) == 8
        assert consumer.events_of(RebalanceFailed) == []


@virtual
async def test_a_member_list_that_is_refused_keeps_what_is_held(tmp_path: Path):
    async with two_brokers(tmp_path) as world:
        consumer = await world.consumer("x").start()
        await asyncio.sleep(1)
        busy = ResponseCode.SYSTEM_BUSY
        world.brokers["broker-a"].answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = busy
        await asyncio.sleep(100)
        assert len(reads(world, "x")) == 8
        assert consumer.events_of(QueueLost) == []
        assert {event.topic for event in consumer.events_of(RebalanceFailed)} == {"T", "%RETRY%g"}


@virtual
async def test_sticky_members_move_no_more_than_needed_as_they_come_and_go(tmp_path: Path):
    async with two_brokers(tmp_path) as world:
        options = {"strategy": "STICKY", "topics": ["T", "U"]}
        world.brokers["broker-a"].topic("U", 2)
        for name in "vwx":
            await world.consumer(name, **options).start()
            await asyncio.sleep(10)
        sizes = [
            sum(not queue.topic.startswith("%") for queue in world.consumers[name].reading)
            for name in "vwx"
        ]
        assert sorted(sizes) == [3, 3, 4]
        before = {name: set(world.consumers[name].reading) for name in "vwx"}
        await world.consumer("y", **options).start()
        await asyncio.sleep(10)
        after = {name: set(world.consumers[name].reading) for name in "vwx"}
        gained = [after[name] - before[name] for name in "vwx"]
        assert gained == [set(), set(), set()]
        assert len(world.consumers["y"].reading) == 2
        await world.consumers["w"].stop()
        await asyncio.sleep(10)
        for name in "vx":
            assert after[name] <= set(world.consumers[name].reading)


@virtual
async def test_sticky_moves_no_queue_of_a_broker_that_does_not_answer(tmp_path: Path):
    async with two_brokers(tmp_path) as world:
        one = await world.consumer("x", strategy="STICKY").start()
        await asyncio.sleep(10)
        world.brokers["broker-b"].silent.add(20010)
        before = len(one.events_of(QueueLost))
        one.member.route_changed("T")
        await asyncio.sleep(30)
        assert len(reads(world, "x")) == 8
        assert len(one.events_of(QueueLost)) == before


@virtual
async def test_sticky_is_even_at_brokers_that_report_no_owners(tmp_path: Path):
    async with two_brokers(tmp_path) as world:
        for broker in world.brokers.values():
            broker.answers[20010] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await world.consumer("x", strategy="STICKY").start()
        await world.consumer("y", strategy="STICKY").start()
        await asyncio.sleep(60)
        assert (len(reads(world, "x")), len(reads(world, "y"))) == (4, 4)
        assert not reads(world, "x") & reads(world, "y")


@virtual
async def test_added_queues_are_read_as_soon_as_they_are_in_the_route(tmp_path: Path):
    async with two_brokers(tmp_path) as world:
        consumer = await world.consumer("x").start()
        await asyncio.sleep(1)
        world.brokers["broker-a"].topic("T", 6)
        consumer.client.route_changed("T")
        await asyncio.sleep(0.5)
        assert len(reads(world, "x")) == 10
        consumer.client.route_changed("Unrelated")


@virtual
async def test_a_lock_answer_that_cannot_be_read_makes_ordered_queues_wait(tmp_path: Path):
    async with World(tmp_path) as world:
        broker = world.broker("broker-a", T=1)
        broker.answers[RequestCode.LOCK_BATCH_MQ] = ResponseCode.SUCCESS
        consumer = await world.consumer("x", ordered=True).start()
        await asyncio.sleep(20)
        assert consumer.reading == {}
        assert consumer.events_of(QueueWaiting)
        broker.answers.clear()
        await asyncio.sleep(2)
        assert MessageQueue("T", "broker-a", 0) in consumer.reading


@virtual
async def test_an_unlock_that_fails_is_no_reason_to_keep_the_queue(tmp_path: Path):
    async with World(tmp_path) as world:
        broker = world.broker("broker-a", T=2)
        one = await world.consumer("x").start()
        await asyncio.sleep(1)
        broker.silent.add(RequestCode.UNLOCK_BATCH_MQ)
        await world.consumer("y").start()
        await asyncio.sleep(10)
        assert (len(reads(world, "x")), len(reads(world, "y"))) == (1, 1)
        assert len([event for event in one.events_of(QueueLost) if event.queue.topic == "T"]) == 1
