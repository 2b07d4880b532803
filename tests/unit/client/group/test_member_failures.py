"""A group when a broker or one of its members fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

from client.events import QueueLost, QueueResumed, QueueWaiting
from client.positions import Place
from remoting.protocol.codes import RequestCode, ResponseCode
from tests.support.virtual_time import virtual
from tests.unit.client.group.one_broker import queue, world


@virtual
async def test_a_restarted_broker_gets_a_heartbeat_of_a_member_that_waits_for_all_its_queues(
    tmp_path: Path,
):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.bench.state.locks.lock("g", "before", map(queue, range(4)), broker.monotonic_ms())
        await cluster.consumer("a", handover_timeout=60.0).start()
        await asyncio.sleep(2)
        broker.restart()
        await asyncio.sleep(2)
        assert broker.bench.state.consumers.groups["g"].client_ids() == ["a"]


@virtual
async def test_a_busy_broker_delays_the_queue_and_never_moves_its_offset(tmp_path: Path):
    async with world(tmp_path, T=1) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.commit("g", queue(0), 77)
        broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = ResponseCode.SYSTEM_BUSY
        one = await cluster.consumer("a", start_from=Place.END).start()
        await asyncio.sleep(40)
        assert one.reading == {}
        [waiting] = [event for event in one.events_of(QueueWaiting) if event.queue == queue(0)]
        assert "code 2" in str(waiting.error)
        broker.answers.clear()
        await asyncio.sleep(6)
        assert one.reading[queue(0)].offset == 77
        assert one.events_of(QueueResumed).count(QueueResumed(queue(0))) == 1


@virtual
async def test_after_a_broker_restart_every_member_keeps_its_queues(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a").start()
        two = await cluster.consumer("b").start()
        await asyncio.sleep(1)
        before = cluster.owners("T")
        broker.restart()
        await asyncio.sleep(60)
        assert cluster.owners("T") == before
        assert broker.lock_owner("g", queue(0)) == "a"
        assert not one.events_of(QueueLost)[2:]
        assert not two.events_of(QueueLost)


@virtual
async def test_a_broker_that_comes_back_elsewhere_is_found_by_its_route(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a", ordered=True).start()
        await asyncio.sleep(0.1)
        broker.crash()
        await asyncio.sleep(5)
        broker.boot()
        broker.up = True
        cluster.move("broker-a", "10.9.9.9:10911")
        await asyncio.sleep(25)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}
        assert broker.lock_owner("g", queue(3)) == "a"
        assert one.events_of(QueueLost) == []


@virtual
async def test_a_member_unknown_to_the_broker_sends_a_heartbeat_before_releasing_queues(
    tmp_path: Path,
):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a").start()
        await cluster.consumer("b").start()
        await asyncio.sleep(1)
        [link] = [link for link in broker.links if link.client.client_id == "a"]
        broker.bench.state.consumers.unregister("g", link)
        events = len(one.events)
        one.member.route_changed("T")
        await asyncio.sleep(0.5)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}
        assert one.events[events:] == []


@virtual
async def test_a_crashed_members_queues_are_reassigned_at_once(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.consumer("a").start()
        two = await cluster.consumer("b").start()
        await asyncio.sleep(1)
        await two.crash()
        await asyncio.sleep(4.5)
        assert cluster.owners("T") == {"a": [0, 1]}
        await asyncio.sleep(1)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}


@virtual
async def test_a_silent_members_queues_are_owned_again_after_the_scan(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        await cluster.consumer("a").start()
        two = await cluster.consumer("b").start()
        await asyncio.sleep(1)
        await two.crash(quietly=True)
        for _ in range(13):
            await asyncio.sleep(10)
            broker.scan()
        await asyncio.sleep(1)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}


@virtual
async def test_a_queue_lost_while_being_acquired_leaves_no_trace(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = ResponseCode.SYSTEM_BUSY
        one = await cluster.consumer("a", ordered=True).start()
        await asyncio.sleep(1)
        two = await cluster.consumer("b", ordered=True).start()
        await asyncio.sleep(1)
        broker.answers.clear()
        await asyncio.sleep(6)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}
        assert one.events_of(QueueLost) == []
        assert broker.lock_owner("g", queue(3)) == "b"
        assert sorted(two.reading) == [queue(2), queue(3)]
