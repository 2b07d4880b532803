"""Members of a group: who gets which queue, and the order of a queue's move."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from pathlib import Path

import pytest

from client.events import (
    GroupChanged,
    NoQueues,
    QueueGained,
    QueueLost,
    QueuesUnknown,
    RebalanceFailed,
)
from client.group.strategies import ByConfig
from client.limits import CHANGED_AT_ONCE, MAX_QUEUES_HELD
from remoting.protocol.codes import RequestCode
from remoting.runtime import DOCS
from tests.support.virtual_time import virtual
from tests.unit.client.group.one_broker import now, queue, world
from tests.unit.client.world import LATENCY


@virtual
async def test_the_first_member_reads_everything_at_once(tmp_path: Path):
    async with world(tmp_path) as cluster:
        began = now()
        one = await cluster.consumer("a").start()
        await asyncio.sleep(0.02)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}
        assert now() - began < 0.1
        gained = sorted(event.queue for event in one.events_of(QueueGained))
        assert gained == [queue(0, "%RETRY%g"), *map(queue, range(4))]
        assert one.events_of(GroupChanged)[-1].members == ("a",)


@virtual
async def test_a_joining_member_gets_its_share_at_once_and_a_leaving_one_releases_its(
    tmp_path: Path,
):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a").start()
        await asyncio.sleep(0.5)
        two = await cluster.consumer("b").start()
        await asyncio.sleep(0.5)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}
        assert one.events_of(QueueLost)[0].queue == queue(2)
        await two.stop()
        await asyncio.sleep(0.5)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}


@virtual
async def test_each_rebalance_is_logged_with_its_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "pocketmq")

    def rebalances() -> list[dict[str, object]]:
        facts = [one.facts for one in caplog.records if one.event == "rebalanced"]
        caplog.clear()
        return [one for one in facts if one["topic"] == "T"]

    async with world(tmp_path) as cluster:
        await cluster.consumer("a").start()
        await asyncio.sleep(0.5)
        common = {"group": "g", "topic": "T"}
        assert rebalances() == [
            common | {"member": "a", "members": 1, "queues": 4, "gained": 4, "lost": 0}
        ]
        await cluster.consumer("b").start()
        await asyncio.sleep(0.5)
        output = rebalances()
        assert common | {"member": "a", "members": 2, "queues": 2, "gained": 0, "lost": 2} in output
        assert common | {"member": "b", "members": 2, "queues": 2, "gained": 2, "lost": 0} in output
        await asyncio.sleep(60)
        assert rebalances() == []


@virtual
async def test_a_queue_moves_after_the_handler_has_ended_and_committed(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a", ordered=True).start()
        await asyncio.sleep(0.1)
        one.handler_takes = 7.3
        one.progress = {queue(3): 33}
        two = await cluster.consumer("b", ordered=True).start()
        await asyncio.sleep(20)
        assert two.reading[queue(3)].offset == 33
        assert two.reading[queue(3)].reason == "stored"
        lost = next(when for when, what, which in one.log if (what, which) == ("lost", queue(3)))
        gained = next(when for when, what, which in two.log if which == queue(3))
        assert 0 < gained - lost < 1.1


@virtual
async def test_many_queues_are_gained_and_lost_while_other_tasks_run(tmp_path: Path):
    async with world(tmp_path, T=300) as cluster:
        one = await cluster.consumer("a").start()
        counts = [0]

        async def turns(end: int) -> None:
            while counts[-1] != end:
                await asyncio.sleep(LATENCY / 2)
                counts.append(sum(read.topic == "T" for read in one.reading))

        await turns(300)
        await asyncio.gather(turns(0), one.stop())
        steps = [abs(after - before) for before, after in pairwise(counts)]
        assert max(steps) <= CHANGED_AT_ONCE


@virtual
async def test_a_member_that_stops_gains_no_more_queues(tmp_path: Path):
    async with world(tmp_path, T=300) as cluster:
        one = await cluster.consumer("a").start()
        await asyncio.sleep(8 * LATENCY)
        await one.stop()
        gained = len(one.events_of(QueueGained))
        assert 0 < gained < 300
        await asyncio.sleep(60)
        assert len(one.events_of(QueueGained)) == gained == len(one.events_of(QueueLost))
        assert one.reading == {}


@virtual
async def test_a_topic_with_too_many_queues_is_reported_and_others_are_read(tmp_path: Path):
    async with world(tmp_path, T=4, Huge=65_536) as cluster:
        one = await cluster.consumer("a", topics=["Huge", "T"]).start()
        await asyncio.sleep(0.5)
        [failed] = one.events_of(RebalanceFailed)
        assert failed.topic == "Huge"
        assert f"65536 queues, and it reads at most {MAX_QUEUES_HELD}" in str(failed.error)
        assert sorted(one.reading) == [queue(0, "%RETRY%g"), *map(queue, range(4))]
        await one.stop()


@virtual
async def test_an_unordered_joining_member_waits_at_most_the_timeout(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a", handover_timeout=60.0).start()
        await asyncio.sleep(0.1)
        one.handler_takes = 50.0
        began = now()
        two = await cluster.consumer("b", handover_timeout=5.0).start()
        await asyncio.sleep(4.5)
        assert two.reading == {}
        await asyncio.sleep(1.0)
        assert sorted(two.reading) == [queue(2), queue(3)]
        assert all(5.0 <= when - began < 5.3 for when, _, _ in two.log)


@virtual
async def test_topics_are_independent_of_each_other(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a", topics=["Missing", "T"]).start()
        await asyncio.sleep(0.1)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}
        [failed] = one.events_of(RebalanceFailed)
        assert failed.topic == "Missing"
        cluster.brokers["broker-a"].topic("Missing", 2)
        await asyncio.sleep(2)
        assert cluster.owners("Missing") == {"a": [0, 1]}


@virtual
async def test_more_members_than_queues_leave_one_idle_and_notify_it(tmp_path: Path):
    async with world(tmp_path) as cluster:
        for name in "abcde":
            await cluster.consumer(name).start()
        await asyncio.sleep(2)
        assert cluster.owners("T") == {"a": [0], "b": [1], "c": [2], "d": [3], "e": []}
        [idle] = cluster.consumers["e"].events_of(NoQueues)
        assert (idle.members, idle.queues) == (5, 4)
        assert idle.docs == f"{DOCS}consumer-groups.md#one-owner-per-queue"
        await cluster.consumers["a"].stop()
        await asyncio.sleep(2)
        assert cluster.owners("T") == {"b": [0], "c": [1], "d": [2], "e": [3]}


@virtual
async def test_configured_queues_that_do_not_exist_are_reported_and_not_read(tmp_path: Path):
    async with world(tmp_path) as cluster:
        named = ByConfig([queue(1), queue(9), queue(0, "Elsewhere")])
        one = await cluster.consumer("a", strategy=named).start()
        await asyncio.sleep(60)
        assert cluster.owners("T") == {"a": [1]}
        [unknown] = one.events_of(QueuesUnknown)
        assert unknown.queues == (queue(0, "Elsewhere"), queue(9))


@virtual
async def test_broadcasting_members_read_everything_and_lock_nothing(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.consumer("a", shared=False).start()
        await cluster.consumer("b", shared=False).start()
        await asyncio.sleep(30)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}
        assert cluster.brokers["broker-a"].count(RequestCode.LOCK_BATCH_MQ) == 0


@virtual
async def test_wake_ups_during_a_round_become_one_more_round(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a").start()
        await asyncio.sleep(1)
        before = broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        one.member.route_changed("T")
        await asyncio.sleep(0.001)
        for _ in range(100):
            one.member.route_changed("T")
        await one.member.settled()
        await asyncio.sleep(0.1)
        assert broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == before + 2


@virtual
async def test_a_stop_with_idle_handlers_is_fast_and_frees_the_locks(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a", ordered=True).start()
        await asyncio.sleep(1)
        waiting = asyncio.ensure_future(one.member.settled())
        await asyncio.sleep(0)
        began = now()
        one.progress = {queue(0): 5}
        await one.stop()
        await waiting
        broker = cluster.brokers["broker-a"]
        assert now() - began < 0.1
        assert broker.lock_owner("g", queue(0)) is None
        assert broker.committed("g", queue(0)) == 5
        assert "g" not in broker.bench.state.consumers.groups


@virtual
async def test_the_retry_topic_is_read_as_soon_as_it_exists(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a").start()
        await asyncio.sleep(2)
        assert one.reading[queue(0, "%RETRY%g")].reason == "retry"
        assert one.events_of(RebalanceFailed) == []
