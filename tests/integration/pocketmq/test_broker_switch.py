"""``pocketmq broker switch`` and ``promote``, with a master and a slave as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client import blocking
from pocketmq.testing import ServerProcess
from tests.harness.processes import Processes, options, processes
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.ports import free_port, free_ports
from tests.support.waiting import wait_until


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
