"""Everything involved is killed, and every message is archived exactly once.

In each round the archiving query is restarted while a producer keeps sending. A worker dies in the
middle of a task at a seeded message; at the same time the broker is killed or stopped, and
restarted; finally the driver is killed: between two batches, with a batch planned, or in the
middle of one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import client
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from tests.spark.drilled import GROUP, ROWS, archive
from tests.support.sizes import size

ROUNDS = size(test=2, ci=3, soak=20)
ENDS = ("between", "planned", "within")
ROOT = Path(__file__).parents[2]
TOPIC = "numbers"
TOGETHER = 20
PAUSE = 0.04
WAIT = 240.0
"""Seconds; on a busy machine a driver starts for a minute."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 120 * ROUNDS)]


@dataclass
class Numbers:
    """Sends numbers until cancelled, through all broker failures."""

    producer: client.Producer[bytes]
    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)

    async def run(self) -> None:
        while True:
            numbers = range(self.sent, self.sent + TOGETHER)
            self.sent += TOGETHER
            results = await self.producer.send_many(
                [client.Message(TOPIC, b"%d" % n, tag=f"t{n % 3}") for n in numbers]
            )
            self.acknowledged |= {
                number
                for number, result in zip(numbers, results, strict=True)
                if not isinstance(result, Exception)
            }
            await asyncio.sleep(PAUSE)  # so fast that there is always something to read


@asynccontextmanager
async def numbers(nameserver: str) -> AsyncIterator[Numbers]:
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with client.Producer(nameserver, group="numbers") as producer:
        made = Numbers(producer)
        task = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Driver:
    """The archiving query in a separate process with its own session."""

    def __init__(self, nameserver: str, directory: Path) -> None:
        self.directory = directory
        self.charges = directory / "charges"
        self.charges.mkdir(parents=True, exist_ok=True)
        self._log = directory / "driver.log"
        self._command = ["-m", "tests.spark.drilled", nameserver, TOPIC, str(directory)]
        self._start()

    def _start(self) -> None:
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYSPARK_PYTHON": sys.executable,
        }
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, *self._command],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def planned(self) -> int:
        """Return the number of the last planned batch."""
        return self._last("offsets")

    @property
    def committed(self) -> int:
        """Return the number of the last committed batch."""
        return self._last("commits")

    @property
    def position(self) -> int:
        """Return the number of messages of all planned batches."""
        if self.planned < 0:
            return 0
        offsets = (self.directory / "checkpoint" / "offsets" / str(self.planned)).read_text()
        (queues,) = json.loads(offsets.splitlines()[-1])["topics"][TOPIC].values()
        return sum(queues.values())

    def _last(self, log: str) -> int:
        folder = self.directory / "checkpoint" / log
        names = [one.name for one in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    async def until(self, happened: Callable[[], bool]) -> None:
        """Poll files until a condition holds; fail if the driver ends by a fault of its own."""
        async with asyncio.timeout(WAIT):
            while not happened():
                if self.process.poll() is not None:
                    log = self._log.read_bytes()[self._log_start :].decode()
                    # Spark gives a Python worker 10 s to start, too few on a busy machine.
                    assert "Python worker failed to connect back" in log, log[-5000:]
                    self._start()
                await asyncio.sleep(0.005)

    async def died(self) -> None:
        """Wait until a charge has killed it."""
        assert await asyncio.wait_for(asyncio.to_thread(self.process.wait), WAIT) == -9

    def kill(self) -> None:
        """Kill it and its JVM; workers end with their JVM."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


async def test_every_message_is_archived_once_whoever_is_killed(spark: Any, tmp_path: Path) -> None:
    with testing.broker(store=tmp_path / "store") as server:
        async with numbers(server.nameserver) as load:
            for number in range(ROUNDS):
                await one_round(number, server, tmp_path)
        stored = await everything(server.nameserver)
        writer = archive(spark, server.nameserver, TOPIC, tmp_path)
        query = writer.trigger(availableNow=True).start()
        assert await asyncio.to_thread(query.awaitTermination, WAIT)
        async with client.Admin(server.nameserver) as admin:
            assert (await admin.lag(GROUP, topic=TOPIC)).total == 0
    frame = spark.read.parquet(str(tmp_path / "out"))
    columns = ["queueId", "queueOffset", "messageId", "body"]
    archived = [
        (queue, offset, message, bytes(body))
        for queue, offset, message, body in frame.select(columns).collect()
    ]
    assert sorted(archived) == sorted(stored)
    counts = {row["tags"]: row["count"] for row in frame.groupBy("tags").count().collect()}
    assert counts == Counter(f"t{int(body) % 3}" for *_, body in stored)
    assert load.acknowledged <= {int(body) for *_, body in stored}


async def one_round(seed: int, server: StandaloneServer, directory: Path) -> None:
    """Run the driver once, with its failures."""
    choose = random.Random(seed)
    driver = Driver(server.nameserver, directory)
    try:
        begun = driver.committed
        set_off = charge(driver, choose, "worker")
        await driver.until(lambda: not set_off.exists())

        await asyncio.to_thread(choose.choice([server.kill, server.stop]))
        await asyncio.to_thread(server.restart)
        await driver.until(lambda: driver.committed > begun + 1)

        await end(driver, ENDS[seed % len(ENDS)], choose)
    finally:
        driver.kill()


async def end(driver: Driver, how: str, choose: random.Random) -> None:
    """Kill the driver."""
    if how == "within":
        charge(driver, choose, "driver")
        await driver.died()
        assert driver.planned > driver.committed
        return
    begun = driver.committed
    if how == "between":
        await driver.until(lambda: driver.committed > begun)
    else:
        await driver.until(lambda: driver.planned > max(begun, driver.committed))
    driver.kill()


def charge(driver: Driver, choose: random.Random, victim: str) -> Path:
    """Kill a worker or the driver at one of the next messages."""
    made = driver.charges / f"{driver.position + choose.randrange(ROWS)}-{victim}"
    made.touch()
    return made


async def everything(nameserver: str) -> list[tuple[int, int, str, bytes]]:
    """Return the topic's messages at the broker: (queue, offset, id, body)."""
    found: list[tuple[int, int, str, bytes]] = []
    async with client.Admin(nameserver) as admin:
        stats = await admin.topic_stats(TOPIC)
    count = sum(offsets.max_offset - offsets.min_offset for offsets in stats.values())
    async with client.PullConsumer(nameserver, group="oracle", start_from=client.FIRST) as consumer:
        consumer.assign(stats)
        async with asyncio.timeout(WAIT):
            while len(found) < count:
                found += [
                    (one.queue.queue_id, one.offset, one.id, one.body)
                    for one in await consumer.get_many(10_000, timeout=1.0)
                ]
    return found
