"""A group of three brokers under recorders, whose master Apache's controller elects."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import client
from remoting.protocol.bodies.controller import ReplicasInfo
from tests.chaos.alterations import environment
from tests.chaos.controllers import VERSION, Controllers
from tests.chaos.load import PATIENCE
from tests.chaos.network import Network
from tests.chaos.pair import NAME, Node, Pair, until
from tests.chaos.recorder import QUEUES, TOPIC
from tests.harness.processes import options
from tests.interop.apache import broker_command, start
from tests.support.ports import free_ports, wait_until_listening

SOON = 60.0
"""Seconds for an election and what follows it, on a busy machine."""


class Member(Node):
    """A broker of ours in a group.

    Args:
        store: its directory.
        controller: addresses of the controllers.
        network: as of a ``Node``.
        environment: of its process.
    """

    def __init__(
        self,
        store: Path,
        controller: str,
        *,
        network: Network | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(store, network=network, environment=environment)
        self._controller = controller

    def configure(self, nameserver: str, role: str, settings: Mapping[str, object]) -> None:
        own = {
            **settings,
            "enableControllerMode": "true",
            "controllerAddr": self._controller,
            "haListenPort": self.stream_port,
            "pocketmqBindHost": self.host,
        }
        self._server.command = [
            *("broker", "--nameserver", nameserver, f"--port={self.port}", "--metrics-port=0"),
            *("--store", str(self.store), *options(own)),
        ]


class ApacheMember(Node):
    """Apache's broker in a group, as docs/high-availability.md has it.

    Args:
        home: its directory.
        controllers: their addresses.
        network: as of a ``Node``.
    """

    def __init__(self, home: Path, controllers: str, network: Network | None = None) -> None:
        super().__init__(home / "store", name=home.name, network=network)
        self.port = free_ports(10)
        self._home, self._controllers = home, controllers
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self._home / "broker.log").read_text(errors="replace")

    def configure(self, nameserver: str, role: str, settings: Mapping[str, object]) -> None:
        own = {
            **settings,
            "brokerIP1": self.host,
            "brokerIP2": self.host,
            "namesrvAddr": nameserver,
            "haListenPort": self.stream_port,
            "enableControllerMode": "true",
            "controllerAddr": self._controllers,
            "allAckInSyncStateSet": "true",
            "minInSyncReplicas": 2,
            # A new master may not be registered yet when it asks for its address the first time.
            "registerNameServerPeriod": 10_000,
            # It asks about none: voted out while it has to, it follows a minute later.
            "transactionTimeOut": 120_000,
        }
        lines = [f"{name}={value}" for name, value in own.items()]
        self._home.mkdir(parents=True, exist_ok=True)
        self._command = broker_command(VERSION, self._home, self.port, settings=lines)

    def start(self) -> None:
        self._process = self._run_there(start, self._command, self._home, self._home / "broker.log")
        wait_until_listening(self.port, self.host)

    def stop(self) -> None:
        # Its clean stop takes ten seconds, and minutes when the others are gone.
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)


class Trio(Pair):
    """A name server, controllers, three brokers, and the recorders.

    Args:
        root: for everything.
        settings: of the brokers.
        network: with the hosts ``a``, ``b``, ``c`` for the brokers and ``x``, ``y``, ``z`` for
            three controllers; the rest runs on its router, as the caller does. Without it there
            is one controller.
        alter: alterations of the brokers; see ``alterations``.
        apaches: which of the brokers, of ``abc``, are Apache's.

    Attributes:
        nodes: the brokers; ``master`` and ``slave`` are two of them, as seen last.
        controllers: Apache's.
    """

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, object] | None = None,
        *,
        network: Network | None = None,
        alter: Sequence[str] = (),
        apaches: Collection[str] = (),
    ) -> None:
        super().__init__(root, settings=settings, network=network)
        self.controllers = Controllers(root, 1 if network is None else 3, network)
        addresses = ";".join(self.controllers.addresses)
        variables = environment(*alter) if alter else None
        self.nodes: list[Node] = [
            ApacheMember(root / name, addresses, network)
            if name in apaches
            else Member(root / name, addresses, network=network, environment=variables)
            for name in "abc"
        ]

    # --- the cluster

    async def open(self) -> None:
        self.root.mkdir(exist_ok=True)
        self.controllers.start_all()
        await asyncio.to_thread(self._nameserver.start)
        await until(lambda: self.controllers.leader() is not None, SOON)
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
        self.controllers.close()
        self._own.close()

    def group(self) -> ReplicasInfo:
        """Return what the controller knows of the group."""
        return self.controllers.replicas(NAME)

    def members(self) -> set[str]:
        """Return the addresses of the replicas in sync."""
        return _members(self.group())

    async def elected(self, alive: list[Node]) -> None:
        """Wait until one of these brokers is the master, and all are in sync."""
        addresses = {node.address for node in alive}

        def is_whole() -> bool:
            group = self.group()
            return _members(group) == addresses and group.master_address in addresses

        try:
            await until(is_whole, SOON)
        except TimeoutError:
            logs = "\n".join(f"--- {node.address}:\n{node.log}" for node in self.nodes)
            raise AssertionError(f"not all in sync: {self.group()}\n{logs}") from None
        master = self.group().master_address
        self.master = next(node for node in alive if node.address == master)
        self.slave = next(node for node in alive if node is not self.master)

    async def elect(self, node: Node) -> None:
        """Have the controller make a broker the master; wait until all are in sync."""
        (broker_id,) = (
            one.broker_id
            for one in self.group().in_sync_replicas
            if one.broker_address == node.address
        )

        def is_master() -> bool:
            if self.group().master_address == node.address:
                return True
            self.controllers.elect(NAME, broker_id)
            return False

        self.crashed()
        await until(is_master, SOON)
        await self.elected(self.nodes)
        self.done["elections"] += 1

    async def equal(self) -> int:
        """Wait until all logs, which must not grow, end at the same offset; return it."""
        ends: set[int] = set()

        def are_equal() -> bool:
            ends.clear()
            ends.update(node.log_end() for node in self.nodes)
            return len(ends) == 1

        await until(are_equal, SOON)
        return ends.pop()


def _members(group: ReplicasInfo) -> set[str]:
    return {one.broker_address or "" for one in group.in_sync_replicas}
