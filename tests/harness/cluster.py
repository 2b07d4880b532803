"""A name server and brokers in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.app import Broker
from broker.config import BrokerConfig
from broker.limits import LIMITS, BrokerLimits
from broker.store.limits import StoreLimits
from broker.store.os_files import Files
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from pocketmq.testing import SMALL_STORE
from tests.support.ports import free_port, free_ports

SMALL_FILES = {
    **SMALL_STORE,
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
}


class Cluster:
    """A name server, and brokers by name; each keeps its port and its store over restarts.

    Args:
        root: for the brokers' stores.
        settings: RocketMQ's keys for all brokers; those of TLS are the name server's too.
    """

    def __init__(self, root: Path, **settings: str) -> None:
        self._root = root
        self._settings = {**SMALL_FILES, **settings}
        self._ports: dict[str, int] = {}
        self.name_server = self._make_name_server(free_port())
        self.brokers: dict[str, Broker] = {}

    @property
    def nameserver(self) -> str:
        """The name server's address."""
        return self.name_server.address

    async def __aenter__(self) -> Self:
        await self.name_server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self.brokers):
            await self.stop(name)
        await self.name_server.stop()

    async def start(
        self,
        name: str = "broker-a",
        *,
        store_limits: StoreLimits | None = None,
        limits: BrokerLimits = LIMITS,
        files: Files | None = None,
        **settings: str,
    ) -> Broker:
        """Start a broker, or restart it on its port and store."""
        config = BrokerConfig.from_sources(
            overrides={
                "brokerName": name,
                # Not 0: what is down would lose its port to somebody's outgoing connection.
                "listenPort": str(self._ports.get(name) or free_ports(1)),
                "namesrvAddr": self.nameserver,
                "storePathRootDir": str(self._root / name),
                **self._settings,
                **settings,
            }
        )
        config = replace(config, limits=limits)
        if store_limits is not None:
            config = replace(config, store_limits=store_limits)
        broker = self.brokers[name] = Broker(config, files=files)
        await broker.start()
        self._ports[name] = broker.port
        return broker

    async def stop(self, name: str = "broker-a") -> None:
        """Stop a broker cleanly."""
        await self.brokers.pop(name).stop()

    async def restart_name_server(self) -> None:
        """Replace the name server by an empty one at its address."""
        port = int(self.nameserver.rpartition(":")[2])
        await self.name_server.stop()
        self.name_server = self._make_name_server(port)
        await self.name_server.start()

    def _make_name_server(self, port: int) -> NameServer:
        tls = {key: value for key, value in self._settings.items() if key.startswith("tls.")}
        return NameServer(NameServerConfig.from_sources(overrides={**tls, "listenPort": str(port)}))
