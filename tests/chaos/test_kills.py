"""Servers and clients are killed under load: nothing acknowledged is lost, clients go on alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import client
from tests.chaos.cluster import BACK_WITHIN, Cluster, Load, cluster, stored_numbers
from tests.sizes import size

pytestmark = pytest.mark.timeout(300)

ROUNDS = size(ci=10, soak=50)
TOPIC = "numbers"


@asynccontextmanager
async def loaded(running: Cluster) -> AsyncIterator[Load]:
    """A load on the cluster for the time of the block."""
    async with client.Admin(running.address) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with client.Producer(running.address, group="load") as producer:
        load = Load(producer, TOPIC)
        task = asyncio.create_task(load.run())
        try:
            await load.wait_for(100)
            yield load
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_killing_the_broker_loses_nothing_acknowledged(tmp_path: Path, flush: str) -> None:
    with cluster(tmp_path, settings={"flushDiskType": flush}) as running:
        async with loaded(running) as load:
            for _ in range(ROUNDS):
                await load.wait_for(200)
                await asyncio.to_thread(running.broker.kill)
                await asyncio.to_thread(running.broker.start)
                async with asyncio.timeout(BACK_WITHIN):
                    await load.wait_for(1)
        stored = await stored_numbers(running.address, TOPIC)

    assert load.acknowledged <= set(stored)


async def test_a_clean_restart_of_the_broker_loses_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        async with loaded(running) as load:
            for _ in range(3):
                await load.wait_for(200)
                await asyncio.to_thread(running.broker.stop)
                await asyncio.to_thread(running.broker.start)
                async with asyncio.timeout(BACK_WITHIN):
                    await load.wait_for(1)
        stored = await stored_numbers(running.address, TOPIC)

    assert load.acknowledged <= set(stored)


async def test_killing_the_name_server_stops_nobody(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        async with loaded(running) as load:
            await asyncio.to_thread(running.nameserver.kill)
            async with asyncio.timeout(BACK_WITHIN):
                await load.wait_for(200)
            await asyncio.to_thread(running.nameserver.start)
            await newcomer_finds_the_topic(running.address)
        stored = await stored_numbers(running.address, TOPIC)

    assert load.acknowledged <= set(stored)
    assert load.problems == []


async def newcomer_finds_the_topic(address: str) -> None:
    """The name server learns of the broker again from the broker's next registration."""
    async with client.Admin(address) as newcomer:
        async with asyncio.timeout(40):
            while True:
                try:
                    await newcomer.queues(TOPIC)
                except (client.Unavailable, client.TopicNotFound):
                    await asyncio.sleep(0.1)
                else:
                    return


async def test_a_consumer_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        async with (
            loaded(running) as load,
            client.PullConsumer(running.address, group="steady") as consumer,
        ):
            consumer.assign(await consumer.queues(TOPIC))
            seen: list[tuple[client.MessageQueue, int]] = []

            async def take(count: int) -> None:
                goal = len(seen) + count
                while len(seen) < goal:
                    seen.extend(
                        (m.queue, m.offset) for m in await consumer.get_many(100, timeout=1.0)
                    )

            await take(200)
            await asyncio.to_thread(running.broker.kill)
            await asyncio.to_thread(running.broker.start)
            async with asyncio.timeout(BACK_WITHIN):
                await load.wait_for(1)
            async with asyncio.timeout(BACK_WITHIN):
                await take(200)

    for queue in {queue for queue, _ in seen}:
        offsets = [offset for at, offset in seen if at == queue]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


PRODUCER_PROGRAM = """
import asyncio, sys
import client

async def main():
    async with client.Producer(sys.argv[1], group="doomed") as producer:
        number = 0
        while True:
            numbers = range(number, number + 50)
            await asyncio.gather(*(producer.send("numbers", b"%d" % n) for n in numbers))
            print(*numbers, sep="\\n", flush=True)
            number += 50

asyncio.run(main())
"""


async def test_killing_a_producer_loses_nothing_it_was_told_is_stored(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        async with client.Admin(running.address) as admin:
            await admin.create_topic(TOPIC, queues=4)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PRODUCER_PROGRAM, running.address, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        told = [int(await process.stdout.readline()) for _ in range(1000)]
        process.kill()
        rest = await process.stdout.read()
        await process.wait()
        told += [int(line) for line in rest.split(b"\n")[:-1]]

        stored = await stored_numbers(running.address, TOPIC)

    assert set(told) <= set(stored)
    assert len(stored) == len(set(stored))
