"""Pairs of ours and Apache's broker, of which each succeeds the other."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from remoting.blocking import BlockingConnection
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from tests.chaos.load import PATIENCE
from tests.chaos.pair import NAME, Node, Pair, running
from tests.chaos.test_replication_faults import SOME, report
from tests.interop.apache import broker_command, start
from tests.support.ports import free_ports, wait_until_listening
from tests.support.sizes import size
from tests.support.waiting import wait_until

KILLS = size(ci=1, soak=10)

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(size(ci=300, soak=7200))]


class ApacheNode(Node):
    """Apache's broker as master or slave.

    Args:
        version: of RocketMQ.
        home: its directory.
    """

    def __init__(self, version: str, home: Path) -> None:
        super().__init__(home / "store")
        self.port = free_ports(10)
        self._version = version
        self._home = home
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._nameserver = ""
        self._id = 0

    def configure(self, nameserver: str, role: str, settings: Mapping[str, object]) -> None:
        self._nameserver, self._id = nameserver, int(role == "SLAVE")
        own = {
            **settings,
            "brokerRole": role,
            "brokerId": self._id,
            "namesrvAddr": nameserver,
            "haListenPort": self.stream_port,
            # With 1, the default, a SYNC_MASTER of 5.x acknowledges without its slave.
            "inSyncReplicas": 2,
        }
        lines = [f"{name}={value}" for name, value in own.items()]
        self._home.mkdir(exist_ok=True)
        self._command = broker_command(self._version, self._home, self.port, settings=lines)

    def start(self) -> None:
        self._process = start(self._command, self._home, self._home / "broker.log")
        wait_until_listening(self.port)
        wait_until(self._is_registered, "Apache's broker is not registered")

    def _is_registered(self) -> bool:
        # A new permission makes it register at once.
        nudge = Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6")
        with BlockingConnection(self.address, timeout=PATIENCE) as broker:
            broker.request(nudge)
        ask = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        with BlockingConnection(self._nameserver, timeout=PATIENCE) as connection:
            table = decode(ClusterInfo, connection.request(ask).body).broker_addr_table
        return NAME in table and table[NAME].broker_addrs.get(self._id) == self.address

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.mark.parametrize("version", ["5.3.3"])
async def test_ours_and_apaches_broker_succeed_each_other_without_a_loss(
    tmp_path: Path, version: str, record_property: Callable[[str, object], None]
) -> None:
    moments = random.Random(version)
    pair = Pair(tmp_path / "pair", slave=ApacheNode(version, tmp_path / "apache"))
    async with running(pair):
        for _ in range(KILLS):
            await pair.until_stored(moments.randrange(50, SOME))
            await asyncio.sleep(moments.random() * 0.02)
            await pair.kill_master()
            await pair.promote()
        await pair.until_stored(1)
        verdict = await pair.judge(patience=40.0)
    report(pair, verdict, record_property)
