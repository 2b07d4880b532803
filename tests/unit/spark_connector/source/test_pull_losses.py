"""Deleted messages fail a range, or by option are counted and logged."""

from __future__ import annotations

import logging

import pytest

from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageRequestHeader
from spark_connector.errors import DataLossError, UnknownTopicError
from spark_connector.limits import LOSS_PATIENCE
from spark_connector.source.options import OnDataLoss
from tests.unit.spark_connector.source.broker import Clock, FakeBroker, partition
from tests.unit.spark_connector.source.ranges import offsets, reader


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_messages_deleted_at_the_beginning_fail_the_range() -> None:
    broker = FakeBroker(low=200)
    with pytest.raises(DataLossError) as caught:
        offsets(reader(broker, partition(100, 500)))
    assert str(caught.value).startswith(
        "100 messages from offset 100 up to 200 were deleted: topic T,"
    )
    assert "onDataLoss=skip" in str(caught.value)


@pytest.mark.parametrize("policy", [OnDataLoss.SKIP, OnDataLoss.EARLIEST])
def test_with_skip_the_remaining_messages_are_read_and_the_loss_counted_and_logged(
    policy: OnDataLoss, caplog: pytest.LogCaptureFixture
) -> None:
    reading = reader(FakeBroker(low=200), partition(100, 500), on_data_loss=policy)
    with caplog.at_level(logging.WARNING):
        assert offsets(reading) == list(range(200, 500))
    assert reading.counts.lost == 100
    assert "lost=100" in caplog.text
    assert "queue=T" in caplog.text


def test_a_completely_deleted_range_is_counted_once() -> None:
    reading = reader(FakeBroker(low=800), partition(0, 700), on_data_loss=OnDataLoss.SKIP)
    assert offsets(reading) == []
    assert reading.counts.lost == 700


def test_retention_that_overtakes_a_reader_is_noticed_in_the_middle() -> None:
    broker = FakeBroker(cap=32, order=(1, 0))

    def overtake(_: PullMessageRequestHeader) -> None:
        if len(broker.asked) == 10:
            broker.low = 800

    broker.special = overtake
    reading = reader(broker, partition(0, 1000), on_data_loss=OnDataLoss.SKIP)
    found = offsets(reading)
    assert found[-200:] == list(range(800, 1000))
    assert reading.counts.lost == 1000 - len(found)
    broker.low = 0
    broker.asked.clear()
    with pytest.raises(DataLossError, match="up to 800 were deleted"):
        offsets(reader(broker, partition(0, 1000)))


def test_a_gap_within_an_answer_is_noticed() -> None:
    broker = FakeBroker()
    broker.holes = {250, 251}
    with pytest.raises(
        DataLossError, match="2 of the messages from offset 0 up to 500 were deleted"
    ):
        offsets(reader(broker, partition(0, 500)))
    reading = reader(broker, partition(0, 500), on_data_loss=OnDataLoss.SKIP)
    assert offsets(reading) == [n for n in range(500) if n not in {250, 251}]
    assert reading.counts.lost == 2


def test_records_deleted_before_their_queue_entries_are_noticed() -> None:
    broker = FakeBroker()
    broker.holes = set(range(900))
    reading = reader(broker, partition(0, 1000), on_data_loss=OnDataLoss.SKIP)
    assert offsets(reading) == list(range(900, 1000))
    assert reading.counts.lost == 900


def test_a_queue_that_ends_too_soon_is_waited_for_a_little(clock: Clock) -> None:
    broker = FakeBroker(high=400)

    def arrive(_: PullMessageRequestHeader) -> None:
        if clock.now > LOSS_PATIENCE / 2:
            broker.high = 500

    broker.special = arrive
    assert offsets(reader(broker, partition(0, 500), clock)) == list(range(500))


@pytest.mark.parametrize("high", [400, 0])
def test_a_recreated_topic_fails_the_range(clock: Clock, high: int) -> None:
    broker = FakeBroker(high=high)
    with pytest.raises(DataLossError) as caught:
        offsets(reader(broker, partition(450, 500), clock))
    assert f"offset 450 up to 500, the queue has 0 up to {high}" in str(caught.value)
    assert "deleted and recreated" in str(caught.value)
    assert LOSS_PATIENCE <= clock.now < LOSS_PATIENCE + 1.1


def test_by_option_a_queue_that_ends_too_soon_is_read_to_its_end(clock: Clock) -> None:
    reading = reader(FakeBroker(high=400), partition(0, 500), clock, on_data_loss=OnDataLoss.SKIP)
    assert offsets(reading) == list(range(400))
    assert reading.counts.lost == 100


def test_a_deleted_topic_is_reported_at_once(clock: Clock) -> None:
    broker = FakeBroker()
    broker.special = lambda header: (
        Command(ResponseCode.TOPIC_NOT_EXIST, remark="topic[T] not exist")
        if header.queue_offset
        else None
    )
    broker.cap = 100
    with pytest.raises(UnknownTopicError, match=r"offset 100 up to 500 .*topic\[T\] not exist"):
        offsets(reader(broker, partition(0, 500), clock))
    assert clock.slept == []
    reading = reader(broker, partition(0, 500), clock, on_data_loss=OnDataLoss.SKIP)
    assert offsets(reading) == list(range(100))
    assert reading.counts.lost == 400
