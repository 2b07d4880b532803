"""Producers, subscriptions and read permissions of groups, and the lowest offsets of a topic."""

from __future__ import annotations

import json

import pytest

from broker import limits
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.group import SubscriptionGroupWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import (
    GroupRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from remoting.protocol.headers.pull import QueryCorrectionOffsetHeader
from tests.unit.broker.harness import Bench, FakeConnection, fields_of, heartbeat, pull_command


def text(bench: Bench, code: int, header=None) -> str:
    reply = bench.must(Command.request(code, header))
    assert reply.code == 0
    return bytes(reply.body).decode()


def test_the_producers_of_all_groups_are_listed_in_rocketmqs_form(bench):
    assert text(bench, RequestCode.GET_ALL_PRODUCER_INFO) == '{"data":{}}'
    bench.must(heartbeat("one", producers=["a", "b"]))
    bench.must(heartbeat("two", producers=["a"]), FakeConnection(6666))
    now = bench.clock.now_ms()
    one, two = (
        f'{{"clientId":"{name}","language":"JAVA","lastUpdateTimestamp":{now},'
        f'"remoteIP":"/10.0.0.7:{port}","version":407}}'
        for name, port in (("one", 5555), ("two", 6666))
    )
    assert text(bench, RequestCode.GET_ALL_PRODUCER_INFO) == (
        f'{{"data":{{"a":[{one},{two}],"b":[{one}]}}}}'
    )


def test_the_topics_of_a_group_are_those_in_which_it_has_offsets(bench):
    for topic in ("T", "U"):
        bench.state.offsets.commit("g", topic, 0, 1)
    bench.state.offsets.commit("other", "V", 0, 1)
    assert text(bench, RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupRequestHeader(group="g")) == (
        '{"brokerAddr":"127.0.0.1:20911","topicList":["T","U"]}'
    )


def test_the_subscription_of_an_online_group_is_returned(bench):
    bench.subscribe("g", "T", "a")

    def ask(group: str, topic: str | None) -> dict:
        header = QuerySubscriptionByConsumerRequestHeader(group=group, topic=topic)
        return json.loads(text(bench, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header))

    found = ask("g", "T")
    assert (found["group"], found["topic"]) == ("g", "T")
    assert found["subscriptionData"]["subString"] == "a"
    assert ask("g", "U") == {"group": "g", "topic": "U"}
    assert ask("offline", "T") == {"group": "offline", "topic": "T"}
    assert ask("g", None) == {"group": "g"}


def forbid(bench: Bench, group: str, topic: str, readable: bool | None = None) -> Command:
    header = UpdateGroupForbiddenRequestHeader(group=group, topic=topic, readable=readable)
    return bench.must(Command.request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header))


def body(readable: str) -> bytes:
    return f'{{"group":"g","readable":{readable},"topic":"T"}}'.encode()


def test_a_group_that_may_not_read_a_topic_is_refused_until_it_may_again(bench):
    bench.topic("T")
    bench.send("T")
    bench.subscribe("g", "T")
    pull = pull_command("T", sys_flag=0, sub_version=1)
    assert forbid(bench, "g", "T").body == body("true")
    assert bench.changes.groups == 1  # by the subscription
    assert bench.must(pull).code == 0
    before = bench.state.groups.data_version
    assert forbid(bench, "g", "T", readable=False).body == body("false")
    assert bench.state.groups.data_version != before
    assert bench.changes.groups == 2
    reply = bench.must(pull)
    assert (reply.code, reply.remark) == (
        16,
        "the consumer group[g] is forbidden for topic[T]",
    )
    assert bench.must(pull_command("T")).code == 0, "it brings its own subscription"
    assert forbid(bench, "g", "T", readable=True).body == body("true")
    assert bench.must(pull).code == 0
    assert bench.state.groups.forbidden == {}


def test_what_groups_may_not_read_is_returned_with_all_groups(bench):
    command = Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert b"forbiddenTable" not in bench.must(command).body
    forbid(bench, "g", "T", readable=False)
    listed = decode(SubscriptionGroupWrapper, bench.must(command).body)
    assert listed.forbidden_table == {"g": {"T": 4}}
    assert listed.subscription_group_table == bench.state.groups.table


def test_a_deleted_group_is_forbidden_nothing(bench):
    forbid(bench, "g", "T", readable=False)
    bench.state.groups.delete("g", 1)
    assert forbid(bench, "g", "T").body == body("true")


@pytest.mark.parametrize(("group", "topic"), [("bad group", "T"), ("g", "../T"), ("g", "")])
def test_names_that_are_invalid_are_not_kept(bench, group, topic):
    assert forbid(bench, group, topic, readable=False).code == 1
    assert bench.state.groups.forbidden == {}


def test_forbidden_topics_are_limited(bench, monkeypatch):
    monkeypatch.setattr("broker.groups.subscriptions.MAX_FORBIDDEN", 2)
    assert limits.MAX_FORBIDDEN >= 2
    for topic in ("T", "U"):
        assert forbid(bench, "g", topic, readable=False).code == 0
    reply = forbid(bench, "g", "V", readable=False)
    assert reply.code == 1
    assert "at most 2" in (reply.remark or "")
    assert forbid(bench, "g", "U", readable=False).code == 0


def test_the_lowest_offsets_of_a_topic_are_those_of_the_slowest_group(bench):
    bench.topic("T", queues=2)
    for group, offsets in {"a": {0: 5, 1: 9}, "b": {0: 7}, "c": {0: 3}}.items():
        for queue_id, offset in offsets.items():
            bench.state.offsets.commit(group, "T", queue_id, offset)

    def ask(filtered: str | None) -> str:
        header = QueryCorrectionOffsetHeader(topic="T", compare_group="a", filter_groups=filtered)
        return text(bench, RequestCode.QUERY_CORRECTION_OFFSET, header)

    assert ask(None) == '{"correctionOffsets":{0:3,1:9}}'
    assert ask("c,x") == '{"correctionOffsets":{0:5,1:9}}'
    assert ask("a,b,c") == '{"correctionOffsets":{}}'
    assert bench.state.offsets.query("c", "T", 0) == 3, "RocketMQ deletes it"


def test_the_configuration_names_the_address_in_use(bench):
    reply = bench.must(Command.request(RequestCode.GET_BROKER_CONFIG))
    assert b"brokerIP1=127.0.0.1\n" in bytes(reply.body)
    assert "version" in fields_of(reply)
