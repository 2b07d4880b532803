"""Masters and slaves killed under load: a SYNC_MASTER's death loses nothing acknowledged."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import client
from broker.storetools.verify.check import CheckOptions, check
from pocketmq.testing import SMALL_STORE, ServerProcess
from remoting.blocking import BlockingConnection
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import TopicRequestHeader
from tests.chaos.load import PATIENCE, Load, stored_numbers
from tests.harness.processes import options
from tests.support.ports import free_port, free_ports
from tests.support.sizes import size

MASTER_KILLS = size(test=1, ci=3, soak=500)
SLAVE_KILLS = size(test=2, ci=5, soak=200)
TOPIC = "numbers"
LOG_FILE = 1 << 20

pytestmark = pytest.mark.timeout(size(ci=600, soak=7200))


@dataclass
class ProcessPair:
    """A name server, a master and a slave as processes, with their stores below ``root``."""

    root: Path
    role: str
    address: str
    nameserver: ServerProcess
    master: ServerProcess
    slave: ServerProcess

    @classmethod
    def at(cls, root: Path, role: str, *, flush: str) -> ProcessPair:
        port = free_port()
        address = f"127.0.0.1:{port}"
        kv = options({"kvConfigPath": root / "kvConfig.json"})
        nameserver = ServerProcess(["nameserver", f"--port={port}", "--metrics-port=0", *kv])
        common = {
            **SMALL_STORE,
            "brokerName": "broker-a",
            "mappedFileSizeCommitLog": LOG_FILE,
            "flushDiskType": flush,
        }

        def broker(name: str, **settings: object) -> ServerProcess:
            return ServerProcess(
                [
                    *("broker", "--nameserver", address, f"--port={free_ports(3)}"),
                    *("--metrics-port=0", "--store", str(root / name)),
                    *options({**common, **settings}),
                ]
            )

        return cls(
            root,
            role,
            address,
            nameserver,
            broker("master", brokerRole=role, haListenPort=free_port()),
            broker("slave", brokerRole="SLAVE", brokerId=1),
        )

    def promoted(self) -> ServerProcess:
        """Return the slave as a master."""
        command = [
            part
            for part in self.slave.command
            if part not in options({"brokerRole": "SLAVE", "brokerId": 1})
        ]
        return ServerProcess(command)


@contextmanager
def running(root: Path, role: str, *, flush: str = "ASYNC_FLUSH") -> Iterator[ProcessPair]:
    """Run a pair; all are killed at the end."""
    root.mkdir()
    pair = ProcessPair.at(root, role, flush=flush)
    try:
        for server in (pair.nameserver, pair.master, pair.slave):
            server.start()
        yield pair
    finally:
        for server in (pair.slave, pair.master, pair.nameserver):
            server.kill()


def runtime_of(server: ServerProcess) -> dict[str, str]:
    """Return a broker's runtime information."""
    with BlockingConnection(server.addresses["broker"], timeout=PATIENCE) as connection:
        answer = connection.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    return decode(KVTable, answer.body).table


async def until_in_sync(pair: ProcessPair) -> None:
    """Wait until the slave has the master's log."""

    def same() -> bool:
        ends = [runtime_of(server)["commitLogMaxOffset"] for server in (pair.master, pair.slave)]
        return ends[0] == ends[1]

    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(same):  # noqa: ASYNC110 - in other processes
            await asyncio.sleep(0.05)


async def until_copied(pair: ProcessPair, producer: client.Producer[bytes]) -> None:
    """Wait until the slave has the topic, whose messages nobody could read without it."""
    request = Command.request(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic=TOPIC))

    def is_there() -> bool:
        with BlockingConnection(pair.slave.addresses["broker"], timeout=PATIENCE) as connection:
            return connection.request(request).code == ResponseCode.SUCCESS

    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(is_there):
            with suppress(client.NotDurable):
                await producer.send(TOPIC, b"-1")


@asynccontextmanager
async def loaded(pair: ProcessPair) -> AsyncIterator[Load]:
    """Send numbers during the block; those count that the master says are safe."""
    async with client.Admin(pair.address, request_timeout=PATIENCE) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with client.Producer(pair.address, group="load", require_durable=True) as producer:
        await until_copied(pair, producer)
        load = Load(producer, TOPIC)
        task = asyncio.create_task(load.run())
        try:
            yield load
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def numbers_after_switch(pair: ProcessPair) -> set[int]:
    """Start the slave as the master, and return the numbers that it has."""
    await asyncio.to_thread(pair.slave.kill)
    pair.slave = pair.promoted()
    await asyncio.to_thread(pair.slave.start)
    return set(await stored_numbers(pair.address, TOPIC))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_sync_master_that_dies_loses_nothing_acknowledged(
    tmp_path: Path, flush: str
) -> None:
    moments = random.Random(flush)
    for number in range(MASTER_KILLS):
        with running(tmp_path / str(number), "SYNC_MASTER", flush=flush) as pair:
            async with loaded(pair) as load:
                await asyncio.wait_for(load.wait_for(moments.randrange(100, 2000)), PATIENCE)
                await asyncio.sleep(moments.random() * 0.02)
                await asyncio.to_thread(pair.master.kill)
            stored = await numbers_after_switch(pair)
            lost = load.acknowledged - stored
            assert not lost, f"{len(lost)} of {len(load.acknowledged)} acknowledged are lost"


async def test_this_check_finds_what_an_async_master_loses(tmp_path: Path) -> None:
    with running(tmp_path / "pair", "ASYNC_MASTER") as pair:
        async with loaded(pair) as load:
            await asyncio.wait_for(load.wait_for(100), PATIENCE)
            os.kill(pair.slave.pid, signal.SIGSTOP)
            await asyncio.wait_for(load.wait_for(500), PATIENCE)
            await asyncio.to_thread(pair.master.kill)
        os.kill(pair.slave.pid, signal.SIGCONT)
        stored = await numbers_after_switch(pair)
        assert load.acknowledged - stored


async def test_a_slave_that_is_killed_again_and_again_has_its_masters_log(tmp_path: Path) -> None:
    moments = random.Random(3)
    with running(tmp_path / "pair", "ASYNC_MASTER") as pair:
        async with loaded(pair) as load:
            for _ in range(SLAVE_KILLS):
                await asyncio.wait_for(load.wait_for(moments.randrange(100, 2000)), PATIENCE)
                await asyncio.to_thread(pair.slave.kill)
                await asyncio.wait_for(load.wait_for(200), PATIENCE)
                await asyncio.to_thread(pair.slave.start)
        await until_in_sync(pair)
        for server in (pair.slave, pair.master):
            await asyncio.to_thread(server.stop)
    logs = [
        {file.name: file.read_bytes() for file in (pair.root / name / "commitlog").iterdir()}
        for name in ("master", "slave")
    ]
    assert logs[0] == logs[1]
    assert check(tmp_path / "pair" / "slave", CheckOptions()).findings.is_sound
