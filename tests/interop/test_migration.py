"""A cluster moves from Apache RocketMQ to PocketMQ and back by slaves, while its clients go on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import client
from broker.limits import BrokerLimits
from broker.storetools.verify.check import CheckOptions, check
from tests.chaos.load import Load
from tests.harness.cluster import Cluster
from tests.interop.apache import apache
from tests.interop.pairs import (
    LOG_FILE,
    SECONDS,
    SETTINGS,
    apaches_broker,
    committed,
    log_bytes,
    until_equal,
)
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(420)]

VERSION = "5.3.3"
DATA, LATE, NUMBERS, GROUP = "data", "late", "numbers", "billing"
MESSAGES = 200
TAKEN = 60
"""Messages that the group reads at each of the three masters; the last one has the rest."""

LEVELS = ["1s 1h 1h", "1s 1s 1h", "1s 1s 1s"]
"""The delays of the three masters: each further one delivers what the one before keeps waiting."""

TIMER_SECONDS = 30
"""Whichever broker is the master then delivers it."""

QUICK = BrokerLimits(table_copy_seconds=0.5)


@asynccontextmanager
async def clients(nameserver: str) -> AsyncIterator[tuple[Load, Callable[[], Awaitable[None]]]]:
    """Send numbers and handle them during the block.

    Yield the load, and a function that ends it and waits until all of it is handled.
    """
    handled: set[int] = set()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        handled.add(int(message.body))

    async with (
        client.Producer(nameserver, group="load", route_refresh_period=1.0) as producer,
        client.PushConsumer(
            nameserver,
            group="workers",
            subscribe={NUMBERS: "*"},
            handler=handle,
            start_from=client.FIRST,
            route_refresh_period=1.0,
        ),
    ):
        load = Load(producer, NUMBERS, senders=1)
        task = asyncio.create_task(load.run())

        async def stop() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def all_handled() -> None:
            await stop()
            await until(lambda: load.acknowledged <= handled, SECONDS)

        try:
            yield load, all_handled
        finally:
            await stop()


def waiting(level: int) -> set[bytes]:
    """The messages that are sent with a delay level."""
    return {b"%d-%d" % (level, number) for number in range(5)}


async def fill(nameserver: str) -> None:
    """Send messages to read, and ones that wait for the second and the third master."""
    async with client.Producer(nameserver) as producer:
        for number in range(MESSAGES):
            await producer.send(DATA, b"%d " % number * 300, keys=[f"k{number}"])
        for level in (2, 3):
            for body in waiting(level):
                await producer.send(LATE, body, delay_level=level)
        await producer.send(LATE, b"timer", delay=TIMER_SECONDS)


async def read(nameserver: str, count: int) -> set[bytes]:
    """Read messages from where the group is, and commit what was read."""
    bodies: list[bytes] = []
    async with client.PullConsumer(nameserver, group=GROUP, start_from=client.BEGIN) as consumer:
        await consumer.subscribe(DATA)
        async with asyncio.timeout(SECONDS):
            while len(bodies) < count:
                found = await consumer.get_many(count - len(bodies), timeout=1)
                bodies += [message.body for message in found]
        await consumer.commit()
    assert len(set(bodies)) == len(bodies)
    return set(bodies)


async def hand_over(nameserver: str, old: str, new: str) -> int:
    """Let the master take no more messages, and wait until the slave has all; return their end."""
    async with client.Admin(nameserver) as admin:
        await admin.wipe_write_permission("broker-a")
        # Clients know the route for up to 30 s: this is refused at once.
        await admin.update_broker_config(old, {"brokerPermission": "4"})
    progress = await asyncio.to_thread(committed, old, DATA, GROUP)

    async def has_offsets() -> bool:
        return await asyncio.to_thread(committed, new, DATA, GROUP) == progress

    await until(has_offsets, SECONDS)
    return await until_equal(old, new)


async def goes_on(load: Load) -> None:
    """Wait until messages are acknowledged again."""
    async with asyncio.timeout(SECONDS):
        await load.wait_for(50)


async def delivered(nameserver: str, expected: set[bytes]) -> None:
    """Wait until these messages and no others have been delivered, some perhaps twice."""
    bodies: set[bytes] = set()
    async with client.PullConsumer(nameserver, group="late", start_from=client.BEGIN) as consumer:
        consumer.assign(await consumer.queues(LATE))
        async with asyncio.timeout(SECONDS):
            while not expected <= bodies:
                bodies |= {message.body for message in await consumer.get_many(10, timeout=1)}
    assert bodies == expected


async def test_a_cluster_moves_to_pocketmq_and_back_and_loses_nothing(tmp_path: Path) -> None:
    settings = [f"mappedFileSizeCommitLog={LOG_FILE}", f"messageDelayLevel={LEVELS[0]}"]
    with apache(VERSION, tmp_path / "apache", settings=settings) as first:
        nameserver = first.nameserver
        await fill(nameserver)
        taken = await read(nameserver, TAKEN)
        async with clients(nameserver) as (load, all_handled), Cluster(tmp_path, **SETTINGS) as own:
            await goes_on(load)
            ours = {
                "brokerName": "broker-a",
                "namesrvAddr": nameserver,
                "messageDelayLevel": LEVELS[1],
            }
            slave = {**ours, "brokerRole": "SLAVE", "brokerId": "1"}
            broker = await own.start("ours", limits=QUICK, **slave)
            end = await hand_over(nameserver, first.broker, broker.address)
            first.process.kill()
            assert end > 2 * LOG_FILE
            await own.stop("ours")
            logs = [log_bytes(tmp_path / place, end) for place in ("ours", "apache/store")]
            assert logs[0] == logs[1]

            broker = await own.start("ours", **ours, haListenPort=str(free_port()))
            await goes_on(load)
            taken |= await read(nameserver, TAKEN)
            await delivered(nameserver, waiting(2))

            # An empty slave of Apache's would get the last file only.
            home = tmp_path / "again"
            home.mkdir()
            copy = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "pocketmq", "store", "copy"),
                *(str(tmp_path / "ours"), str(home / "store")),
            )
            assert await copy.wait() == 0
            levels = f"messageDelayLevel={LEVELS[2]}"
            slaves = ("brokerRole=SLAVE", "brokerId=1", levels)
            with apaches_broker(VERSION, home, nameserver, *slaves, clean=True) as address:
                end = await hand_over(nameserver, broker.address, address)
                await own.stop("ours")
            logs = [log_bytes(tmp_path / place, end) for place in ("ours", "again/store")]
            assert logs[0] == logs[1]
            assert check(
                tmp_path / "ours", CheckOptions(levels_ms=(1000, 1000, 3_600_000))
            ).findings.is_sound

            port = int(address.rpartition(":")[2])
            masters = ("brokerRole=ASYNC_MASTER", levels)
            with apaches_broker(VERSION, home, nameserver, *masters, port=port):
                await goes_on(load)
                taken |= await read(nameserver, MESSAGES - 2 * TAKEN)
                await delivered(nameserver, {*waiting(2), *waiting(3), b"timer"})
                await all_handled()
        assert len(taken) == MESSAGES
