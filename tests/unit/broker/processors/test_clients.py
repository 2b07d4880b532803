"""Heartbeats, unregistration, and notifications."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from broker.groups.producers import CLIENT_EXPIRY_MS
from broker.limits import BrokerLimits
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumerData,
    SubscriptionData,
)
from remoting.protocol.bodies.stats import GetConsumerListByGroupResponseBody
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import (
    ConsumerGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from remoting.protocol.own_codes import ON_CONFLICT
from remoting.runtime.log import MAX_PER_SECOND
from tests.unit.broker.harness import Bench, FakeConnection, fields_of, heartbeat
from tests.unit.broker.watched import describe


def pushes(connection: FakeConnection) -> list[str]:
    groups = []
    for command in connection.pushed:
        assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert command.is_oneway
        groups.append(fields_of(command)["consumerGroup"])
    connection.pushed.clear()
    return groups


def consumer_list(bench: Bench, group: str) -> Command:
    header = ConsumerGroupRequestHeader(consumer_group=group)
    return bench.must(Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header))


def unregister(bench: Bench, connection: FakeConnection | None = None, **groups) -> Command:
    header = UnregisterClientRequestHeader(client_id="client-1", **groups)
    return bench.must(Command.request(RequestCode.UNREGISTER_CLIENT, header), connection)


def test_a_consumer_is_registered_and_its_group_notified(bench):
    reply = bench.subscribe("g", "T")
    assert (reply.code, reply.remark, bytes(reply.body)) == (0, None, b"")
    body = consumer_list(bench, "g").body
    assert decode(GetConsumerListByGroupResponseBody, body).consumer_id_list == ["client-1"]
    assert pushes(bench.connection) == ["g"]


async def test_a_heartbeat_waits_until_the_retry_topics_of_its_groups_are_registered(bench):
    loop = asyncio.get_running_loop()
    changes = {f"%RETRY%{group}": loop.create_future() for group in ("a", "b")}
    bench.changes.pending.update(changes)
    groups = [ConsumerData(group_name=group) for group in ("a", "b", "c")]
    answer = asyncio.ensure_future(bench.dispatch(heartbeat(consumers=groups), bench.connection))
    for change in changes.values():
        await asyncio.sleep(0.01)
        assert not answer.done()
        change.set_result(False)
    assert (await answer).code == 0
    assert bench.subscribe("c", "T").code == 0


def test_members_that_join_and_leave_are_logged(bench):
    with capture_logs() as lines:
        bench.subscribe("g", "T")
        bench.subscribe("g", "T")
        unregister(bench, consumer_group="g")
        other = FakeConnection(6666)
        bench.subscribe("g", "U", connection=other)
        bench.processors.clients.closed(other)
        bench.subscribe("g", "T")
        bench.clock.advance(CLIENT_EXPIRY_MS / 1000 + 1)
        bench.processors.clients.scan()
    logged = [line for line in lines if line["event"].startswith("member ")]
    assert [(line["event"], line["topics"], line["address"]) for line in logged] == [
        ("member joined", "T", bench.connection.remote_text),
        ("member left", "T", bench.connection.remote_text),
        ("member joined", "U", other.remote_text),
        ("member left", "U", other.remote_text),
        ("member joined", "T", bench.connection.remote_text),
        ("member left", "T", bench.connection.remote_text),
    ]
    assert all(
        (line["log_level"], line["group"], line["member"]) == ("info", "g", "client-1")
        for line in logged
    )


def test_of_many_members_that_leave_at_once_some_are_logged_and_the_others_counted(bench):
    connections = [FakeConnection(7000 + number) for number in range(100)]
    for connection in connections:
        bench.subscribe("g", "T", connection=connection)
        bench.clock.advance(1)
    with capture_logs() as lines:
        for connection in connections:
            bench.processors.clients.closed(connection)
        bench.clock.advance(1)
        bench.subscribe("g", "T")
    logged = [line for line in lines if line["event"].startswith("member ")]
    assert [line["event"] for line in logged] == ["member left"] * MAX_PER_SECOND + [
        "member joined"
    ]
    assert logged[-1]["unreported"] == len(connections) - MAX_PER_SECOND


def test_a_heartbeat_without_a_change_notifies_nobody(bench):
    bench.subscribe("g", "T")
    pushes(bench.connection)
    bench.subscribe("g", "T")
    assert pushes(bench.connection) == []


def test_all_members_are_notified_including_the_new_one(bench):
    bench.subscribe("g", "T")
    pushes(bench.connection)
    other = FakeConnection(6666)
    bench.subscribe("g", "T", connection=other)
    assert pushes(bench.connection) == ["g"]
    assert pushes(other) == ["g"]


def test_a_group_can_disable_notifications(bench):
    bench.state.groups.find("g", 1).notify_consumer_ids_changed_enable = False
    bench.subscribe("g", "T")
    assert pushes(bench.connection) == []


def test_a_broker_can_disable_notifications(make_bench):
    bench = make_bench(notify_consumer_ids_changed_enable=False)
    bench.subscribe("g", "T")
    assert pushes(bench.connection) == []


def test_a_group_without_settings_is_notified(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    bench.subscribe("g", "T")
    assert pushes(bench.connection) == ["g"]
    assert "%RETRY%g" not in bench.state.topics


def test_a_closed_member_does_not_prevent_notifying_the_others(bench, monkeypatch):
    bench.subscribe("g", "T")
    pushes(bench.connection)
    bench.connection.closed = True
    other = FakeConnection(6666)
    bench.subscribe("g", "T", connection=other)
    assert pushes(other) == ["g"]


def test_the_retry_topic_is_made_at_the_first_heartbeat(bench):
    bench.subscribe("g", "T")
    config = bench.state.topics.get("%RETRY%g")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    assert config.topic_sys_flag == 0
    bench.subscribe("g", "T")
    assert bench.changes.topics == [(["%RETRY%g"], True)]
    assert bench.changes.groups == 1


def test_the_retry_topic_has_the_groups_number_of_queues_and_its_unit_flag(bench):
    bench.state.groups.find("g", 1).retry_queue_nums = 3
    bench.subscribe("g", "T", unit_mode=True)
    config = bench.state.topics.get("%RETRY%g")
    assert (config.write_queue_nums, config.topic_sys_flag) == (3, 2)


def test_a_group_whose_retry_topic_would_be_too_long_has_none(bench):
    bench.subscribe("g" * 121, "T")
    assert consumer_list(bench, "g" * 121).code == 0
    assert "%RETRY%" + "g" * 121 not in bench.state.topics


def test_a_producer_is_registered(bench):
    assert bench.must(heartbeat(producers=["pg", "CLIENT_INNER_PRODUCER"])).code == 0
    channel = bench.state.producers.groups["pg"][bench.connection]
    assert (channel.client_id, channel.address, channel.language, channel.version) == (
        "client-1",
        "10.0.0.7:5555",
        "JAVA",
        407,
    )


def test_unregistering_leaves_both_groups_and_notifies_the_remaining_members(bench):
    other = FakeConnection(6666)
    bench.must(heartbeat(producers=["pg"]))
    bench.subscribe("g", "T")
    bench.subscribe("g", "T", connection=other)
    pushes(other), pushes(bench.connection)
    assert unregister(bench, producer_group="pg", consumer_group="g").code == 0
    assert bench.state.producers.groups == {}
    assert pushes(other) == ["g"]
    assert pushes(bench.connection) == []
    assert unregister(bench, other, consumer_group="g").code == 0
    reply = consumer_list(bench, "g")
    assert (reply.code, reply.remark) == (1, "no consumer for this group, g")


def test_unregistering_what_was_never_registered_is_no_error(bench):
    assert unregister(bench, consumer_group="unknown", producer_group="unknown").code == 0


def test_a_closed_connection_counts_as_unregistering(bench):
    other = FakeConnection(6666)
    bench.must(heartbeat(producers=["pg"]))
    bench.subscribe("g", "T")
    bench.subscribe("g", "T", connection=other)
    pushes(other)
    bench.processors.clients.closed(bench.connection)
    assert pushes(other) == ["g"]
    assert bench.state.producers.groups == {}


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wall_clock_that_is_set_neither_expires_clients_nor_keeps_silent_ones(bench, hours):
    bench.must(heartbeat(producers=["pg"]))
    bench.subscribe("g", "T")
    bench.clock.jump(hours * 3_600_000)
    bench.processors.clients.scan()
    assert not bench.connection.closed
    (member,) = describe(bench).members
    assert member.last_heartbeat_ms == member.joined_ms == bench.clock.now_ms()
    bench.clock.advance(CLIENT_EXPIRY_MS / 1000 + 1)
    bench.processors.clients.scan()
    assert bench.connection.closed


def test_a_scan_closes_silent_clients_and_notifies_the_remaining_members(bench):
    other = FakeConnection(6666)
    bench.must(heartbeat(producers=["pg"]))
    bench.subscribe("g", "T")
    bench.clock.advance(CLIENT_EXPIRY_MS / 1000)
    bench.subscribe("g", "T", connection=other)
    pushes(other)
    bench.processors.clients.scan()
    assert not bench.connection.closed
    bench.clock.advance(1)
    bench.processors.clients.scan()
    assert bench.connection.closed
    assert not other.closed
    assert pushes(other) == ["g"]


@pytest.mark.parametrize(
    "command",
    [
        heartbeat(""),
        heartbeat("c" * 513),
        Command.request(RequestCode.HEART_BEAT, body=b" " * (512 * 1024) + b"{}"),
        heartbeat(producers=["no group!"]),
        heartbeat(consumers=[ConsumerData(group_name="../g")]),
        heartbeat(consumers=[ConsumerData(group_name="")]),
        Command.request(RequestCode.HEART_BEAT),
        Command.request(RequestCode.HEART_BEAT, body=b"{"),
        Command.request(RequestCode.HEART_BEAT, body=b"\xff\xfe"),
        Command.request(RequestCode.HEART_BEAT, body=b"[" * 5000),
        Command.request(RequestCode.HEART_BEAT, body=b'{"clientID":"c","consumerDataSet":5}'),
    ],
)
def test_an_invalid_heartbeat_is_refused(bench, command):
    reply = bench.must(command)
    assert reply.code == 1
    assert reply.remark
    assert bench.state.consumers.groups == {}
    assert bench.state.producers.groups == {}


def test_too_many_topics_refuse_a_new_groups_heartbeat(make_bench):
    bench = make_bench(max_topics=1)
    reply = bench.subscribe("g", "T")
    assert reply.code == 1
    assert "pocketmqMaxTopics" in reply.remark


@pytest.mark.parametrize(("kind", "code"), [("TAG", 0), (None, 0), ("JAVA", 23)])
def test_filters_by_tag_are_served_those_of_an_unknown_kind_are_not(bench, kind, code):
    body = CheckClientRequestBody(
        client_id="c", group="g", subscription_data=SubscriptionData(expression_type=kind)
    )
    reply = bench.must(Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=encode(body)))
    assert reply.code == code


def filter_data(bench, group: str = "g"):
    found = bench.state.filters.get("T", group)
    return None if found is None else found.data


def test_a_groups_filter_lives_as_long_as_the_group_and_then_is_dead(bench):
    other = FakeConnection(6666)
    bench.subscribe("g", "T", "a = 1", expression_type="SQL92")
    bench.subscribe("g", "T", "a = 1", expression_type="SQL92", connection=other)
    bench.processors.clients.closed(other)
    assert filter_data(bench).dead_time == 0
    bench.clock.advance(5)
    bench.processors.clients.closed(bench.connection)
    assert filter_data(bench).dead_time == bench.clock.now_ms()
    bench.subscribe("g", "T", "a = 1", expression_type="SQL92")
    assert filter_data(bench).dead_time == 0
    command = UnregisterClientRequestHeader(client_id="client-1", consumer_group="g")
    bench.must(Command.request(RequestCode.UNREGISTER_CLIENT, command))
    assert filter_data(bench).dead_time == bench.clock.now_ms()


def test_a_wrong_filter_is_told_to_our_clients_and_registers_all_the_rest(bench):
    wrong = SubscriptionData(topic="T", sub_string="a =", expression_type="SQL92")
    right = SubscriptionData(topic="T", sub_string="a = 1", expression_type="SQL92")
    consumers = [
        ConsumerData(group_name="g", subscription_data_set=[wrong]),
        ConsumerData(group_name="h", subscription_data_set=[right]),
    ]
    command = heartbeat(consumers=consumers, producers=["p"])
    assert bench.must(command).code == 0
    command = heartbeat(consumers=consumers, producers=["p"])
    command.pairs = ((ON_CONFLICT, "warn"),)
    reply = bench.must(command)
    assert reply.code == 23
    assert "Was expecting" in reply.remark
    assert filter_data(bench) is None
    assert filter_data(bench, "h").expression == "a = 1"
    assert "g" in bench.state.consumers.groups
    assert "p" in bench.state.producers.groups


def test_filters_beyond_the_limit_refuse_the_heartbeat(make_bench):
    bench = make_bench(limits=BrokerLimits(filter_bytes=2_000))
    assert bench.subscribe("g", "T", "a = 1", expression_type="SQL92").code == 0
    reply = bench.subscribe("h", "T", "a = 1", expression_type="SQL92")
    assert reply.code == 1
    assert "the broker keeps no more than 2000" in reply.remark
