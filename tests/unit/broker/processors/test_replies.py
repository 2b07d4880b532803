"""Replies to requests of clients: 324 and 325 come in, 326 goes out."""

from __future__ import annotations

import pytest

from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.message import properties
from tests.unit.broker.harness import Bench, FakeConnection, answer_of, heartbeat, send_header
from tests.unit.broker.processors.sends import stored

TOPIC = "DefaultCluster_REPLY_TOPIC"
TEXT = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c-1"


def reply(text: str | None = TEXT, **fields: object) -> Command:
    header = send_header(TOPIC, properties=text, **fields)
    return Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, header, body=b"pong")


def asker(bench: Bench, *, takes: bool = True) -> FakeConnection:
    connection = FakeConnection(6000)
    bench.must(heartbeat("asker", producers=["pg"]), connection)
    if takes:
        answer = Command(int(ResponseCode.SUCCESS))
        connection.answers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = answer
    return connection


async def test_a_reply_is_pushed_to_the_client_that_asked_and_stored(bench):
    connection = asker(bench)
    answer = await answer_of(bench, reply())
    assert answer.code == ResponseCode.SUCCESS
    (pushed,) = connection.asked
    found = properties.decode(pushed.header.properties.encode())
    assert found.pop("PUSH_REPLY_TIME") == str(bench.clock.now_ms())
    assert found == properties.decode(TEXT.encode())
    assert bytes(pushed.body) == b"pong"
    assert pushed.header.born_host == bench.connection.remote_text
    assert pushed.header.store_host == "127.0.0.1:20911"
    (record,) = stored(bench, TOPIC)
    assert record.properties_text == TEXT.encode()
    assert answer.header.msg_id == record.offset_id
    assert bench.state.counters.replies_pushed == 1


@pytest.mark.parametrize(
    ("text", "takes", "remark"),
    [
        ("MSG_TYPE\x01reply", True, "reply message properties[REPLY_TO_CLIENT] is null"),
        (None, True, "reply message properties[REPLY_TO_CLIENT] is null"),
        (
            "REPLY_TO_CLIENT\x01other",
            True,
            "push reply message fail, channel of <other> not found.",
        ),
        (TEXT, False, "push reply message to askerfail."),
    ],
)
async def test_one_that_nobody_takes_is_stored_and_the_answer_says_so(bench, text, takes, remark):
    asker(bench, takes=takes)
    answer = await answer_of(bench, reply(text))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert len(stored(bench, TOPIC)) == 1
    assert answer.header.msg_id != "0"
    assert bench.state.counters.replies_failed == 1


async def test_a_client_that_refuses_it_did_not_take_it(bench):
    connection = asker(bench)
    connection.answers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = Command(1)
    answer = await answer_of(bench, reply())
    assert answer.remark == "push reply message to askerfail."


async def test_replies_need_not_be_stored(make_bench):
    bench = make_bench(store_reply_message_enable=False)
    asker(bench)
    answer = await answer_of(bench, reply())
    assert (answer.code, answer.header.msg_id) == (ResponseCode.SUCCESS, "0")
    assert stored(bench, TOPIC) == []


async def test_the_rules_of_sends_hold(bench):
    answer = await answer_of(bench, reply(queue_id=5))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "queueId[5] is illegal" in answer.remark
    assert stored(bench, TOPIC) == []


async def test_the_newest_connection_of_a_client_gets_it(bench):
    old, new = asker(bench), FakeConnection(6001)
    new.answers = old.answers
    bench.must(heartbeat("asker", producers=["pg"]), new)
    await answer_of(bench, reply())
    assert (len(old.asked), len(new.asked)) == (0, 1)
    bench.processors.clients.closed(new)
    await answer_of(bench, reply())
    assert len(old.asked) == 1
