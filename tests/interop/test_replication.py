"""Replication with Apache's brokers in either role: the logs are the same, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import client
from broker.limits import BrokerLimits
from broker.storetools.verify.check import CheckOptions, check
from remoting.blocking import BlockingConnection
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from tests.chaos.group_log import events
from tests.chaos.group_processes import MemberProcess
from tests.harness.cluster import Cluster
from tests.interop.apache import VERSIONS, JavaClient, apache, broker_command, start
from tests.support.ports import free_ports, wait_until_listening
from tests.support.waiting import until

pytestmark = pytest.mark.interop

LOG_FILE = 128 * 1024
SETTINGS = {"mappedFileSizeCommitLog": str(LOG_FILE), "mappedFileSizeConsumeQueue": "200000"}
SECONDS = 90.0


def log_end(address: str) -> int:
    """Return the physical offset where a broker's log ends; -1 while it is starting."""
    with BlockingConnection(address, timeout=30) as connection:
        answer = connection.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    if answer.code != ResponseCode.SUCCESS:
        return -1
    return int(decode(KVTable, answer.body).table["commitLogMaxOffset"])


async def until_equal(one: str, other: str) -> int:
    """Wait until the logs of two brokers end at the same offset, and return it."""
    async with asyncio.timeout(SECONDS):
        while True:
            ends = [await asyncio.to_thread(log_end, address) for address in (one, other)]
            if ends[0] == ends[1]:
                return ends[0]
            await asyncio.sleep(0.2)


def log_bytes(store: Path, end: int) -> bytes:
    """Return the log of a store from its first file up to an offset."""
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    start = int(files[0].name)
    return b"".join(path.read_bytes() for path in files)[: end - start]


async def send(nameserver: str, count: int, *, topic: str = "Replicated") -> set[client.SendStatus]:
    """Send messages of different sizes, some with tags or a delay; return the answers' statuses."""
    statuses = set()
    async with client.Producer(nameserver) as producer:
        for number in range(count):
            receipt = await producer.send(
                topic,
                b"%d " % number * (1 + number * 37 % 400),
                tag="even" if number % 2 == 0 else None,
                keys=[f"key{number}"],
                delay_level=int(number % 50 == 0),
            )
            statuses.add(receipt.status)
    return statuses


@pytest.mark.parametrize("version", VERSIONS)
async def test_our_slave_copies_apaches_master(version: str, tmp_path: Path) -> None:
    settings = ["brokerRole=ASYNC_MASTER", f"mappedFileSizeCommitLog={LOG_FILE}"]
    with apache(version, tmp_path / "apache", settings=settings) as master:
        await send(master.nameserver, 300)
        async with Cluster(tmp_path) as own:
            slave = {
                **SETTINGS,
                "brokerName": "broker-a",
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "namesrvAddr": master.nameserver,
            }
            broker = await own.start("slave", **slave)
            end = await until_equal(master.broker, broker.address)
            assert end > LOG_FILE
            await own.stop("slave")
            await send(master.nameserver, 300)
            broker = await own.start("slave", **slave)
            end = await until_equal(master.broker, broker.address)
            async with asyncio.timeout(SECONDS):
                while "Replicated" not in broker.state.topics:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.1)
            offsets = broker.state.topics.table["Replicated"].write_queue_nums
            numbers = [broker.store.queries.max_offset("Replicated", n) for n in range(offsets)]
            assert sum(numbers) >= 588  # without the delayed ones
        copy = log_bytes(tmp_path / "slave", end)
        assert copy == log_bytes(tmp_path / "apache" / "store", end)
        report = check(tmp_path / "slave", CheckOptions())
        assert report.findings.is_sound


@contextmanager
def apaches_slave(version: str, home: Path, nameserver: str, *settings: str) -> Iterator[str]:
    """Run a slave of broker-a; yield its address."""
    home.mkdir()
    port = free_ports(10)
    lines = [
        f"namesrvAddr={nameserver}",
        f"mappedFileSizeCommitLog={LOG_FILE}",
        "brokerRole=SLAVE",
        "brokerId=1",
        *settings,
    ]
    process = start(broker_command(version, home, port, settings=lines), home, home / "broker.log")
    try:
        wait_until_listening(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("version", VERSIONS)
async def test_apaches_slave_copies_our_master_and_acknowledges(
    version: str, tmp_path: Path
) -> None:
    async with Cluster(tmp_path, **SETTINGS) as own:
        broker = await own.start("broker-a", haListenPort="0", brokerRole="SYNC_MASTER")
        assert await send(own.nameserver, 30) == {client.SendStatus.SLAVE_NOT_AVAILABLE}
        with apaches_slave(version, tmp_path / "apache", own.nameserver) as slave:
            await until_equal(broker.address, slave)
            slaves = broker.state.slaves
            assert slaves is not None
            async with asyncio.timeout(SECONDS):
                while slaves.replicated < broker.store.log.end:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.1)
            assert await send(own.nameserver, 400) == {client.SendStatus.OK}
            end = await until_equal(broker.address, slave)
            assert end > LOG_FILE
        copy = log_bytes(tmp_path / "apache" / "store", end)
        await own.stop("broker-a")
        assert copy == log_bytes(tmp_path / "broker-a", end)


@pytest.mark.parametrize("version", VERSIONS)
async def test_javas_consumers_go_on_from_our_slave_and_return_to_the_master(
    version: str, tmp_path: Path
) -> None:
    intervals = ("periods.ms", "rocketmq.client.rebalance.waitInterval")
    intervals += ("rocketmq.client.rebalance.lockInterval",)
    options = tuple(f"-D{name}=1000" for name in intervals)
    java = JavaClient(version, "JSON", tmp_path, options=options)
    members: dict[str, MemberProcess] = {}

    async def join(group: str, *, order: str = "concurrent") -> None:
        file = tmp_path / group
        command = java.command(
            *(own.nameserver, group, "T", str(file), order, "3", group), program="GroupMember"
        )
        members[group] = MemberProcess(command, file, group)
        await members[group].join()

    def handled(group: str) -> list[int]:
        found = events({group: members[group].file})
        return sorted(event.number for event in found if event.kind == "end")

    async def produce(numbers: range) -> None:
        async with client.Producer(own.nameserver) as producer:
            for number in numbers:
                await producer.send("T", b"%d 0 0" % number)

    port = str(free_ports(1))
    role = {"brokerName": "broker-a", "brokerRole": "SLAVE", "brokerId": "1"}
    quick = BrokerLimits(table_copy_seconds=0.1)
    async with Cluster(tmp_path) as own:
        try:
            master = await own.start("broker-a", haListenPort=port)
            slave = await own.start("slave", limits=quick, **role)
            async with client.Admin(own.nameserver) as admin:
                await admin.create_topic("T", queues=2)
            await join("early")
            await produce(range(20))
            await until(lambda: handled("early") == list(range(20)), SECONDS)
            await until(lambda: slave.store.log.end == master.store.log.end, SECONDS)
            await until(lambda: slave.state.topics.table == master.state.topics.table, SECONDS)
            await own.stop("broker-a")

            await join("late")
            await join("ordered", order="ordered")
            await until(lambda: handled("late") == list(range(20)), SECONDS)
            committed = slave.state.offsets.queues_of
            await until(lambda: sum(committed("late", "T").values()) == 20, SECONDS)
            # Only a master locks queues.
            assert handled("ordered") == []

            master = await own.start("broker-a", haListenPort=port)
            await produce(range(20, 40))
            everything = set(range(40))
            await until(lambda: all(set(handled(name)) == everything for name in members), SECONDS)
            await asyncio.gather(*(member.leave() for member in members.values()))
            stored = master.state.offsets.queues_of
            for group in members:
                await until(lambda group=group: sum(stored(group, "T").values()) == 40, SECONDS)
            # The offsets of the slave came back in time: nothing was delivered again.
            assert handled("late") == list(range(40))
        finally:
            for member in members.values():
                await member.close()
