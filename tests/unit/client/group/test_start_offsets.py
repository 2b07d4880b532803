"""Where a queue starts: at the stored offset, by the rule, or by the broker's rule."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client.errors import PocketMQError, RemoteError, UsageError
from client.group.start_offsets import StartOffsets
from client.positions import Place, Position
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.queue import MessageQueue
from tests.support.virtual_time import virtual
from tests.unit.client.world import SimulatedBroker, World

T = MessageQueue("T", "broker-a", 0)


@asynccontextmanager
async def one_queue(root: Path, messages: int = 5) -> AsyncIterator[Any]:
    """A queue with messages, its broker, and a maker of what is tested."""
    async with World(root) as world:
        broker = world.broker("broker-a", T=1)
        for number in range(messages):
            broker.bench.send("T", b"%d" % number)
        consumer = world.consumer("a")

        def starts(
            start_from: Position = Place.END, *, exact: bool = False, shared: bool = True
        ) -> StartOffsets:
            options: Any = SimpleNamespace(start_from=start_from, exact=exact, shared=shared)
            return StartOffsets(
                consumer.client,  # type: ignore[arg-type] # what it needs of an instance
                "g",
                consumer,
                options,
            )

        yield starts, broker, consumer


def grown_old(broker: SimulatedBroker) -> None:
    """Its first messages are no longer in memory."""
    broker.bench.store.queries.is_offset_in_memory = lambda *_: False  # type: ignore[method-assign]


@virtual
async def test_a_stored_offset_overrides_the_rule(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, broker, _):
        broker.commit("g", T, 3)
        for place in (Place.BEGIN, Place.END, 1, datetime(2020, 1, 1, tzinfo=UTC)):
            start = await starts(place).find(T)
            assert (start.offset, start.reason, str(start)) == (3, "stored", "stored 3")


@virtual
async def test_a_stored_zero_is_stored(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, broker, _):
        broker.commit("g", T, 0)
        grown_old(broker)
        assert (await starts().find(T)).reason == "stored"
        assert (await starts(exact=True).find(T)).reason == "stored"


@virtual
async def test_a_queue_that_begins_at_0_is_read_from_its_first_message_with_the_count(
    tmp_path: Path,
):
    async with one_queue(tmp_path) as (starts, _, _):
        start = await starts(Place.END).find(T)
        assert (start.offset, start.reason, start.text) == (0, "fallback", "fallback 0: 5 messages")


@virtual
async def test_exact_refuses_the_brokers_rule(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, _, _):
        start = await starts(Place.END, exact=True).find(T)
        assert (start.offset, start.reason, start.text) == (5, "end", "end 5")


@virtual
async def test_exact_is_exact_at_brokers_that_use_their_rule_unasked(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, broker, consumer):

        async def unasked(queue: MessageQueue) -> int:
            return 0

        consumer.stored = unasked
        assert (await starts(Place.END).find(T)).reason == "stored"
        assert (await starts(Place.END, exact=True).find(T)).reason == "end"
        broker.commit("g", T, 0)
        assert (await starts(Place.END, exact=True).find(T)).reason == "stored"


@virtual
async def test_a_queue_that_begins_later_starts_by_the_rule(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, broker, _):
        grown_old(broker)
        assert (await starts(Place.END).find(T)).text == "end 5"
        assert (await starts(Place.BEGIN).find(T)).text == "first 0"
        assert (await starts(2).find(T)).text == "offset 2"
        past = datetime(2020, 1, 1, tzinfo=UTC)
        start = await starts(past).find(T)
        assert (start.offset, start.reason) == (0, "timestamp")
        assert str(past.year) in start.text


@virtual
async def test_the_retry_topic_starts_at_its_first_message(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, broker, _):
        broker.topic("%RETRY%g", 1)
        grown_old(broker)
        start = await starts(Place.END).find(MessageQueue("%RETRY%g", "broker-a", 0))
        assert (start.offset, start.reason) == (0, "retry")


@virtual
async def test_a_broadcasting_member_has_its_own_offsets_without_the_brokers_rule(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, broker, _):
        start = await starts(Place.END, shared=False).find(T)
        assert start.text == "end 5"
        assert broker.count(RequestCode.QUERY_CONSUMER_OFFSET) == 1


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ],
)
@virtual
async def test_every_error_but_not_found_leaves_the_offset_unknown(tmp_path: Path, code: int):
    async with one_queue(tmp_path) as (starts, broker, _):
        broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = code
        with pytest.raises(RemoteError) as raised:
            await starts(Place.END).find(T)
        assert raised.value.code == code


@virtual
async def test_a_timeout_leaves_the_offset_unknown(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, broker, _):
        broker.silent.add(RequestCode.GET_MAX_OFFSET)
        with pytest.raises(PocketMQError, match="no answer"):
            await starts(Place.END).find(T)


@virtual
async def test_a_time_without_a_time_zone_is_refused(tmp_path: Path):
    async with one_queue(tmp_path) as (starts, _, _):
        with pytest.raises(UsageError, match="time zone"):
            starts(datetime(2020, 1, 1))  # noqa: DTZ001 - what is tested
