"""``pocketmq broker switch`` and ``promote``, with a master and a slave as processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import client
from client import blocking
from pocketmq.testing import ServerProcess
from tests.harness.processes import Processes, options, processes
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.ports import free_port, free_ports
from tests.support.relay import Relay
from tests.support.waiting import until, wait_until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Processes, ServerProcess]]:
    """Run a master of broker-a and its slave with the id 1."""
    with processes(tmp_path, settings={"haListenPort": free_port()}) as running:
        settings = {
            "brokerName": "broker-a",
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "haListenPort": free_port(),
            "mappedFileSizeCommitLog": 64 << 20,
        }
        slave = ServerProcess(
            [
                *("broker", "--nameserver", running.address, f"--port={free_ports(3)}"),
                *("--metrics-port=0", "--store", str(tmp_path / "slave"), *options(settings)),
            ]
        )
        slave.start()
        try:
            yield running, slave
        finally:
            slave.kill()


def roles(cli: CommandLine) -> dict[int, str]:
    """Return the addresses of the brokers by id."""
    return {row["id"]: row["address"] for row in cli.json("cluster", "list")}


def test_a_drained_broker_stays_drained_over_a_switch_until_it_is_undone(
    pair: tuple[Processes, ServerProcess],
) -> None:
    running, slave = pair
    cli = CommandLine(running.address)
    one, other = running.broker.addresses["broker"], slave.addresses["broker"]
    with blocking.Producer(running.address) as producer:
        producer.send("orders", b"1")
        cli("broker", "drain", "broker-a")
        cli("broker", "switch", "broker-a")
        wait_until(lambda: roles(cli) == {0: other, 1: one})
        with pytest.raises(client.PocketMQError):
            producer.send("orders", b"refused", timeout=1)
        cli("broker", "drain", "broker-a", "--undo")
        producer.send("orders", b"2")
        cli("broker", "switch", "broker-a")
        wait_until(lambda: roles(cli) == {0: one, 1: other})
        producer.send("orders", b"3")


def test_the_commands(pair: tuple[Processes, ServerProcess]) -> None:
    running, slave = pair
    cli = CommandLine(running.address)
    one, other = running.broker.addresses["broker"], slave.addresses["broker"]
    assert roles(cli) == {0: one, 1: other}
    with blocking.Producer(running.address) as producer:
        producer.send("orders", b"1")
        assert "the master" in cli.fails("broker", "promote", "broker-a", "--id", "1", "--force")
        answer = cli.json("broker", "switch", "broker-a")
        assert answer == {"broker": "broker-a", "master": other, "slave_id": 1}
        wait_until(lambda: roles(cli) == {0: other, 1: one})
        producer.send("orders", b"2")
        # The role is in the store, so it outlives kill -9.
        for server in (slave, running.broker):
            server.kill()
        for server in (running.broker, slave):
            server.start()
        wait_until(lambda: roles(cli) == {0: other, 1: one})
        assert f"broker-a is now {one}" in cli("broker", "switch", "broker-a", "--to", "1")
        wait_until(lambda: roles(cli) == {0: one, 1: other})
        running.broker.kill()
        wait_until(lambda: roles(cli) == {1: other})
        error = cli.fails("broker", "promote", "broker-a", "--id", "1")
        assert "would be lost" in error
        assert "--force" in error
        assert "broker promote broker-a --id ID" in cli.fails("broker", "switch", "broker-a")
        answer = cli.json("broker", "promote", "broker-a", "--id", "1", "--force")
        assert answer == {"broker": "broker-a", "master": other}
        wait_until(lambda: roles(cli) == {0: other})
        producer.send("orders", b"3")
    assert set(cli("read", "orders", "--from", "begin", "--format", "raw")) == set("123")


def test_brokers_that_are_not_there_are_one_line_errors(cli: CommandLine) -> None:
    assert "there is no broker 'elsewhere'" in cli.fails("broker", "switch", "elsewhere")
    for words in (("switch", "broker-a"), ("switch", "broker-a", "--to", "7")):
        assert "name one slave of broker-a" in cli.fails("broker", *words)
    error = cli.fails("broker", "promote", "broker-a", "--id", "0", "--force")
    assert "this broker is the master" in error
    promote = ("broker", "promote", "broker-a")
    for more in ((), ("--id", "0", "--address", "a:1")):
        assert "give --id or --address" in cli.fails(*promote, *more, code=2)
    assert "nowhere" in cli.fails(*promote, "--address", "nowhere")


async def test_a_hand_over_goes_on_though_the_master_is_killed(
    pair: tuple[Processes, ServerProcess],
) -> None:
    running, slave = pair
    master, address = running.broker, running.address
    one, other = master.addresses["broker"], slave.addresses["broker"]
    async with client.Admin(address) as admin, Relay(other, requests=1) as relay:
        async with client.Producer(address) as producer:
            for number in range(100):
                await producer.send("orders", b"%d" % number)
            switch = asyncio.create_task(admin.hand_over(one, relay.address, 1))
            await relay.held.wait()
            with pytest.raises(client.ServiceNotAvailable):
                await producer.send("orders", b"refused", timeout=1)

        await asyncio.to_thread(master.kill)
        with pytest.raises(client.PocketMQError):
            await switch
        await asyncio.to_thread(master.start)

        async def ids() -> dict[int, str]:
            return {broker.id: broker.address for broker in await admin.brokers()}

        # The master doesn't know whether it is the master, and nobody finds it.
        assert await ids() == {1: other}
        relay.release()

        async def switched() -> bool:
            return await ids() == {0: other, 1: one}

        await until(switched, 60)
        async with client.Producer(address) as producer:
            await producer.send("orders", b"100")

        async def equal() -> bool:
            return await _end(admin, one) == await _end(admin, other)

        await until(equal, 60)
        end = await _end(admin, one)
    logs = [
        b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))[:end]
        for root in map(Path, (_store_of(master), _store_of(slave)))
    ]
    assert logs[0] == logs[1]


async def _end(admin: client.Admin, address: str) -> int:
    return int((await admin.broker_runtime(address))["commitLogMaxOffset"])


def _store_of(server: ServerProcess) -> str:
    return server.command[server.command.index("--store") + 1]
