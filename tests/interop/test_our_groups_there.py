"""Our consumers share the queues of a real Apache RocketMQ."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import client
from client.errors import GroupConflict
from tests.interop.apache import Apache, shown
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

QUEUES = 8


async def new_topic(there: Apache, name: str, queues: int = QUEUES) -> str:
    async with client.Admin(there.nameserver) as admin:
        await admin.create_topic(name, queues=queues)
    return name


async def fill(there: Apache, topic: str, first: int, count: int) -> None:
    async with client.Producer(there.nameserver) as producer:
        results = await producer.send_many(
            [client.Message(topic, b"%d" % number) for number in range(first, first + count)]
        )
    assert all(isinstance(result, client.Receipt) for result in results)


async def drain(consumer: client.PullConsumer[bytes], into: list[bytes]) -> None:
    while True:
        into += [message.body for message in await consumer.get_many(100)]
        await asyncio.sleep(0)


@pytest.mark.parametrize("strategy", ["AVG", "CONSISTENT_HASH", "STICKY"])
async def test_clean_joins_and_leaves_repeat_nothing(there: Apache, strategy: str) -> None:
    topic = await new_topic(there, f"share-{strategy}")
    got: list[bytes] = []
    options: Any = {
        "group": f"share-{strategy}",
        "strategy": strategy,
        "auto_commit": True,
        "auto_commit_period": 0.2,
    }
    async with client.PullConsumer(there.nameserver, **options) as one:
        await one.subscribe(topic)
        reading = [asyncio.create_task(drain(one, got))]
        await fill(there, topic, 0, 500)
        async with client.PullConsumer(there.nameserver, **options) as two:
            await two.subscribe(topic)
            reading.append(asyncio.create_task(drain(two, got)))
            await until(lambda: len(one.assigned) + len(two.assigned) == QUEUES)
            await fill(there, topic, 500, 500)
            await until(lambda: len(got) >= 1000)
            reading[1].cancel()
            await asyncio.wait([reading[1]])
        await until(lambda: len(one.assigned) == QUEUES)
        await fill(there, topic, 1000, 500)
        await until(lambda: len(got) >= 1500)
        reading[0].cancel()
        await asyncio.wait([reading[0]])
    assert Counter(got) == Counter(b"%d" % number for number in range(1500))


async def test_members_that_differ_are_found_before_they_join(there: Apache) -> None:
    topic = await new_topic(there, "differ")
    async with (
        client.PullConsumer(there.nameserver, group="differ") as one,
        client.PullConsumer(there.nameserver, group="differ") as two,
    ):
        await one.subscribe(topic, "a")
        with pytest.raises(GroupConflict, match="of topic differ") as raised:
            await two.subscribe(topic, "b")
        assert raised.value.members == (two._context.client_id, one._context.client_id)
        await two.subscribe(topic, "a")
        await until(lambda: len(one.assigned) + len(two.assigned) == QUEUES)


async def test_an_exact_start_refuses_the_brokers_own_rule(there: Apache) -> None:
    topic = await new_topic(there, "exact", queues=1)
    await fill(there, topic, 0, 10)
    await shown(there.nameserver, topic, 10)
    events: list[Any] = []
    options: Any = {"start_from": client.LAST, "on_event": events.append}
    async with client.PullConsumer(
        there.nameserver, group="exact", exact=True, **options
    ) as consumer:
        await consumer.subscribe(topic)
        await until(lambda: consumer.assigned)
        await fill(there, topic, 10, 1)
        [message] = await consumer.get_many(10, timeout=10)
        assert message.offset == 10
    async with client.PullConsumer(there.nameserver, group="young", **options) as consumer:
        await consumer.subscribe(topic)
        assert (await consumer.get_many(1, timeout=10))[0].offset == 0
    starts = [event.start for event in events if isinstance(event, client.QueueGained)]
    assert [start.offset for start in starts] == [10, 0]
    assert starts[0].text == "end 10"
