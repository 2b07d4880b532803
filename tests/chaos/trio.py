"""A group of three brokers under recorders, whose master Apache's controller elects."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

import client
from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from tests.chaos.load import PATIENCE
from tests.chaos.pair import NAME, Node, Pair, until
from tests.chaos.recorder import QUEUES, TOPIC
from tests.harness.processes import options
from tests.interop.apache import controller_command, start
from tests.support.ports import free_port, wait_until_listening

VERSION = "5.3.3"

SOON = 60.0
"""Seconds for an election and what follows it, on a busy machine."""


class Member(Node):
    """A broker of ours in a group.

    Args:
        store: its directory.
        controller: address of the controller.
    """

    def __init__(self, store: Path, controller: str) -> None:
        super().__init__(store)
        self._controller = controller

    def configure(self, nameserver: str, role: str, settings: Mapping[str, object]) -> None:
        own = {
            **settings,
            "enableControllerMode": "true",
            "controllerAddr": self._controller,
            "haListenPort": self.stream_port,
        }
        self._server.command = [
            *("broker", "--nameserver", nameserver, f"--port={self.port}", "--metrics-port=0"),
            *("--store", str(self.store), *options(own)),
        ]

    @property
    def log(self) -> str:
        """The last lines of its log."""
        return self._server.log


class Trio(Pair):
    """A name server, a controller, three brokers, and the recorders.

    Args:
        root: for everything.
        settings: of the brokers.

    Attributes:
        nodes: the brokers; ``master`` and ``slave`` are two of them, as seen last.
        controller: the controller's address.
    """

    def __init__(self, root: Path, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(root, settings=settings)
        port = free_port()
        self.controller = f"127.0.0.1:{port}"
        home = root / "controller"
        self._home, self._port = home, port
        self._process: subprocess.Popen[bytes] | None = None
        self.nodes: list[Node] = [Member(root / name, self.controller) for name in "abc"]

    # --- the cluster

    async def open(self) -> None:
        self.root.mkdir(exist_ok=True)
        self._home.mkdir(exist_ok=True)
        command = controller_command(VERSION, self._home, self._port)
        self._process = start(command, self._home, self.root / "controller.log")
        await asyncio.to_thread(self._nameserver.start)
        await asyncio.to_thread(wait_until_listening, self._port)
        for node in self.nodes:
            node.configure(self.nameserver, "", self.settings)
            await asyncio.to_thread(node.start)
        await self.elected(self.nodes)
        async with client.Admin(self.nameserver, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        for node in self.nodes:
            await until(node.has_topic, SOON)

    def close(self) -> None:
        self.end_recorders()
        for node in self.nodes:
            node.kill()
        self._nameserver.kill()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._own.close()

    def group(self) -> ReplicasInfo:
        """Return what the controller knows of the group."""
        ask = Command.request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode([NAME]))
        try:
            with BlockingConnection(self.controller, timeout=PATIENCE) as connection:
                answer = connection.request(ask)
        except (OSError, RemotingError):
            return ReplicasInfo()
        if answer.code != ResponseCode.SUCCESS:
            return ReplicasInfo()
        table = decode(BrokerReplicasInfo, answer.body).replicas_info_table
        return table.get(NAME) or ReplicasInfo()

    def members(self) -> set[str]:
        """Return the addresses of the replicas in sync."""
        return {one.broker_address or "" for one in self.group().in_sync_replicas}

    async def elected(self, alive: list[Node]) -> None:
        """Wait until one of these brokers is the master, and all are in sync."""
        addresses = {node.address for node in alive}

        def is_whole() -> bool:
            return self.members() == addresses and self.group().master_address in addresses

        await until(is_whole, SOON)
        master = self.group().master_address
        self.master = next(node for node in alive if node.address == master)
        self.slave = next(node for node in alive if node is not self.master)

    async def equal(self) -> int:
        """Wait until all logs, which must not grow, end at the same offset; return it."""
        ends: set[int] = set()

        def are_equal() -> bool:
            ends.clear()
            ends.update(node.log_end() for node in self.nodes)
            return len(ends) == 1

        await until(are_equal, SOON)
        return ends.pop()
