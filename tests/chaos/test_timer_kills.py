"""Kills of the broker while timer messages wait or are delivered lose none and none is early."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

import client
from remoting.protocol.message import properties
from tests.chaos.load import PATIENCE
from tests.harness.processes import processes
from tests.support.sizes import size

pytestmark = pytest.mark.timeout(300)

TOPIC = "numbers"
ROUNDS = size(test=2, ci=3, soak=20)
PER_ROUND = 400
A_STEP = 64
"""Maximum number of timer messages delivered between two saves of the progress."""


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_killing_the_broker_loses_no_timer_and_none_is_early(
    tmp_path: Path, flush: str
) -> None:
    with processes(tmp_path, settings={"flushDiskType": flush}) as running:
        async with client.Admin(running.address, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=2)
        sent = 0
        async with client.Producer(running.address, group="timers") as producer:
            for _ in range(ROUNDS):
                await send_timed(producer, sent)
                sent += PER_ROUND
                # Due during the current deliveries, or while no broker runs.
                await delivered(running.address, sent - PER_ROUND)
                await asyncio.to_thread(running.broker.kill)
                await asyncio.to_thread(running.broker.start)
        found = await delivered(running.address, sent - 1)

    assert {int(message.body) for message in found} == set(range(sent))
    twice = sum(Counter(message.body for message in found).values()) - sent
    assert twice <= ROUNDS * A_STEP
    for message in found:
        due_ms = int(message.properties[properties.TIMER_DELIVER_MS])
        assert message.stored_at.timestamp() * 1000 >= due_ms


async def send_timed(producer: client.Producer[bytes], first: int) -> None:
    """Send numbers that are due during the next 3 s, and wait for their acknowledgements."""
    now_ms = int(time.time() * 1000)
    async with asyncio.timeout(90):  # each may wait for a slow disk
        for number in range(first, first + PER_ROUND):
            due_ms = now_ms + 500 + (number - first) * 6
            await producer.send(
                TOPIC, b"%d" % number, deliver_at=datetime.fromtimestamp(due_ms / 1000, UTC)
            )


async def delivered(nameserver: str, more_than: int) -> list[client.ReceivedMessage[bytes]]:
    """Return the topic's messages once it has more different numbers than that."""
    async with (
        asyncio.timeout(60),
        client.Admin(nameserver, request_timeout=PATIENCE) as admin,
        client.PullConsumer(nameserver, group="watcher", request_timeout=PATIENCE) as consumer,
    ):
        queues = await admin.queues(TOPIC)
        consumer.assign(queues)
        for queue in queues:
            await consumer.seek(queue, client.BEGIN)
        seen: list[client.ReceivedMessage[bytes]] = []
        while len({message.body for message in seen}) <= more_than:
            seen += await consumer.get_many(1000, timeout=1.0)
        return seen
