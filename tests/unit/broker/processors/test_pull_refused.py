"""Refused pulls: the checks in their order."""

from __future__ import annotations

import pytest

from tests.unit.broker.harness import Bench
from tests.unit.broker.processors.pulls import NO_SUBSCRIPTION, pull


def refusal(bench: Bench, topic: str = "T", **fields) -> tuple[int, str]:
    reply = pull(bench, topic, **fields)
    assert reply.header is None
    return reply.code, reply.remark


def test_row_1_a_broker_without_read_permission(make_bench):
    bench = make_bench(broker_permission=2)
    bench.topic("T")
    assert refusal(bench) == (16, "the broker[127.0.0.1] pulling message is forbidden")


def test_row_2_an_unknown_group_that_cannot_be_made(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    bench.topic("T")
    code, remark = refusal(bench)
    assert code == 26
    assert remark.startswith("subscription group [g] does not exist, ")


def test_row_2_an_unknown_group_is_created_and_saved(bench):
    bench.topic("T")
    pull(bench)
    assert bench.state.groups.get("g") is not None
    assert bench.changes.groups == 1
    pull(bench)
    assert bench.changes.groups == 1


def test_row_2_too_many_groups(make_bench):
    bench = make_bench(max_groups=1)
    bench.topic("T")
    code, remark = refusal(bench)
    assert code == 1
    assert "pocketmqMaxGroups" in remark


def test_row_3_a_group_that_may_not_consume(bench):
    bench.topic("T")
    bench.state.groups.find("g", 1).consume_enable = False
    assert refusal(bench) == (16, "subscription group no permission, g")


def test_row_4_an_unknown_topic(bench):
    code, remark = refusal(bench, "NoSuchTopic")
    assert code == 17
    assert remark.startswith("topic[NoSuchTopic] not exist, apply first please! \nSee http")


def test_row_5_a_topic_that_may_not_be_read(bench):
    bench.topic("T", perm=2)
    assert refusal(bench) == (16, "the topic[T] pulling message is forbidden")


@pytest.mark.parametrize("queue_id", [-1, 1, 7])
def test_row_6_a_queue_that_the_topic_does_not_have(bench, queue_id):
    bench.topic("T")
    assert refusal(bench, queue_id=queue_id) == (
        1,
        f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[1] "
        "consumer:[/10.0.0.7:5555]",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"subscription": "||"},
        {"subscription": " || || "},
        {"subscription": "a" * 40_000},
        {"subscription": "", "expression_type": "SQL92"},
        {"subscription": None, "expression_type": "SQL92"},
    ],
)
def test_row_7_an_expression_that_cannot_be_parsed(bench, fields):
    bench.topic("T")
    assert refusal(bench, **fields) == (23, "parse the consumer's subscription failed")


def test_row_8_a_group_that_is_offline(bench):
    bench.topic("T")
    code, remark = refusal(bench, **NO_SUBSCRIPTION)
    assert code == 24
    assert remark.startswith("the consumer's group info not exist\nSee http")


def test_row_9_a_group_that_may_not_broadcast(bench):
    bench.topic("T")
    bench.subscribe("g", "T", message_model="BROADCASTING")
    bench.state.groups.get("g").consume_broadcast_enable = False
    assert refusal(bench, **NO_SUBSCRIPTION) == (
        16,
        "the consumer group[g] can not consume by broadcast way",
    )
    bench.state.groups.get("g").consume_broadcast_enable = True
    assert pull(bench, **NO_SUBSCRIPTION).code == 19


def test_row_10_a_topic_that_the_group_does_not_subscribe(bench):
    bench.topic("T")
    bench.subscribe("g", "U")
    code, remark = refusal(bench, **NO_SUBSCRIPTION)
    assert code == 24
    assert remark.startswith("the consumer's subscription not exist\nSee http")


def test_row_11_a_subscription_older_than_the_clients(bench):
    bench.topic("T")
    bench.subscribe("g", "T", version=5)
    assert refusal(bench, **NO_SUBSCRIPTION, sub_version=6) == (
        25,
        "the consumer's subscription not latest",
    )
    assert pull(bench, **NO_SUBSCRIPTION, sub_version=5).code == 19


def test_the_checks_apply_in_their_order(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    assert refusal(bench, "NoSuchTopic", queue_id=7)[0] == 26
    bench.state.groups.auto_create = True
    assert refusal(bench, "NoSuchTopic", queue_id=7, subscription="||")[0] == 17
    bench.topic("T", perm=2)
    assert refusal(bench, queue_id=7, subscription="||")[0] == 16
    bench.topic("T", perm=6)
    assert refusal(bench, queue_id=7, subscription="||")[0] == 1
    assert refusal(bench, subscription="||")[0] == 23
