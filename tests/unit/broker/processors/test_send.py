"""Sends: the rows of the decision table, what is stored, and what is answered."""

from __future__ import annotations

import asyncio
import re

import pytest
from structlog.testing import capture_logs

from remoting.protocol import names
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeader
from remoting.protocol.message import batch
from remoting.protocol.message.ids import parse_offset_id
from remoting.protocol.message.view import RecordView, iter_records
from tests.unit.broker.harness import (
    Bench,
    FakeConnection,
    answer_of,
    fields_of,
    send_command,
)


def stored(bench: Bench, topic: str, queue_id: int = 0) -> list[RecordView]:
    result = bench.store.get(topic, queue_id, 0, 1024)
    return [record for view in result.records for record in iter_records(view)]


# --- what is stored


def test_a_message_is_stored_as_it_came(bench):
    bench.topic("T", queues=4)
    reply = bench.send(
        "T",
        b"hello",
        queue_id=2,
        flag=9,
        sys_flag=0x301,
        reconsume_times=3,
        properties="KEYS\x01k1 k2\x02TAGS\x01paid\x02UNIQ_KEY\x01U1",
    )
    assert reply.code == 0
    assert reply.remark is None
    (record,) = stored(bench, "T", 2)
    assert record.stored_body == b"hello"
    assert (record.flag, record.sys_flag, record.reconsume_times) == (9, 0x301, 3)
    assert record.born_timestamp_ms == 1_700_000_000_123
    assert record.born_host == ("10.0.0.7", 5555)
    assert record.store_host == ("127.0.0.1", 20911)
    assert record.properties == {
        "KEYS": "k1 k2",
        "TAGS": "paid",
        "UNIQ_KEY": "U1",
        "CLUSTER": "DefaultCluster",
    }


def test_the_answer_says_where_the_message_is(bench):
    bench.topic("T", queues=4)
    bench.send("T", queue_id=2)
    reply = bench.send("T", queue_id=2)
    assert fields_of(reply) == {
        "msgId": reply.header.msg_id,
        "queueId": "2",
        "queueOffset": "1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    place = parse_offset_id(reply.header.msg_id)
    assert (place.ip, place.port) == ("127.0.0.1", 20911)
    assert RecordView(bench.store.record_at(place.physical_offset)).queue_offset == 1


def test_wait_is_taken_out_of_the_text_and_the_cluster_put_in(bench):
    bench.topic("T")
    bench.send("T", properties="WAIT\x01true\x02TAGS\x01a\x02")
    assert stored(bench, "T")[0].properties == {"TAGS": "a", "CLUSTER": "DefaultCluster"}


def test_a_message_without_properties_gets_the_cluster_only(bench):
    bench.topic("T")
    bench.send("T", properties=None)
    assert stored(bench, "T")[0].properties_text == b"CLUSTER\x01DefaultCluster"


def test_half_a_surrogate_pair_in_a_property_does_no_harm(bench):
    bench.topic("T")
    assert bench.send("T", properties="k\x01\ud800").code == 0
    assert stored(bench, "T")[0].properties["k"] == "?"


def test_a_body_may_be_empty(bench):
    bench.topic("T")
    assert bench.send("T", b"").code == 0
    assert stored(bench, "T")[0].stored_body == b""


def test_a_topic_of_many_tags_marks_its_messages(bench):
    bench.topic("T", topic_filter_type="MULTI_TAG")
    bench.send("T", properties="TAGS\x01a")
    assert stored(bench, "T")[0].sys_flag == 2


def test_the_long_header_works_like_the_short_one(bench):
    bench.topic("T")
    header = SendMessageRequestHeader(
        producer_group="pg",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=5,
        flag=0,
        properties="TAGS\x01V1",
    )
    reply = bench.must(Command.request(RequestCode.SEND_MESSAGE, header, body=b"v1"))
    assert reply.code == 0
    assert stored(bench, "T")[0].tags == "V1"


def test_a_oneway_message_is_stored_and_not_answered(bench):
    bench.topic("T")
    assert bench.ask(send_command("T", oneway=True)) is None
    assert bench.ask(send_command("bad topic!", oneway=True)) is None
    assert len(stored(bench, "T")) == 1


def test_a_client_with_an_ipv6_address_is_kept_with_it(bench):
    bench.topic("T")
    connection = FakeConnection()
    connection.remote = ("2001:db8::1", 77)
    bench.must(send_command("T"), connection)
    assert stored(bench, "T")[0].born_host == ("2001:db8::1", 77)


# --- batches


def elements(*bodies: bytes, text: bytes = b"") -> bytes:
    return batch.encode([(number, body, text) for number, body in enumerate(bodies)])


def send_batch(bench: Bench, body: bytes, **fields) -> Command:
    return bench.must(
        send_command("T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True, **fields)
    )


def test_a_batch_becomes_one_record_per_message(bench):
    bench.topic("T")
    bench.send("T")
    reply = send_batch(
        bench, elements(b"one", b"two", text=b"TAGS\x01a\x02"), properties="WAIT\x01true"
    )
    first, second = stored(bench, "T")[1:]
    assert [first.stored_body, second.stored_body] == [b"one", b"two"]
    assert [first.flag, second.flag] == [0, 1]
    assert first.properties_text == b"TAGS\x01a\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster"
    assert first.tags == "a"
    assert reply.header.queue_offset == 1
    places = [parse_offset_id(one).physical_offset for one in reply.header.msg_id.split(",")]
    assert places == [first.physical_offset, second.physical_offset]


def test_elements_without_a_last_separator_get_one(bench):
    bench.topic("T")
    send_batch(bench, elements(b"one", text=b"TAGS\x01a"), properties=None)
    assert stored(bench, "T")[0].properties_text == b"TAGS\x01a\x02CLUSTER\x01DefaultCluster"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "no message"),
        (elements(b"one")[:-3], "cut off|says its"),
        (elements(b"one", b"two")[:30], "cut off"),
    ],
)
def test_a_broken_batch_is_refused_as_a_whole(bench, body, sentence):
    bench.topic("T")
    reply = send_batch(bench, body)
    assert reply.code == 13
    assert re.search(sentence, reply.remark)
    assert stored(bench, "T") == []


def test_a_batch_can_not_be_delayed(bench):
    bench.topic("T")
    reply = send_batch(bench, elements(b"one"), properties="DELAY\x012")
    assert reply.code == 13


# --- who may send what where


def refusal(bench: Bench, **fields) -> tuple[int, str]:
    reply = bench.must(send_command(fields.pop("topic", "T"), fields.pop("body", b"x"), **fields))
    assert fields_of(reply) == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    return reply.code, reply.remark


def test_a_broker_may_open_later(make_bench):
    bench = make_bench(start_accept_send_request_timestamp_ms=4_000_000_000_000)
    bench.topic("T")
    assert refusal(bench) == (1, "broker unable to service, until 4000000000000")


def test_a_broker_without_write_permission_refuses_topics_in_order_only(make_bench):
    bench = make_bench(broker_permission=4)
    bench.topic("T", order=True)
    bench.topic("U")
    assert refusal(bench) == (16, "the broker[127.0.0.1] sending message is forbidden")
    assert bench.send("U").code == 0


@pytest.mark.parametrize("topic", ["", " ", "bad topic!", "a/b", "../x", "t" * 128])
def test_an_illegal_topic_is_refused(bench, topic):
    code, remark = refusal(bench, topic=topic)
    assert code == 1
    assert "topic" in remark


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ],
)
def test_topics_of_the_broker_take_no_sends(bench, topic):
    assert refusal(bench, topic=topic) == (
        16,
        f"Sending message to topic[{topic}] is forbidden.",
    )


def test_the_template_takes_sends_like_any_topic(bench):
    assert bench.send("TBW102").code == 0


def test_an_unknown_topic_is_made_written_and_registered(bench):
    assert bench.send("New", queue_id=1).code == 0
    assert bench.state.topics.get("New").write_queue_nums == 4
    assert bench.changes.topics == [(None, True)]


def test_a_topic_that_got_fewer_queues_than_asked_is_told_with_the_remedy(bench):
    with capture_logs() as logs:
        bench.send("New", default_topic_queue_nums=16)
    (entry,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (entry["topic"], entry["queues"], entry["asked"]) == ("New", 8, 16)
    assert entry["command"] == "pocketmq topic update New --queues 16"


def test_an_unknown_topic_without_a_template_is_refused(bench):
    code, remark = refusal(bench, topic="New", default_topic="NoSuchTemplate")
    assert code == 17
    assert remark.startswith("topic[New] not exist, apply first please!\nSee http")


def test_automatic_creation_can_be_switched_off(make_bench):
    bench = make_bench(auto_create_topic_enable=False)
    assert refusal(bench, topic="New")[0] == 17


def test_too_many_topics_are_refused(make_bench):
    bench = make_bench(max_topics=1)
    code, remark = refusal(bench, topic="New")
    assert code == 1
    assert "pocketmqMaxTopics" in remark


def test_a_queue_beyond_the_topic_is_refused(bench):
    bench.topic("T", queues=1, order=True)
    assert refusal(bench, queue_id=99) == (
        1,
        "request queueId[99] is illegal, TopicConfig [topicName=T, readQueueNums=1, "
        "writeQueueNums=1, perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=true] "
        "Producer: 10.0.0.7:5555",
    )


def test_the_larger_of_both_queue_counts_is_the_bound(bench):
    bench.topic("T")
    bench.state.topics.get("T").read_queue_nums = 3
    assert bench.send("T", queue_id=2).code == 0
    assert refusal(bench, queue_id=3)[0] == 1


def test_a_negative_queue_lets_the_broker_choose(bench):
    bench.topic("T", queues=4)
    chosen = {bench.send("T", queue_id=-1).header.queue_id for _ in range(40)}
    assert chosen == {0, 1, 2, 3}


def test_a_topic_without_queues_says_what_to_do(bench):
    bench.topic("T", queues=0)
    code, remark = refusal(bench, queue_id=-1)
    assert code == 1
    assert "pocketmq topic update T --queues" in remark


def test_the_topics_own_permission_is_not_looked_at(bench):
    bench.topic("T", perm=4)
    assert bench.send("T").code == 0


# --- retries that a consumer sends itself


def test_a_retry_topic_is_made_with_one_queue(bench):
    reply = bench.send("%RETRY%g", default_topic="NoSuchTemplate", reconsume_times=1)
    assert reply.code == 0
    assert bench.state.topics.get("%RETRY%g").write_queue_nums == 1


def test_a_retry_of_an_unknown_group_is_refused(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    code, remark = refusal(bench, topic="%RETRY%g")
    assert code == 26
    assert remark.startswith("subscription group not exist, g ")


def test_a_message_out_of_retries_is_dead(bench):
    bench.topic("%RETRY%g")
    reply = bench.send(
        "%RETRY%g", b"dead", reconsume_times=16, properties="DELAY\x015\x02TAGS\x01a"
    )
    assert reply.code == 0
    assert stored(bench, "%RETRY%g") == []
    (record,) = stored(bench, "%DLQ%g")
    assert record.properties == {"DELAY": "0", "TAGS": "a", "CLUSTER": "DefaultCluster"}
    assert bench.state.topics.get("%DLQ%g").perm == 6
    assert bench.changes.topics[-1] == (None, True)


@pytest.mark.parametrize(
    ("version", "most", "topic"),
    [(407, 3, "%DLQ%g"), (120, 3, "%RETRY%g"), (407, None, "%RETRY%g")],
)
def test_the_header_may_set_the_number_of_retries(bench, version, most, topic):
    bench.topic("%RETRY%g")
    bench.send("%RETRY%g", reconsume_times=3, max_reconsume_times=most, version=version)
    assert len(stored(bench, topic)) == 1


# --- delay


def entries(bench: Bench, topic: str, queue_id: int) -> list[int]:
    """What the entries of a queue carry as tags code."""
    return asyncio.run(bench.store.tags_codes("me", topic, queue_id, 0, 100))


def test_a_delayed_message_waits_in_the_queue_of_its_level(bench):
    bench.topic("T", queues=4)
    reply = bench.send(
        "T", b"later", queue_id=2, properties="DELAY\x013\x02WAIT\x01true\x02TAGS\x01a"
    )
    (fields := fields_of(reply)).pop("msgId")
    assert fields == {
        "queueId": "2",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert stored(bench, "T", 2) == []
    (record,) = stored(bench, names.SCHEDULE_TOPIC, 2)
    assert record.body == b"later"
    assert record.properties == {
        "DELAY": "3",
        "WAIT": "true",
        "TAGS": "a",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }
    assert entries(bench, names.SCHEDULE_TOPIC, 2) == [record.store_timestamp_ms + 10_000]
    assert bench.state.counters.messages_delayed == 1


def test_a_level_above_the_last_is_the_last(bench):
    bench.topic("T")
    bench.send("T", properties="DELAY\x0199")
    (record,) = stored(bench, names.SCHEDULE_TOPIC, 17)
    assert record.properties["DELAY"] == "18"
    assert entries(bench, names.SCHEDULE_TOPIC, 17) == [record.store_timestamp_ms + 7_200_000]


def test_the_levels_can_be_set(make_bench):
    bench = make_bench(message_delay_level="2s 1d")
    bench.topic("T")
    bench.send("T", properties="DELAY\x013")
    (record,) = stored(bench, names.SCHEDULE_TOPIC, 1)
    assert entries(bench, names.SCHEDULE_TOPIC, 1) == [record.store_timestamp_ms + 86_400_000]


def test_where_a_message_was_delayed_for_before_is_forgotten(bench):
    bench.topic("T")
    bench.send("T", properties="REAL_TOPIC\x01Old\x02DELAY\x011\x02REAL_QID\x017")
    (record,) = stored(bench, names.SCHEDULE_TOPIC, 0)
    assert record.properties_text.count(b"REAL_TOPIC") == 1
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "0")


@pytest.mark.parametrize("level", ["soon", "1_0", " 1", "0x1"])
def test_a_delay_that_is_no_number_is_refused_with_a_sentence(bench, level):
    bench.topic("T")
    code, remark = refusal(bench, properties=f"DELAY\x01{level}")
    assert code == 13
    assert "not the number of a delay level" in remark
    assert stored(bench, "T") == []


@pytest.mark.parametrize("level", ["0", "-1"])
def test_delay_level_zero_or_below_is_no_delay(bench, level):
    bench.topic("T")
    assert bench.send("T", properties=f"DELAY\x01{level}").code == 0
    assert len(stored(bench, "T")) == 1


def test_a_consumer_may_send_a_retry_itself(bench):
    bench.send("%RETRY%g", b"again", reconsume_times=1, properties="DELAY\x014")
    (record,) = stored(bench, names.SCHEDULE_TOPIC, 3)
    assert record.properties["REAL_TOPIC"] == "%RETRY%g"
    assert record.reconsume_times == 1


# --- what isn't served yet


@pytest.mark.parametrize(
    "fields", [{"properties": "TRAN_MSG\x01true"}, {"sys_flag": 4}, {"sys_flag": 12}]
)
def test_a_transactional_message_is_refused(bench, fields):
    bench.topic("T")
    assert refusal(bench, **fields) == (
        16,
        "the broker[127.0.0.1] sending transaction message is forbidden",
    )


# --- what the store refuses


def test_too_large_a_body_is_illegal(make_bench):
    bench = make_bench(max_message_size=1024)
    bench.topic("T")
    assert bench.send("T", bytes(1024)).code == 0
    code, remark = refusal(bench, body=bytes(1025))
    assert code == 13
    assert "1024" in remark


def test_too_many_properties_are_illegal(bench):
    bench.topic("T")
    assert refusal(bench, properties="k\x01" + "x" * 32767)[0] == 13


def test_a_closed_store_is_not_available(bench):
    bench.topic("T")
    bench.store.close()
    assert refusal(bench)[0] == 14


def test_a_header_that_lacks_a_field_is_refused(bench):
    bench.topic("T")
    command = Command(RequestCode.SEND_MESSAGE_V2, pairs=(("b", "T"),))
    reply = bench.must(command)
    assert reply.code == 1
    assert "missing" in reply.remark


def test_counters_tell_what_happened(bench):
    bench.topic("T")
    bench.send("T", b"12345")
    refusal(bench, queue_id=9)
    counters = bench.state.counters
    assert (counters.messages_sent, counters.bytes_sent, counters.sends_failed) == (1, 5, 1)


# --- when answers come


async def test_in_sync_mode_the_answer_waits_for_the_disk(make_bench):
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic("T")
    bench.store.start(asyncio.get_running_loop())
    answer = bench.dispatch(send_command("T"), bench.connection)
    assert isinstance(answer, asyncio.Future)
    assert not answer.done()
    reply = await asyncio.wait_for(answer, 10)
    assert reply.code == 0
    assert reply.header.queue_offset == 0
    assert bench.store.durable_offset == bench.store.end_offset


async def test_in_sync_mode_a_message_may_decline_to_wait(make_bench):
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic("T")
    bench.store.start(asyncio.get_running_loop())
    answer = bench.dispatch(send_command("T", properties="WAIT\x01false"), bench.connection)
    assert isinstance(answer, Command)
    assert answer.code == 0


async def test_a_message_that_the_disk_takes_too_long_for_is_stored_and_says_so(
    make_bench, monkeypatch
):
    bench = make_bench(flush_disk_type="SYNC_FLUSH")
    bench.topic("T")
    monkeypatch.setattr(bench.store, "when_durable", lambda end, callback: callback(False))
    reply = await answer_of(bench, send_command("T"))
    assert reply.code == 10
    assert reply.header.msg_id


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_sends_behind_a_new_topic_wait_until_it_is_on_the_disk(make_bench, mode):
    bench = make_bench(flush_disk_type=mode)
    bench.store.start(asyncio.get_running_loop())
    saved = asyncio.get_running_loop().create_future()
    bench.changes.topics_pending = saved
    answer = asyncio.ensure_future(bench.dispatch(send_command("New"), bench.connection))
    await asyncio.sleep(0.05)
    assert not answer.done()
    saved.set_result(False)
    assert (await answer).code == 0
