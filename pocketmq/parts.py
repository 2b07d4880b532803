"""The servers as parts of a process: a name server, a broker, or both.

A server's code is imported when its part is made: a name server doesn't carry a broker's code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pocketmq.serving import Part
from remoting.process_limits import ConnectionRoom

if TYPE_CHECKING:
    from broker.app import Broker
    from broker.config import BrokerConfig
    from nameserver.app import NameServer
    from nameserver.config import NameServerConfig


class NameServerPart:
    """A name server.

    Args:
        config: what it was told.
        room: for connections, if a broker runs in this process.
    """

    def __init__(self, config: NameServerConfig, room: ConnectionRoom | None = None) -> None:
        from nameserver.app import NameServer  # noqa: PLC0415 - see above

        self.server: NameServer = NameServer(config, room=room)

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
        config: what it was told.
        room: for connections, if a name server runs in this process.
    """

    def __init__(self, config: BrokerConfig, room: ConnectionRoom | None = None) -> None:
        from broker.app import Broker  # noqa: PLC0415 - see above

        self.server: Broker = Broker(config, room=room)

    async def start(self) -> None:
        """Open the store and begin to serve."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop cleanly."""
        await self.server.stop()

    def ready(self) -> Mapping[str, str]:
        """Its address, and which core it runs on."""
        from broker import fast_path  # noqa: PLC0415 - see above

        return {"broker": self.server.address, "core": fast_path.KIND}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Ends when one of its tasks dies."""
        return [self.server.failed]


class StandalonePart:
    """A name server and a broker that registers with it, in one event loop.

    Args:
        nameserver: the name server's settings.
        broker: the broker's; where it registers is filled in here, and how it is called when
            nobody says so: it is the only broker, and needs no other name.
    """

    def __init__(self, nameserver: NameServerConfig, broker: BrokerConfig) -> None:
        from broker.app import connection_room  # noqa: PLC0415 - see above

        self._room = connection_room()
        self.nameserver = NameServerPart(nameserver, self._room)
        self._broker_config = broker
        self._broker: BrokerPart | None = None

    @property
    def broker(self) -> BrokerPart:
        """The broker; there once the name server listens, because it has to know where."""
        assert self._broker is not None
        return self._broker

    async def start(self) -> None:
        """Start the name server, then the broker."""
        await self.nameserver.start()
        from broker.config import DEFAULT_NAME  # noqa: PLC0415 - see above

        config = replace(
            self._broker_config,
            namesrv_addr=(self.nameserver.server.address,),
            name_of_new_store=DEFAULT_NAME,
        )
        self._broker = BrokerPart(config, self._room)
        await self._broker.start()

    async def stop(self) -> None:
        """Stop the broker, then the name server."""
        if self._broker is not None:
            await self._broker.stop()
        await self.nameserver.stop()

    def ready(self) -> Mapping[str, str]:
        """Both addresses, and the broker's core."""
        return {**self.nameserver.ready(), **self.broker.ready()}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Ends when a task of one of them dies."""
        return [*self.nameserver.failures(), *self.broker.failures()]


def servers_of(parts: Sequence[Part]) -> tuple[list[NameServer], list[Broker]]:
    """The name servers and the brokers in parts that were started."""
    name_servers: list[NameServer] = []
    brokers: list[Broker] = []
    for part in parts:
        if isinstance(part, NameServerPart):
            name_servers.append(part.server)
        elif isinstance(part, BrokerPart):
            brokers.append(part.server)
        elif isinstance(part, StandalonePart):
            name_servers.append(part.nameserver.server)
            brokers.append(part.broker.server)
    return name_servers, brokers
