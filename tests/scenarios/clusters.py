"""Where stories are told: brokers of ours in this loop or in processes, and Apache's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import client
from broker.app import Broker
from broker.config import BrokerConfig
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from pocketmq.testing import SMALL_STORE, ServerProcess
from remoting.protocol.command import Command
from tests.ports import free_port, free_ports
from tests.scenarios.loops import Actor

BROKERS = ("broker-a", "broker-b")


class Cluster(Protocol):
    """A name server and the two ``BROKERS``.

    Attributes:
        kind: whose they are: ``ours`` or ``apache``.
        nameserver: its address.
        settles: seconds in which what a step causes has come about; None: until what is expected
            has happened.
    """

    kind: str
    nameserver: str

    @property
    def settles(self) -> float | None:
        """See above."""

    async def stop(self, broker: str) -> None:
        """Stop a broker cleanly."""

    async def start(self, broker: str) -> None:
        """Start one again, at its address, with its store."""


class InLoop:
    """Ours, without sockets, as actors of a ``StoryLoop``."""

    kind = "ours"
    settles: float | None = 2.0

    def __init__(self, root: Path) -> None:
        self._root = root
        self._actors: list[Actor] = []
        self._ports: dict[str, int] = {}
        self.brokers: dict[str, Broker] = {}
        self.nameserver = ""

    async def open(self) -> None:
        """Start all."""
        with Actor("nameserver", "10.8.8.8").acting():
            server = NameServer(NameServerConfig(listen_port=0))
            await server.start()
        self.nameserver = server.address
        self._server = server
        for name in BROKERS:
            await self.start(name)

    async def start(self, broker: str) -> None:
        config = BrokerConfig.from_sources(
            overrides={
                "brokerName": broker,
                "listenPort": str(self._ports.get(broker, 0)),
                "namesrvAddr": self.nameserver,
                "storePathRootDir": str(self._root / broker),
                "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
                "mappedFileSizeConsumeQueue": str(20 * 1000),
            }
        )
        with Actor(broker, "10.7.7.7").acting():
            made = self.brokers[broker] = Broker(config)
            await made.start()
        self._ports[broker] = made.port

    async def stop(self, broker: str) -> None:
        await self.brokers.pop(broker).stop()

    def answer(self, broker: str, request: int, code: int | None) -> None:
        """Have a broker answer a request with a code instead of doing it; None: do it again."""
        endpoint = self.brokers[broker]._server.endpoint
        real = getattr(endpoint.handler, "real", endpoint.handler)
        assert real is not None

        def handler(command: Command, connection: Any) -> Any:
            if command.code == request:
                assert code is not None
                return command.reply(code, "as told")
            return real(command, connection)

        handler.real = real  # type: ignore[attr-defined] # to find it again
        endpoint.handler = real if code is None else handler

    def forget_locks(self, broker: str) -> None:
        """As if another had been given them and had let them go again."""
        locks = self.brokers[broker].state.locks
        for group, held in list(locks._groups.items()):
            for queue, (owner, _) in list(held.items()):
                locks.unlock(group, owner, [queue])
                locks.lock(group, "10.6.6.6@stranger", [queue], self.now_ms(broker))

    def now_ms(self, broker: str) -> int:
        """A broker's time."""
        return self.brokers[broker].state.clock.now_ms()

    async def close(self) -> None:
        """Stop all."""
        for name in list(self.brokers):
            await self.stop(name)
        await self._server.stop()


class Processes:
    """Ours, each in a process of its own."""

    kind = "ours"
    settles: float | None = None

    def __init__(self, nameserver: ServerProcess, brokers: dict[str, ServerProcess]) -> None:
        self.nameserver = nameserver.addresses["nameserver"]
        self._brokers = brokers

    async def stop(self, broker: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._brokers[broker].stop)

    async def start(self, broker: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._brokers[broker].start)


class Running:
    """Somebody else's, which can only be used."""

    settles: float | None = None

    def __init__(self, kind: str, nameserver: str) -> None:
        self.kind = kind
        self.nameserver = nameserver

    async def stop(self, broker: str) -> None:
        raise AssertionError(f"{broker} can't be stopped here")

    async def start(self, broker: str) -> None:
        raise AssertionError(f"{broker} can't be started here")


@contextmanager
def processes(root: Path) -> Iterator[Processes]:
    """Run a name server and the brokers; all are killed at the end."""
    port = free_port()
    nameserver = ServerProcess(
        ["nameserver", f"--port={port}", f"--set=kvConfigPath={root / 'kvConfig.json'}"]
    )
    brokers = {
        name: ServerProcess(
            [
                "broker",
                f"--nameserver=127.0.0.1:{port}",
                f"--port={free_ports(3)}",
                f"--store={root / name}",
                f"--set=brokerName={name}",
                *(f"--set={key}={value}" for key, value in SMALL_STORE.items()),
            ]
        )
        for name in BROKERS
    }
    try:
        for server in (nameserver, *brokers.values()):
            server.start()
        yield Processes(nameserver, brokers)
    finally:
        for server in (*brokers.values(), nameserver):
            server.kill()


async def make_topic(cluster: Cluster, topic: str, queues: int, brokers: list[str]) -> None:
    """A topic at some of the brokers."""
    async with client.Admin(cluster.nameserver) as admin:
        await admin.create_topic(topic, queues=queues, brokers=brokers)
