"""A broker that is down, busy or refuses is retried, and named when given up."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from remoting.errors import AnswerTimeout, ConnectionLost
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import RETRY_AFTER
from spark_connector.errors import BrokerError
from spark_connector.limits import REFUSALS
from tests.unit.spark_connector.source.broker import (
    ADDRESS,
    SLAVE,
    Clock,
    FakeBroker,
    answer,
    partition,
    record,
)
from tests.unit.spark_connector.source.ranges import offsets, reader


@pytest.fixture
def clock() -> Clock:
    return Clock()


def times(count: int, what: Callable[[], Command | Exception]) -> Any:
    """Answers a number of pulls in this way, and leaves the others to the broker."""
    left = itertools.repeat(None, count)
    return lambda _: what() if next(left, 1) is None else None


def test_after_a_lost_connection_reading_continues(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broker = FakeBroker(cap=32)
    broker.special = lambda header: (
        ConnectionLost(ADDRESS, "reset by peer") if len(broker.asked) in {5, 6, 20} else None
    )
    reading = reader(broker, partition(0, 1000), clock)
    with caplog.at_level(logging.WARNING):
        assert offsets(reading) == list(range(1000))
    assert reading.counts.failures == 3
    assert len(broker.leases) == 4
    # A series of failures is logged once.
    assert [line.getMessage().partition(":")[0] for line in caplog.records] == [
        "queue can't be read, trying again"
    ] * 2


def test_pauses_grow_and_progress_resets_them(clock: Clock) -> None:
    broker = FakeBroker(high=40, cap=32)
    broker.special = lambda header: (
        ConnectionLost(ADDRESS, "reset") if len(broker.asked) in {*range(1, 9), 10} else None
    )
    assert offsets(reader(broker, partition(0, 40), clock)) == list(range(40))
    row, after = clock.slept[:8], clock.slept[8:]
    assert row[0] <= 0.05
    assert 0.5 <= max(row) <= 1.0
    assert all(later >= sooner / 2 for sooner, later in itertools.pairwise(row))
    assert len(after) == 1
    assert after[0] <= 0.05


def test_the_next_address_is_tried(clock: Clock) -> None:
    broker = FakeBroker()
    broker.special = times(1, lambda: AnswerTimeout(ADDRESS, 11, 10.0))
    assert len(offsets(reader(broker, partition(0, 500, ADDRESS, SLAVE), clock))) == 500
    assert broker.leases == [ADDRESS, SLAVE]


def test_a_broker_that_stays_away_is_named_with_the_offset_and_the_time(clock: Clock) -> None:
    broker = FakeBroker()
    broker.special = lambda header: (
        ConnectionLost(ADDRESS, "reset by peer") if header.queue_offset >= 32 else None
    )
    broker.cap = 32
    reading = reader(broker, partition(0, 1000), clock, read_timeout=30.0)
    found = reading.batches()
    with pytest.raises(BrokerError) as caught:
        list(found)
    text = str(caught.value)
    assert "\n" not in text
    for fact in ("offset 32 on", "topic T", "queue 3", "broker-a", ADDRESS, "reset by peer"):
        assert fact in text
    assert "readTimeoutMs" in text
    assert 30 <= clock.now < 32


def test_time_spent_in_spark_does_not_count(clock: Clock) -> None:
    broker = FakeBroker(high=5000)
    broker.special = lambda header: (
        ConnectionLost(ADDRESS, "reset") if len(broker.asked) % 5 == 4 else None
    )
    found = 0
    for batch in reader(broker, partition(0, 5000), clock, read_timeout=30.0).batches():
        clock.now += 1000
        found += len(batch)
    assert found == 5000


def test_a_busy_broker_is_waited_for(clock: Clock) -> None:
    broker = FakeBroker()
    broker.special = times(20, lambda: Command(ResponseCode.SYSTEM_BUSY, remark="busy"))
    assert len(offsets(reader(broker, partition(0, 500), clock))) == 500


def test_a_broker_is_asked_again_after_the_time_it_named(clock: Clock) -> None:
    broker = FakeBroker()
    pairs = ((RETRY_AFTER, "1500"),)
    broker.special = times(4, lambda: Command(ResponseCode.SYSTEM_BUSY, pairs=pairs))
    began = clock.now
    assert len(offsets(reader(broker, partition(0, 500), clock))) == 500
    assert 6 <= clock.now - began < 7


def test_a_broker_that_is_always_busy_is_given_up(clock: Clock) -> None:
    broker = FakeBroker()
    broker.special = lambda _: Command(ResponseCode.SYSTEM_BUSY, remark="too many pulls")
    with pytest.raises(BrokerError, match="too many pulls"):
        offsets(reader(broker, partition(0, 500), clock, read_timeout=20.0))
    assert 20 <= clock.now < 22


def test_an_error_is_retried_a_few_times(clock: Clock) -> None:
    broker = FakeBroker()
    broker.special = times(REFUSALS - 1, lambda: Command(1, remark="queueId[3] is illegal"))
    assert len(offsets(reader(broker, partition(0, 500), clock))) == 500
    broker.special = lambda _: Command(1, remark="queueId[3] is illegal")
    with pytest.raises(BrokerError, match=r"offset 0 on: .*queueId\[3\] is illegal"):
        offsets(reader(broker, partition(0, 500), clock))


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (ResponseCode.NO_PERMISSION, "let the topic, its broker and the group be read"),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "consumerGroup"),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, "filterTags"),
    ],
)
def test_a_refusal_is_raised_at_once_with_a_remedy(clock: Clock, code: int, hint: str) -> None:
    broker = FakeBroker()
    broker.special = lambda _: Command(code, remark="no")
    with pytest.raises(BrokerError, match=hint):
        offsets(reader(broker, partition(0, 500), clock))
    assert clock.slept == []


@pytest.mark.parametrize(
    "nonsense",
    [
        Command(0, body=b"no header"),
        answer(ResponseCode.SUCCESS, after=0, body=record(0)),
        Command(9999, remark=None),
    ],
)
def test_a_broker_with_invalid_answers_is_given_up(clock: Clock, nonsense: Command) -> None:
    broker = FakeBroker()
    broker.special = lambda _: nonsense
    with pytest.raises(BrokerError, match="refuses to give messages from offset 0"):
        offsets(reader(broker, partition(0, 500), clock))
