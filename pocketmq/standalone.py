"""A name server and a broker in one process and one event loop: the quickest way to a running
PocketMQ, and what tests use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.app import Broker
from broker.config import BrokerConfig
from nameserver.app import NameServer
from nameserver.config import NameServerConfig

DEFAULT_NAMESERVER_PORT: Final = 9876


class Standalone:
    """One name server and one broker that registers with it.

    Args:
        file: A ``broker.conf``.
        settings: RocketMQ's broker keys, over the file's.
        host: Where both listen.
        nameserver_port: 0 picks a free one.

    Raises:
        ConfigError: The broker's settings can't be used.
    """

    def __init__(
        self,
        *,
        file: Path | None = None,
        settings: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        nameserver_port: int = DEFAULT_NAMESERVER_PORT,
    ) -> None:
        self._file = file
        self._settings = {"pocketmqBindHost": host, **(settings or {})}
        config = self._broker_config("")
        kv_config = config.store_path_root_dir / "namesrv" / "kvConfig.json"
        self.nameserver = NameServer(
            NameServerConfig.from_sources(
                None,
                {},
                {
                    "listenPort": str(nameserver_port),
                    "pocketmqBindHost": host,
                    "kvConfigPath": str(kv_config),
                },
            )
        )
        self.broker: Broker | None = None

    def _broker_config(self, nameserver: str) -> BrokerConfig:
        return BrokerConfig.from_sources(
            self._file, os.environ, {**self._settings, "namesrvAddr": nameserver}
        )

    async def start(self) -> None:
        """Start the name server, then the broker; if that fails, the name server stops again."""
        await self.nameserver.start()
        try:
            broker = Broker(self._broker_config(self.nameserver.address))
            await broker.start()
        except BaseException:
            await self.nameserver.stop()
            raise
        self.broker = broker

    async def stop(self) -> None:
        """Stop the broker, then the name server."""
        if self.broker is not None:
            await self.broker.stop()
        await self.nameserver.stop()

    def addresses(self) -> dict[str, str]:
        """What the ready line names."""
        assert self.broker is not None
        return {"nameserver": self.nameserver.address, "broker": self.broker.address}
