"""Merging several brokers' answers about one group."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from client.admin.descriptions import merged, of_apache, of_ours
from remoting.protocol.bodies.clients import ConnectionInfo, ConsumerConnection
from remoting.protocol.bodies.description import (
    BlockedQueue,
    GroupDescriptionBody,
    GroupFinding,
    GroupMemberInfo,
    GroupQueueInfo,
)
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.queue import MessageQueue

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def member(client_id: str) -> GroupMemberInfo:
    return GroupMemberInfo(
        client_id=client_id,
        client_addr=f"{client_id}:1",
        subscriptions=[SubscriptionData(topic="T", sub_string="red")],
        joined_ms=NOW_MS,
        ours=True,
    )


def queue(number: int, **facts: object) -> GroupQueueInfo:
    return GroupQueueInfo(topic="T", queue_id=number, max_offset=10, **facts)  # type: ignore[arg-type] # mixed


def owner(info: GroupQueueInfo) -> str | None:
    answer = GroupDescriptionBody(members=[member("a"), member("b")], queues=[info])
    return of_ours("g", "broker-a", answer, NOW_MS).queues[0].owner


def test_the_lock_holder_owns_the_queue() -> None:
    assert owner(queue(0, lock_owner="a", last_puller="b", last_pull_ms=NOW_MS)) == "a"


def test_without_a_lock_the_last_puller_owns_the_queue() -> None:
    late = NOW_MS - 59_000
    assert owner(queue(0, last_puller="b", last_pull_ms=late)) == "b"
    assert owner(queue(0, last_puller="b", last_pull_ms=late - 2_000)) is None


def test_a_member_that_left_owns_nothing() -> None:
    assert owner(queue(0, lock_owner="gone", last_puller="gone", last_pull_ms=NOW_MS)) is None


def test_a_queue_without_an_offset_is_distinguished_from_one_at_zero() -> None:
    answer = GroupDescriptionBody(queues=[queue(0, committed=-1), queue(1, committed=0)])
    described = of_ours("g", "broker-a", answer, NOW_MS)
    assert [state.committed for state in described.queues] == [None, 0]


def test_a_blocked_queue_names_its_message() -> None:
    blocked = BlockedQueue(offset=7, msg_id="id", since_ms=NOW_MS - 5000, error="boom")
    answer = GroupDescriptionBody(queues=[queue(0, blocked=blocked, blocked_by="a")])
    found = of_ours("g", "broker-a", answer, NOW_MS).queues[0].blocked
    assert found is not None
    assert (found.offset, found.message_id, found.member, found.error) == (7, "id", "a", "boom")
    assert found.since == NOW - timedelta(seconds=5)


def test_answers_of_several_brokers_are_merged() -> None:
    problem = GroupFinding(kind="clientId", text="two", members=["a", "a"], docs="d")
    parts = [
        of_ours(
            "g",
            name,
            GroupDescriptionBody(
                members=[member("b"), member("a")], conflicts=[problem], queues=[queue(0)]
            ),
            NOW_MS,
        )
        for name in ("broker-b", "broker-a")
    ]
    described = merged("g", parts)
    assert [one.client_id for one in described.members] == ["a", "b"]
    assert [(one.kind, one.conflict) for one in described.problems] == [("clientId", True)]
    assert [state.queue for state in described.queues] == [
        MessageQueue("T", "broker-a", 0),
        MessageQueue("T", "broker-b", 0),
    ]
    assert described.complete
    assert described.online


def test_one_client_id_on_two_connections_of_a_broker_is_there_twice() -> None:
    answer = GroupDescriptionBody(members=[member("a"), member("a")])
    described = merged("g", [of_ours("g", "broker-a", answer, NOW_MS)])
    assert [one.client_id for one in described.members] == ["a", "a"]


def test_an_apache_brokers_members_are_described_the_same() -> None:
    answer = ConsumerConnection(
        connection_set=[
            ConnectionInfo(client_id="a", client_addr="x:1", language="JAVA", version=407)
        ],
        subscription_table={"T": SubscriptionData(topic="T", sub_string="*")},
        message_model="CLUSTERING",
    )
    described = merged("g", [of_apache("g", answer)])
    assert not described.complete
    (found,) = described.members
    assert (found.client_id, found.subscriptions, found.model) == ("a", {"T": "*"}, "CLUSTERING")
    assert found.joined_at is None
