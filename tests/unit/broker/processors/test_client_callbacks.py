"""Requests forwarded to consumers, and offset resets."""

from __future__ import annotations

import json

import pytest

from remoting.protocol.bodies import decode, encode, relaxed_json
from remoting.protocol.bodies.group import (
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.codes import Language, RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from remoting.protocol.headers.pull import (
    CloneGroupOffsetRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.queue import MessageQueue
from tests.unit.broker.harness import Bench, FakeConnection, fields_of, heartbeat
from tests.unit.broker.processors.replay import FRAMES, replay

QUEUE = MessageQueue("T", "broker-a", 0)


def join(bench: Bench, client_id: str, *, version: int = 407, port: int = 6000) -> FakeConnection:
    connection = FakeConnection(port)
    consumer = ConsumerData(
        group_name="g", subscription_data_set=[SubscriptionData(topic="T", sub_string="*")]
    )
    command = heartbeat(client_id, consumers=[consumer])
    command.version = version
    bench.must(command, connection)
    connection.pushed.clear()
    return connection


def running_info(client_id: str = "a") -> Command:
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group="g", client_id=client_id, jstack_enable=False
    )
    return Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)


def directly(message_id: str) -> Command:
    header = ConsumeMessageDirectlyResultRequestHeader(
        consumer_group="g", client_id="a", msg_id=message_id
    )
    return Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)


def status(client_id: str | None = None) -> Command:
    header = GetConsumerStatusRequestHeader(topic="T", group="g", client_addr=client_id)
    return Command.request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)


def reset(timestamp: int, *, force: bool = True, **more: int) -> Command:
    header = ResetOffsetRequestHeader(
        topic="T", group="g", timestamp=timestamp, is_force=force, **more
    )
    return Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


def commit(bench: Bench, offset: int, queue_id: int = 0) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="T", queue_id=queue_id, commit_offset=offset
    )
    bench.must(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))


# what goes to the client, as captured from Apache's broker


def captured_pushes() -> list[dict]:
    lines = [json.loads(line) for line in (FRAMES / "admin.jsonl").read_text().splitlines()]
    wanted = {220, 221, 307}
    return [
        line
        for line in lines
        if line["dir"] == "s2c" and line["type"] != "response" and line["code"] in wanted
    ]


def test_requests_to_clients_are_those_of_apaches_broker(bench):
    bench.topic("OneQueue")
    for _ in range(8):
        bench.send("OneQueue")
    sent: list[Command] = []
    replay(bench, "admin.jsonl", sent)
    ours = [one for one in sent if one.code in {220, 221, 307}]
    theirs = captured_pushes()
    assert [int(one.code) for one in ours] == [line["code"] for line in theirs]
    for one, line in zip(ours, theirs, strict=True):
        assert fields_of(one) == line["header"]
        assert one.is_oneway == (line["type"] == "oneway")
        theirs_body = bytes.fromhex(line["frame_hex"])[-line["body_len"] :]
        if line["body_len"]:
            assert relaxed_json.loads(one.body) == relaxed_json.loads(theirs_body)


# 307 and 309


def test_a_consumers_running_info_is_its_own_answer(bench):
    client = join(bench, "a")
    client.answers[307] = Command(0, body=b'{"mqTable":{}}', remark="as it was")
    reply = bench.must(running_info())
    assert (reply.code, reply.remark, reply.body) == (0, "as it was", b'{"mqTable":{}}')
    (asked,) = client.asked
    assert fields_of(asked) == {"consumerGroup": "g", "clientId": "a", "jstackEnable": "false"}


def test_the_signature_of_a_request_is_not_passed_on(bench):
    client = join(bench, "a")
    client.answers[307] = Command(0)
    asks = {"consumerGroup": "g", "clientId": "a", "jstackEnable": "false", "other": "1"}
    signed = {"AccessKey": "admin", "Signature": "c2ln", "SecurityToken": "t"}
    bench.must(Command.request(307, extra=tuple({**asks, **signed}.items())))
    (asked,) = client.asked
    assert fields_of(asked) == asks


def test_a_missing_consumer_is_an_error(bench):
    reply = bench.must(running_info())
    assert (reply.code, reply.remark) == (1, "The Consumer <g> <a> not online")
    join(bench, "a")
    assert bench.must(running_info("b")).code == 1


def test_a_consumer_that_does_not_answer_is_an_error(bench):
    join(bench, "a")
    reply = bench.must(running_info())
    assert reply.code == 207
    assert (reply.remark or "").startswith("consumer <g> <a> Timeout: ")


def test_a_consumer_that_disconnects_meanwhile_is_an_error(bench):
    join(bench, "a").closed = True
    reply = bench.must(running_info())
    assert reply.code == 1
    assert (reply.remark or "").startswith("invoke consumer <g> <a> Exception: ")


def test_a_consumer_that_is_too_old_is_an_error(bench):
    join(bench, "a", version=61)
    reply = bench.must(running_info())
    assert reply.code == 1
    assert "too low to finish, please upgrade it to V3_1_8_SNAPSHOT" in (reply.remark or "")


def test_a_message_is_forwarded_to_a_consumer_with_the_brokers_name(bench):
    bench.topic("T")
    message_id = fields_of(bench.send("T", b"hello"))["msgId"]
    client = join(bench, "a")
    client.answers[309] = Command(0, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert bench.must(directly(message_id)).body == b'{"consumeResult":"CR_SUCCESS"}'
    (asked,) = client.asked
    assert fields_of(asked)["brokerName"] == "broker-a"
    assert b"hello" in asked.body


@pytest.mark.parametrize("message_id", ["7F000001000051AF0000000000FFFFFF", "no id", ""])
def test_a_missing_message_is_an_error(bench, message_id):
    reply = bench.must(directly(message_id))
    assert reply.code == 1
    assert reply.remark


# 223


def test_the_offsets_of_consumers_are_collected(bench):
    for number, name in enumerate("ab"):
        body = GetConsumerStatusBody(message_queue_table={QUEUE: 7 + number})
        join(bench, name, port=6000 + number).answers[221] = Command(0, body=encode(body))
    join(bench, "silent", port=6009)
    body = decode(GetConsumerStatusBody, bench.must(status()).body)
    assert body.consumer_table == {"a": {QUEUE: 7}, "b": {QUEUE: 8}}
    body = decode(GetConsumerStatusBody, bench.must(status("b")).body)
    assert body.consumer_table == {"b": {QUEUE: 8}}


def test_a_group_without_consumers_has_no_status(bench):
    reply = bench.must(status())
    assert (reply.code, reply.remark) == (1, "No Any Consumer online in the consumer group: [g]")


# 222


@pytest.fixture
def young(bench):
    """A topic of two queues with four messages, a second between any two; all consumed."""
    bench.topic("T", queues=2)
    for _ in range(4):
        bench.send("T")
        bench.clock.advance(1)
    commit(bench, 4)
    commit(bench, 0, 1)
    return bench


def test_a_reset_by_time_goes_to_every_member(young):
    members = [join(young, name, port=6000 + number) for number, name in enumerate("ab")]
    reply = young.must(reset(young.clock.now_ms() - 2000))
    other = MessageQueue("T", "broker-a", 1)
    assert decode(ResetOffsetBody, reply.body).offset_table == {QUEUE: 2, other: 0}
    for member in members:
        (pushed,) = [one for one in member.pushed if one.code == 220]
        assert decode(ResetOffsetBody, pushed.body).offset_table == {QUEUE: 2, other: 0}
        assert fields_of(pushed)["isForce"] == "false"


@pytest.mark.parametrize(("offset", "target"), [({"offset": 3}, 3), ({"offset": -1}, 0), ({}, 0)])
def test_a_reset_of_one_queue_leaves_the_others(young, offset, target):
    member = join(young, "a")
    reply = young.must(reset(0, queue_id=0, **offset))
    assert decode(ResetOffsetBody, reply.body).offset_table == {QUEUE: target}
    (pushed,) = [one for one in member.pushed if one.code == 220]
    assert decode(ResetOffsetBody, pushed.body).offset_table == {QUEUE: target}


def test_a_queue_is_not_reset_to_an_offset_that_it_does_not_have(young):
    join(young, "a")
    reply = young.must(reset(0, queue_id=0, offset=5))
    assert (reply.code, reply.remark) == (1, "Target offset 5 not in consume queue range [0-4]")


def test_a_reset_without_force_only_moves_backwards(young):
    join(young, "a")
    commit(young, 1)
    reply = young.must(reset(young.clock.now_ms() - 1000, force=False))
    assert decode(ResetOffsetBody, reply.body).offset_table[QUEUE] == 1
    reply = young.must(reset(young.clock.now_ms() - 4000, force=False))
    assert decode(ResetOffsetBody, reply.body).offset_table[QUEUE] == 0


def test_a_reset_to_the_end_is_the_timestamp_minus_1(young):
    join(young, "a")
    commit(young, 1)
    reply = young.must(reset(-1))
    assert decode(ResetOffsetBody, reply.body).offset_table[QUEUE] == 4


def test_resetting_an_offline_group_is_an_error(young):
    timestamp = young.clock.now_ms()
    reply = young.must(reset(timestamp))
    assert reply.code == 206
    assert reply.remark == (
        f"Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: {timestamp}"
    )


def test_a_group_without_an_offset_cannot_be_reset(bench):
    bench.topic("T")
    join(bench, "a")
    reply = bench.must(reset(0))
    assert (reply.code, reply.remark) == (1, "THe consumer group <g> not exist")


def test_a_missing_topic_cannot_be_reset(bench):
    reply = bench.must(reset(0))
    assert reply.code == 1
    assert "no topic in this broker. topic=T" in (reply.remark or "")


def test_consumers_get_a_list_when_a_tool_in_cpp_asks(young):
    member = join(young, "a")
    command = reset(-1)
    command.language = Language.CPP
    young.must(command)
    (pushed,) = [one for one in member.pushed if one.code == 220]
    rows = decode(ResetOffsetBodyForC, pushed.body).offset_table
    assert [(row.queue_id, row.offset) for row in rows] == [(0, 4), (1, 0)]


def test_a_member_that_is_too_old_keeps_the_group_from_being_reset(young):
    member = join(young, "a", version=27)
    reply = young.must(reset(-1))
    assert reply.code == 1
    assert "does not support this feature" in (reply.remark or "")
    assert member.pushed == []


# 314


def clone(**fields: object) -> Command:
    header = CloneGroupOffsetRequestHeader(src_group="g", dest_group="h", **fields)
    return Command.request(RequestCode.CLONE_GROUP_OFFSET, header)


def test_a_group_gets_the_offsets_of_another(young):
    young.topic("U")
    young.state.offsets.commit("g", "U", 0, 9)
    young.state.offsets.commit("g", "gone", 0, 9)
    assert young.must(clone(topic="T", offline=True)).code == 0
    assert young.state.offsets.table["T@h"] == {0: 4, 1: 0}
    assert "U@h" not in young.state.offsets.table
    assert young.must(clone(offline=True)).code == 0
    assert young.state.offsets.table["U@h"] == {0: 9}
    assert "gone@h" not in young.state.offsets.table


def test_of_an_online_group_only_subscribed_topics_are_cloned(young):
    young.topic("U")
    young.state.offsets.commit("g", "U", 0, 9)
    join(young, "a")
    young.must(clone())
    assert "T@h" in young.state.offsets.table
    assert "U@h" not in young.state.offsets.table
