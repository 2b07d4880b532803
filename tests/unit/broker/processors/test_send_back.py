"""Messages sent back: Apache's frames, the checks in their order, the stored messages."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.limits import MAX_DELAY_LEVELS
from broker.store.results import Ack, PendingMessage
from remoting.protocol import names
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message.view import RecordView, iter_records
from tests.unit.broker.harness import Bench, answer_of, send_command
from tests.unit.broker.processors.replay import captured
from tests.unit.broker.processors.sends import ADDED, ADDED_TEXT, refusal

PLACE = 8146
"""Physical offset at Apache's broker of the message that the captured frames send back."""

FIXED = 91
"""Bytes of a record beside body, topic and properties."""


def send_back(bench: Bench, offset: int, *, version: int = 407, **fields: Any) -> Command:
    header = ConsumerSendMsgBackRequestHeader(
        **{"offset": offset, "group": "g", "delay_level": 0, **fields}
    )
    command = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    command.version = version
    return bench.must(command)


def stored(bench: Bench, topic: str, queue_id: int = 0) -> list[RecordView]:
    result = bench.store.get(topic, queue_id, 0, 1024)
    return [record for view in result.records for record in iter_records(view)]


def waiting(bench: Bench) -> list[RecordView]:
    """Return the waiting messages of all delay levels."""
    return [
        record
        for level in range(MAX_DELAY_LEVELS)
        for record in stored(bench, names.SCHEDULE_TOPIC, level)
    ]


def put(bench: Bench, **fields: Any) -> int:
    """Put a message; return its physical offset."""
    bench.topic("T")
    return int(bench.send("T", b"body", **fields).header.msg_id[16:], 16)


# --- as Apache's broker does it


def apaches(bench: Bench) -> list[Command]:
    """Store the captured message at Apache's offset; return the requests that send it back."""
    bench.topic("Filler")
    bench.topic("RetryTopic")
    bench.send("Filler", bytes(PLACE - FIXED - len("Filler") - len(ADDED_TEXT)))
    exchanges = captured("send_back_retry.jsonl")
    (sent,) = [one for one in exchanges if one.request.code == RequestCode.SEND_MESSAGE_V2]
    assert bench.must(sent.request).header.msg_id == sent.theirs.fields["msgId"]
    return [one for one in exchanges if one.request.code == RequestCode.CONSUMER_SEND_MSG_BACK]


def test_apaches_consumers_send_back_and_dead_letter(bench):
    for one in apaches(bench):
        ours = bench.must(one.request)
        assert one.theirs is not None
        assert (ours.code, ours.remark, ours.all_pairs() or ()) == (
            one.theirs.code,
            one.theirs.remark,
            one.theirs.pairs or (),
        )
    (retry,) = waiting(bench)
    kept = {
        "KEYS": "kr1",
        "TAGS": "T",
        "UNIQ_KEY": "C0000202752D30946E0966A3F4650024",
        **ADDED,
        "RETRY_TOPIC": "RetryTopic",
        "ORIGIN_MESSAGE_ID": "7F000001000051AF0000000000001FD2",
        "WAIT": "false",
    }
    assert retry.queue_id == 0
    assert retry.reconsume_times == 1
    assert retry.properties == {
        **kept,
        "DELAY": "1",
        "REAL_TOPIC": "%RETRY%cg_retry",
        "REAL_QID": "0",
    }
    (dead,) = stored(bench, "%DLQ%cg_dlq")
    assert dead.reconsume_times == 1
    assert dead.properties == {**kept, "DELAY": "0"}
    assert bench.state.counters.messages_sent_back == 1
    assert bench.state.counters.messages_dead_lettered == 1


# --- refusals


def test_an_unknown_group_that_cannot_be_made(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    reply = send_back(bench, put(bench))
    assert reply.code == 26
    assert reply.remark.startswith("subscription group not exist, g")


def test_an_illegal_group_name(bench):
    assert send_back(bench, put(bench), group="a b").code == 1
    assert send_back(bench, put(bench), group="g" * 121).code == 1
    assert bench.state.topics.get("%RETRY%" + "g" * 121) is None


def test_a_broker_without_write_permission(make_bench):
    bench = make_bench(broker_permission=4)
    reply = send_back(bench, put(bench))
    assert (reply.code, reply.remark) == (
        16,
        "the broker[127.0.0.1] sending message is forbidden",
    )


def test_a_group_without_retry_queues_drops_what_is_sent_back(bench):
    bench.state.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0), 1)
    assert send_back(bench, put(bench)).code == 0
    assert waiting(bench) == []
    assert bench.state.topics.get("%RETRY%g") is None


def test_a_retry_topic_that_takes_no_messages(bench):
    bench.topic("%RETRY%g", perm=4)
    reply = send_back(bench, put(bench))
    assert (reply.code, reply.remark) == (16, "the topic[%RETRY%g] sending message is forbidden")


@pytest.mark.parametrize("offset", [-1, 1, 10_000_000, 2**62])
def test_no_message_at_that_offset(bench, offset):
    put(bench)
    reply = send_back(bench, offset)
    assert (reply.code, reply.remark) == (1, f"look message by offset failed, {offset}")


def test_too_many_topics(make_bench):
    bench = make_bench(max_topics=12)
    offset = put(bench)
    while bench.send(f"F{len(bench.state.topics.table)}").code == 0:
        pass
    reply = send_back(bench, offset)
    assert reply.code == 1
    assert "pocketmqMaxTopics" in reply.remark


def longest(bench: Bench, topic: str) -> str:
    """Return the longest properties with which a topic takes a message."""
    code, remark = refusal(bench, topic=topic, properties="A\x01" + "x" * 32_700)
    most = re.search(r"use at most (\d+)", remark)
    assert code == 13
    assert most is not None
    text = "A\x01" + "x" * (int(most[1]) - len("A\x01\x02" + ADDED_TEXT))
    assert refusal(bench, topic=topic, properties=text + "x")[0] == 13
    return text


@pytest.mark.parametrize("topic", ["T", "t" * 127])
def test_a_message_with_the_longest_properties_is_retried_and_dead_lettered(bench, topic):
    group = "g" * (127 - len("%RETRY%"))
    bench.topic(topic)
    text = longest(bench, topic)
    offset = int(bench.send(topic, b"body", properties=text).header.msg_id[16:], 16)
    for level in (18, 18, 18):
        assert send_back(bench, offset, group=group, delay_level=level).code == 0
        offset = max(one.physical_offset for one in waiting(bench))
    assert send_back(bench, offset, group=group, delay_level=-1).code == 0
    (dead,) = stored(bench, f"%DLQ%{group}")
    assert dead.properties["A"] == text[2:]
    assert (dead.properties["RETRY_TOPIC"], dead.stored_body) == (topic, b"body")


@pytest.mark.parametrize(("left", "origin"), [(0, None), (100, "T")])
def test_a_message_without_room_as_apache_stores_it_is_dead_lettered_at_once(bench, left, origin):
    bench.topic("T")
    text = b"A\x01" + b"x" * (MAX_PROPERTIES_BYTES - left - 2)
    offset = bench.store.put(PendingMessage("T", 0, b"body", text)).physical_offset
    assert send_back(bench, offset).code == 0
    assert waiting(bench) == []
    (dead,) = stored(bench, "%DLQ%g")
    assert dead.properties["A"] == text[2:].decode()
    assert dead.properties.get("RETRY_TOPIC") == origin


def test_a_missing_field(bench):
    assert bench.must(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK)).code == 1


# --- rounds


def test_each_round_waits_longer_until_the_message_is_dead(bench):
    offset, levels = put(bench, properties="TAGS\x01a"), []
    for _ in range(16):
        assert send_back(bench, offset).code == 0
        record = max(waiting(bench), key=lambda one: one.physical_offset)
        levels.append(record.queue_id + 1)
        offset = record.physical_offset
    assert levels == list(range(3, 19))
    assert stored(bench, "%DLQ%g") == []
    send_back(bench, offset)
    (dead,) = stored(bench, "%DLQ%g")
    assert (dead.body, dead.reconsume_times, dead.properties["DELAY"]) == (b"body", 17, "0")
    assert dead.properties["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize("times", [-1, -3, -100, -(2**31)])
def test_a_message_with_negative_reconsume_times_waits_like_a_first_retry(bench, times):
    assert send_back(bench, put(bench, reconsume_times=times)).code == 0
    (retry,) = waiting(bench)
    assert (retry.queue_id + 1, retry.reconsume_times) == (3, times + 1)


def test_a_message_with_the_most_reconsume_times_is_dead_lettered(bench):
    assert send_back(bench, put(bench, reconsume_times=2**31 - 1)).code == 0
    (dead,) = stored(bench, "%DLQ%g")
    assert dead.reconsume_times == 2**31 - 1


def test_a_group_may_set_how_long_each_round_waits(bench):
    settings = (
        b'{"groupName":"g","groupRetryPolicy":{"type":"EXPONENTIAL",'
        b'"exponentialRetryPolicy":{"initial":1000,"max":60000,"multiplier":5}}}'
    )
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert bench.must(Command.request(code, body=settings)).code == 0
    offset, waits = put(bench), []
    for _ in range(5):
        assert send_back(bench, offset).code == 0
        record = max(waiting(bench), key=lambda one: one.physical_offset)
        waits.append(bench.state.config.delay_levels_ms[record.queue_id])
        offset = record.physical_offset
    assert waits == [1000, 5000, 30_000, 60_000, 60_000]


def test_a_consumer_may_choose_the_delay_or_give_up(bench):
    offset = put(bench)
    send_back(bench, offset, delay_level=7)
    assert [record.queue_id for record in waiting(bench)] == [6]
    send_back(bench, offset, delay_level=-1)
    assert len(stored(bench, "%DLQ%g")) == 1


def test_a_dead_letter_is_logged_with_who_gave_it_up(bench):
    offset = put(bench, properties="UNIQ_KEY\x01id-1", reconsume_times=2)
    bench.subscribe("g", "T")
    with capture_logs() as lines:
        send_back(bench, offset, delay_level=7)
        send_back(bench, offset, delay_level=-1)
        bench.processors.clients.closed(bench.connection)
        send_back(bench, offset, delay_level=-1)
    logged = [line for line in lines if line["event"] == "message became a dead letter"]
    common = {"log_level": "info", "group": "g", "topic": "T", "message": "id-1", "retries": 3}
    assert [line.items() >= common.items() for line in logged] == [True, True]
    assert [line["member"] for line in logged] == ["client-1", bench.connection.remote_text]


@pytest.mark.parametrize(("version", "dead"), [(407, 1), (121, 1), (120, 0)])
def test_a_consumer_may_set_the_number_of_retries(bench, version, dead):
    send_back(bench, put(bench, reconsume_times=2), max_reconsume_times=2, version=version)
    assert len(stored(bench, "%DLQ%g")) == dead


def test_the_topics_are_made_as_the_group_says(bench):
    bench.state.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=3), 1)
    offset = put(bench)
    for _ in range(30):
        send_back(bench, offset, unit_mode=True)
    send_back(bench, offset, delay_level=-1)
    retry, dlq = bench.state.topics.get("%RETRY%g"), bench.state.topics.get("%DLQ%g")
    assert (retry.write_queue_nums, retry.read_queue_nums, retry.perm) == (3, 3, 6)
    assert retry.topic_sys_flag == 2
    assert (dlq.write_queue_nums, dlq.perm, dlq.topic_sys_flag) == (1, 6, 0)
    assert bench.changes.topics == [(["%RETRY%g"], True), (["%DLQ%g"], True)]
    assert {record.properties["REAL_QID"] for record in waiting(bench)} == {"0", "1", "2"}


# --- safety


async def test_the_answer_waits_for_the_topics_it_made(bench):
    offset = put(bench)
    saved = asyncio.get_running_loop().create_future()
    bench.changes.pending["%RETRY%g"] = saved
    command = Command.request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        ConsumerSendMsgBackRequestHeader(offset=offset, group="g", delay_level=0),
    )
    asking = asyncio.ensure_future(answer_of(bench, command))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asking.done()
    saved.set_result(True)
    reply = await asking
    assert reply is not None
    assert reply.code == 0


@pytest.mark.parametrize("ack", Ack)
async def test_in_sync_mode_the_answer_waits_for_the_disk(make_bench, ack):
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic("T")
    bench.answer(send_command("T", oneway=True), bench.connection)
    logged: asyncio.Queue[Any] = asyncio.Queue()
    bench.store.when_durable = lambda _, callback: logged.put_nowait(callback)
    command = Command.request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        ConsumerSendMsgBackRequestHeader(offset=0, group="g", delay_level=0),
    )
    asking = asyncio.ensure_future(answer_of(bench, command))
    callback = await logged.get()
    assert not asking.done()
    callback(ack)
    reply = await asking
    assert reply is not None
    assert reply.code == ack
