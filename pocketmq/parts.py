"""The servers as parts of a process: a name server, a broker, both, and what stands beside them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from broker.app import Broker
from broker.config import BrokerConfig
from nameserver.app import NameServer
from nameserver.config import NameServerConfig


class NameServerPart:
    """A name server of its own."""

    def __init__(self, config: NameServerConfig) -> None:
        self.server = NameServer(config)

    async def start(self) -> None:
        """Begin to serve."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop cleanly."""
        await self.server.stop()

    def ready(self) -> Mapping[str, str]:
        """Its address."""
        return {"nameserver": self.server.address}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Ends when one of its tasks dies."""
        return [self.server.failed]


class BrokerPart:
    """A broker.

    Args:
        config: What it was told.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.server = Broker(config)

    async def start(self) -> None:
        """Open the store and begin to serve."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop cleanly."""
        await self.server.stop()

    def ready(self) -> Mapping[str, str]:
        """Its address."""
        return {"broker": self.server.address}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Ends when one of its tasks dies."""
        return [self.server.failed]


class StandalonePart:
    """A name server and a broker that registers with it, in one event loop.

    Args:
        nameserver: The name server's settings.
        file: A ``broker.conf``.
        settings: RocketMQ's broker keys, over the file's and the environment's.

    Raises:
        ConfigError: The broker's settings can't be used.
    """

    def __init__(
        self, nameserver: NameServerConfig, *, file: Path | None, settings: Mapping[str, str]
    ) -> None:
        self._file = file
        self._settings = settings
        self._broker_config(nameserver.bind_host)
        self.nameserver = NameServerPart(nameserver)
        self._broker: BrokerPart | None = None

    @property
    def broker(self) -> BrokerPart:
        """The broker; there once the name server listens, because it has to know where."""
        assert self._broker is not None
        return self._broker

    async def start(self) -> None:
        """Start the name server, then the broker."""
        await self.nameserver.start()
        self._broker = BrokerPart(self._broker_config(self.nameserver.server.address))
        await self._broker.start()

    async def stop(self) -> None:
        """Stop the broker, then the name server."""
        if self._broker is not None:
            await self._broker.stop()
        await self.nameserver.stop()

    def ready(self) -> Mapping[str, str]:
        """Both addresses."""
        return {**self.nameserver.ready(), **self.broker.ready()}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Ends when a task of one of them dies."""
        return [*self.nameserver.failures(), *self.broker.failures()]

    def _broker_config(self, nameserver: str) -> BrokerConfig:
        return BrokerConfig.from_sources(
            self._file, os.environ, {**self._settings, "namesrvAddr": nameserver}
        )
