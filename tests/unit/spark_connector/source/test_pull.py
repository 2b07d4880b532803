"""Reading a range: every offset once and in order, whatever a broker's answers contain."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.errors import ConnectionLost
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageRequestHeader
from spark_connector.decode.decoder import Decoder
from spark_connector.errors import BrokerError, DecodeError
from spark_connector.limits import BATCH_MESSAGES
from spark_connector.source.pull import RangeReader
from tests.unit.spark_connector.source.broker import (
    ADDRESS,
    TAGS,
    Clock,
    FakeBroker,
    FakeDecoder,
    answer,
    options,
    partition,
    record,
)
from tests.unit.spark_connector.source.ranges import offsets, reader


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_range_is_read_with_one_pull_if_possible() -> None:
    broker = FakeBroker()
    reading = reader(broker, partition(100, 500))
    assert offsets(reading) == list(range(100, 500))
    assert broker.asked == [(100, 400)]
    assert reading.counts.messages == 400
    assert broker.returned == 1


def test_an_empty_range_sends_no_request() -> None:
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


def test_an_undecodable_message_is_reported_with_its_offset(clock: Clock) -> None:
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


def test_messages_repeated_by_a_broker_are_dropped() -> None:
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


def test_records_beside_the_range_are_omitted() -> None:
    broker = FakeBroker()
    everything = b"".join(record(n) for n in range(90, 120))
    broker.special = lambda _: answer(ResponseCode.SUCCESS, 120, 0, 1000, everything)
    assert offsets(reader(broker, partition(100, 110))) == list(range(100, 110))


def test_pulls_have_the_requested_fields() -> None:
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
