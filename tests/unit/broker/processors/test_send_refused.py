"""Refused sends: the checks in their order, and refusals of the store."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.message import batch
from tests.unit.broker.processors.sends import refusal

# --- who may send what where


def test_a_broker_can_start_accepting_sends_later(make_bench):
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


def test_the_template_accepts_sends_like_any_topic(bench):
    assert bench.send("TBW102").code == 0


def test_an_unknown_topic_is_created_saved_and_registered(bench):
    assert bench.send("New", queue_id=1).code == 0
    assert bench.state.topics.get("New").write_queue_nums == 4
    assert bench.changes.topics == [(["New"], True)]


def test_a_topic_created_with_fewer_queues_than_requested_is_logged(bench):
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


def test_the_topics_own_permission_is_not_checked(bench):
    bench.topic("T", perm=4)
    assert bench.send("T").code == 0


# --- what isn't served yet


TIMERS = ["TIMER_DELAY_SEC\x015", "TIMER_DELAY_MS\x01x", "A\x01b\x02TIMER_DELIVER_MS\x011\x02"]


@pytest.mark.parametrize("text", [*TIMERS, "DELAY\x010\x02TIMER_DELAY_SEC\x015"])
def test_a_timer_message_is_refused_if_timers_are_switched_off(make_bench, text):
    bench = make_bench(timer_wheel_enable=False)
    bench.topic("T")
    code, remark = refusal(bench, properties=text)
    assert code == 1
    assert remark.startswith(
        "accurate timer message is not enabled, timerWheelEnable is false: a message to topic T"
    )
    assert bench.store.queries.max_offset("T", 0) == 0


@pytest.mark.parametrize("text", TIMERS)
def test_a_batch_is_refused_if_one_of_its_messages_requests_a_timer(bench, text):
    bench.topic("T")
    code, send = RequestCode.SEND_BATCH_MESSAGE, {"batch": True}
    body = batch.encode([(0, b"a", b""), (0, b"b", text.encode())])
    assert refusal(bench, body=body, code=code, **send)[0] == 13
    body = batch.encode([(0, b"a", b"")])
    assert refusal(bench, body=body, code=code, properties=text, **send)[0] == 13
    assert bench.store.queries.max_offset("T", 0) == 0


@pytest.mark.parametrize(
    "text",
    [
        "TIMER_DELAY_SEC\x01",
        "XTIMER_DELAY_SEC\x015",
        "KEYS\x01TIMER_DELAY_SEC",
        "TIMER_DEL_UNIQKEY\x01u",
        "TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x01123",
    ],
)
def test_a_message_that_requests_no_timer_is_stored(bench, text):
    bench.topic("T")
    assert bench.send("T", properties=text).code == 0
    assert bench.store.queries.max_offset("T", 0) == 1


def test_a_delay_level_goes_before_a_timer(bench):
    bench.topic("T")
    assert bench.send("T", properties="DELAY\x013\x02TIMER_DELAY_SEC\x015").code == 0
    assert bench.store.queries.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1


def test_a_dead_letter_does_not_wait_for_a_timer(bench):
    text = "TIMER_DELAY_SEC\x015"
    assert bench.send("%RETRY%g", properties=text, reconsume_times=99).code == 0
    assert bench.store.queries.max_offset("%DLQ%g", 0) == 1


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


def test_properties_that_look_like_a_lost_sector_are_illegal(bench):
    code, remark = refusal(bench, properties="k\x01" + "\0" * 512)
    assert (code, "topic T " in remark) == (13, True)
    assert bench.send("T", properties="k\x01" + "\0" * 511).code == 0


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


def test_sends_are_counted(bench):
    bench.topic("T")
    bench.send("T", b"12345")
    refusal(bench, queue_id=9)
    counters = bench.state.counters
    assert (counters.messages_sent, counters.bytes_sent, counters.sends_failed) == (1, 5, 1)
