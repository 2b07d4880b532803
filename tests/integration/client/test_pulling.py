"""Reading from our broker with a pull consumer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import client
from client import blocking
from tests.integration.client.pulling import fill, queue, take
from tests.support.waiting import until


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


async def test_without_messages_a_read_returns_an_empty_list_after_the_timeout(cluster: Any):
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
        async with asyncio.timeout(30):
            [message] = await waiting
        assert message.body == b"now"


async def test_iteration_gives_messages_and_ends_with_the_consumer(cluster: Any, producer: Any):
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


async def test_a_cancelled_read_loses_no_message(cluster: Any, producer: Any):
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


async def test_several_tasks_may_read(cluster: Any, producer: Any):
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


async def test_a_read_without_a_timeout_returns_messages_only(cluster: Any, producer: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign(await consumer.queues("T"))
        reads = {asyncio.create_task(consumer.get_many(10)) for _ in range(3)}
        for body in (b"a", b"b", b"c"):
            await producer.send("T", body)
            done, reads = await asyncio.wait(reads, timeout=5, return_when=asyncio.FIRST_COMPLETED)
            assert [[message.body for message in read.result()] for read in done] == [[body]]


async def test_a_paused_queue_keeps_its_position(cluster: Any, producer: Any):
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


async def test_tags_that_share_a_hash_are_distinguished(cluster: Any, producer: Any):
    for number, tag in enumerate(["Aa", "BB", "C", "Aa", None]):
        await producer.send("T", b"%d" % number, tag=tag, queue=queue(0))
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue(0)], tags="Aa || X")
        assert await take(consumer, 2) == [b"0", b"3"]
        while await consumer.position(queue(0)) != 5:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.01)
        await consumer.commit()
        assert (await consumer.committed())[queue(0)] == 5
        consumer.assign([queue(0)], tags="BB")
        assert await consumer.get_many(1, timeout=0.2) == []
        await consumer.seek(queue(0), client.BEGIN)
        assert await take(consumer, 1) == [b"1"]


async def test_reassigning_keeps_the_messages_of_kept_queues_only(cluster: Any, producer: Any):
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
        with pytest.raises(client.UsageError, match="nothing to read"):
            await consumer.get_many(1)


async def test_prefetching_stops_at_its_bounds(cluster: Any, producer: Any):
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


async def test_the_broker_records_which_client_reads_a_queue(cluster: Any):
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


@pytest.mark.parametrize(
    "wrong",
    ["T", b"T", client.MessageQueue("T", "broker-a", 0), ["T"], [("T", "broker-a", 0)]],
    ids=repr,
)
async def test_assign_refuses_anything_but_a_list_of_queues(cluster: Any, wrong: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        for method in (consumer.assign, consumer.pause, consumer.resume):
            with pytest.raises(client.UsageError, match=r"expected queues, not .*subscribe"):
                method(wrong)


async def test_reading_without_queues_is_refused(cluster: Any):
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        with pytest.raises(client.UsageError, match="no queue is assigned and no topic subscribed"):
            await consumer.get_many(1)
        with pytest.raises(client.UsageError, match="nothing to read"):
            await anext(consumer)
        await consumer.subscribe("T")
        assert await consumer.get_many(1, timeout=0) == []
    async with client.PushConsumer(cluster.nameserver, group="h", subscribe={}) as pushed:
        with pytest.raises(client.UsageError, match="no topic is subscribed"):
            await anext(pushed)
        pushed.subscribe("T")
        pushed.unsubscribe("T")
        with pytest.raises(client.UsageError, match="no topic is subscribed"):
            await anext(pushed)


async def test_the_blocking_consumer_refuses_the_same(cluster: Any):
    def work() -> None:
        wrong: Any = "T"
        with blocking.PullConsumer(cluster.nameserver, group="g") as consumer:
            with pytest.raises(client.UsageError, match="expected queues, not 'T'"):
                consumer.assign(wrong)
            with pytest.raises(client.UsageError, match="nothing to read"):
                consumer.get_many(1)
            with pytest.raises(client.UsageError, match="nothing to read"):
                next(consumer)

    await asyncio.to_thread(work)
