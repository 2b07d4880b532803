"""Consumer groups: RocketMQ's last-writer-wins rules, as events and their effects."""

from __future__ import annotations

import pytest

from broker.errors import LimitReached
from broker.groups.consumers import ConsumerTable
from broker.groups.producers import CLIENT_EXPIRY_MS, ClientChannel
from broker.limits import MAX_GROUP_SUBSCRIPTIONS, BrokerLimits
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData


def channel(connection: str, now_ms: int = 0, client_id: str | None = None) -> ClientChannel:
    return ClientChannel(
        connection, client_id or f"id-{connection}", "1.2.3.4:5", "JAVA", 407, now_ms
    )


def data(*topics: str, version: int = 1, group: str = "g", **fields) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        subscription_data_set=[
            SubscriptionData(topic=topic, sub_string=f"v{version}", sub_version=version)
            for topic in topics
        ],
        **fields,
    )


def test_a_first_heartbeat_changes_the_group():
    table = ConsumerTable()
    assert table.heartbeat(data("T"), channel("c1"), 0)
    assert table.groups["g"].client_ids() == ["id-c1"]
    assert set(table.groups["g"].subscriptions) == {"T"}


def test_the_same_heartbeat_again_changes_nothing():
    table = ConsumerTable()
    table.heartbeat(data("T"), channel("c1"), 0)
    assert not table.heartbeat(data("T"), channel("c1", 9), 9)
    assert table.groups["g"].members["c1"].last_update_ms == 9


def test_a_second_member_changes_the_group():
    table = ConsumerTable()
    table.heartbeat(data("T"), channel("c1"), 0)
    assert table.heartbeat(data("T"), channel("c2"), 0)
    assert table.connections("g") == ["c1", "c2"]


def test_another_client_id_on_the_same_connection_replaces_the_first_without_a_change():
    table = ConsumerTable()
    table.heartbeat(data("T"), channel("c1", client_id="a"), 0)
    assert not table.heartbeat(data("T"), channel("c1", client_id="b"), 0)
    assert table.groups["g"].client_ids() == ["b"]


def test_kind_model_and_start_are_those_of_the_last_heartbeat():
    table = ConsumerTable()
    table.heartbeat(data("T"), channel("c1"), 0)
    table.heartbeat(
        data(
            "T",
            consume_type="CONSUME_ACTIVELY",
            message_model="BROADCASTING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        ),
        channel("c2"),
        1,
    )
    group = table.groups["g"]
    assert (group.consume_type, group.message_model, group.consume_from_where) == (
        "CONSUME_ACTIVELY",
        "BROADCASTING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    assert group.is_broadcasting


def test_a_new_topic_is_a_change():
    table = ConsumerTable()
    table.heartbeat(data("T"), channel("c1"), 0)
    assert table.heartbeat(data("T", "U"), channel("c1"), 0)


def test_a_newer_version_of_a_subscription_replaces_it_silently():
    table = ConsumerTable()
    table.heartbeat(data("T", version=1), channel("c1"), 0)
    assert not table.heartbeat(data("T", version=2), channel("c1"), 0)
    assert table.groups["g"].subscriptions["T"].sub_string == "v2"


def test_an_older_version_is_ignored():
    table = ConsumerTable()
    table.heartbeat(data("T", version=2), channel("c1"), 0)
    assert not table.heartbeat(data("T", version=1), channel("c1"), 0)
    assert table.groups["g"].subscriptions["T"].sub_string == "v2"


def test_a_topic_that_the_last_heartbeat_lacks_is_dropped_for_all_members():
    table = ConsumerTable()
    table.heartbeat(data("T"), channel("c1"), 0)
    assert table.heartbeat(data("U"), channel("c2"), 0)
    assert set(table.groups["g"].subscriptions) == {"U"}
    assert table.groups_of("T") == set()
    assert table.groups_of("U") == {"g"}


def test_a_member_that_leaves_is_forgotten_and_an_empty_group_too():
    table = ConsumerTable()
    table.heartbeat(data("T"), channel("c1"), 0)
    table.heartbeat(data("T"), channel("c2"), 0)
    assert table.unregister("g", "c1")
    assert not table.unregister("g", "c1")
    assert not table.unregister("unknown", "c1")
    assert table.connections("g") == ["c2"]
    table.unregister("g", "c2")
    assert table.groups == {}
    assert len(table) == 0
    assert table.connections("g") == []


def test_a_closed_connection_leaves_all_its_groups():
    table = ConsumerTable()
    table.heartbeat(data("T", group="g"), channel("c1"), 0)
    table.heartbeat(data("T", group="h"), channel("c1"), 0)
    table.heartbeat(data("T", group="h"), channel("c2"), 0)
    assert table.closed("c1") == ["g", "h"]
    assert table.closed("c1") == []
    assert set(table.groups) == {"h"}


def test_a_scan_removes_silent_members_and_returns_their_groups():
    table = ConsumerTable()
    table.heartbeat(data("T"), channel("c1", 0), 0)
    table.heartbeat(data("T"), channel("c2", 5), 5)
    assert table.scan(CLIENT_EXPIRY_MS) == ([], [])
    assert table.scan(CLIENT_EXPIRY_MS + 1) == (["c1"], ["g"])
    assert table.connections("g") == ["c2"]


def test_a_group_has_a_limit_of_members():
    table = ConsumerTable(BrokerLimits(group_members=1))
    table.heartbeat(data("T"), channel("c1"), 0)
    with pytest.raises(LimitReached, match="at most 1 members"):
        table.heartbeat(data("T"), channel("c2"), 0)
    table.heartbeat(data("T"), channel("c1"), 1)
    assert len(table) == 1


def test_memberships_have_a_limit():
    table = ConsumerTable(BrokerLimits(memberships=1))
    table.heartbeat(data("T"), channel("c1"), 0)
    with pytest.raises(LimitReached, match="at most 1 memberships"):
        table.heartbeat(data("T", group="h"), channel("c1"), 0)
    assert "h" not in table.groups


def test_subscriptions_have_a_limit_and_a_refused_heartbeat_leaves_no_trace():
    table = ConsumerTable()
    topics = [f"T{number}" for number in range(MAX_GROUP_SUBSCRIPTIONS + 1)]
    with pytest.raises(LimitReached, match="subscribes at most"):
        table.heartbeat(data(*topics), channel("c1"), 0)
    assert table.groups == {}
    assert len(table) == 0


def test_subscriptions_of_all_groups_have_a_limit_of_bytes_and_are_given_back():
    table = ConsumerTable(BrokerLimits(subscription_bytes=200_000))
    long = "a || " * 500
    heavy = data("T", group="heavy")
    heavy.subscription_data_set[0].sub_string = long
    table.heartbeat(heavy, channel("c1"), 0)
    also = data("T", group="also")
    also.subscription_data_set[0].sub_string = long
    with pytest.raises(LimitReached, match="shorter expressions"):
        table.heartbeat(also, channel("c2"), 0)
    assert set(table.groups) == {"heavy"}
    table.heartbeat(heavy, channel("c1"), 1)
    table.closed("c1")
    table.heartbeat(also, channel("c2"), 0)
    table.closed("c2")
    assert table.weight == 0


def test_an_older_subscription_that_is_kept_applies():
    table = ConsumerTable()
    new = data("T")
    new.subscription_data_set[0].sub_version = 9
    new.subscription_data_set[0].sub_string = "a || " * 500
    table.heartbeat(new, channel("c1"), 0)
    weight = table.groups["g"].weight
    table.heartbeat(data("T"), channel("c1"), 1)
    assert table.groups["g"].weight == weight
