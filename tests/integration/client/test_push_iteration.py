"""Iterating over a push consumer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import client
from client import blocking
from pocketmq import testing
from tests.integration.client.pulling import FaultyStrategy
from tests.integration.client.pushing import Bodies, consumer, fill, lag, numbers
from tests.support.waiting import until


async def test_iteration_acknowledges_blocks_that_end_and_retries_those_that_raise(
    cluster: Any, producer: Any
):
    await fill(producer, 10)
    seen: list[tuple[bytes, int]] = []
    async with consumer(cluster) as made:
        async for message in made:
            async with message:
                seen.append((message.body, message.retries))
                if message.body == b"3" and message.retries == 0:
                    raise client.RetryLater(1)
            if len(seen) == 11:
                break
    assert seen[-1] == (b"3", 1)
    assert await lag(cluster) == 0


async def test_messages_left_unsettled_by_iteration_are_delivered_again(
    cluster: Any, producer: Any
):
    await fill(producer, 4)
    async with asyncio.timeout(30), consumer(cluster) as made:
        async for message in made:
            if message.body == b"2":
                break
            message.ack()
    again: Bodies = []
    async with consumer(cluster) as made:
        async for message in made:
            async with message:
                again.append(message.body)
            if message.body == b"2":
                break
    assert b"2" in again


async def test_a_stop_waits_until_a_failed_message_is_sent_back(cluster: Any, producer: Any):
    await fill(producer, 1)
    async with asyncio.timeout(20), consumer(cluster) as made:
        async for message in made:
            async with message:
                raise client.DeadLetter("unreadable")
            break
    assert await lag(cluster) == 0


async def test_several_tasks_may_iterate_and_all_end_with_the_consumer(cluster: Any, producer: Any):
    await fill(producer, 300)
    got: Bodies = []
    made = consumer(cluster)
    await made.start()

    async def work() -> None:
        async for message in made:
            async with message:
                await asyncio.sleep(0)
                got.append(message.body)

    tasks = [asyncio.create_task(work()) for _ in range(5)]
    await until(lambda: len(got) == 300)
    await made.stop()
    await asyncio.gather(*tasks)
    assert sorted(got, key=int) == numbers(300)
    assert await lag(cluster) == 0


async def test_orderly_iteration_gives_the_next_only_when_the_last_is_settled(
    cluster: Any, producer: Any
):
    for number in range(3):
        await producer.send("T", b"%d" % number, sharding_key="k")
    seen: list[tuple[bytes, int]] = []
    async with consumer(cluster, order=client.Orderly(suspend=0.01)) as made:
        messages = aiter(made)
        first = await anext(messages)
        waiting = asyncio.create_task(anext(messages))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        first.retry_later()
        seen.append((first.body, 0))
        message = await waiting
        while True:
            async with message:
                seen.append((message.body, message.retries))
            if message.body == b"2":
                break
            message = await anext(messages)
    assert seen == [(b"0", 0), (b"0", 1), (b"1", 0), (b"2", 0)]


async def test_a_background_task_that_dies_ends_iteration(cluster: Any, producer: Any):
    await fill(producer, 1)
    strategy = FaultyStrategy()
    made = consumer(cluster, strategy=strategy)
    await made.start()
    (await anext(made)).ack()
    strategy.broken = True
    made.subscribe("T", "paid")
    with pytest.raises(client.ConsumerStopped, match="ZeroDivisionError"):
        await anext(made)
    await made.stop()
    with pytest.raises(client.ConsumerStopped, match="ZeroDivisionError"):
        await anext(made)


async def test_iteration_counts_as_consuming_for_administrators(cluster: Any, producer: Any):
    await fill(producer, 20, queue=client.MessageQueue("T", "broker-a", 0))
    async with consumer(cluster) as made, client.Admin(cluster.nameserver) as admin:
        consumed: set[int] = set()
        async for message in made:
            message.ack()
            info = await admin.running_info("g", made.client_id)
            consumed.add(info.mq_table[message.queue].last_consume_timestamp)
            # Times of the same event may differ by a millisecond, because they are rounded.
            if max(consumed) > min(consumed) + 1:
                break
            assert message.body != b"19"


async def test_the_next_message_can_be_awaited_for_a_time(cluster: Any, producer: Any):
    async with consumer(cluster) as made:
        assert await made.get(0.05) is None
        await fill(producer, 2)
        async with asyncio.timeout(30):
            for _ in range(2):
                message = await made.get()
                assert message is not None
                message.ack()
            await made.stop()
        with pytest.raises(client.ConsumerStopped):
            await made.get(1.0)
    assert await lag(cluster) == 0


def test_the_blocking_consumer_has_the_same_get():
    with testing.broker() as server, blocking.Producer(server.nameserver) as producer:
        producer.send("T", b"x")
        with blocking.PushConsumer(
            server.nameserver, group="g", subscribe={"T": "*"}, start_from=client.FIRST
        ) as made:
            message = made.get(timeout=30.0)
            assert message is not None
            with message:
                assert message.body == b"x"
            assert made.get(timeout=0) is None


def test_a_with_block_may_outlive_its_blocking_consumer():
    with testing.broker() as server, blocking.Producer(server.nameserver) as producer:
        producer.send("T", b"x")
        with blocking.PushConsumer(
            server.nameserver, group="g", subscribe={"T": "*"}, start_from=client.FIRST
        ) as consumer:
            message = consumer.get(10)
            assert message is not None
            with message:
                consumer.stop(timeout=0)
        assert server.admin.lag("g").total == 1
