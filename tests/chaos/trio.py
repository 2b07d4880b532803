"""A group of three brokers under recorders, whose master Apache's controller elects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import client
from remoting.protocol.bodies.controller import ReplicasInfo
from tests.chaos.alterations import environment
from tests.chaos.controllers import Controllers
from tests.chaos.load import PATIENCE
from tests.chaos.network import Network
from tests.chaos.pair import NAME, Node, Pair, until
from tests.chaos.recorder import QUEUES, TOPIC
from tests.harness.processes import options

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

    @property
    def log(self) -> str:
        """The last lines of its log."""
        return self._server.log


class Trio(Pair):
    """A name server, controllers, three brokers, and the recorders.

    Args:
        root: for everything.
        settings: of the brokers.
        network: with the hosts ``a``, ``b``, ``c`` for the brokers and ``x``, ``y``, ``z`` for
            three controllers; the rest runs on its router, as the caller does. Without it there
            is one controller.
        alter: alterations of the brokers; see ``alterations``.

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
    ) -> None:
        super().__init__(root, settings=settings, network=network)
        self.controllers = Controllers(root, 1 if network is None else 3, network)
        addresses = ";".join(self.controllers.addresses)
        variables = environment(*alter) if alter else None
        self.nodes: list[Node] = [
            Member(root / name, addresses, network=network, environment=variables) for name in "abc"
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
