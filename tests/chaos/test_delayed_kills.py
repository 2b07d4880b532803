"""Kills of the broker while delayed messages wait or are delivered lose none of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import client
from tests.chaos.load import PATIENCE, stored_numbers
from tests.harness.processes import processes
from tests.support.sizes import size

pytestmark = pytest.mark.timeout(300)

TOPIC = "numbers"
ROUNDS = size(test=2, ci=3, soak=20)
PER_ROUND = 400
A_TURN = 64
"""Maximum number of delayed messages delivered between two saves of the progress."""

LEVELS = {"messageDelayLevel": "1s 2s"}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_killing_the_broker_loses_no_delayed_message(tmp_path: Path, flush: str) -> None:
    with processes(tmp_path, settings={**LEVELS, "flushDiskType": flush}) as running:
        async with client.Admin(running.address, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=2)
        sent: list[int] = []
        async with client.Producer(running.address, group="delays") as producer:
            for _ in range(ROUNDS):
                sent += await send_delayed(producer, len(sent))
                # Due during the current deliveries, or while no broker runs.
                await some_delivered(running.address, len(sent) - PER_ROUND)
                await asyncio.to_thread(running.broker.kill)
                await asyncio.to_thread(running.broker.start)
            await some_delivered(running.address, len(sent) - 1)
        stored = await stored_numbers(running.address, TOPIC)

    assert set(stored) == set(sent)
    twice = sum(Counter(stored).values()) - len(set(stored))
    assert twice <= ROUNDS * A_TURN


async def test_a_clean_restart_delivers_every_delayed_message_once(tmp_path: Path) -> None:
    with processes(tmp_path, settings=LEVELS) as running:
        async with client.Admin(running.address, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=2)
        sent: list[int] = []
        async with client.Producer(running.address, group="delays") as producer:
            for _ in range(2):
                sent += await send_delayed(producer, len(sent))
                await some_delivered(running.address, len(sent) - PER_ROUND)
                await asyncio.to_thread(running.broker.stop)
                await asyncio.to_thread(running.broker.start)
        await some_delivered(running.address, len(sent) - 1)
        stored = await stored_numbers(running.address, TOPIC)

    assert sorted(stored) == sent


async def send_delayed(producer: client.Producer[bytes], first: int) -> list[int]:
    """Send numbers with two delay levels, and wait for their acknowledgements."""
    numbers = range(first, first + PER_ROUND)
    async with asyncio.timeout(90):  # each may wait for a slow disk
        for number in numbers:
            await producer.send(TOPIC, b"%d" % number, delay_level=1 + number % 2)
    return list(numbers)


async def some_delivered(nameserver: str, more_than: int) -> None:
    """Wait until the topic has more numbers than that."""
    async with (
        asyncio.timeout(30),
        client.Admin(nameserver, request_timeout=PATIENCE) as admin,
        client.PullConsumer(nameserver, group="watcher", request_timeout=PATIENCE) as consumer,
    ):
        queues = await admin.queues(TOPIC)
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.BEGIN)
        seen: set[int] = set()
        while len(seen) <= more_than:
            seen.update(int(m.body) for m in await consumer.get_many(1000, timeout=1.0))
