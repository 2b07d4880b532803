"""The answer of DESCRIBE_CONSUMER_GROUP on the wire."""

from __future__ import annotations

from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.description import (
    BlockedQueue,
    FindingKind,
    GroupDescriptionBody,
    GroupFinding,
    GroupMemberInfo,
    GroupQueueInfo,
)
from remoting.protocol.codes import OWN_REQUEST_CODES
from remoting.protocol.own_codes import OwnRequestCode


def test_own_codes_are_within_their_reserved_range() -> None:
    assert set(OwnRequestCode) <= set(OWN_REQUEST_CODES)


def test_a_description_survives_the_wire() -> None:
    blocked = BlockedQueue(group="g", topic="t", queue_id=1, offset=7, msg_id="m", error="e")
    description = GroupDescriptionBody(
        members=[GroupMemberInfo(client_id="c", ours=True)],
        conflicts=[GroupFinding(kind=FindingKind.CLIENT_ID, text="two", members=["c", "c"])],
        queues=[GroupQueueInfo(topic="t", queue_id=1, blocked_since=5, blocked=blocked)],
    )
    assert decode(GroupDescriptionBody, encode(description)) == description


def test_names_on_the_wire_are_camel_case() -> None:
    text = encode(GroupQueueInfo(topic="t", last_pull_ms=3)).decode()
    assert '"queueId":0' in text
    assert '"lastPullMs":3' in text


def test_a_kind_from_a_newer_broker_is_understood() -> None:
    body = b'{"conflicts":[{"kind":"moonPhase","text":"full","novel":1}]}'
    assert decode(GroupDescriptionBody, body).conflicts == [
        GroupFinding(kind="moonPhase", text="full")
    ]
