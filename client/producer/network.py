"""What a producer needs of an instance to reach brokers."""

from __future__ import annotations

from typing import Protocol

from client.producer.fault_tolerance import FaultTable
from client.remote import Remote
from client.route_keeper import RouteKeeper
from remoting.connection import Connection


class Network(Protocol):
    """The part of ``Instance`` that sends go through."""

    remote: Remote
    routes: RouteKeeper
    faults: FaultTable

    def connected(self, address: str) -> Connection | None:
        """An open connection, if there is one."""
        ...

    async def connect(self, address: str, timeout: float) -> Connection:
        """An open connection; raises RemotingError."""
        ...

    def doubt(self, address: str) -> None:
        """A request to a broker was not answered: the connection may be dead."""
        ...
