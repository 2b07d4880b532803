"""Conflicting members: logged, described, and refused if ours."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import GetConsumerListByGroupResponseBody
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.own_codes import (
    CONFLICT,
    STRATEGY,
)
from remoting.runtime import DOCS
from tests.unit.broker.harness import fields_of, pull_command
from tests.unit.broker.watched import Consumer, describe, kinds, later, ours, warnings


def test_members_that_agree_are_no_finding(bench):
    Consumer(bench, "a", T="x || y").beat()
    with capture_logs() as logs:
        Consumer(bench, "b", T="y||x").beat()
    assert kinds(bench) == []
    assert warnings(logs) == []


def test_members_with_different_subscriptions_are_reported_at_once_with_both_names(bench):
    bench.topic("T")
    a, b = Consumer(bench, "a", T="*"), Consumer(bench, "b", U="*")
    a.beat()
    with capture_logs() as logs:
        b.beat()
    (line,) = warnings(logs)
    assert line["event"] == "members of a group subscribe differently"
    assert line["group"] == "g"
    assert line["members"] == "b a"
    assert line["docs"] == f"{DOCS}consumer-groups.md#one-group-one-subscription"
    assert "T (*)" in line["reason"]
    assert "U (*)" in line["reason"]
    (finding,) = describe(bench).conflicts
    assert finding.members == ["b", "a"]
    assert finding.since_ms == bench.clock.now_ms()


def test_foreign_members_that_differ_overwrite_each_other_as_with_apache(bench):
    bench.topic("T")
    bench.topic("U")
    a, b = Consumer(bench, "a", T="*"), Consumer(bench, "b", U="*")
    for consumer in (a, b):
        assert consumer.beat().code == 0
    pull = pull_command("T", sys_flag=0)
    assert bench.must(pull, a.connection).code == 24
    a.beat()
    pull = pull_command("T", sys_flag=0, sub_version=bench.clock.now_ms() + 1)
    assert bench.must(pull, a.connection).code == 25


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("message_model", "BROADCASTING", "messageModel"),
        ("consume_type", "CONSUME_ACTIVELY", "consumeType"),
        ("consume_from_where", "CONSUME_FROM_FIRST_OFFSET", "consumeFromWhere"),
    ],
)
def test_all_other_settings_must_match_too(bench, field, value, kind):
    Consumer(bench, "a", T="*").beat()
    Consumer(bench, "b", T="*").beat(**{field: value})
    assert kinds(bench) == [kind]


def test_a_contradiction_ends_when_the_member_leaves(bench):
    Consumer(bench, "a", T="*").beat()
    b = Consumer(bench, "b", U="*")
    b.beat()
    assert len(bench.state.findings) == 1
    b.close()
    assert len(bench.state.findings) == 0


def test_a_lasting_contradiction_is_logged_again_after_five_minutes(bench):
    a, b = Consumer(bench, "a", T="*"), Consumer(bench, "b", U="*")
    with capture_logs() as logs:
        a.beat()
        b.beat()
        later(bench, 290, a, b)
        assert len(warnings(logs)) == 1
        later(bench, 20, a, b)
    assert len(warnings(logs)) == 2


def test_known_strategies_have_to_be_the_same(bench):
    a, b, c = (ours(bench, name, "warn", T="*") for name in "abc")
    a.fields[STRATEGY], b.fields[STRATEGY] = "AVG", "STICKY"
    for consumer in (a, b, c):
        consumer.beat()
    (finding,) = describe(bench).conflicts
    assert (finding.kind, finding.members) == ("strategy", ["b", "a"])


# refusing members of ours


def test_our_member_is_refused_by_its_policy_with_the_member_it_contradicts(bench):
    Consumer(bench, "a", T="x").beat()
    newcomer = ours(bench, "b", T="y")
    reply = newcomer.beat()
    assert reply.code == 1
    conflict = json.loads(fields_of(reply)[CONFLICT])
    assert conflict["kind"] == "subscription"
    assert conflict["members"] == ["b", "a"]
    assert conflict["text"] == reply.remark
    assert bench.state.consumers.groups["g"].client_ids() == ["a"]
    assert bench.state.counters.members_refused == 1


@pytest.mark.parametrize("policy", ["warn", "allow"])
def test_our_member_may_contradict_if_its_policy_allows(bench, policy):
    Consumer(bench, "a", T="x").beat()
    assert ours(bench, "b", policy, T="y").beat().code == 0
    assert kinds(bench) == ["subscription"]


@pytest.mark.parametrize("policy", ["reject", "warn", "allow"])
def test_our_broadcasting_member_is_always_refused_in_a_clustering_group(bench, policy):
    Consumer(bench, "a", T="*").beat()
    reply = ours(bench, "b", policy, T="*").beat(message_model="BROADCASTING")
    assert json.loads(fields_of(reply)[CONFLICT])["kind"] == "messageModel"


def test_a_present_member_is_not_refused_because_of_a_later_one(bench):
    a = ours(bench, "a", T="x")
    a.beat()
    Consumer(bench, "b", T="y").beat()
    assert a.beat().code == 0


def test_a_vanished_member_does_not_keep_others_out(bench):
    Consumer(bench, "a", T="x").beat()
    bench.clock.advance(66)
    assert ours(bench, "b", T="y").beat().code == 0


def test_a_client_that_reconnects_with_other_subscriptions_does_not_contradict_itself(bench):
    ours(bench, "a", T="x").beat()
    assert ours(bench, "a", T="y").beat().code == 0


# one client id on two connections


def test_a_reconnected_client_is_no_finding(bench):
    Consumer(bench, "a", T="*").beat()
    again = Consumer(bench, "a", T="*")
    again.beat()
    later(bench, 60, again)
    assert kinds(bench) == []


def test_two_live_connections_with_one_client_id_are_found(bench):
    one, other = Consumer(bench, "a", T="*"), Consumer(bench, "a", T="*")
    one.beat()
    bench.clock.advance(1)
    other.beat()
    bench.clock.advance(29)
    with capture_logs() as logs:
        one.beat()
    (line,) = logs
    assert line["event"] == "two members of a group have one client id"
    assert one.connection.remote_text in line["reason"]
    assert other.connection.remote_text in line["reason"]
    other.close()
    assert kinds(bench) == []


def test_of_our_two_members_with_one_client_id_the_later_is_refused(bench):
    one, other = ours(bench, "a", T="*"), ours(bench, "a", T="*")
    for consumer in (one, other):
        consumer.beat()
        bench.clock.advance(1)
    assert one.beat().code == 0
    bench.clock.advance(1)
    reply = other.beat()
    assert json.loads(fields_of(reply)[CONFLICT])["kind"] == "clientId"
    assert bench.state.consumers.connections("g") == [one.connection]
    assert other.beat().code == 1
    assert one.beat().code == 0


# members of ours with different topics


def topics_told(bench, consumer: Consumer) -> list[tuple[list[str], list[str], bool]] | None:
    """Return what the answer with the members' ids says about their topics."""
    header = ConsumerGroupRequestHeader(consumer_group="g")
    command = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    body = bench.must(command, consumer.connection).body
    told = decode(GetConsumerListByGroupResponseBody, body).member_topics
    return told if told is None else [(one.topics, one.members, one.ours) for one in told]


def test_only_members_of_ours_are_told_who_subscribes_to_what_and_only_if_that_differs(bench):
    a, b = ours(bench, "a", "warn", T="*"), ours(bench, "b", "warn", T="*")
    foreign = Consumer(bench, "c", T="*")
    for consumer in (a, b, foreign):
        consumer.beat()
    assert topics_told(bench, a) is None
    b.topics["U"] = "*"
    b.beat()
    assert topics_told(bench, foreign) is None
    told = [(["T"], ["a"], True), (["T", "U"], ["b"], True), (["T"], ["c"], False)]
    assert sorted(topics_told(bench, a), key=lambda one: one[1]) == told


def test_members_of_ours_with_different_topics_all_pull_theirs(bench):
    for topic in "TU":
        bench.topic(topic)
    a, b = ours(bench, "a", "warn", T="*"), ours(bench, "b", "warn", U="*")
    for consumer in (a, b):
        consumer.beat()
    assert bench.must(pull_command("T", sys_flag=0), a.connection).code == 19
    assert bench.must(pull_command("U", sys_flag=0), b.connection).code == 19
    b.close()
    a.beat()
    assert bench.must(pull_command("U", sys_flag=0), a.connection).code == 24


def test_a_member_of_ours_that_changes_its_topics_has_the_others_notified(bench):
    a, b = ours(bench, "a", "warn", T="*", U="*"), ours(bench, "b", "warn", T="*")
    for consumer in (a, b):
        consumer.beat()
    a.connection.pushed.clear()
    b.beat()
    assert a.connection.pushed == []
    b.topics["U"] = "*"
    b.beat()
    assert [command.code for command in a.connection.pushed] == [40]
