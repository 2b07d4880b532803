"""Members of one group that subscribe to different topics."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.events import GroupChanged, QueuesUnread, SubscriptionUnstable
from client.group.strategies import Averagely
from client.group.view import GroupMembers
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.protocol.bodies.stats import MemberTopics
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from tests.support.virtual_time import virtual
from tests.unit.client.group.one_broker import queue, world
from tests.unit.client.world import World

SETTLED = 25.0
"""Seconds after which every member has run a periodic round."""


async def foreign_member(cluster: World, client_id: str, *topics: str) -> None:
    """Add a client that is not PocketMQ's; it keeps its connection and sends one heartbeat."""
    subscriptions = [SubscriptionData(topic=topic, sub_string="*") for topic in topics]
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=[
            ConsumerData(
                group_name="g",
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                subscription_data_set=subscriptions,
            )
        ],
    )
    link = await cluster.client(client_id).pool.get("broker-a:10911")
    command = Command.request(RequestCode.HEART_BEAT, body=encode(data))
    assert (await link.request(command, timeout=5)).code == 0


@virtual
@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY"])
async def test_our_members_share_each_topic_among_those_that_subscribe_to_it(
    tmp_path: Path, strategy: str
):
    async with world(tmp_path, T=4, U=4) as cluster:
        for name, topics in (("a", "T"), ("b", "TU"), ("c", "U")):
            await cluster.consumer(
                name, topics=list(topics), strategy=strategy, on_conflict="warn"
            ).start()
        await asyncio.sleep(SETTLED)
        for topic, readers in (("T", "ab"), ("U", "bc")):
            owners = cluster.owners(topic)
            assert sorted(number for mine in owners.values() for number in mine) == [0, 1, 2, 3]
            assert [name for name, mine in owners.items() if mine and name not in readers] == []
        a, b, c = (cluster.consumers[name] for name in "abc")
        assert a.events_of(GroupChanged)[-1].members == ("a", "b", "c")
        assert [one.events_of(QueuesUnread) for one in (a, b, c)] == [[], [], []]
        assert [one.events_of(SubscriptionUnstable) for one in (a, b, c)] == [[], [], []]


@virtual
async def test_a_member_that_subscribes_or_unsubscribes_changes_the_shares_at_once(tmp_path: Path):
    async with world(tmp_path, T=4, U=4) as cluster:
        a = await cluster.consumer("a", topics=["T", "U"], on_conflict="warn").start()
        b = await cluster.consumer("b", topics="T", on_conflict="warn").start()
        await asyncio.sleep(1)
        assert cluster.owners("U") == {"a": [0, 1, 2, 3], "b": []}
        b.member.subscribe("U", a.topics["U"])
        await asyncio.sleep(1)
        assert cluster.owners("U") == {"a": [0, 1], "b": [2, 3]}
        a.member.unsubscribe("U")
        await asyncio.sleep(1)
        assert cluster.owners("U") == {"a": [], "b": [0, 1, 2, 3]}
        assert cluster.owners("T") == {"a": [0, 1], "b": [2, 3]}


@virtual
async def test_with_a_foreign_member_all_share_as_java_does_and_warn_once_of_unread_queues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "pocketmq")
    async with world(tmp_path, T=4, U=4) as cluster:
        a = await cluster.consumer("a", topics="T", on_conflict="warn").start()
        b = await cluster.consumer("b", topics=["T", "U"], on_conflict="warn").start()
        await asyncio.sleep(1)
        await foreign_member(cluster, "java", "U", "%RETRY%g")
        await asyncio.sleep(SETTLED)
        assert cluster.owners("T") == {"a": [0, 1], "b": [2]}
        assert cluster.owners("U") == {"a": [], "b": [2]}
        java = Averagely().allocate(
            "java", list(map(queue, range(4))), ["a", "b", "java"], group="g"
        )
        assert java == [queue(3)]
        unread_t = QueuesUnread("g", "T", ("java",), ("java",), (queue(3),))
        in_u = (queue(0, "U"), queue(1, "U"))
        assert set(b.events_of(QueuesUnread)) == {
            unread_t,
            QueuesUnread("g", "U", ("a",), ("java",), in_u),
        }
        assert set(a.events_of(QueuesUnread)) == {
            unread_t,
            QueuesUnread("g", "U", ("a",), ("java",), ()),
        }
        lines = [one.getMessage() for one in caplog.records if "nobody reads" in one.getMessage()]
        assert len(lines) == 4
        cluster.clients["java"].pool.links["broker-a:10911"].close()
        await asyncio.sleep(SETTLED)
        assert cluster.owners("U") == {"a": [], "b": [0, 1, 2, 3]}
        assert len(b.events_of(QueuesUnread)) == 2


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.frozensets(st.sampled_from("TUV"), min_size=1), st.booleans()),
        min_size=1,
    )
)
def test_all_readers_of_a_topic_see_the_same_members_and_all_others_are_left_out_or_named(
    group: dict[str, tuple[frozenset[str], bool]],
):
    ids = tuple(sorted(group))
    told = tuple(
        MemberTopics(topics=sorted(topics), members=[name], ours=ours)
        for name, (topics, ours) in group.items()
    )
    everybody = GroupMembers(ids, told)
    for topic in "TUV":
        readers = tuple(name for name in ids if topic in group[name][0])
        if not readers:
            continue
        seen = {everybody.sharing(topic, own) for own in readers}
        if all(ours for _, ours in group.values()):
            assert seen == {readers}
            assert everybody.unread_shares() == {}
        else:
            assert seen == {ids}
            assert {*everybody.unread_shares().get(topic, ())} == {*ids} - {*readers}


def test_a_member_counts_as_a_reader_before_the_broker_has_its_new_subscription():
    told = (
        MemberTopics(topics=["T"], members=["a"], ours=True),
        MemberTopics(topics=["T", "U"], members=["b"], ours=True),
    )
    everybody = GroupMembers(("a", "b"), told)
    assert everybody.sharing("U", "a") == ("a", "b")
    assert everybody.sharing("U", "b") == ("b",)
