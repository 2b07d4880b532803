"""Reading from a broker of ours with a pull consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import client
from client.events import OffsetMoved, QueueResumed, QueueWaiting
from remoting.protocol.codes import RequestCode


@pytest.fixture
async def producer(cluster: Any) -> AsyncIterator[client.Producer[bytes]]:
    async with client.Producer(cluster.nameserver) as made:
        yield made


async def fill(producer: client.Producer[bytes], count: int, first: int = 0) -> None:
    results = await producer.send_many(
        [client.Message("T", b"%d" % number) for number in range(first, first + count)]
    )
    assert all(isinstance(result, client.Receipt) for result in results)


async def take(consumer: Any, count: int, timeout: float = 10.0) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        batch = await consumer.get_many(count - len(got), timeout=timeout)
        assert batch, f"only {len(got)} of {count} came"
        got += [message.body for message in batch]
    return got


def queue(number: int) -> client.MessageQueue:
    return client.MessageQueue("T", "broker-a", number)


async def test_everything_is_read_once_and_in_the_order_of_each_queue(cluster: Any, producer: Any):
    await fill(producer, 5000)
    async with client.PullConsumer(
        cluster.nameserver, group="g", prefetch_messages=300, pull_messages=100
    ) as consumer:
        consumer.assign(await consumer.queues("T"))
        offsets: dict[client.MessageQueue, list[int]] = {}
        bodies: list[bytes] = []
        while len(bodies) < 5000:
            for message in await consumer.get_many(77, timeout=10):
                offsets.setdefault(message.queue, []).append(message.offset)
                bodies.append(message.body)
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(5000)]
    assert all(numbers == list(range(len(numbers))) for numbers in offsets.values())


async def test_nothing_there_is_an_empty_list_after_the_timeout(cluster: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign(await consumer.queues("T"))
        assert await consumer.get_many(10, timeout=0.05) == []
        assert await consumer.get_many(10, timeout=0) == []
        assert await consumer.get_many(10, timeout=timedelta(milliseconds=1)) == []


async def test_a_waiting_pull_is_answered_when_a_message_comes(cluster: Any, producer: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign(await consumer.queues("T"))
        waiting = asyncio.create_task(consumer.get_many(10))
        await asyncio.sleep(0.1)
        await producer.send("T", b"now")
        async with asyncio.timeout(5):
            [message] = await waiting
        assert message.body == b"now"


async def test_iteration_gives_messages_and_ends_with_the_consumer(
    cluster: Any, producer: Any, until: Any
):
    await fill(producer, 10)
    consumer = client.PullConsumer(cluster.nameserver, group="g")
    await consumer.start()
    consumer.assign(await consumer.queues("T"))
    got = []

    async def read() -> None:
        async for message in consumer:
            got.append(message.body)

    reading = asyncio.create_task(read())
    await until(lambda: len(got) == 10)
    await consumer.close()
    await reading
    assert len(got) == 10


async def test_a_cancelled_taker_loses_nothing(cluster: Any, producer: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign(await consumer.queues("T"))
        for _ in range(5):
            task = asyncio.create_task(consumer.get_many(10))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await fill(producer, 20)
        assert len(await take(consumer, 20)) == 20


async def test_several_tasks_may_take(cluster: Any, producer: Any):
    await fill(producer, 1000)
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign(await consumer.queues("T"))
        got: list[bytes] = []

        async def worker() -> None:
            while (batch := await consumer.get_many(10, timeout=0.3)) or len(got) < 1000:
                got.extend(message.body for message in batch)
                await asyncio.sleep(0)

        await asyncio.gather(*(worker() for _ in range(5)))
    assert sorted(got, key=int) == [b"%d" % number for number in range(1000)]


async def test_a_group_goes_on_where_it_committed(cluster: Any, producer: Any):
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


async def test_committing_nothing_new_asks_nobody(fake: Any):
    async with client.PullConsumer(fake.address, group="g") as consumer:
        await consumer.commit()
    assert fake.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 0


async def test_automatic_commits_leave_out_what_is_in_hand(cluster: Any, producer: Any, until: Any):
    for number in range(6):
        await producer.send("T", b"%d" % number, queue=queue(0))
    group = {"group": "g", "auto_commit": True, "auto_commit_period": 0.02}
    async with client.PullConsumer(cluster.nameserver, **group) as consumer:
        consumer.assign([queue(0)])
        await take(consumer, 2)
        await consumer.get_many(2, timeout=5)
        await until(lambda: consumer._commits.committed.get(queue(0)) == 2)
        assert (await consumer.committed())[queue(0)] == 2
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
    cluster: Any, producer: Any, start: Any, expected: list[bytes], until: Any
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
        assert await take(consumer, 1, timeout=3) == [b"0"]


async def test_places_that_are_none_are_refused(cluster: Any):
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


async def test_a_paused_queue_rests_and_keeps_its_place(cluster: Any, producer: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue(0), queue(1)])
        consumer.pause([queue(0)])
        for number in range(3):
            await producer.send("T", b"0:%d" % number, queue=queue(0))
            await producer.send("T", b"1:%d" % number, queue=queue(1))
        assert await take(consumer, 3) == [b"1:0", b"1:1", b"1:2"]
        assert await consumer.get_many(1, timeout=0.1) == []
        consumer.resume([queue(0)])
        assert await take(consumer, 3) == [b"0:0", b"0:1", b"0:2"]


async def test_tags_that_share_a_hash_are_told_apart(cluster: Any, producer: Any, until: Any):
    for number, tag in enumerate(["Aa", "BB", "C", "Aa", None]):
        await producer.send("T", b"%d" % number, tag=tag, queue=queue(0))
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue(0)], tags="Aa || X")
        assert await take(consumer, 2) == [b"0", b"3"]
        await until(lambda: consumer._reader.prefetch(queue(0)).position == 5)
        await consumer.commit()
        assert (await consumer.committed())[queue(0)] == 5
        consumer.assign([queue(0)], tags="BB")
        assert await consumer.get_many(1, timeout=0.2) == []
        await consumer.seek(queue(0), client.BEGIN)
        assert await take(consumer, 1) == [b"1"]


async def test_assigning_anew_keeps_what_stays_and_drops_what_goes(cluster: Any, producer: Any):
    for number in range(4):
        await producer.send("T", b"%d" % number, queue=queue(number))
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue(0), queue(1)])
        assert sorted(await take(consumer, 2)) == [b"0", b"1"]
        consumer.assign([queue(1), queue(2)])
        assert consumer.assigned == [queue(1), queue(2)]
        assert await take(consumer, 1) == [b"2"]
        assert await consumer.get_many(1, timeout=0.1) == []
        consumer.assign([])
        assert await consumer.get_many(1, timeout=0.05) == []


async def test_prefetching_stops_at_its_bounds(cluster: Any, producer: Any, until: Any):
    body = b"x" * 2000
    await producer.send_many([client.Message("T", body, queue=queue(0)) for _ in range(200)])
    async with client.PullConsumer(
        cluster.nameserver, group="g", prefetch_messages=30, pull_messages=10
    ) as consumer:
        consumer.assign([queue(0)])
        await take(consumer, 1)
        prefetch = consumer._reader.prefetch(queue(0))
        await until(lambda: prefetch.full)
        await asyncio.sleep(0.05)
        assert 30 <= prefetch.messages < 40
        assert len(await take(consumer, 199)) == 199
    async with client.PullConsumer(
        cluster.nameserver, group="h", prefetch_bytes=20_000, pull_messages=5
    ) as consumer:
        consumer.assign([queue(0)])
        await take(consumer, 1)
        prefetch = consumer._reader.prefetch(queue(0))
        await until(lambda: prefetch.full)
        await asyncio.sleep(0.05)
        assert 20_000 <= prefetch.bytes < 40_000
        assert len(await take(consumer, 199)) == 199


async def test_an_offset_beyond_the_queue_is_moved_and_told(
    cluster: Any, producer: Any, until: Any
):
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


async def test_reading_goes_on_when_the_broker_is_back(cluster: Any, producer: Any, until: Any):
    await fill(producer, 10)
    events: list[client.Event] = []
    async with client.PullConsumer(
        cluster.nameserver, group="g", on_event=events.append
    ) as consumer:
        queues = await consumer.queues("T")
        consumer.assign(queues)
        await take(consumer, 10)
        await consumer.commit()
        await cluster.stop()
        assert await consumer.get_many(1, timeout=0.5) == []
        await cluster.add()
        async with client.Producer(cluster.nameserver) as again:
            await again.send("T", b"back")
        assert await take(consumer, 1) == [b"back"]
        await until(lambda: sum(isinstance(e, QueueResumed) for e in events) == len(queues))
        assert {e.queue for e in events if isinstance(e, QueueWaiting)} == set(queues)
        await consumer.commit()


async def test_reading_goes_on_after_the_name_server_restarts(cluster: Any, producer: Any):
    async with client.PullConsumer(
        cluster.nameserver, group="g", route_refresh_period=0.05
    ) as consumer:
        consumer.assign(await consumer.queues("T"))
        await cluster.restart_name_server()
        await asyncio.sleep(0.2)
        await producer.send("T", b"x")
        assert await take(consumer, 1) == [b"x"]


async def test_an_unknown_topic_is_not_found(cluster: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        with pytest.raises(client.TopicNotFound):
            await consumer.queues("Nowhere")
        with pytest.raises(client.UsageError):
            await consumer.queues("no/topic")


async def test_a_refusal_is_raised_and_reading_goes_on_when_it_is_lifted(
    cluster: Any, producer: Any
):
    await fill(producer, 4)
    async with client.Admin(cluster.nameserver) as admin:
        await admin.create_group("g", consume=False)
        async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
            consumer.assign(await consumer.queues("T"))
            with pytest.raises(client.NoPermission, match="no permission"):
                await consumer.get_many(10, timeout=5)
            await admin.create_group("g", consume=True)
            got: list[bytes] = []
            async with asyncio.timeout(10):
                while len(got) < 4:
                    try:
                        got += [m.body for m in await consumer.get_many(10)]
                    except client.NoPermission:
                        continue


async def test_a_dead_background_task_surfaces_everywhere(cluster: Any, monkeypatch: Any):
    async def broken(self: Any, offset: int) -> None:
        raise ZeroDivisionError("a fault of ours")

    async def read() -> None:
        async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
            monkeypatch.setattr("client.consumer.fetcher.Fetcher._pull", broken)
            consumer.assign([queue(0)])
            with pytest.raises(client.ConsumerStopped, match="a fault of ours"):
                await consumer.get_many(1, timeout=5)
            with pytest.raises(client.ConsumerStopped):
                await anext(consumer)

    with pytest.raises(client.ConsumerStopped) as caught:
        await read()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_takers_are_told_when_the_consumer_closes(cluster: Any):
    consumer = client.PullConsumer(cluster.nameserver, group="g")
    await consumer.start()
    consumer.assign([queue(0)])
    waiting = asyncio.create_task(consumer.get_many(1))
    await asyncio.sleep(0.05)
    await consumer.close()
    with pytest.raises(client.ConsumerStopped, match="closed"):
        await waiting
    with pytest.raises(client.ConsumerStopped):
        await consumer.get_many(1)
    with pytest.raises(client.UsageError):
        consumer.assign([queue(0)])
    await consumer.close()


async def test_a_fault_in_on_event_does_not_stop_the_reading(cluster: Any, producer: Any):
    def faulty(event: client.Event) -> None:
        raise ZeroDivisionError

    async with client.PullConsumer(cluster.nameserver, group="g", on_event=faulty) as consumer:
        consumer.assign([queue(0)])
        await consumer.seek(queue(0), 500)
        await producer.send("T", b"x", queue=queue(0))
        await consumer.seek(queue(0), client.BEGIN)
        assert await take(consumer, 1) == [b"x"]


async def test_the_broker_knows_who_reads_what(cluster: Any, until: Any):
    async with (
        client.Admin(cluster.nameserver) as admin,
        client.PullConsumer(cluster.nameserver, group="g") as consumer,
    ):
        consumer.assign([queue(0)], tags="a || b")
        broker = cluster.brokers["broker-a"]
        await until(lambda: "g" in broker.state.consumers.groups)
        known = await admin.consumer_connections("g")
        assert known.consume_type == "CONSUME_ACTIVELY"
        assert set(known.subscription_table["T"].tags_set) == {"a", "b"}
        await consumer.close()
        with pytest.raises(client.NotOnline):
            await admin.consumer_connections("g")
