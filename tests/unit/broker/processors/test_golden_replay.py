"""Captured requests of Apache's clients get the answers of Apache's broker.

The test compares code, ext fields and body, as far as they don't depend on the time, the addresses,
or what other captured scenarios left in the broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from remoting.protocol.bodies import relaxed_json
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.message.view import iter_records
from tests.unit.broker.harness import Bench
from tests.unit.broker.processors.replay import FRAMES, Exchange, captured, replay

NOT_SERVED_YET = frozenset(
    {
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    }
)
"""Captured requests of real clients and tools that our broker refuses."""

UNKNOWN_CODE = 9999
"""A request code of the captured error scenarios that no broker serves."""

OF_THE_MOMENT = frozenset({"msgId", "timestamp", "version"})
"""Ext fields whose values depend on the time."""

ONLY_OF_5 = frozenset(
    {
        "transactionId",
        "recallHandle",
        "IS_SUB_CHANGE",
        "IS_SUPPORT_HEART_BEAT_V2",
        "topicSysFlag",
        "groupSysFlag",
    }
)
"""Ext fields that a 5.x broker adds; ours answers as 4.9.7 does."""

COMPARED_BODIES = frozenset(
    {
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.HEART_BEAT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    }
)
PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


@dataclass(frozen=True)
class Scenario:
    """What a file presupposes, and where we answer otherwise on purpose."""

    messages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Topics that exist, with the messages of each queue: a character for each, ``0`` for one with
    the tag Tag0, ``.`` for one without a tag."""
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    """What groups have committed: ``topic@group`` -> queue -> offset."""
    settings: dict[str, object] = field(default_factory=dict)
    others: dict[int, int | None] = field(default_factory=dict)
    """Opaque of a request -> our code instead of theirs; None: ours waits."""


STORED, HELD = 0, None
WRONG_SQL = 23
"""A pull that brings a wrong expression gets no messages, and not all of them."""

ELSEWHERE = 1
"""Ids of messages requested by their offset, which differs here."""

SCENARIOS = {
    "send.jsonl": Scenario(others={53: STORED}),
    "send_acl_signed.jsonl": Scenario({"SendTopic": (".....", ".....", ".....", ".....")}),
    "offsets.jsonl": Scenario({"OneQueue": ("........",)}),
    "heartbeat_unregister.jsonl": Scenario(),
    "heartbeat_unregister_binary.jsonl": Scenario(),
    "orderly_lock_unlock.jsonl": Scenario(),
    "orderly_lock_unlock_binary.jsonl": Scenario(
        {"OrderTopic": ("..", "..")}, {"OrderTopic@cg_ord": {0: 2, 1: 2}}
    ),
    "tag_filter.jsonl": Scenario(),
    "sql92_filter.jsonl": Scenario(),
    "long_poll_timeout.jsonl": Scenario({"OneQueue": ("......",)}, others={268: HELD}),
    "serialize_subset.jsonl": Scenario(),
    "serialize_subset_binary.jsonl": Scenario(
        {"SerTopic": ("......", "", "", "")}, {"SerTopic@cg_ser": {0: 6}}, others={140: HELD}
    ),
    "route_and_auto_create.jsonl": Scenario(),
    "errors.jsonl": Scenario(
        {"OneQueue": (".........",)},
        settings={"max_message_size": 20_000},
        others={1023: WRONG_SQL},
    ),
    "v5_route_send.jsonl": Scenario(),
    "v5_admin.jsonl": Scenario({"V5Topic": (".", "..", "..", "..")}),
    "v5_unsupported.jsonl": Scenario(),
    "slave_sync.jsonl": Scenario(),
    "admin.jsonl": Scenario({"OneQueue": ("000000..",)}, others={869: ELSEWHERE, 871: ELSEWHERE}),
}


def prepare(bench: Bench, scenario: Scenario) -> None:
    for topic, queues in scenario.messages.items():
        bench.topic(topic, queues=len(queues))
        for queue_id, messages in enumerate(queues):
            for kind in messages:
                text = "TAGS\x01Tag0" if kind == "0" else None
                bench.send(topic, queue_id=queue_id, properties=text)
    bench.state.offsets.table.update(scenario.offsets)


def comparable(command: Command, request: Command) -> dict[str, object]:
    """Return the parts of an answer that don't depend on time or addresses."""
    fields = dict(command.all_pairs() or ())
    out: dict[str, object] = {
        name: "..." if name in OF_THE_MOMENT else value
        for name, value in fields.items()
        if name not in ONLY_OF_5
    }
    if request.fields.get("queueId", request.fields.get("e")) == "-1":
        out.update(dict.fromkeys(out.keys() & {"queueId", "queueOffset"}, "..."))
    out["code"] = int(command.code)
    if request.code in COMPARED_BODIES:
        out["body"] = relaxed_json.loads(command.body) if command.body else None
    if request.code in PULLS:
        out["remark"] = (command.remark or "").partition("\n")[0].partition("consumer:[")[0]
        out["offsets"] = [record.queue_offset for record in iter_records(command.body)]
    return out


def check(one: Exchange, scenario: Scenario) -> None:
    opaque = one.request.opaque
    if one.theirs is None and opaque not in scenario.others:
        assert one.ours is None
    elif one.request.code in NOT_SERVED_YET:
        assert one.ours is not None
        assert one.ours.code == 3
    elif opaque in scenario.others:
        expected = scenario.others[opaque]
        assert (None if one.ours is None else one.ours.code) == expected
    else:
        assert one.theirs is not None
        assert one.ours is not None
        assert comparable(one.ours, one.request) == comparable(one.theirs, one.request)
        assert one.ours.serialize == one.request.serialize


@pytest.mark.parametrize("name", SCENARIOS)
def test_captured_requests_are_answered_as_apaches_broker_answers(make_bench, name):
    scenario = SCENARIOS[name]
    bench = make_bench(**scenario.settings)
    prepare(bench, scenario)
    problems = []
    for one in replay(bench, name):
        try:
            check(one, scenario)
        except AssertionError as error:
            problems.append(f"{one.request.code} opaque {one.request.opaque}: {error}")
    assert not problems, "\n".join(problems)


def codes_seen() -> set[int]:
    return {one.request.code for file in FRAMES.glob("*.jsonl") for one in captured(file.name)}


def test_the_list_of_unsupported_requests_is_exact(bench):
    assert codes_seen() - bench.table.keys() - {UNKNOWN_CODE} == NOT_SERVED_YET


@pytest.mark.parametrize("code", sorted({*NOT_SERVED_YET, UNKNOWN_CODE, -5, 0, 200050}))
def test_unsupported_requests_are_answered_as_such(bench, code):
    reply = bench.must(Command(int(code)))
    assert (reply.code, reply.remark) == (3, f" request type {int(code)} not supported")
    assert bench.ask(Command(int(code), flag=2)) is None
