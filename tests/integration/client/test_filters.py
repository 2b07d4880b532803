"""Consumers that filter by properties, with a broker of ours: push, pull, and shared pull."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import client
from client import blocking
from client.events import QueueWaiting
from tests.integration.client.pushing import Bodies, collect
from tests.support.waiting import until

RICH = client.Sql("amount >= 90 AND region IN ('eu', 'us')")
WANTED = sorted(b"%d" % number for number in range(90, 100) if number % 3)


async def fill(cluster: Any, first: int = 0, end: int = 100) -> None:
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send_many(
            [
                client.Message(
                    "T",
                    b"%d" % number,
                    properties={
                        "amount": str(number),
                        "region": ("asia", "eu", "us")[number % 3],
                    },
                )
                for number in range(first, end)
            ]
        )


async def read(consumer: client.PullConsumer[bytes], count: int) -> list[bytes]:
    got: list[bytes] = []
    async with asyncio.timeout(20):
        while len(got) < count:
            got += [message.body for message in await consumer.get_many(100, timeout=1.0)]
    return sorted(got)


async def test_a_push_consumer_gets_what_matches_and_what_comes_later(cluster: Any):
    await fill(cluster)
    got: Bodies = []
    async with client.PushConsumer(
        cluster.nameserver,
        group="g",
        subscribe={"T": RICH},
        handler=collect(got),
        start_from=client.FIRST,
    ) as consumer:
        await until(lambda: sorted(got) == WANTED)
        await fill(cluster, 80, 92)
        await until(lambda: len(got) == len(WANTED) + 1)
        assert got[-1] == b"91"
        consumer.subscribe("T", client.Sql("amount = 7"))
        await asyncio.sleep(0)
        await fill(cluster, 7, 8)
        await until(lambda: got[-1] == b"7")
    async with client.Admin(cluster.nameserver) as admin:
        assert (await admin.lag("g")).total == 0


async def test_a_pull_consumer_assigns_and_shares(cluster: Any):
    await fill(cluster)
    async with client.PullConsumer(cluster.nameserver, group="a") as consumer:
        consumer.assign(await consumer.queues("T"), tags=RICH)
        assert await read(consumer, len(WANTED)) == WANTED
    async with client.PullConsumer(cluster.nameserver, group="b") as consumer:
        await consumer.subscribe("T", RICH)
        assert await read(consumer, len(WANTED)) == WANTED


def test_the_blocking_twins_take_it_too(tmp_path: Any):
    from pocketmq import testing

    with testing.broker() as server:
        with blocking.Producer(server.nameserver) as producer:
            producer.send("T", b"1", properties={"a": "1"})
            producer.send("T", b"2", properties={"a": "2"})
        with blocking.PullConsumer(server.nameserver, group="g") as consumer:
            consumer.assign(consumer.queues("T"), tags=client.Sql("a > 1"))
            assert [message.body for message in consumer.get_many(10, timeout=10)] == [b"2"]


async def test_a_wrong_expression_fails_where_it_is_given(cluster: Any):
    wrong = client.Sql("amount BETWEEN 3 AND 1")
    with pytest.raises(
        client.SubscriptionInvalid, match=r"left value\(3\) must less than"
    ) as error:
        async with client.PushConsumer(
            cluster.nameserver, group="g", subscribe={"T": wrong}, handler=print
        ):
            pass
    assert error.value.code == 23
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        with pytest.raises(client.SubscriptionInvalid):
            await consumer.subscribe("T", wrong)
        consumer.assign(await consumer.queues("T"), tags=wrong)
        with pytest.raises(client.SubscriptionInvalid):
            await consumer.get_many(1, timeout=10)


async def test_a_wrong_expression_that_comes_later_is_reported(cluster: Any):
    events: list[Any] = []
    async with client.PushConsumer(
        cluster.nameserver, group="g", subscribe={"T": "*"}, handler=print, on_event=events.append
    ) as consumer:
        consumer.subscribe("T", client.Sql("amount >"))
        await until(lambda: any(isinstance(event, QueueWaiting) for event in events))
    waiting = next(event for event in events if isinstance(event, QueueWaiting))
    assert isinstance(waiting.error, client.SubscriptionInvalid)


async def test_a_broker_without_property_filters(empty_cluster: Any):
    await empty_cluster.start(enablePropertyFilter="false")
    async with client.Admin(empty_cluster.nameserver) as admin:
        await admin.create_topic("T", queues=1)
    async with client.PullConsumer(empty_cluster.nameserver, group="g") as consumer:
        with pytest.raises(client.RemoteError, match="enablePropertyFilter=true"):
            await consumer.subscribe("T", RICH)


@pytest.mark.parametrize("text", ["", "  ", None, 5, "x" * 40_000])
def test_what_can_be_no_expression(text: Any):
    with pytest.raises(client.UsageError):
        client.Sql(text)
