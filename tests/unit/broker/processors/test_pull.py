"""Pulls: the rows of the decision table, the mapping of results, and pulls that wait."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies import decode
from remoting.protocol.bodies.offsets import OffsetMovedEvent
from remoting.protocol.codes import RequestCode
from remoting.protocol.message.view import iter_records
from tests.unit.broker.harness import Bench, FakeConnection, fields_of, pull_command

NO_SUBSCRIPTION = {"sys_flag": 0, "subscription": None}


def pull(bench: Bench, topic: str = "T", **fields):
    return bench.ask(pull_command(topic, **fields))


def refusal(bench: Bench, topic: str = "T", **fields) -> tuple[int, str]:
    reply = pull(bench, topic, **fields)
    assert reply.header is None
    return reply.code, reply.remark


def bounds(reply) -> tuple[int, int, int]:
    header = reply.header
    return header.next_begin_offset, header.min_offset, header.max_offset


# --- rows 1 to 13


def test_row_1_a_broker_without_read_permission(make_bench):
    bench = make_bench(broker_permission=2)
    bench.topic("T")
    assert refusal(bench) == (16, "the broker[127.0.0.1] pulling message is forbidden")


def test_row_2_an_unknown_group_that_can_not_be_made(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    bench.topic("T")
    code, remark = refusal(bench)
    assert code == 26
    assert remark.startswith("subscription group [g] does not exist, ")


def test_row_2_an_unknown_group_is_made_and_written(bench):
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
def test_row_7_an_expression_that_can_not_be_parsed(bench, fields):
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


NO_SQL = "The broker does not support consumer to filter message by SQL92"


def test_rows_12_and_13_sql_is_not_served_from_the_heartbeat(bench):
    bench.topic("T")
    bench.subscribe("g", "T", "a > 5", expression_type="SQL92")
    assert refusal(bench, **NO_SUBSCRIPTION) == (1, NO_SQL)


def test_row_13_sql_is_not_served_from_the_request(bench):
    bench.topic("T")
    assert refusal(bench, subscription="a > 5", expression_type="SQL92") == (1, NO_SQL)


def test_the_rows_come_in_their_order(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    assert refusal(bench, "NoSuchTopic", queue_id=7)[0] == 26
    bench.state.groups.auto_create = True
    assert refusal(bench, "NoSuchTopic", queue_id=7, subscription="||")[0] == 17
    bench.topic("T", perm=2)
    assert refusal(bench, queue_id=7, subscription="||")[0] == 16
    bench.topic("T", perm=6)
    assert refusal(bench, queue_id=7, subscription="||")[0] == 1
    assert refusal(bench, subscription="||")[0] == 23


# --- results


def test_messages_are_found(bench):
    bench.topic("T")
    for number in range(3):
        bench.send("T", b"m%d" % number)
    reply = pull(bench)
    assert (reply.code, reply.remark) == (0, "FOUND")
    assert bounds(reply) == (3, 0, 3)
    assert fields_of(reply)["suggestWhichBrokerId"] == "0"
    assert [record.body for record in iter_records(reply.body)] == [b"m0", b"m1", b"m2"]


def test_a_client_gets_no_more_messages_than_it_asked_for(bench):
    bench.topic("T")
    for _ in range(5):
        bench.send("T")
    reply = pull(bench, max_msg_nums=2, queue_offset=1)
    assert len(list(iter_records(reply.body))) == 2
    assert bounds(reply) == (3, 0, 5)


def test_asking_for_none_gives_one(bench):
    bench.topic("T")
    bench.send("T")
    assert len(list(iter_records(pull(bench, max_msg_nums=0).body))) == 1


def test_a_client_that_asks_as_apaches_do_gets_at_most_256_kib(bench):
    bench.topic("T")
    for _ in range(6):
        bench.send("T", bytes(100_000))
    assert len(list(iter_records(pull(bench, max_msg_nums=32).body))) == 2
    assert len(list(iter_records(pull(bench, max_msg_nums=33).body))) == 6


def test_a_client_may_limit_the_bytes(bench):
    bench.topic("T")
    for _ in range(3):
        bench.send("T", bytes(1000))
    assert len(list(iter_records(pull(bench, max_msg_bytes=1500).body))) == 1


@pytest.mark.parametrize(
    ("sent", "offset", "code", "remark", "next_offset"),
    [
        (0, 0, 19, "NO_MESSAGE_IN_QUEUE", 0),
        (0, 5, 21, "NO_MESSAGE_IN_QUEUE", 0),
        (2, 2, 19, "OFFSET_OVERFLOW_ONE", 2),
        (2, 9, 21, "OFFSET_OVERFLOW_BADLY", 2),
        (2, -1, 21, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_what_is_not_there_has_its_code(bench, sent, offset, code, remark, next_offset):
    bench.topic("T")
    for _ in range(sent):
        bench.send("T")
    reply = pull(bench, queue_offset=offset)
    assert (reply.code, reply.remark) == (code, remark)
    assert bounds(reply) == (next_offset, 0, sent)


def test_messages_of_other_tags_are_passed_over(bench):
    bench.topic("T")
    for tag in "abab":
        bench.send("T", tag.encode(), properties=f"TAGS\x01{tag}")
    reply = pull(bench, subscription="b || c")
    assert [record.body for record in iter_records(reply.body)] == [b"b", b"b"]
    assert bounds(reply) == (4, 0, 4)
    none = pull(bench, subscription="c")
    assert (none.code, none.remark) == (20, "NO_MATCHED_MESSAGE")
    assert bounds(none) == (4, 0, 4)


def test_the_groups_own_subscription_filters_too(bench):
    bench.topic("T")
    for tag in "ab":
        bench.send("T", tag.encode(), properties=f"TAGS\x01{tag}")
    bench.subscribe("g", "T", "b")
    reply = pull(bench, **NO_SUBSCRIPTION)
    assert [record.body for record in iter_records(reply.body)] == [b"b"]


def test_lite_pulls_are_pulls(bench):
    bench.topic("T")
    bench.send("T")
    reply = pull(bench, code=RequestCode.LITE_PULL_MESSAGE, sys_flag=4 | 16)
    assert reply.code == 0


def test_an_offset_beyond_the_end_leaves_an_event_for_those_who_watch(bench):
    bench.topic("T")
    bench.send("T")
    pull(bench, queue_offset=9)
    (record,) = iter_records(bench.store.get("OFFSET_MOVED_EVENT", 0, 0, 1).records[0])
    assert (record.tags, record.keys) == ("g", ["g"])
    event = decode(OffsetMovedEvent, record.body)
    assert (event.consumer_group, event.offset_request, event.offset_new) == ("g", 9, 1)
    assert str(event.message_queue) == "T/broker-a/0"


# --- progress


def test_a_pull_can_carry_progress(bench):
    bench.topic("T")
    bench.send("T")
    pull(bench, sys_flag=4 | 1, commit_offset=7)
    assert bench.state.offsets.query("g", "T", 0) == 7


def test_progress_counts_even_if_nothing_is_found_or_the_pull_is_held(bench):
    bench.topic("T")
    pull(bench, sys_flag=4 | 1, commit_offset=3, queue_offset=0)
    assert bench.state.offsets.query("g", "T", 0) == 3
    held = pull(bench, sys_flag=4 | 2 | 1, commit_offset=4, suspend_timeout_millis=1000)
    assert held is None
    assert bench.state.offsets.query("g", "T", 0) == 4


def test_progress_without_its_bit_does_not_count(bench):
    bench.topic("T")
    pull(bench, commit_offset=7)
    assert bench.state.offsets.query("g", "T", 0) == -1


def test_a_refused_pull_commits_nothing(bench):
    bench.topic("T")
    pull(bench, queue_id=9, sys_flag=4 | 1, commit_offset=7)
    assert len(bench.state.offsets) == 0


# --- pulls that wait


def hold(bench: Bench, **fields) -> None:
    fields = {"sys_flag": 4 | 2, "suspend_timeout_millis": 3000, **fields}
    assert pull(bench, **fields) is None


def wake(bench: Bench, pulls) -> list:
    bench.processors.pull.wake(pulls)
    sent, bench.connection.sent = bench.connection.sent, []
    return sent


def arrive(bench: Bench, tag: str = "") -> list:
    bench.state.store.on_arrival = lambda *event: woken.extend(
        bench.state.long_polls.arrived(*event)
    )
    woken: list = []
    bench.send("T", b"new", properties=f"TAGS\x01{tag}" if tag else None)
    return wake(bench, woken)


def test_a_held_pull_is_answered_by_the_message_it_waits_for(bench):
    bench.topic("T")
    hold(bench)
    (reply,) = arrive(bench)
    assert reply.code == 0
    assert [record.body for record in iter_records(reply.body)] == [b"new"]
    assert len(bench.state.long_polls) == 0


def test_a_held_pull_sleeps_through_messages_of_other_tags(bench):
    bench.topic("T")
    hold(bench, subscription="a")
    assert arrive(bench, "b") == []
    (reply,) = arrive(bench, "a")
    assert len(list(iter_records(reply.body))) == 1
    assert bounds(reply) == (2, 0, 2)


def test_a_held_pull_is_answered_with_nothing_when_its_time_is_over(bench):
    bench.topic("T")
    bench.send("T")
    hold(bench, queue_offset=1)
    bench.clock.advance(2.9)
    assert bench.state.long_polls.expired(bench.clock.monotonic()) == []
    bench.clock.advance(0.4)
    (reply,) = wake(bench, bench.state.long_polls.expired(bench.clock.monotonic()))
    assert (reply.code, reply.remark) == (19, "OFFSET_OVERFLOW_ONE")
    assert bounds(reply) == (1, 0, 1)


def test_a_pull_held_too_long_for_its_filter_learns_where_to_go_on(bench):
    bench.topic("T")
    hold(bench, subscription="a")
    arrive(bench, "b")
    bench.clock.advance(4)
    (reply,) = wake(bench, bench.state.long_polls.expired(bench.clock.monotonic()))
    assert reply.code == 20
    assert bounds(reply) == (1, 0, 1)


def test_short_polling_waits_its_own_time(make_bench):
    bench = make_bench(long_polling_enable=False, short_polling_time_ms=500)
    bench.topic("T")
    hold(bench, suspend_timeout_millis=60_000)
    bench.clock.advance(0.8)
    assert len(bench.state.long_polls.expired(bench.clock.monotonic())) == 1


def test_a_pull_that_may_not_be_held_is_answered_at_once(bench):
    bench.topic("T")
    assert pull(bench, suspend_timeout_millis=3000).code == 19


def test_a_pull_at_a_wrong_offset_is_not_held(bench):
    bench.topic("T")
    assert pull(bench, sys_flag=4 | 2, queue_offset=5, suspend_timeout_millis=3000).code == 21


def test_more_parked_pulls_than_allowed_are_answered_at_once(make_bench):
    bench = make_bench(max_parked_pulls=1)
    bench.topic("T")
    hold(bench)
    assert pull(bench, sys_flag=4 | 2, suspend_timeout_millis=3000).code == 19


def test_a_parked_pull_keeps_only_what_it_needs(bench):
    bench.topic("T")
    command = pull_command("T", sys_flag=6, suspend_timeout_millis=3000, bname="b" * 100_000)
    command.pairs = (("junk", "x" * 100_000),)
    assert bench.ask(command) is None
    (parked,) = bench.state.long_polls.drain()
    assert parked.request.command.pairs is None
    assert parked.request.header.bname is None


def test_a_broker_that_stops_holds_no_pull(bench):
    bench.topic("T")
    bench.state.stopping = True
    assert pull(bench, sys_flag=4 | 2, suspend_timeout_millis=3000).code == 19


def test_a_woken_pull_commits_nothing(bench):
    bench.topic("T")
    hold(bench, sys_flag=4 | 2 | 1, commit_offset=4)
    bench.state.offsets.commit("g", "T", 0, 9)
    arrive(bench)
    assert bench.state.offsets.query("g", "T", 0) == 9


def test_a_woken_pull_passes_the_rows_again(bench):
    bench.topic("T")
    hold(bench)
    parked = bench.state.long_polls.drain()
    bench.state.topics.delete("T", 1)
    (reply,) = wake(bench, parked)
    assert reply.code == 17


def test_a_fault_in_a_woken_pull_is_answered_and_does_not_reach_the_others(bench, monkeypatch):
    bench.topic("T")
    hold(bench)
    hold(bench)
    parked = bench.state.long_polls.drain()
    real, calls = bench.store.get, []

    def get(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("boom")
        return real(*args, **kwargs)

    monkeypatch.setattr(bench.store, "get", get)
    first, second = wake(bench, parked)
    assert (first.code, second.code) == (1, 19)


def test_pulls_of_a_closed_connection_are_not_run(bench):
    bench.topic("T")
    hold(bench)
    parked = bench.state.long_polls.drain()
    bench.connection.closed = True
    assert wake(bench, parked) == []


def test_a_connection_that_closes_takes_its_parked_pulls_along(bench):
    bench.topic("T")
    hold(bench)
    other = FakeConnection(6666)
    assert bench.ask(pull_command("T", sys_flag=6, suspend_timeout_millis=9), other) is None
    bench.processors.clients.closed(bench.connection)
    assert len(bench.state.long_polls) == 1
