"""A group's life: who gets what, and in which order queues change hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from client.events import (
    GroupChanged,
    LockLost,
    NoQueues,
    QueueGained,
    QueueLost,
    QueueResumed,
    QueuesUnknown,
    QueueWaiting,
    RebalanceFailed,
)
from client.places import Place
from client.rebalance.strategies import ByConfig
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.queue import MessageQueue
from tests.unit.client.world import World
from tests.virtual_time import virtual


def queue(number: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def world(root: Path, **topics: int) -> AsyncIterator[World]:
    """One broker with these topics."""
    async with World(root) as made:
        made.broker("broker-a", **(topics or {"T": 4}))
        yield made


@virtual
async def test_the_first_member_reads_everything_within_a_moment(tmp_path: Path):
    async with world(tmp_path) as cluster:
        began = now()
        one = await cluster.consumer("a").start()
        await asyncio.sleep(0.02)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}
        assert now() - began < 0.1
        gained = sorted(event.queue for event in one.told(QueueGained))
        assert gained == [queue(0, "%RETRY%g"), *map(queue, range(4))]
        assert one.told(GroupChanged)[-1].members == ("a",)


@virtual
async def test_a_newcomer_gets_its_share_at_once_and_a_leaver_gives_its_back(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a").start()
        await asyncio.sleep(0.5)
        two = await cluster.consumer("b").start()
        await asyncio.sleep(0.5)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}
        assert one.told(QueueLost)[0].queue == queue(2)
        await two.stop()
        await asyncio.sleep(0.5)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}


@virtual
async def test_a_queue_changes_hands_after_the_handler_has_ended_and_committed(tmp_path: Path):
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
async def test_a_previous_owner_has_its_time_after_a_broker_was_away(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.bench.state.locks.lock("g", "before", [queue(3)], broker.now_ms())
        began = now()
        one = await cluster.consumer("a", handover_timeout=5.0).start()
        await asyncio.sleep(2)
        broker.crash()
        await asyncio.sleep(4)
        broker.restart()
        await asyncio.sleep(4)
        assert queue(3) not in one.member.owned
        await asyncio.sleep(3)
        gained = next(when for when, what, which in one.log if which == queue(3))
        assert 10.0 < gained - began < 12.5


@virtual
async def test_a_restarted_broker_hears_of_a_member_that_waits_for_all_its_queues(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.bench.state.locks.lock("g", "before", map(queue, range(4)), broker.now_ms())
        await cluster.consumer("a", handover_timeout=60.0).start()
        await asyncio.sleep(2)
        broker.restart()
        await asyncio.sleep(2)
        assert broker.bench.state.consumers.groups["g"].client_ids() == ["a"]


@virtual
async def test_a_queue_is_not_taken_without_its_lock_by_a_view_that_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.bench.state.locks.lock("g", "before", [queue(3)], broker.now_ms())
        one = await cluster.consumer("a", handover_timeout=5.0).start()
        await asyncio.sleep(1)
        monkeypatch.setattr(type(broker.bench.processors.clients), "notify", lambda *_: None)
        await cluster.consumer("b", handover_timeout=60.0).start()
        await asyncio.sleep(6)
        assert queue(3) not in [which for _, _, which in one.log]
        assert one.member.owned >= {queue(0), queue(1)}


@virtual
async def test_who_reads_without_the_previous_owners_lock_holds_it_from_then_on(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.bench.state.locks.lock("g", "killed", [queue(3)], broker.now_ms())
        await cluster.consumer("a", handover_timeout=5.0).start()
        await asyncio.sleep(4.5)
        assert broker.lock_owner("g", queue(3)) == "killed"
        await asyncio.sleep(1)
        assert broker.lock_owner("g", queue(3)) == "a"
        await asyncio.sleep(90)
        assert broker.lock_owner("g", queue(3)) == "a"


@virtual
async def test_an_unordered_newcomer_waits_no_longer_than_the_timeout(tmp_path: Path):
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
async def test_locks_are_renewed_and_a_lost_one_is_told_and_taken_back(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a", ordered=True).start()
        await asyncio.sleep(300)
        assert broker.lock_owner("g", queue(0)) == "a"
        assert one.told(LockLost) == []
        broker.bench.state.locks.unlock("g", "a", [queue(0)])
        broker.bench.state.locks.lock("g", "stranger", [queue(0)], broker.now_ms())
        await asyncio.sleep(25)
        assert [event.queue for event in one.told(LockLost)] == [queue(0)]
        assert one.log[-1][1:] == ("unlocked", queue(0))
        await asyncio.sleep(60)
        assert one.log[-1][1:] == ("locked", queue(0))


@virtual
async def test_a_lock_that_cannot_be_renewed_counts_as_lost_after_30_s(tmp_path: Path):
    async with world(tmp_path, T=1) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a", ordered=True).start()
        await asyncio.sleep(0.1)
        broker.silent.add(RequestCode.LOCK_BATCH_MQ)
        began = now()
        await asyncio.sleep(29)
        assert one.told(LockLost) == []
        await asyncio.sleep(2)
        assert LockLost(queue(0)) in one.told(LockLost)
        assert not one.member.holds_lock(queue(0))
        assert 29 < one.log[-1][0] - began < 30.5
        broker.silent.clear()
        await asyncio.sleep(3)
        assert one.log[-1][1] == "locked"


@virtual
async def test_a_busy_broker_makes_the_queue_wait_and_never_jump(tmp_path: Path):
    async with world(tmp_path, T=1) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.commit("g", queue(0), 77)
        broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = ResponseCode.SYSTEM_BUSY
        one = await cluster.consumer("a", start_from=Place.END).start()
        await asyncio.sleep(40)
        assert one.reading == {}
        [waiting] = [event for event in one.told(QueueWaiting) if event.queue == queue(0)]
        assert "code 2" in str(waiting.error)
        broker.answers.clear()
        await asyncio.sleep(6)
        assert one.reading[queue(0)].offset == 77
        assert one.told(QueueResumed).count(QueueResumed(queue(0))) == 1


@virtual
async def test_a_broker_restart_costs_nobody_a_queue(tmp_path: Path):
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
        assert not one.told(QueueLost)[2:]
        assert not two.told(QueueLost)


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
        assert one.told(QueueLost) == []


@virtual
async def test_topics_are_independent_of_each_other(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a", topics=["Missing", "T"]).start()
        await asyncio.sleep(0.1)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}
        [failed] = one.told(RebalanceFailed)
        assert failed.topic == "Missing"
        cluster.brokers["broker-a"].topic("Missing", 2)
        await asyncio.sleep(2)
        assert cluster.owners("Missing") == {"a": [0, 1]}


@virtual
async def test_a_member_unknown_to_the_broker_says_so_before_it_lets_go(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a").start()
        await cluster.consumer("b").start()
        await asyncio.sleep(1)
        [link] = [link for link in broker.links if link.client.client_id == "a"]
        broker.bench.state.consumers.unregister("g", link)
        events = len(one.events)
        one.member.rebalance_soon()
        await asyncio.sleep(0.5)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}
        assert one.events[events:] == []


@virtual
async def test_more_members_than_queues_leave_one_idle_and_it_is_told(tmp_path: Path):
    async with world(tmp_path) as cluster:
        for name in "abcde":
            await cluster.consumer(name).start()
        await asyncio.sleep(2)
        assert cluster.owners("T") == {"a": [0], "b": [1], "c": [2], "d": [3], "e": []}
        [idle] = cluster.consumers["e"].told(NoQueues)
        assert (idle.members, idle.queues) == (5, 4)
        assert idle.docs == "docs/consumer-groups.md#one-owner-per-queue"
        await cluster.consumers["a"].stop()
        await asyncio.sleep(2)
        assert cluster.owners("T") == {"b": [0], "c": [1], "d": [2], "e": [3]}


@virtual
async def test_configured_queues_that_do_not_exist_are_told_and_not_read(tmp_path: Path):
    async with world(tmp_path) as cluster:
        named = ByConfig([queue(1), queue(9), queue(0, "Elsewhere")])
        one = await cluster.consumer("a", strategy=named).start()
        await asyncio.sleep(60)
        assert cluster.owners("T") == {"a": [1]}
        [unknown] = one.told(QueuesUnknown)
        assert unknown.queues == (queue(0, "Elsewhere"), queue(9))


@virtual
async def test_broadcasting_members_read_everything_and_lock_nothing(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.consumer("a", model="broadcasting").start()
        await cluster.consumer("b", model="broadcasting").start()
        await asyncio.sleep(30)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}
        assert cluster.brokers["broker-a"].count(RequestCode.LOCK_BATCH_MQ) == 0


@virtual
async def test_a_crashed_members_queues_go_to_the_others_at_once(tmp_path: Path):
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
async def test_an_ordered_member_waits_for_the_end_of_a_crashed_ones_lock(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a", ordered=True).start()
        two = await cluster.consumer("b", ordered=True).start()
        await asyncio.sleep(1)
        began = now()
        await two.crash()
        await asyncio.sleep(50)
        assert cluster.owners("T") == {"a": [0, 1]}
        await asyncio.sleep(12)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}
        assert 58 < one.log[-1][0] - began < 62


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
async def test_what_was_on_its_way_when_it_was_lost_again_leaves_no_trace(tmp_path: Path):
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
        assert one.told(QueueLost) == []
        assert broker.lock_owner("g", queue(3)) == "b"
        assert sorted(two.reading) == [queue(2), queue(3)]


@virtual
async def test_wake_ups_during_a_round_become_one_more_round(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a").start()
        await asyncio.sleep(1)
        before = broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        one.member.rebalance_soon()
        await asyncio.sleep(0.001)
        for _ in range(100):
            one.member.rebalance_soon()
        await one.member.settled()
        await asyncio.sleep(0.1)
        assert broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == before + 2


@virtual
async def test_a_stop_with_idle_handlers_takes_a_moment_and_frees_the_locks(tmp_path: Path):
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
async def test_a_consumer_that_never_lets_go_keeps_an_ordered_lock_and_stop_returns(
    tmp_path: Path,
):
    async with world(tmp_path, T=1) as cluster:
        one = await cluster.consumer("a", ordered=True).start()
        await asyncio.sleep(1)

        async def never(which: Any, *, deadline: float) -> None:
            await asyncio.Event().wait()

        one.lost = never  # type: ignore[method-assign] # what is tested
        began = now()
        await one.stop(timeout=1.0)
        assert now() - began < 8
        assert cluster.brokers["broker-a"].lock_owner("g", queue(0)) == "a"


@virtual
async def test_the_retry_topic_is_read_as_soon_as_it_is_there(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a").start()
        await asyncio.sleep(2)
        assert one.reading[queue(0, "%RETRY%g")].reason == "retry"
        assert one.told(RebalanceFailed) == []


@virtual
async def test_after_a_broker_restart_the_first_to_be_back_does_not_take_everything(
    tmp_path: Path,
):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a", ordered=True).start()
        two = await cluster.consumer("b", ordered=True).start()
        await asyncio.sleep(5)
        broker.restart()
        await one.client.heartbeats.connect(broker.address, 1.0)
        one.member.rebalance_soon()
        await asyncio.sleep(0.1)
        assert broker.lock_owner("g", queue(0)) == "a"
        assert broker.lock_owner("g", queue(3)) == "b"
        await asyncio.sleep(1.0)
        await two.client.heartbeats.connect(broker.address, 1.0)
        await asyncio.sleep(30)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}
        assert one.told(LockLost) == two.told(LockLost) == []
        assert broker.lock_owner("g", queue(3)) == "b"
        await two.stop()
        await asyncio.sleep(1)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}
