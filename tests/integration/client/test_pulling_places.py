"""Where a pull consumer starts, continues and seeks to, and what it commits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import client
from client.events import OffsetMoved
from remoting.protocol.codes import RequestCode
from tests.integration.client.pulling import fill, queue, take
from tests.support.waiting import until


async def test_a_group_continues_where_it_committed(cluster: Any, producer: Any):
    await fill(producer, 100)
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        queues = await consumer.queues("T")
        consumer.assign(queues)
        assert await consumer.committed() == dict.fromkeys(queues)
        first = await take(consumer, 60)
        await consumer.commit()
        committed = await consumer.committed()
        assert sum(offset or 0 for offset in committed.values()) == 60
        assert {q: await consumer.position(q) for q in queues} == {
            q: offset or 0 for q, offset in committed.items()
        }
        await take(consumer, 20)
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign(queues)
        second = await take(consumer, 40)
    assert sorted(first + second, key=int) == [b"%d" % number for number in range(100)]


async def test_offsets_can_be_committed_by_hand(cluster: Any, producer: Any):
    await producer.send("T", b"x", queue=queue(1))
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        await consumer.commit({queue(1): 1, queue(2): 0})
        assert await consumer.committed([queue(1), queue(2)]) == {queue(1): 1, queue(2): 0}


async def test_committing_nothing_new_sends_no_request(fake: Any):
    async with client.PullConsumer(fake.address, group="g") as consumer:
        await consumer.commit()
    assert fake.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 0


async def test_automatic_commits_exclude_unsettled_messages(cluster: Any, producer: Any):
    for number in range(6):
        await producer.send("T", b"%d" % number, queue=queue(0))
    group = {"group": "g", "auto_commit": True, "auto_commit_period": 0.02}
    async with client.PullConsumer(cluster.nameserver, **group) as consumer:
        consumer.assign([queue(0)])
        await take(consumer, 2)
        await consumer.get_many(2, timeout=5)
        while (await consumer.committed())[queue(0)] != 2:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.01)
    async with client.Admin(cluster.nameserver) as admin:
        assert (await admin.committed("g", "T"))[queue(0)] == 4

    async def fail_while_reading() -> None:
        async with client.PullConsumer(cluster.nameserver, **group) as consumer:
            consumer.assign([queue(0)])
            await consumer.get_many(1, timeout=5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_while_reading()
    async with client.Admin(cluster.nameserver) as admin:
        assert (await admin.committed("g", "T"))[queue(0)] == 4


@pytest.mark.parametrize(
    "more", [{"auto_commit_period": 0.02}, {}], ids=["by time", "before subscribing"]
)
async def test_automatic_commits_include_the_queues_that_are_given_up(
    cluster: Any, producer: Any, admin: client.Admin, more: Any
):
    for number in range(8):
        await producer.send("T", b"%d" % number, queue=queue(number % 2), tag="paid")
    async with client.PullConsumer(
        cluster.nameserver, group="g", auto_commit=True, **more
    ) as consumer:
        consumer.assign([queue(0)])
        assert await take(consumer, 4) == [b"0", b"2", b"4", b"6"]
        consumer.assign([queue(0), queue(1)], tags="paid")
        assert await take(consumer, 4) == [b"1", b"3", b"5", b"7"]
        consumer.assign([])

        async def committed() -> bool:
            offsets = await admin.committed("g", "T")
            return (offsets[queue(0)], offsets[queue(1)]) == (4, 4)

        if more:
            await until(committed)
        await consumer.subscribe("T", "paid")
        assert await committed()
        assert await consumer.get_many(1, timeout=0.1) == []


async def test_without_automatic_commits_closing_commits_nothing(cluster: Any, producer: Any):
    await fill(producer, 10)
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign(await consumer.queues("T"))
        await take(consumer, 10)
    async with client.Admin(cluster.nameserver) as admin:
        assert set((await admin.committed("g", "T")).values()) == {None}


@pytest.mark.parametrize(
    ("start", "expected"), [("first", [b"old", b"new"]), ("last", [b"new"])], ids=str
)
async def test_a_new_group_starts_where_it_says(
    cluster: Any, producer: Any, start: Any, expected: list[bytes]
):
    await producer.send("T", b"old", queue=queue(0))
    place = {"first": client.FIRST, "last": client.LAST}[start]
    async with client.PullConsumer(cluster.nameserver, group="g", start_from=place) as consumer:
        consumer.assign([queue(0)])
        await until(lambda: consumer._reader.prefetch(queue(0)).next_pull is not None)
        assert await consumer.position(queue(0)) == 2 - len(expected)
        await producer.send("T", b"new", queue=queue(0))
        assert await take(consumer, len(expected)) == expected


async def test_seeking_goes_anywhere(cluster: Any, producer: Any):
    for number in range(10):
        await producer.send("T", b"%d" % number, queue=queue(0))
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue(0)])
        assert (await take(consumer, 10))[-1] == b"9"
        await consumer.seek(queue(0), 4)
        assert await take(consumer, 2) == [b"4", b"5"]
        await consumer.seek(queue(0), client.BEGIN)
        assert await take(consumer, 1) == [b"0"]
        await consumer.seek(queue(0), client.END)
        assert await consumer.get_many(1, timeout=0.05) == []
        await producer.send("T", b"10", queue=queue(0))
        assert await take(consumer, 1) == [b"10"]


async def test_seeking_to_an_instant_finds_the_first_message_at_or_after_it(
    cluster: Any, producer: Any
):
    stored: list[datetime] = []
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue(0)])
        for number in range(6):
            for twin in range(3):
                await producer.send("T", b"%d.%d" % (number, twin), queue=queue(0))
            await asyncio.sleep(0.01)
        batch: list[client.ReceivedMessage[bytes]] = []
        while len(batch) < 18:
            batch += await consumer.get_many(18, timeout=5)
        stored = [message.stored_at for message in batch]
        for wanted in (
            *stored,
            stored[0] - timedelta(hours=1),
            stored[5] + timedelta(milliseconds=3),
        ):
            await consumer.seek(queue(0), wanted)
            expected = next(n for n, at in enumerate(stored) if at >= wanted)
            [message] = await consumer.get_many(1, timeout=5)
            assert message.offset == expected
        await consumer.seek(queue(0), datetime.now(UTC) + timedelta(hours=1))
        assert await consumer.position(queue(0)) == 18


async def test_seeking_drops_a_held_pull(cluster: Any, producer: Any):
    await producer.send("T", b"0", queue=queue(0))
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue(0)])
        await take(consumer, 1)
        assert await consumer.get_many(1, timeout=0.1) == []
        await consumer.seek(queue(0), 0)
        assert await take(consumer, 1, timeout=10) == [b"0"]


async def test_invalid_positions_are_refused(cluster: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue(0)])
        for bad in (-1, True, "begin", datetime(2026, 1, 1)):  # noqa: DTZ001 - what is tested
            with pytest.raises(client.UsageError):
                await consumer.seek(queue(0), bad)  # type: ignore[arg-type] # what is tested
        with pytest.raises(client.UsageError, match="not assigned"):
            await consumer.seek(queue(1), 0)
        with pytest.raises(client.UsageError, match="not assigned"):
            await consumer.position(queue(1))
        with pytest.raises(client.UsageError):
            await consumer.get_many(0)
        with pytest.raises(client.UsageError, match="names no tag"):
            consumer.assign([queue(0)], tags="||")


async def test_an_offset_beyond_the_queue_is_moved_and_reported(cluster: Any, producer: Any):
    await fill(producer, 10)
    events: list[client.Event] = []
    async with client.PullConsumer(
        cluster.nameserver, group="g", on_event=events.append
    ) as consumer:
        consumer.assign([queue(0)])
        await consumer.seek(queue(0), 10_000)
        await until(lambda: events)
        moved = events[0]
        assert isinstance(moved, OffsetMoved)
        assert moved.wanted == 10_000
        await producer.send("T", b"after", queue=queue(0))
        assert await take(consumer, 1) == [b"after"]
