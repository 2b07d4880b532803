"""Delayed messages wait in the queue of their level."""

from __future__ import annotations

import asyncio

import pytest

from remoting.protocol import names
from tests.unit.broker.harness import Bench, fields_of
from tests.unit.broker.processors.sends import ADDED, refusal, stored


def entries(bench: Bench, topic: str, queue_id: int) -> list[int]:
    """Return the tags codes of a queue's entries."""
    return asyncio.run(bench.store.cold_reads.tags_codes("me", topic, queue_id, 0, 100))


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
        **ADDED,
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


def test_properties_of_an_earlier_delay_are_replaced(bench):
    bench.topic("T")
    bench.send("T", properties="REAL_TOPIC\x01Old\x02DELAY\x011\x02REAL_QID\x017")
    (record,) = stored(bench, names.SCHEDULE_TOPIC, 0)
    assert record.properties_text.count(b"REAL_TOPIC") == 1
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "0")


@pytest.mark.parametrize("level", ["soon", "1_0", " 1", "0x1"])
def test_a_delay_that_is_no_number_is_refused_with_a_message(bench, level):
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
