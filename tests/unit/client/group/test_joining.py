"""Joining a group, and the notifications of its members."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.errors import ConsumerStopped, GroupConflict, NoNameServer, UsageError
from client.events import (
    GroupTrouble,
    MembersDiffer,
    SubscriptionUnstable,
)
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.group import ResetOffsetBody
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import ResetOffsetRequestHeader
from remoting.protocol.queue import MessageQueue
from tests.support.virtual_time import virtual
from tests.unit.client.group.one_broker import now, queue, world


@virtual
async def test_an_unknown_strategy_is_refused_when_the_member_is_made(tmp_path: Path):
    async with world(tmp_path) as cluster:
        with pytest.raises(UsageError, match="did you mean 'STICKY'"):
            await cluster.consumer("a", strategy="STIKCY").start()


@virtual
async def test_subscribing_and_unsubscribing_take_effect_at_once(tmp_path: Path):
    async with world(tmp_path, T=2, U=2) as cluster:
        one = await cluster.consumer("a").start()
        await asyncio.sleep(1)
        one.member.subscribe("U", one.topics["T"])
        one.progress = {queue(1): 9}
        await one.member.settled()
        await asyncio.sleep(0.1)
        assert cluster.owners("U") == {"a": [0, 1]}
        group = cluster.brokers["broker-a"].bench.state.consumers.groups["g"]
        assert set(group.subscriptions) == {"T", "U", "%RETRY%g"}
        one.member.unsubscribe("T")
        await one.member.settled()
        await asyncio.sleep(0.1)
        assert cluster.owners("T") == {"a": []}
        assert set(group.subscriptions) == {"U", "%RETRY%g"}
        assert cluster.brokers["broker-a"].committed("g", queue(1)) == 9


@virtual
async def test_versions_change_with_expressions_only(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a").start()
        group = cluster.brokers["broker-a"].bench.state.consumers.groups["g"]
        before = group.subscriptions["T"].sub_version
        await cluster.consumer("b").start()
        await asyncio.sleep(100)
        assert one.member.consumer_data().subscription_data_set[0].sub_version == before


@virtual
async def test_members_that_differ_are_refused_by_our_broker_and_both_are_named(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.consumer("a", topics={"T": "x"}).start()
        other = cluster.consumer("b", topics={"T": "y"})
        with pytest.raises(GroupConflict, match="contradict each other") as raised:
            await other.start()
        assert set(raised.value.members) == {"a", "b"}
        assert raised.value.kind == "subscription"
        group = cluster.brokers["broker-a"].bench.state.consumers.groups["g"]
        assert group.client_ids() == ["a"]


@virtual
async def test_conflicts_are_found_at_brokers_that_do_not_check(tmp_path: Path):
    async with world(tmp_path) as cluster:
        unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        cluster.brokers["broker-a"].answers[20010] = unknown
        await cluster.consumer("a", topics={"T": "x"}).start()
        with pytest.raises(GroupConflict, match=r"members b and a differ: .* y of topic T"):
            await cluster.consumer("b", topics={"T": "y"}).start()
        with pytest.raises(GroupConflict, match="BROADCASTING"):
            await cluster.consumer(
                "c", topics={"T": "x"}, shared=False, on_conflict="allow"
            ).start()
        other = await cluster.consumer("d", topics={"T": "y"}, on_conflict="warn").start()
        [warned] = other.events_of(MembersDiffer)
        assert warned.conflict.members == ("d", "a")
        group = cluster.brokers["broker-a"].bench.state.consumers.groups["g"]
        assert group.client_ids() == ["a", "d"]


@virtual
async def test_one_instance_has_one_member_of_a_group(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a").start()
        second = type(one)(one.client)
        with pytest.raises(UsageError, match="instance of its own"):
            await second.start()


@virtual
async def test_a_start_that_is_cancelled_while_it_joins_leaves_no_member(tmp_path: Path):
    async with world(tmp_path) as cluster:
        cluster.broker("broker-b", T=4).slow[RequestCode.HEART_BEAT] = 0.5
        groups = cluster.brokers["broker-a"].bench.state.consumers.groups
        starting = asyncio.create_task(cluster.consumer("a").start())
        await asyncio.sleep(0.1)
        assert groups["g"].client_ids() == ["a"]
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert "g" not in groups


@pytest.mark.parametrize(
    "slow", [20010, RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP]
)
@virtual
async def test_a_member_that_is_stopped_while_it_starts_leaves_the_group(tmp_path: Path, slow: int):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.slow[slow] = 0.5
        one = cluster.consumer("a")
        starting = asyncio.create_task(one.start())
        await asyncio.sleep(0.1)
        assert one.member is not None
        await one.member.stop(deadline=now())
        with pytest.raises(ConsumerStopped, match="while it started"):
            await starting
        assert one.client.members.memberships == []
        assert "g" not in broker.bench.state.consumers.groups


@virtual
async def test_without_any_name_server_the_start_says_so(tmp_path: Path):
    async with world(tmp_path) as cluster:
        cluster.name_server_down = True
        with pytest.raises(NoNameServer):
            await cluster.consumer("a").start()


@virtual
async def test_a_lost_subscription_is_sent_again_and_reported_the_second_time(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a").start()
        broker.restart()
        await asyncio.gather(*(one.member.heartbeat_broker(broker.address) for _ in range(8)))
        assert broker.bench.state.consumers.groups["g"].client_ids() == ["a"]
        assert one.events_of(SubscriptionUnstable) == []
        await asyncio.sleep(5)
        await asyncio.gather(*(one.member.heartbeat_broker(broker.address) for _ in range(8)))
        assert one.events_of(SubscriptionUnstable) == [SubscriptionUnstable("g", broker.address)]


@virtual
async def test_a_reset_waits_for_handlers_and_restarts_the_queue(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a").start()
        await asyncio.sleep(1)
        one.progress = {queue(1): 500}
        one.client.receive(reset({queue(1): 3, queue(9): 4}))
        await asyncio.sleep(1)
        assert one.reading[queue(1)].offset == 3
        assert one.reading[queue(1)].reason == "reset"
        assert broker.committed("g", queue(1)) == 3
        assert broker.lock_owner("g", queue(1)) == "a"


def reset(offsets: dict[MessageQueue, int]) -> Command:
    return Command.request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        ResetOffsetRequestHeader(topic="T", group="g", timestamp=0, is_force=True),
        body=encode(ResetOffsetBody(offset_table=offsets)),
        oneway=True,
    )


@virtual
async def test_problems_found_by_our_broker_are_reported_to_members_once(tmp_path: Path):
    async with world(tmp_path) as cluster:
        one = await cluster.consumer("a", topics={"T": "x"}).start()
        two = await cluster.consumer("b", topics={"T": "y"}, on_conflict="warn").start()
        calm = await cluster.consumer("c", topics={"T": "y"}, on_conflict="allow").start()
        await asyncio.sleep(100)
        for consumer in (one, two):
            [differ] = consumer.events_of(MembersDiffer)
            assert differ.conflict.kind == "subscription"
            assert "docs/consumer-groups.md#" in str(differ.conflict)
        assert calm.events_of(MembersDiffer) == []


@virtual
async def test_requests_that_a_foreign_broker_lacks_are_not_repeated(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        broker.answers[20010] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await cluster.consumer("a").start()
        await asyncio.sleep(100)
        assert broker.count(20010) == 2


@virtual
async def test_idle_members_are_reported_by_the_broker_too(tmp_path: Path):
    async with world(tmp_path, T=1) as cluster:
        one = await cluster.consumer("a").start()
        await cluster.consumer("b").start()
        await asyncio.sleep(40)
        [trouble] = [event for event in one.events_of(GroupTrouble) if event.kind == "idleMembers"]
        assert "2 members" in trouble.text


@virtual
async def test_a_heartbeat_in_flight_does_not_rejoin_a_member_that_left(tmp_path: Path):
    async with world(tmp_path) as cluster:
        broker = cluster.brokers["broker-a"]
        one = await cluster.consumer("a").start()
        await asyncio.sleep(1)
        broker.slow[RequestCode.HEART_BEAT] = 0.5
        beating = asyncio.create_task(one.client.heartbeats.now(broker.address))
        await asyncio.sleep(0.1)
        began = now()
        await one.stop()
        assert now() - began < 1
        await beating
        assert "g" not in broker.bench.state.consumers.groups
