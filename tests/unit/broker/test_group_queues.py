"""Problems with the queues of a group, and the description of a group."""

from __future__ import annotations

import json

from structlog.testing import capture_logs

from remoting.protocol.bodies import encode
from remoting.protocol.bodies.description import GroupDescriptionBody
from remoting.protocol.bodies.group import LockBatchRequestBody
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import (
    BLOCKED,
    STRATEGY,
)
from remoting.protocol.queue import MessageQueue
from remoting.runtime import DOCS
from tests.unit.broker.harness import FakeConnection
from tests.unit.broker.watched import Consumer, commit, describe, kinds, later, ours, warnings


def test_more_members_than_queues(bench):
    bench.topic("T", queues=2)
    consumers = [ours(bench, name, "warn", T="*") for name in "abc"]
    for consumer in consumers:
        consumer.fields[STRATEGY] = "AVG"
        consumer.beat()
    (finding,) = describe(bench).warnings
    assert (finding.kind, finding.members) == ("idleMembers", ["c"])
    assert finding.docs == f"{DOCS}consumer-groups.md#one-owner-per-queue"
    consumers[0].close()
    assert kinds(bench) == []


def test_queues_of_other_brokers_count_for_idle_members(bench):
    class Spread:
        def queues(self, topic: str) -> list[MessageQueue] | None:
            return [MessageQueue(topic, name, 0) for name in ("broker-a", "broker-b")]

    bench.topic("T", queues=1)
    bench.state.spread = Spread()
    for name in "ab":
        Consumer(bench, name, T="*").beat()
    assert kinds(bench) == []
    Consumer(bench, "c", T="*").beat()
    assert kinds(bench) == ["idleMembers"]


def test_an_unpulled_queue_is_reported_with_its_owner(bench):
    bench.topic("T", queues=2)
    bench.send("T", queue_id=0)
    bench.send("T", queue_id=1)
    a, b = ours(bench, "a", T="*"), ours(bench, "b", T="*")
    for consumer in (a, b):
        consumer.fields[STRATEGY] = "AVG"
        consumer.beat()
    bench.processors.monitor.check("g")
    with capture_logs() as logs:
        for _ in range(4):
            a.pull(queue_id=0)
            later(bench, 10, a, b)
    (line,) = logs
    assert line["event"] == "nobody pulls a queue that has messages"
    assert (line["topic"], line["queue"], line["members"]) == ("T", 1, "b")
    b.pull(queue_id=1)
    assert kinds(bench) == []
    info = describe(bench).queues[1]
    assert (info.last_puller, info.last_pull_ms) == ("b", bench.clock.now_ms())


def test_the_owner_is_not_guessed(bench):
    bench.topic("T")
    bench.send("T")
    a = Consumer(bench, "a", T="*")
    a.beat()
    bench.processors.monitor.check("g")
    later(bench, 40, a)
    (finding,) = describe(bench).warnings
    assert (finding.kind, finding.members) == ("unpulledQueue", [])


def test_a_full_consumer_that_makes_progress_is_alive(bench):
    bench.topic("T")
    for _ in range(9):
        bench.send("T")
    a = Consumer(bench, "a", T="*")
    a.beat()
    for offset in range(6):
        commit(bench, offset)
        later(bench, 20, a)
    assert kinds(bench) == []


def test_a_consumer_that_holds_the_lock_is_alive(bench):
    bench.topic("T")
    bench.send("T")
    a = Consumer(bench, "a", T="*")
    a.beat()
    lock = LockBatchRequestBody(
        consumer_group="g", client_id="a", mq_set=[MessageQueue("T", "broker-a", 0)]
    )
    for _ in range(4):
        bench.must(Command.request(RequestCode.LOCK_BATCH_MQ, body=encode(lock)))
        later(bench, 20, a)
    assert kinds(bench) == []
    assert describe(bench).queues[0].lock_owner == "a"


def test_a_queue_is_reported_30_s_after_the_last_pull_of_a_member_that_left(bench):
    bench.topic("T", queues=2)
    bench.send("T")
    a, b = Consumer(bench, "a", T="*"), Consumer(bench, "b", T="*")
    for consumer in (a, b):
        consumer.beat()
    bench.processors.monitor.check("g")
    later(bench, 20, a, b)
    b.pull()
    later(bench, 20, a, b)
    assert kinds(bench) == []
    b.close()
    later(bench, 9, a)
    assert kinds(bench) == []
    later(bench, 1, a)
    assert kinds(bench) == ["unpulledQueue"]


def test_pulls_of_non_members_do_not_count(bench):
    bench.topic("T")
    Consumer(bench, "a", T="*").beat()
    Consumer(bench, "x", T="*").pull()
    assert describe(bench).queues[0].last_puller is None


def test_a_queue_without_new_messages_need_not_be_pulled(bench):
    bench.topic("T")
    bench.send("T")
    a = Consumer(bench, "a", T="*")
    a.beat()
    commit(bench, 1)
    later(bench, 60, a)
    assert kinds(bench) == []


def test_a_consumer_with_assigned_queues_may_ignore_a_queue(bench):
    bench.topic("T")
    bench.send("T")
    a = Consumer(bench, "a", T="*")
    a.beat(consume_type="CONSUME_ACTIVELY")
    later(bench, 60, a)
    assert kinds(bench) == []


def test_a_changed_number_of_queues_is_reported_while_members_are_online(bench):
    bench.topic("T", queues=2)
    Consumer(bench, "a", T="*").beat()
    bench.processors.monitor.check("g")
    bench.topic("T", queues=4)
    with capture_logs() as logs:
        bench.processors.monitor.check("g")
    (line,) = logs
    assert (line["topic"], line["before"], line["after"]) == ("T", 2, 4)
    assert kinds(bench) == ["queuesChanged"]
    bench.clock.advance(601)
    assert kinds(bench) == []


def test_an_offset_that_goes_backwards_is_in_the_description(bench):
    bench.topic("T")
    commit(bench, 9)
    commit(bench, 4)
    (finding,) = describe(bench).warnings
    assert (finding.kind, finding.topic, finding.queue_id) == ("offsetBackwards", "T", 0)
    assert "from 9 to 4: 5 messages" in finding.text


def test_blocked_queues_are_those_that_consumers_report(bench):
    bench.topic("T")
    bench.send("T")
    a = ours(bench, "a", T="*")
    stop = {
        "group": "g",
        "topic": "T",
        "queueId": 0,
        "broker": "broker-a",
        "offset": 0,
        "msgId": "M1",
        "sinceMs": 123,
        "error": "ValueError: no",
    }
    a.fields[BLOCKED] = json.dumps([stop, {**stop, "broker": "broker-b"}])
    with capture_logs() as logs:
        a.beat()
        bench.processors.monitor.check("g")
    (line,) = warnings(logs)
    assert line["event"] == "a failing message stops a queue"
    assert "M1" in line["reason"]
    assert "ValueError: no" in line["reason"]
    description = describe(bench)
    (finding,) = description.warnings
    assert (finding.kind, finding.members, finding.since_ms) == ("blockedQueue", ["a"], 123)
    info = description.queues[0]
    assert (info.blocked_by, info.blocked_since) == ("a", 123)
    commit(bench, 1)
    assert kinds(bench) == []
    assert describe(bench).queues[0].blocked_by is None


def test_an_invalid_list_of_blocked_queues_is_refused_with_a_message(bench):
    a = ours(bench, "a", T="*")
    a.fields[BLOCKED] = "[[["
    reply = a.beat()
    assert reply.code == 1
    assert reply.remark
    a.fields[BLOCKED] = "[" + ",".join(['{"group":"g"}'] * 65) + "]"
    assert "at most 64" in (a.beat().remark or "")


# describing


def test_members_are_described_with_their_own_settings(bench):
    bench.topic("T")
    a = ours(bench, "a", T="x")
    a.fields[STRATEGY] = "AVG"
    a.beat()
    joined_ms = bench.clock.now_ms()
    later(bench, 10, a)
    Consumer(bench, "b", T="y").beat()
    first, second = describe(bench).members
    assert (first.client_id, first.client_addr, first.ours) == ("a", a.connection.remote_text, True)
    assert (first.joined_ms, first.last_heartbeat_ms) == (joined_ms, joined_ms + 10_000)
    assert (first.strategy, first.consume_type) == ("AVG", "CONSUME_PASSIVELY")
    assert [one.sub_string for one in first.subscriptions] == ["x"]
    assert (second.ours, [one.sub_string for one in second.subscriptions]) == (False, ["y"])


def test_a_group_that_is_offline_is_described_by_its_offsets(bench):
    bench.topic("T", queues=2)
    for _ in range(3):
        bench.send("T")
    commit(bench, 1)
    description = describe(bench)
    assert description.members == []
    assert [(one.queue_id, one.max_offset, one.committed) for one in description.queues] == [
        (0, 3, 1),
        (1, 0, -1),
    ]


def test_an_unknown_group_is_described_as_empty(bench):
    assert describe(bench, "nobody") == GroupDescriptionBody()


def test_a_round_checks_all_groups_in_small_steps(bench):
    bench.topic("T", queues=8)
    for number in range(20):
        group = f"g{number}"
        bench.subscribe(group, "T", connection=FakeConnection(7000 + number))
    checked: list[str] = []
    watch = bench.processors.monitor
    check = watch.check

    def remember(name: str) -> int:
        checked.append(name)
        return check(name)

    watch.check = remember  # type: ignore[method-assign] # spied on
    watch.step(budget=30)
    assert 0 < len(checked) < 20
    for _ in range(20):
        watch.step(budget=30)
    assert len(checked) == 20
    bench.clock.advance(10)
    watch.step(budget=10_000)
    assert len(checked) == 40


def test_the_owner_is_one_that_subscribes_to_the_topic_unless_there_are_foreign_members(bench):
    bench.topic("T")
    bench.topic("U")
    bench.send("T")
    a, b = ours(bench, "a", "warn", U="*"), ours(bench, "b", "warn", T="*", U="*")
    for consumer in (a, b):
        consumer.fields[STRATEGY] = "AVG"
        consumer.beat()
    bench.processors.monitor.check("g")
    later(bench, 40, a, b)
    (finding,) = describe(bench).warnings
    assert (finding.kind, finding.members) == ("unpulledQueue", ["b"])
    foreign = Consumer(bench, "c", U="*")
    later(bench, 10, a, b, foreign)
    (finding,) = describe(bench).warnings
    assert (finding.kind, finding.members) == ("unpulledQueue", ["a"])
