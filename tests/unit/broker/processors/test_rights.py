"""What one account can't learn or undo of the topics of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from remoting.protocol import names
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.headers.query import QueryMessageRequestHeader
from remoting.protocol.signing import Credentials, signed
from tests.unit.broker.fast_path.paths import Side
from tests.unit.broker.harness import (
    Bench,
    FakeConnection,
    answer_of,
    heartbeat,
    pull_command,
    send_command,
)
from tests.unit.broker.processors.test_replies import reply
from tests.unit.broker.processors.test_transactions import half

ALICE = Credentials("alice-key", "alice-secret")
BOB = Credentials("bob-the-owner", "bob-secret")
RULES = """\
accounts:
- {accessKey: alice-key, secretKey: alice-secret, topicPerms: [mine=PUB|SUB], groupPerms: [g=SUB]}
- {accessKey: bob-the-owner, secretKey: bob-secret, defaultTopicPerm: PUB|SUB,
   defaultGroupPerm: SUB}
"""


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    bench = make_bench(rules=RULES)
    for topic in ("mine", "secret"):
        bench.topic(topic)
    return bench


def ask(
    bench: Bench, command: Command, who: Credentials, at: FakeConnection | None = None
) -> Command | None:
    return bench.answer(signed(command, who), at or bench.connection, bench.guarded)


@pytest.mark.parametrize(
    "code",
    [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE],
)
def test_a_message_that_recalls_another_one_needs_the_topic_of_that_one(
    bench: Bench, code: RequestCode
) -> None:
    field = "properties" if code == RequestCode.SEND_MESSAGE else "i"
    topic = "topic" if code == RequestCode.SEND_MESSAGE else "b"

    def recalls(other: str) -> Command:
        text = f"TIMER_DELAY_SEC\x019\x02TIMER_DEL_UNIQKEY\x01{other}+U1\x02UNIQ_KEY\x01x"
        return Command.request(code, extra={topic: "mine", field: text})

    denied = ask(bench, recalls("secret"), ALICE)
    assert denied is not None
    assert "No default permission for topic:secret" in str(denied.remark)
    for other, who in (("mine", ALICE), ("secret", BOB)):
        allowed = ask(bench, recalls(other), who)
        assert allowed is None or "permission" not in str(allowed.remark)


@pytest.mark.parametrize("code", [RequestCode.HEART_BEAT, RequestCode.CHECK_CLIENT_CONFIG])
def test_a_heartbeat_that_is_too_long_is_refused_unread(bench: Bench, code: int) -> None:
    refused = ask(bench, Command.request(code, body=b"no JSON" * 100_000), ALICE)
    assert refused is not None
    assert "a heartbeat has at most 524288 bytes" in str(refused.remark)


def test_a_check_of_a_half_message_goes_only_to_accounts_that_may_publish_to_its_topic(
    bench: Bench,
) -> None:
    spy, owner = FakeConnection(6001), FakeConnection(6002)
    half(bench)

    def check() -> None:
        bench.clock.advance(bench.state.config.transaction_timeout_ms / 1000 + 1)
        asyncio.run(bench.state.transactions.check(bench.processors.transactions.ask))

    ask(bench, heartbeat("spy", producers=["pg"]), ALICE, spy)
    check()
    assert bench.state.counters.transaction_checks_without_producer == 1

    ask(bench, heartbeat("owner", producers=["pg"]), BOB, owner)
    check()
    check()
    assert spy.pushed == []
    assert [one.code for one in owner.pushed] == [RequestCode.CHECK_TRANSACTION_STATE] * 2


@pytest.mark.parametrize(
    "topic",
    [
        names.SCHEDULE_TOPIC,
        names.HALF_TOPIC,
        names.OP_HALF_TOPIC,
        names.CHECK_MAX_TIME_TOPIC,
        names.TIMER_TOPIC,
        names.TRACE_TOPIC,
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "DefaultCluster_REPLY_TOPIC",
    ],
)
def test_the_default_of_an_account_opens_no_topic_with_the_messages_of_others(
    bench: Bench, topic: str
) -> None:
    fields = QueryMessageRequestHeader(
        topic=topic, key="k", max_num=32, begin_timestamp=0, end_timestamp=2**60
    )
    for command in (
        pull_command(topic),
        Command.request(RequestCode.QUERY_MESSAGE, fields),
        Command.request(RequestCode.QUERY_CONSUME_QUEUE, extra={"topic": topic}),
        Command.request(RequestCode.GET_MAX_OFFSET, extra={"topic": topic, "queueId": "0"}),
    ):
        denied = ask(bench, command, BOB)
        assert denied is not None
        assert f"No default permission for topic:{topic}" in str(denied.remark)


def test_a_send_to_a_delay_level_still_needs_only_its_own_topic(bench: Bench) -> None:
    answer = ask(bench, send_command("mine", properties="DELAY\x013"), ALICE)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def rest_of(rules: str, bench: Bench) -> None:
    assert bench.guard is not None
    bench.guard.file.path.write_text(rules)
    assert bench.guard.file.refresh()


WITHOUT_SUB = RULES.replace("mine=PUB|SUB", "mine=PUB")
WITHOUT_GROUP = RULES.replace("g=SUB", "g=DENY")
WITHOUT_ALICE = RULES.replace("alice-key", "other-key")


@pytest.mark.parametrize("rules", [WITHOUT_SUB, WITHOUT_GROUP, WITHOUT_ALICE])
@pytest.mark.parametrize("fast", [False, True], ids=["slow", "fast"])
async def test_a_waiting_pull_ends_when_its_right_is_taken(
    tmp_path: Path, rules: str, *, fast: bool
) -> None:
    side = Side(tmp_path, fast=fast, rules=RULES)
    bench = side.bench
    for topic in ("mine", "secret"):
        bench.topic(topic)
    waits = {"sys_flag": 6, "suspend_timeout_millis": 9000}
    for topic, who in (("mine", ALICE), ("secret", BOB)):
        bench.send(topic)
        side.feed(encode(signed(pull_command(topic, **waits, queue_offset=1), who)))
    polls = bench.state.long_polls
    assert (len(polls), side.wire.sent) == (2, [])

    rest_of(rules, bench)
    bench.processors.pull.rights_changed()
    await asyncio.sleep(0)

    assert len(polls) == 1
    whole = cut(side.wire.sent.pop())
    assert whole is not None
    answer = decode(whole)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "AclException: No default permission" in str(answer.remark)
    bench.close()


def test_a_message_that_wakes_a_pull_is_not_delivered_without_the_right(bench: Bench) -> None:
    waits = {"sys_flag": 6, "suspend_timeout_millis": 9000}
    assert ask(bench, pull_command("mine", **waits), ALICE) is None
    rest_of(WITHOUT_SUB, bench)

    bench.send("mine")
    bench.processors.pull.wake(bench.state.long_polls.arrived("mine", 0, 1, None))

    (answer,) = bench.connection.sent
    assert (answer.code, bytes(answer.body)) == (ResponseCode.SYSTEM_ERROR, b"")


async def test_a_reply_does_not_go_to_another_account_with_the_id_of_the_client(
    bench: Bench,
) -> None:
    owner, thief = FakeConnection(6001), FakeConnection(6002)
    for connection in (owner, thief):
        taken = Command(int(ResponseCode.SUCCESS))
        connection.answers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = taken
    ask(bench, heartbeat("asker", producers=["pg"]), BOB, owner)
    ask(bench, heartbeat("asker", producers=["mine"]), ALICE, thief)

    await answer_of(bench, reply())

    assert (len(owner.asked), thief.asked) == (1, [])
