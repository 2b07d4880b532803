"""A queue moves with its lock: who holds it, who waits for it, and how it is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from client.events import LockLost
from remoting.protocol.codes import RequestCode
from tests.support.virtual_time import virtual
from tests.unit.client.group.one_broker import now, queue, world


@virtual
async def test_a_previous_owner_gets_its_timeout_after_a_broker_was_down(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.bench.state.locks.lock("g", "before", [queue(3)], broker.monotonic_ms())
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
async def test_an_outdated_view_does_not_take_a_queue_without_its_lock(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.bench.state.locks.lock("g", "before", [queue(3)], broker.monotonic_ms())
        one = await cluster.consumer("a", handover_timeout=5.0).start()
        await asyncio.sleep(1)
        broker.notifies = False
        await cluster.consumer("b", handover_timeout=60.0).start()
        await asyncio.sleep(6)
        assert queue(3) not in [which for _, _, which in one.log]
        assert one.member.owned >= {queue(0), queue(1)}


@virtual
async def test_a_member_that_reads_without_the_lock_takes_it_over(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.bench.state.locks.lock("g", "killed", [queue(3)], broker.monotonic_ms())
        await cluster.consumer("a", handover_timeout=5.0).start()
        await asyncio.sleep(4.5)
        assert broker.lock_owner("g", queue(3)) == "killed"
        await asyncio.sleep(1)
        assert broker.lock_owner("g", queue(3)) == "a"
        await asyncio.sleep(90)
        assert broker.lock_owner("g", queue(3)) == "a"


@virtual
async def test_locks_are_renewed_and_a_lost_one_is_reported_and_reacquired(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a", ordered=True).start()
        await asyncio.sleep(300)
        assert broker.lock_owner("g", queue(0)) == "a"
        assert one.events_of(LockLost) == []
        broker.bench.state.locks.unlock("g", "a", [queue(0)])
        broker.bench.state.locks.lock("g", "stranger", [queue(0)], broker.monotonic_ms())
        await asyncio.sleep(25)
        assert [event.queue for event in one.events_of(LockLost)] == [queue(0)]
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
        assert one.events_of(LockLost) == []
        await asyncio.sleep(2)
        assert LockLost(queue(0)) in one.events_of(LockLost)
        assert not one.member.holds_lock(queue(0))
        assert 29 < one.log[-1][0] - began < 30.5
        broker.silent.clear()
        await asyncio.sleep(3)
        assert one.log[-1][1] == "locked"


@virtual
async def test_an_ordered_member_waits_until_a_crashed_members_lock_expires(tmp_path: Path):
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
async def test_a_handler_that_never_returns_keeps_its_ordered_lock_and_stop_returns(
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
async def test_after_a_broker_restart_the_first_member_does_not_take_everything(
    tmp_path: Path,
):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a", ordered=True).start()
        two = await cluster.consumer("b", ordered=True).start()
        await asyncio.sleep(5)
        broker.restart()
        await one.client.heartbeats.connect(broker.address, 1.0)
        one.member.route_changed("T")
        await asyncio.sleep(0.1)
        assert broker.lock_owner("g", queue(0)) == "a"
        assert broker.lock_owner("g", queue(3)) == "b"
        await asyncio.sleep(1.0)
        await two.client.heartbeats.connect(broker.address, 1.0)
        await asyncio.sleep(30)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}
        assert one.events_of(LockLost) == two.events_of(LockLost) == []
        assert broker.lock_owner("g", queue(3)) == "b"
        await two.stop()
        await asyncio.sleep(1)
        assert cluster.owners("T") == {"a": [0, 1, 2, 3]}


@virtual
async def test_a_lock_acquired_while_its_queue_moves_is_released(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.slow[RequestCode.LOCK_BATCH_MQ] = 0.5
        await cluster.consumer("a", ordered=True).start()
        await cluster.consumer("b", ordered=True).start()
        await asyncio.sleep(5)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}
