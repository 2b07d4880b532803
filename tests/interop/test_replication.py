"""Replication with Apache's brokers in either role: the logs are the same, byte for byte."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

import client
from broker.limits import BrokerLimits
from broker.storetools.verify.check import CheckOptions, check
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import MessageRequestModeSerializeWrapper, RequestMode
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from tests.chaos.group_log import events
from tests.chaos.group_processes import MemberProcess
from tests.harness.cluster import Cluster
from tests.integration.pocketmq.conftest import CommandLine
from tests.interop.apache import VERSIONS, JavaClient, apache, mqadmin
from tests.interop.pairs import (
    LOG_FILE,
    SECONDS,
    SETTINGS,
    apaches_broker,
    ask,
    log_bytes,
    until_equal,
)
from tests.support.ports import free_ports
from tests.support.waiting import until
from tests.unit.broker.store.stores import bodies

pytestmark = pytest.mark.interop

POPPED = RequestMode("Replicated", "popping", "POP", 3)
MODES = MessageRequestModeSerializeWrapper({"Replicated": {"popping": POPPED}})


def request_modes(address: str) -> bytes:
    """Return what a broker answers to a slave that asks for the request modes."""
    return bytes(ask(address, Command.request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body)


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
        if version == "5.3.3":  # 4.9 has no modes
            set_mode = Command.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode(POPPED))
            assert ask(master.broker, set_mode).code == ResponseCode.SUCCESS
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
            if version == "5.3.3":
                modes = request_modes(master.broker)
                assert decode(MessageRequestModeSerializeWrapper, modes) == MODES
                await until(lambda: broker.state.request_modes == MODES, SECONDS)
                assert await asyncio.to_thread(request_modes, broker.address) == modes
        copy = log_bytes(tmp_path / "slave", end)
        assert copy == log_bytes(tmp_path / "apache" / "store", end)
        cli = CommandLine(master.nameserver)
        for words in (("switch", "broker-a"), ("promote", "broker-a", "--id", "0")):
            arguments = ["broker", *words] + ["--to", "0"] * (words[0] == "switch")
            error = await asyncio.to_thread(cli.fails, *arguments)
            assert "has an Apache broker or an older one" in error
            assert "high-availability.md#by-hand" in error
        report = check(tmp_path / "slave", CheckOptions())
        assert report.findings.is_sound


@pytest.mark.parametrize("version", VERSIONS)
async def test_apaches_slave_copies_our_master_and_acknowledges(
    version: str, tmp_path: Path
) -> None:
    config = tmp_path / "broker-a" / "config"
    config.mkdir(parents=True)
    # From the time when this broker was the slave of Apache's master.
    (config / "messageRequestMode.json").write_bytes(encode(MODES))
    async with Cluster(tmp_path, **SETTINGS) as own:
        broker = await own.start("broker-a", haListenPort="0", brokerRole="SYNC_MASTER")
        assert await send(own.nameserver, 30) == {client.SendStatus.SLAVE_NOT_AVAILABLE}
        with apaches_broker(version, tmp_path / "apache", own.nameserver) as slave:
            await until_equal(broker.address, slave)
            slaves = broker.state.slaves
            assert slaves is not None
            async with asyncio.timeout(SECONDS):
                while slaves.replicated < broker.store.log.end:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.1)
            assert await send(own.nameserver, 400) == {client.SendStatus.OK}
            end = await until_equal(broker.address, slave)
            assert end > LOG_FILE
            if version == "5.3.3":  # 4.9 has no such command
                await ha_status_shows_the_slave(tmp_path / "apache", own.nameserver)
                await until(lambda: request_modes(slave) == encode(MODES), SECONDS)
        copy = log_bytes(tmp_path / "apache" / "store", end)
        await own.stop("broker-a")
        assert copy == log_bytes(tmp_path / "broker-a", end)


async def ha_status_shows_the_slave(home: Path, nameserver: str) -> None:
    words = ("haStatus", "-c", "DefaultCluster")
    shown = await asyncio.to_thread(mqadmin, "5.3.3", home, nameserver, *words)
    facts = dict(re.findall(r"^#(\w+)\t(\S+)$", shown, re.MULTILINE))
    assert (facts["SlaveNum"], facts["InSyncSlaveNum"]) == ("1", "1")
    row = shown.partition("#TransferFromWhere\n")[2].split()
    _, acked, missing, _, status = row[:5]
    end = int(facts["MasterCommitLogMaxOffset"])
    assert end > LOG_FILE
    assert (int(acked) + int(missing), status) == (end, "OK")


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


@pytest.mark.parametrize("version", VERSIONS)
async def test_javas_consumers_go_on_over_a_switch_and_back(version: str, tmp_path: Path) -> None:
    intervals = ("periods.ms", "rocketmq.client.rebalance.waitInterval")
    intervals += ("rocketmq.client.rebalance.lockInterval",)
    options = tuple(f"-D{name}=1000" for name in intervals)
    java = JavaClient(version, "JSON", tmp_path, options=options)
    members: dict[str, MemberProcess] = {}

    def handled(group: str) -> list[int]:
        found = events({group: members[group].file})
        return [event.number for event in found if event.kind == "end"]

    async with Cluster(tmp_path) as own:
        try:
            quick, name = BrokerLimits(table_copy_seconds=0.1), {"brokerName": "broker-a"}
            slave = {**name, "brokerRole": "SLAVE", "brokerId": "1"}
            first = await own.start("first", haListenPort=str(free_ports(1)), **name)
            second = await own.start(
                "second", limits=quick, haListenPort=str(free_ports(1)), **slave
            )
            async with client.Admin(own.nameserver) as admin:
                await admin.create_topic("T", queues=1)
                for group, order in (("concurrent", "concurrent"), ("ordered", "ordered")):
                    file = tmp_path / group
                    command = java.command(
                        *(own.nameserver, group, "T", str(file), order, "3", group),
                        program="GroupMember",
                    )
                    members[group] = MemberProcess(command, file, group)
                    await members[group].join()
                async with client.Producer(own.nameserver) as producer:
                    for turn in range(3):
                        for number in range(turn * 20, turn * 20 + 20):
                            await producer.send("T", b"%d 0 0" % number)
                        expected = set(range(turn * 20 + 20))
                        for group in members:
                            await until(
                                lambda of=(group, expected): set(handled(of[0])) == of[1], SECONDS
                            )
                        if turn < 2:
                            old, new = (first, second) if turn == 0 else (second, first)
                            await until(lambda: first.store.log.end == second.store.log.end)
                            await admin.hand_over(old.address, new.address, 1)
                            await until(
                                lambda old=old: old.serving and old.config.is_slave, SECONDS
                            )
            firsts = list(dict.fromkeys(handled("ordered")))
            assert firsts == sorted(firsts) == list(range(60))
        finally:
            for member in members.values():
                await member.close()


async def test_javas_producer_goes_on_over_a_switch_and_back(tmp_path: Path) -> None:
    java = JavaClient("5.3.3", "JSON", tmp_path)
    acknowledged: set[bytes] = set()

    async def read(process: subprocess.Popen[str], port: int) -> None:
        """Read until the broker at a port has acknowledged 100 messages."""
        assert process.stdout is not None
        left = 100
        while left:
            line = await asyncio.to_thread(process.stdout.readline)
            assert line, "the producer gave up"
            number, *fields = line.split("\t")
            if fields:
                assert fields[0] == "SEND_OK"
                acknowledged.add(number.encode())
                # The id begins with the broker's address.
                left -= int(fields[2][8:16], 16) == port

    async with Cluster(tmp_path) as own:
        name = {"brokerName": "broker-a"}
        slave = {**name, "brokerRole": "SLAVE", "brokerId": "1"}
        first = await own.start("first", haListenPort=str(free_ports(1)), **name)
        second = await own.start("second", haListenPort=str(free_ports(1)), **slave)
        async with client.Admin(own.nameserver) as admin:
            await admin.create_topic("T", queues=1)
            with java.running("keep sending", own.nameserver, "T") as process:
                for master, successor in ((first, second), (second, first)):
                    await read(process, master.port)
                    await until(lambda: first.serving and second.serving, SECONDS)
                    await admin.hand_over(master.address, successor.address, 1)
                await read(process, first.port)
        await until(lambda: second.serving and second.store.log.end == first.store.log.end, SECONDS)
        for broker in (first, second):
            assert acknowledged <= set(bodies(broker.store, "T"))
