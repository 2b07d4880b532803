"""Reading a range: every offset once, in order, or an error that says why not."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.errors import ConnectionLost, RequestTimeout
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageRequestHeader
from spark_connector.decode import Decoder
from spark_connector.errors import BrokerError, DataLossError, DecodeError, UnknownTopicError
from spark_connector.planning.ranges import OnDataLoss, RangePartition
from spark_connector.reading.limits import BATCH_MESSAGES, LOSS_PATIENCE, REFUSALS
from spark_connector.reading.pull import RangeReader
from tests.unit.spark_connector.reading.broker import (
    ADDRESS,
    SLAVE,
    TAGS,
    Clock,
    FakeBroker,
    FakeDecoder,
    answer,
    options,
    partition,
    record,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def reader(
    broker: FakeBroker, part: RangePartition, clock: Clock | None = None, **others: Any
) -> RangeReader:
    clock = clock or Clock()
    return RangeReader(
        part,
        options(**others),
        cast("Decoder", FakeDecoder()),
        lease=broker.lease,
        clock=clock,
        sleep=clock.sleep,
        choose=random.Random(1),
    )


def offsets(reading: RangeReader) -> list[int]:
    found = []
    for batch in reading.batches():
        for offset, body in batch:
            assert body == b"%d" % offset
            found.append(offset)
    return found


def times(count: int, what: Callable[[], Command | Exception]) -> Any:
    """Answers so many pulls like this, and leaves the others to the broker."""
    left = itertools.repeat(None, count)
    return lambda _: what() if next(left, 1) is None else None


# --- what is there


def test_a_range_is_read_with_one_pull_if_that_brings_it() -> None:
    broker = FakeBroker()
    reading = reader(broker, partition(100, 500))
    assert offsets(reading) == list(range(100, 500))
    assert broker.asked == [(100, 400)]
    assert reading.counts.messages == 400
    assert broker.returned == 1


def test_an_empty_range_asks_nobody() -> None:
    broker = FakeBroker()
    assert offsets(reader(broker, partition(5, 5))) == []
    assert broker.leases == []


@pytest.mark.parametrize("cap", [1, 8, 32])
@pytest.mark.parametrize("order", [(), (1,), (3, 2, 0, 1)])
def test_a_broker_that_gives_few_in_any_order_is_read_in_order(
    cap: int, order: tuple[int, ...]
) -> None:
    broker = FakeBroker(cap=cap, order=order)
    assert offsets(reader(broker, partition(3, 997))) == list(range(3, 997))


def test_batches_gather_several_answers() -> None:
    broker = FakeBroker(high=10_000, cap=32)
    sizes = [len(batch) for batch in reader(broker, partition(0, 10_000)).batches()]
    assert sum(sizes) == 10_000
    assert all(BATCH_MESSAGES <= size < BATCH_MESSAGES + 32 for size in sizes[:-1])


def test_a_filter_is_exact_and_leaves_nothing_out() -> None:
    broker = FakeBroker(high=5000, order=(2, 0, 1))
    reading = reader(broker, partition(10, 4999), filter_tags="green || grey")
    wanted = [n for n in range(10, 4999) if TAGS[n % 4] in {"green", "grey"}]
    assert offsets(reading) == wanted
    assert reading.counts.lost == 0


def test_a_filter_that_matches_nothing_comes_to_the_end() -> None:
    broker = FakeBroker(high=5000)
    assert offsets(reader(broker, partition(0, 5000), filter_tags="pink")) == []
    assert len(broker.asked) < 12


@given(
    start=st.integers(0, 300),
    length=st.integers(0, 700),
    cap=st.integers(1, 100),
    order=st.lists(st.integers(0, 5), max_size=5),
    pipeline=st.integers(1, 5),
    batch=st.integers(1, 200),
    tags=st.sampled_from(["*", "red", "red || blue", "pink"]),
    losses=st.sets(st.integers(0, 60), max_size=4),
)
def test_every_message_comes_once_and_in_order(
    start: int,
    length: int,
    cap: int,
    order: list[int],
    pipeline: int,
    batch: int,
    tags: str,
    losses: set[int],
) -> None:
    broker = FakeBroker(cap=cap, order=order)
    count = itertools.count()

    def break_off(_: PullMessageRequestHeader) -> Exception | None:
        return ConnectionLost(ADDRESS, "reset") if next(count) in losses else None

    broker.special = break_off
    reading = reader(
        broker,
        partition(start, start + length),
        filter_tags=tags,
        pull_pipeline=pipeline,
        pull_batch_size=batch,
    )
    wanted = options(filter_tags=tags).tags
    assert offsets(reading) == [
        n for n in range(start, start + length) if wanted.matches(TAGS[n % 4])
    ]


# --- a broker that is away


def test_a_lost_connection_goes_on_where_it_ended(
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
    # A row of failures is said once.
    assert [line.getMessage().partition(":")[0] for line in caplog.records] == [
        "queue can't be read, trying again"
    ] * 2


def test_pauses_grow_and_progress_makes_them_short_again(clock: Clock) -> None:
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
    broker.special = times(1, lambda: RequestTimeout(ADDRESS, 11, 10.0))
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


def test_time_in_which_spark_works_does_not_count(clock: Clock) -> None:
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


def test_a_broker_that_is_always_busy_is_given_up(clock: Clock) -> None:
    broker = FakeBroker()
    broker.special = lambda _: Command(ResponseCode.SYSTEM_BUSY, remark="too many pulls")
    with pytest.raises(BrokerError, match="too many pulls"):
        offsets(reader(broker, partition(0, 500), clock, read_timeout=20.0))
    assert 20 <= clock.now < 22


def test_an_error_is_tried_again_a_few_times(clock: Clock) -> None:
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
def test_a_refusal_is_said_at_once_with_what_to_do(clock: Clock, code: int, hint: str) -> None:
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
def test_a_broker_that_talks_nonsense_is_given_up(clock: Clock, nonsense: Command) -> None:
    broker = FakeBroker()
    broker.special = lambda _: nonsense
    with pytest.raises(BrokerError, match="refuses to give messages from offset 0"):
        offsets(reader(broker, partition(0, 500), clock))


# --- messages that are gone


def test_messages_gone_from_the_beginning_fail_the_range() -> None:
    broker = FakeBroker(low=200)
    with pytest.raises(DataLossError) as caught:
        offsets(reader(broker, partition(100, 500)))
    assert str(caught.value).startswith("100 messages from offset 100 up to 200 are gone: topic T,")
    assert "onDataLoss=skip" in str(caught.value)


@pytest.mark.parametrize("policy", [OnDataLoss.SKIP, OnDataLoss.EARLIEST])
def test_by_option_the_rest_is_read_and_the_loss_counted_and_said(
    policy: OnDataLoss, caplog: pytest.LogCaptureFixture
) -> None:
    reading = reader(FakeBroker(low=200), partition(100, 500), on_data_loss=policy)
    with caplog.at_level(logging.WARNING):
        assert offsets(reading) == list(range(200, 500))
    assert reading.counts.lost == 100
    assert "lost=100" in caplog.text
    assert "queue=T" in caplog.text


def test_a_range_that_is_gone_altogether_is_counted_once() -> None:
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
    with pytest.raises(DataLossError, match="up to 800 are gone"):
        offsets(reader(broker, partition(0, 1000)))


def test_a_hole_within_an_answer_is_noticed() -> None:
    broker = FakeBroker()
    broker.holes = {250, 251}
    with pytest.raises(DataLossError, match="2 of the messages from offset 0 up to 500 are gone"):
        offsets(reader(broker, partition(0, 500)))
    reading = reader(broker, partition(0, 500), on_data_loss=OnDataLoss.SKIP)
    assert offsets(reading) == [n for n in range(500) if n not in {250, 251}]
    assert reading.counts.lost == 2


def test_records_gone_from_the_log_before_their_queue_are_noticed() -> None:
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
def test_a_topic_made_anew_fails_the_range(clock: Clock, high: int) -> None:
    broker = FakeBroker(high=high)
    with pytest.raises(DataLossError) as caught:
        offsets(reader(broker, partition(450, 500), clock))
    assert f"offset 450 up to 500, the queue has 0 up to {high}" in str(caught.value)
    assert "deleted and made anew" in str(caught.value)
    assert LOSS_PATIENCE <= clock.now < LOSS_PATIENCE + 1.1


def test_by_option_a_queue_that_ends_too_soon_is_read_to_its_end(clock: Clock) -> None:
    reading = reader(FakeBroker(high=400), partition(0, 500), clock, on_data_loss=OnDataLoss.SKIP)
    assert offsets(reading) == list(range(400))
    assert reading.counts.lost == 100


def test_a_topic_that_vanished_is_said_at_once(clock: Clock) -> None:
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


# --- the edges


def test_a_message_that_can_not_be_decoded_is_placed(clock: Clock) -> None:
    class Decoding(FakeDecoder):
        def batches(self, *_: Any, **__: Any) -> Any:
            raise DecodeError("a record is damaged", "set onDecodeError")

    reading = RangeReader(
        partition(100, 500), options(), cast("Decoder", Decoding()), lease=FakeBroker().lease
    )
    with pytest.raises(DecodeError) as caught:
        offsets(reading)
    assert "a record is damaged; it came with offsets 100 up to 500 of topic T, queue 3" in str(
        caught.value
    )
    assert str(caught.value).endswith("set onDecodeError")


def test_a_broker_that_repeats_messages_is_not_believed() -> None:
    broker = FakeBroker()
    twice = b"".join(record(n // 2) for n in range(20))
    broker.special = lambda _: answer(ResponseCode.SUCCESS, 10, 0, 1000, twice)
    with pytest.raises(BrokerError, match="it gave 20 messages for 10 offsets"):
        offsets(reader(broker, partition(0, 10)))


def test_a_refusal_with_a_body_is_a_refusal() -> None:
    broker = FakeBroker()
    broker.special = lambda _: Command(1, remark="no", body=bytes(100))
    with pytest.raises(BrokerError, match=r"code 1 .*: no"):
        offsets(reader(broker, partition(0, 10)))


def test_records_beside_the_range_are_left_out() -> None:
    broker = FakeBroker()
    everything = b"".join(record(n) for n in range(90, 120))
    broker.special = lambda _: answer(ResponseCode.SUCCESS, 120, 0, 1000, everything)
    assert offsets(reader(broker, partition(100, 110))) == list(range(100, 110))


def test_pulls_say_what_they_want() -> None:
    headers: list[PullMessageRequestHeader] = []
    broker = FakeBroker()

    def keep(header: PullMessageRequestHeader) -> None:
        headers.append(header)

    broker.special = keep
    offsets(reader(broker, partition(100, 5 + 100), filter_tags="red || blue"))
    (header,) = headers
    assert header.consumer_group == "spark"
    assert (header.topic, header.queue_id, header.bname) == ("T", 3, "broker-a")
    assert (header.queue_offset, header.max_msg_nums) == (100, 5)
    assert header.max_msg_bytes == 4 * 1024 * 1024
    assert (header.subscription, header.expression_type) == ("red || blue", "TAG")
    # It brings its expression, is not held, and commits nothing.
    assert (header.sys_flag, header.suspend_timeout_millis) == (4, 0)
