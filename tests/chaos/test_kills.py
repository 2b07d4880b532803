"""Servers and clients killed under load lose nothing acknowledged, and clients reconnect."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median

import pytest

import client
from pocketmq.testing import ServerError, ServerProcess
from tests.chaos.flood import Flood, Place, Reader, copies_of, flooded
from tests.chaos.load import BACK_WITHIN, PATIENCE, Load, stored_numbers
from tests.chaos.stored import Stored
from tests.harness.processes import Processes, processes
from tests.support.sizes import size

ROUNDS = size(test=3, ci=5, soak=50)
TOPIC = "numbers"
QUEUES = 4
KILLED_AT_THE_START = 0.3
"""Number of rounds in which the broker is killed again before it is ready."""

ROLLING = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "maxMessageSize": str(64 * 1024),
}
"""Settings with which files of all kinds fill within a second."""

pytestmark = pytest.mark.timeout(size(ci=300, soak=1800))


@asynccontextmanager
async def loaded(running: Processes) -> AsyncIterator[Load]:
    """Run a load on the cluster during the block."""
    async with client.Admin(running.address, request_timeout=PATIENCE) as admin:
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


@dataclass
class Siege:
    """A broker that is killed repeatedly under load.

    Attributes:
        moments: draws when.
        stored: what is on its disk.
        places: of all acknowledged messages queue and number there.
        paces: messages a second, as they were acknowledged before each kill.
        restarts: seconds until the broker was ready, after each kill.
    """

    running: Processes
    moments: random.Random
    stored: Stored
    kills: int = 0
    places: set[tuple[int, int]] = field(default_factory=set)
    paces: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)

    async def round(self, flood: Flood, reader: Reader) -> None:
        """Kill and restart it, then check everything acknowledged and that clients continue."""
        wanted, begun = self.moments.randrange(200, 4000), time.monotonic()
        await flood.wait_for(wanted)
        self.paces.append(wanted / (time.monotonic() - begun))
        await self.kill()
        before = flood.take()
        self.restarts.append(await seconds_to_start(self.running.broker))
        await asyncio.to_thread(self.look, before)
        async with asyncio.timeout(BACK_WITHIN):
            await flood.wait_for(1)
        after = flood.take()
        async with asyncio.timeout(BACK_WITHIN):
            await reader.reach(after[-1])
        self.look(after)

    async def kill(self) -> None:
        broker, moments = self.running.broker, self.moments
        await asyncio.sleep(moments.random() * 0.02)
        await asyncio.to_thread(broker.kill)
        self.kills += 1
        if moments.random() < KILLED_AT_THE_START:
            await kill_at_the_start(broker, moments.random() * 0.5)
            self.kills += 1

    def look(self, acknowledged: list[Place]) -> None:
        """Check that all of these are stored, each at its own offset."""
        self.stored.read_on()
        self.stored.check(acknowledged)
        positions = [(place.queue_id, place.offset) for place in acknowledged]
        assert self.places.isdisjoint(positions)
        self.places.update(positions)

    def figures(self) -> dict[str, object]:
        """A summary of the run."""
        lines = [json.loads(line) for line in self.running.broker.log.splitlines()]
        recoveries = [line["seconds"] for line in lines if line["event"] == "store open"]
        return {
            "rounds": ROUNDS,
            "kills": self.kills,
            "acknowledged": len(self.places),
            "messages_per_second": round(median(self.paces)),
            "longest_restart_seconds": round(max(self.restarts), 2),
            "longest_recovery_seconds": max(recoveries),
        }


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_killing_the_broker_loses_nothing_acknowledged(
    tmp_path: Path, flush: str, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("POCKETMQ_KILL_SEED") or random.randrange(2**32))
    print(f"POCKETMQ_KILL_SEED={seed} draws these moments again")  # noqa: T201 - if it fails
    stored = Stored(tmp_path / "broker-a", TOPIC, QUEUES)
    with processes(tmp_path, settings={**ROLLING, "flushDiskType": flush}) as running:
        siege = Siege(running, random.Random(seed), stored)
        async with flooded(running.address, TOPIC, QUEUES) as (flood, reader):
            for _ in range(ROUNDS):
                await siege.round(flood, reader)
        siege.look(flood.take())
        assert await read_again(running.address) == stored.rows
    for number, copies in Counter(chain.from_iterable(stored.rows)).items():
        assert copies <= copies_of(number)
    for row, seen in zip(stored.rows, reader.rows, strict=True):
        assert seen == row[: len(seen)]
    print(flush, siege.figures())  # noqa: T201 - for a soak with -s
    for name, value in siege.figures().items():
        record_property(name, value)


async def seconds_to_start(broker: ServerProcess) -> float:
    begun = time.monotonic()
    await asyncio.to_thread(broker.start)
    return time.monotonic() - begun


async def kill_at_the_start(broker: ServerProcess, after: float) -> None:
    """Start the broker and kill it before, or just when, it is ready."""
    starting = asyncio.ensure_future(asyncio.to_thread(broker.start))
    await asyncio.sleep(after)
    if broker.alive:
        os.kill(broker.pid, signal.SIGKILL)
    with suppress(ServerError):
        await starting
    broker.kill()


async def read_again(address: str) -> list[list[int]]:
    """Return the numbers of each queue, as a new consumer reads them."""
    async with client.Admin(address, request_timeout=PATIENCE) as admin:
        stats = await admin.topic_stats(TOPIC)
    reader = Reader(address, TOPIC, QUEUES)
    task = asyncio.create_task(reader.run())
    try:
        async with asyncio.timeout(120):
            for queue, offsets in stats.items():
                await reader.reach(Place(queue.queue_id, offsets.max_offset - 1, 0))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return reader.rows


async def test_a_clean_restart_of_the_broker_loses_nothing(tmp_path: Path) -> None:
    with processes(tmp_path) as running:
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
    with processes(tmp_path) as running:
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
    """Wait until the broker's next registration at the restarted name server."""
    async with client.Admin(address, request_timeout=PATIENCE) as newcomer:
        async with asyncio.timeout(40):
            while True:
                try:
                    await newcomer.queues(TOPIC)
                except (client.Unavailable, client.TopicNotFound):
                    await asyncio.sleep(0.1)
                else:
                    return


async def test_a_consumer_continues_after_the_broker_was_killed(tmp_path: Path) -> None:
    with processes(tmp_path) as running:
        async with (
            loaded(running) as load,
            client.PullConsumer(
                running.address, group="steady", request_timeout=PATIENCE
            ) as consumer,
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


async def test_killing_a_producer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with processes(tmp_path) as running:
        async with client.Admin(running.address, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=4)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PRODUCER_PROGRAM, running.address, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            positions = [int(await process.stdout.readline()) for _ in range(1000)]
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            rest = await process.stdout.read()
            await process.wait()
        positions += [int(line) for line in rest.split(b"\n")[:-1]]

        stored = await stored_numbers(running.address, TOPIC)

    assert set(positions) <= set(stored)
    assert len(stored) == len(set(stored))
