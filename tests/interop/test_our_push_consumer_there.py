"""Our push consumer in a group at a real Apache RocketMQ: retries, dead letters, order, offsets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import client
from tests.interop.apache import Apache
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

QUEUES = 4


async def filled(there: Apache, topic: str, count: int, **more: Any) -> str:
    async with client.Admin(there.nameserver) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    async with client.Producer(there.nameserver) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, **more)
    return topic


async def dead_letters(there: Apache, group: str) -> list[bytes]:
    async with client.PullConsumer(there.nameserver, group="look") as reader:
        reader.assign(await reader.queues(f"%DLQ%{group}"))
        return [message.body for message in await reader.get_many(10, timeout=10)]


async def test_failed_messages_are_retried_and_become_dead_letters(there: Apache) -> None:
    topic = await filled(there, "retries", 20)
    got: list[tuple[bytes, str, int]] = []
    events: list[Any] = []

    async def handle(message: Any) -> None:
        got.append((message.body, message.topic, message.retries))
        if message.body == b"3" and message.retries == 0:
            raise client.RetryLater(1)
        if message.body == b"5":
            raise client.DeadLetter("never")

    async with client.PushConsumer(
        there.nameserver,
        group="retrying",
        subscribe={topic: "*"},
        handler=handle,
        start_from=client.FIRST,
        on_event=events.append,
    ):
        await until(lambda: len(got) == 21)
        await until(lambda: any(isinstance(e, client.MessageDeadLettered) for e in events))
    assert got[-1] == (b"3", topic, 1)
    assert await dead_letters(there, "retrying") == [b"5"]
    async with client.Admin(there.nameserver) as admin:
        assert (await admin.lag("retrying")).total == 0
        [letter] = await admin.dead_letters("retrying")
    assert (letter.reason, letter.retries) == ("never", 1)
    assert letter.topic == topic


async def test_order_is_kept_over_a_message_that_fails(there: Apache) -> None:
    topic = await filled(there, "in-order", 10, sharding_key="k")
    got: list[bytes] = []

    async def handle(message: Any) -> None:
        got.append(message.body)
        if message.body == b"4":
            raise ValueError

    async with client.PushConsumer(
        there.nameserver,
        group="ordered",
        subscribe={topic: "*"},
        handler=handle,
        start_from=client.FIRST,
        order=client.Orderly(max_retries=2, suspend=0.01),
    ):
        await until(lambda: len(got) == 12)
    assert got == [b"%d" % n for n in (0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9)]
    assert await dead_letters(there, "ordered") == [b"4"]


async def test_members_share_the_queues_and_pass_them_on(there: Apache) -> None:
    topic = await filled(there, "shared", 200)
    got: list[bytes] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.001)
        got.append(message.body)

    def member() -> client.PushConsumer[bytes]:
        return client.PushConsumer(
            there.nameserver,
            group="sharing",
            subscribe={topic: "*"},
            handler=handle,
            start_from=client.FIRST,
        )

    def own(made: client.PushConsumer[bytes]) -> int:
        return sum(queue.topic == topic for queue in made.assigned)

    async with member() as one:
        await until(lambda: own(one) == QUEUES)
        async with member() as other:
            await until(lambda: own(one) == own(other) == QUEUES // 2)
            await filled(there, topic, 200)
            await until(lambda: len(got) >= 400)
        await until(lambda: own(one) == QUEUES)
    assert len(got) == 400
