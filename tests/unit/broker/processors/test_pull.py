"""Pulls: the mapping of results, and the commits that they carry."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies import decode
from remoting.protocol.bodies.group import OffsetMovedEvent, SubscriptionGroupConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.message.view import iter_records
from tests.unit.broker.harness import fields_of
from tests.unit.broker.processors.pulls import NO_SUBSCRIPTION, bounds, pull

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


def test_a_client_gets_no_more_messages_than_it_requested(bench):
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
def test_missing_messages_have_their_response_codes(bench, sent, offset, code, remark, next_offset):
    bench.topic("T")
    for _ in range(sent):
        bench.send("T")
    reply = pull(bench, queue_offset=offset)
    assert (reply.code, reply.remark) == (code, remark)
    assert bounds(reply) == (next_offset, 0, sent)


def test_messages_of_other_tags_are_skipped(bench):
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


@pytest.mark.parametrize(
    ("enabled", "percent", "offset", "suggested"),
    [
        (False, 0, 0, "0"),
        (True, 40, 0, "3"),
        (True, 0, 0, "5"),  # the next message is older than the newest 0 % of the memory
        (True, 0, 1, "3"),  # the end of the queue
        (True, 0, 2, "3"),
        (True, 0, -1, "5"),
    ],
)
def test_a_group_that_reads_far_behind_is_sent_to_its_slave(
    make_bench, enabled, percent, offset, suggested
):
    bench = make_bench(slave_read_enable=enabled, access_message_in_memory_max_ratio=percent)
    bench.topic("T")
    for _ in range(2):
        bench.send("T")
    group = SubscriptionGroupConfig("g", broker_id=3, which_broker_when_consume_slowly=5)
    bench.state.groups.put(group, 0)
    reply = pull(bench, queue_offset=offset, max_msg_nums=1)
    assert fields_of(reply)["suggestWhichBrokerId"] == suggested


def test_an_offset_beyond_the_end_stores_an_offset_moved_event(bench):
    bench.topic("T")
    bench.send("T")
    pull(bench, queue_offset=9)
    (record,) = iter_records(bench.store.get("OFFSET_MOVED_EVENT", 0, 0, 1).records[0])
    assert (record.tags, record.keys) == ("g", ["g"])
    event = decode(OffsetMovedEvent, record.body)
    assert (event.consumer_group, event.offset_request, event.offset_new) == ("g", 9, 1)
    assert str(event.message_queue) == "T/broker-a/0"


# --- progress


def test_a_pull_can_carry_a_commit(bench):
    bench.topic("T")
    bench.send("T")
    pull(bench, sys_flag=4 | 1, commit_offset=7)
    assert bench.state.offsets.query("g", "T", 0) == 7


def test_the_commit_of_a_pull_counts_even_if_nothing_is_found_or_the_pull_is_held(bench):
    bench.topic("T")
    pull(bench, sys_flag=4 | 1, commit_offset=3, queue_offset=0)
    assert bench.state.offsets.query("g", "T", 0) == 3
    held = pull(bench, sys_flag=4 | 2 | 1, commit_offset=4, suspend_timeout_millis=1000)
    assert held is None
    assert bench.state.offsets.query("g", "T", 0) == 4


def test_a_commit_without_its_flag_does_not_count(bench):
    bench.topic("T")
    pull(bench, commit_offset=7)
    assert bench.state.offsets.query("g", "T", 0) == -1


def test_a_refused_pull_commits_nothing(bench):
    bench.topic("T")
    pull(bench, queue_id=9, sys_flag=4 | 1, commit_offset=7)
    assert len(bench.state.offsets) == 0
