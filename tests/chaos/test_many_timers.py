"""Many timer messages over a long time, with a restart in between: none lost, none early."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import client
from remoting.protocol.message import properties
from tests.chaos.load import PATIENCE
from tests.harness.processes import processes
from tests.support.sizes import SIZE, size

COUNT = size(test=600, ci=2_000, soak=1_000_000)
SECONDS = size(test=4, ci=8, soak=3_600)
pytestmark = pytest.mark.timeout(SECONDS + COUNT / 200 + 300)

TOPIC = "timed"
AT_ONCE = 500
"""Sends in flight."""
MOST_LATE_MS = 200
"""Of 99 in 100, apart from those that were due around the restart."""
AROUND_RESTART_MS = 5_000


async def test_none_is_lost_early_or_repeated_over_a_restart(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with processes(tmp_path) as running:
        async with client.Admin(running.address, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=4)
        begin_ms = int(time.time() * 1000) + 1000 + COUNT
        due = array("q", (begin_ms + random.randrange(SECONDS * 1000) for _ in range(COUNT)))
        await send(running.address, due)
        # What was due before it was sent is stored at once.
        waiting = {number for number in range(COUNT) if due[number] > time.time() * 1000}
        await asyncio.sleep(max(0.0, begin_ms / 1000 - time.time()) + SECONDS / 2)
        stopped_ms = int(time.time() * 1000)
        await asyncio.to_thread(running.broker.stop)
        await asyncio.to_thread(running.broker.start)
        started_ms = int(time.time() * 1000) + AROUND_RESTART_MS
        stored = await delivered(running.address, waiting)

    assert sorted(stored) == list(range(COUNT))
    late = {number: stored_ms - due[number] for number, stored_ms in stored.items()}
    assert min(late.values()) >= 0
    usual = sorted(late[n] for n in late if not stopped_ms <= due[n] <= started_ms)
    late_ms = usual[len(usual) * 99 // 100]
    record_property("p99 late, ms", late_ms)
    if SIZE == "soak":
        assert late_ms <= MOST_LATE_MS


async def send(nameserver: str, due: array[int]) -> None:
    """Send a number for each time, and wait for the acknowledgements."""
    async with client.Producer(nameserver, group="timers", timeout=PATIENCE) as producer:
        for first in range(0, len(due), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(due)))
            times = [datetime.fromtimestamp(due[number] / 1000, UTC) for number in numbers]
            await asyncio.gather(
                *(
                    producer.send(TOPIC, b"%d" % number, deliver_at=at)
                    for number, at in zip(numbers, times, strict=True)
                )
            )


async def delivered(nameserver: str, waiting: set[int]) -> dict[int, int]:
    """Return the store time of each number in the topic, once all are there; some have waited."""
    found: dict[int, int] = {}
    repeated = 0
    async with (
        asyncio.timeout(SECONDS + 120),
        client.PullConsumer(nameserver, group="watcher", request_timeout=PATIENCE) as consumer,
    ):
        consumer.assign(await consumer.queues(TOPIC))
        for queue in consumer.assigned:
            await consumer.seek(queue, client.BEGIN)
        while len(found) < COUNT:
            for message in await consumer.get_many(1000, timeout=1.0):
                number = int(message.body)
                assert number not in waiting or properties.TIMER_OUT_MS in message.properties
                repeated += number in found
                found[number] = round(message.stored_at.timestamp() * 1000)
    assert repeated == 0
    return found
