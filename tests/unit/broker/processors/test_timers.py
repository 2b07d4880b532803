"""Which timer messages are accepted, and recalls."""

from __future__ import annotations

from base64 import urlsafe_b64decode

import pytest

from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageResponseHeader,
)
from remoting.protocol.message.recall_handle import RecallHandle
from remoting.protocol.names import TIMER_TOPIC
from tests.unit.broker.store.stores import read_all

NOW = 1_700_000_000_000
DAY_MS = 86_400_000
UNIQ = "UNIQ_KEY\x017F000001\x02"


@pytest.fixture
def bench(make_bench):
    bench = make_bench()
    bench.topic("T", 4)
    return bench


def waiting(bench):
    return read_all(bench.store, TIMER_TOPIC, 0)


# --- sends


@pytest.mark.parametrize(
    ("text", "slot_ms"),
    [
        ("TIMER_DELAY_SEC\x015", NOW + 4000),
        ("TIMER_DELAY_SEC\x01259200", NOW + 3 * DAY_MS - 1000),
        ("TIMER_DELAY_MS\x011", NOW),
        ("TIMER_DELAY_MS\x011001", NOW + 1000),
        ("TIMER_DELAY_MS\x01+1001", NOW + 1000),
        (f"TIMER_DELIVER_MS\x01{NOW + 1999}", NOW + 1000),
        (f"TIMER_DELIVER_MS\x01{NOW + 2000}", NOW + 1000),
        (f"TIMER_DELIVER_MS\x01{NOW + 9000}\x02TIMER_DELAY_SEC\x012", NOW + 1000),
        (f"TIMER_DELIVER_MS\x01{NOW + 9000}\x02TIMER_DELAY_MS\x012000", NOW + 1000),
        ("DELAY\x010\x02TIMER_DELAY_SEC\x015", NOW + 4000),
    ],
)
def test_a_timer_message_waits_in_the_second_before_it_is_due(bench, text, slot_ms):
    answer = bench.send("T", properties=UNIQ + text, queue_id=3)
    assert answer.code == 0
    assert answer.read(SendMessageResponseHeader).queue_id == 3
    (record,) = waiting(bench)
    assert record.properties["TIMER_OUT_MS"] == str(slot_ms)
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "3")
    assert bench.store.queries.max_offset("T", 3) == 0


@pytest.mark.parametrize(
    "text",
    [
        "TIMER_DELAY_SEC\x010",
        "TIMER_DELAY_MS\x01-5",
        "TIMER_DELAY_MS\x01-9223372036854775807",
        "TIMER_DELIVER_MS\x015",
        f"TIMER_DELIVER_MS\x01{NOW}",
    ],
)
def test_a_time_in_the_past_is_delivered_at_once(bench, text):
    answer = bench.send("T", properties=UNIQ + text)
    assert (answer.code, answer.read(SendMessageResponseHeader).recall_handle) == (0, None)
    assert bench.store.queries.max_offset("T", 0) == 1
    assert waiting(bench) == []


@pytest.mark.parametrize(
    "text",
    [
        "TIMER_DELAY_SEC\x01259201",
        f"TIMER_DELAY_MS\x01{3 * DAY_MS + 1}",
        "TIMER_DELIVER_MS\x0132503680000000",
        "TIMER_DELIVER_MS\x019223372036854775807",
        "TIMER_DELIVER_MS\x0192233720368547758070",
        "TIMER_DELAY_SEC\x01soon",
        "TIMER_DELAY_SEC\x011.5",
        "TIMER_DELAY_MS\x01 5",
        "TIMER_DELIVER_MS\x01" + "9" * 5000,
        "TIMER_DELIVER_MS\x011\x02TIMER_DEL_UNIQKEY\x01T+u",
    ],
)
def test_a_time_beyond_the_limit_or_no_number_is_illegal(bench, text):
    answer = bench.send("T", properties=text)
    assert answer.code == 13
    assert answer.remark.startswith(
        "timer message illegal, the delay time should not be bigger than the max delay 259200000ms"
    )
    assert bench.store.log.end == 0


def test_the_limit_is_a_setting(make_bench):
    bench = make_bench(timer_max_delay_sec=40 * 86_400)
    bench.topic("T")
    assert bench.send("T", properties=f"TIMER_DELAY_SEC\x01{40 * 86_400}").code == 0
    assert bench.send("T", properties=f"TIMER_DELAY_SEC\x01{40 * 86_400 + 1}").code == 13


def test_a_delay_level_wins_and_the_timer_is_dropped(bench):
    assert bench.send("T", properties="DELAY\x013\x02TIMER_DELAY_SEC\x015\x02A\x01b").code == 0
    (record,) = read_all(bench.store, "SCHEDULE_TOPIC_XXXX", 2)
    assert "TIMER_DELAY_SEC" not in record.properties
    assert record.properties["A"] == "b"
    assert waiting(bench) == []


def test_nobody_sends_to_the_timer_topic(bench):
    answer = bench.send(TIMER_TOPIC)
    assert (answer.code, "forbidden" in answer.remark) == (16, True)


# --- recalls


def handle_of(bench, text="TIMER_DELAY_SEC\x0160"):
    return bench.send("T", properties=UNIQ + text).read(SendMessageResponseHeader).recall_handle


def recall(bench, handle, topic="T"):
    header = RecallMessageRequestHeader(producer_group="g", topic=topic, recall_handle=handle)
    return bench.must(Command.request(RequestCode.RECALL_MESSAGE, header))


def test_the_answer_to_a_timer_message_has_a_handle(bench):
    text = urlsafe_b64decode(handle_of(bench)).decode()
    assert text == f"v1 T broker-a {NOW + 59_001} 7F000001"


def test_a_message_without_a_unique_id_has_no_handle(bench):
    answer = bench.send("T", properties="TIMER_DELAY_SEC\x0160")
    assert answer.read(SendMessageResponseHeader).recall_handle is None


def test_a_recall_is_a_timer_message_of_the_same_second(bench):
    answer = recall(bench, handle_of(bench))
    assert answer.code == 0
    assert answer.read(RecallMessageResponseHeader).msg_id == "7F000001"
    assert answer.fields["MSG_REGION"] == "DefaultRegion"
    sent, record = waiting(bench)
    assert record.stored_body == b"0"
    assert record.properties["TIMER_DEL_UNIQKEY"] == "T+7F000001"
    assert record.properties["TIMER_OUT_MS"] == sent.properties["TIMER_OUT_MS"]
    assert record.properties["PGROUP"] == "g"
    assert record.tags == "_RECALL_TAG_"


@pytest.mark.parametrize(
    ("handle", "remark"),
    [
        ("", "recall handle is invalid"),
        ("!!!", "recall handle is invalid"),
        ("A" * 100_000, "recall handle is invalid"),
        (RecallHandle("T", "broker-a", "1", "u").encode()[:-4], "recall handle is invalid"),
        (RecallHandle("U", "broker-a", f"{NOW + 5}", "u").encode(), "topic not match"),
        (RecallHandle("T", "broker-b", f"{NOW + 5}", "u").encode(), "service not available"),
        (RecallHandle("T", "broker-a", f"{NOW}", "u").encode(), "timestamp invalid"),
        (RecallHandle("T", "broker-a", "-5", "u").encode(), "timestamp invalid"),
        (RecallHandle("T", "broker-a", "x", "u").encode(), "timestamp invalid"),
        (RecallHandle("T", "broker-a", "9" * 100, "u").encode(), "timestamp invalid"),
        (RecallHandle("T", "broker-a", f"{NOW + 3 * DAY_MS}", "u").encode(), "timestamp invalid"),
        (RecallHandle("T", "broker-a", f"{NOW + 5}", "u\x02").encode(), "handle is invalid"),
    ],
)
def test_a_handle_of_something_else_is_an_illegal_operation(bench, handle, remark):
    answer = recall(bench, handle)
    assert (answer.code, remark in answer.remark) == (604, True)
    assert waiting(bench) == []


def test_a_recall_needs_its_topic_and_a_broker_that_allows_it(make_bench):
    bench = make_bench(recall_message_enable=False)
    bench.topic("T")
    handle = handle_of(bench)
    assert recall(bench, handle).code == 16
    bench = make_bench(timer_wheel_enable=False)
    assert recall(bench, handle).code == 17
    bench.topic("T")
    assert recall(bench, handle).code == 1
