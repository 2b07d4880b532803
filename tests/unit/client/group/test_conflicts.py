"""Settings that must be equal in a group, compared with the broker's copy."""

from __future__ import annotations

from typing import Any

import pytest

from client.group.conflicts import contradiction, refusal
from remoting.protocol.bodies.clients import ConsumerConnection
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import CONFLICT


def wants(topic: str, text: str = "*") -> SubscriptionData:
    tags = [] if text in {"", "*"} else text.split(" || ")
    return SubscriptionData(topic=topic, sub_string=text, tags_set=tags)


def mine(*subscriptions: SubscriptionData, **fields: Any) -> ConsumerData:
    return ConsumerData(group_name="g", subscription_data_set=list(subscriptions), **fields)


def theirs(*subscriptions: SubscriptionData, **fields: Any) -> ConsumerConnection:
    return ConsumerConnection(
        subscription_table={one.topic: one for one in subscriptions},
        **{
            "consume_type": "CONSUME_PASSIVELY",
            "message_model": "CLUSTERING",
            "consume_from_where": "CONSUME_FROM_LAST_OFFSET",
            **fields,
        },
    )


def test_equal_members_do_not_conflict():
    assert contradiction(mine(wants("T", "a || b")), theirs(wants("T", "b || a"))) is None
    assert contradiction(mine(wants("T")), theirs(wants("T", ""))) is None


def test_the_retry_topic_and_unknown_settings_do_not_count():
    retry = wants("%RETRY%g")
    assert contradiction(mine(wants("T"), retry), theirs(wants("T"))) is None
    silent = theirs(wants("T"), consume_type=None, message_model=None, consume_from_where=None)
    assert contradiction(mine(wants("T")), silent) is None


@pytest.mark.parametrize(
    ("own", "other", "kind", "text"),
    [
        (mine(wants("T", "a")), theirs(wants("T", "b")), "subscription", "a of topic T"),
        (mine(wants("T")), theirs(wants("T", "b || a")), "subscription", "the other a || b"),
        (mine(wants("T"), wants("U")), theirs(wants("T")), "subscription", "the other nothing"),
        (mine(wants("T")), theirs(wants("U")), "subscription", "* of topic T"),
        (mine(message_model="BROADCASTING"), theirs(), "messageModel", "BROADCASTING"),
        (mine(consume_type="CONSUME_ACTIVELY"), theirs(), "consumeType", "CONSUME_ACTIVELY"),
        (
            mine(consume_from_where="CONSUME_FROM_TIMESTAMP"),
            theirs(),
            "consumeFromWhere",
            "CONSUME_FROM_TIMESTAMP",
        ),
    ],
)
def test_what_differs_is_named(own: Any, other: Any, kind: str, text: str):
    found = contradiction(own, other)
    assert found is not None
    assert found.kind == kind
    assert text in found.text


def answer(text: str | None) -> Command:
    extra = {} if text is None else {CONFLICT: text}
    return Command.request(0).reply(ResponseCode.SYSTEM_ERROR, "the remark", extra=extra)


def test_a_refusal_names_both_members_and_where_it_is_explained():
    text = '{"kind":"subscription","members":["x","y"],"text":"they differ","docs":"docs/a.md#b"}'
    error = refusal(answer(text), "g", "b:1")
    assert error is not None
    assert (error.members, error.kind, error.group) == (("x", "y"), "subscription", "g")
    assert "they differ" in str(error)
    assert "docs/a.md#b" in str(error)


@pytest.mark.parametrize("text", ["not json", "[]", "{}"])
def test_an_unreadable_refusal_is_still_a_refusal(text: str):
    error = refusal(answer(text), "g", "b:1")
    assert error is not None
    assert error.members == ("", "")


def test_other_answers_are_no_refusal():
    assert refusal(answer(None), "g", "b:1") is None
