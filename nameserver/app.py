"""The name server as a running thing: its socket, its scan for dead brokers, its start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from nameserver.config import NameServerConfig
from nameserver.requests import Answer, process
from nameserver.state import SharedState
from remoting.addresses import is_loopback
from remoting.clock import Clock, SystemClock
from remoting.connection import Connection
from remoting.counters import Counters
from remoting.endpoint import Handler
from remoting.limits import ServerLimits
from remoting.process_limits import ConnectionRoom
from remoting.protocol.command import Command
from remoting.server import Server
from remoting.tasks import Supervisor

_log = structlog.get_logger("nameserver")


class NameServer:
    """Knows which broker holds which queue, and tells whoever asks.

    ``async with NameServer(config) as server`` serves at ``server.address``. All state but the
    key-value table is rebuilt by the brokers' registrations, so a restart forgets nothing that
    matters.
    """

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        clock: Clock | None = None,
        counters: Counters | None = None,
        room: ConnectionRoom | None = None,
    ) -> None:
        self.config = config or NameServerConfig()
        self._clock = clock or SystemClock()
        self.counters = counters or Counters()
        self._supervisor = Supervisor("nameserver")
        self._state: SharedState | None = None
        self._server = Server(
            self._handle,
            host=self.config.bind_host,
            port=self.config.listen_port,
            limits=ServerLimits(
                room=room or ConnectionRoom(),
                max_connections=self.config.max_connections,
                idle_timeout=float(self.config.server_channel_max_idle_time_s),
            ),
            on_close=self._closed,
            counters=self.counters,
            clock=self._clock,
            name="nameserver",
        )

    @property
    def port(self) -> int:
        """The port it listens on; after ``start`` never 0."""
        return self._server.port

    @property
    def address(self) -> str:
        """``host:port`` for clients and brokers."""
        return self._server.address

    @property
    def state(self) -> SharedState:
        """The tables, to look at; there from ``start`` on."""
        assert self._state is not None, "the name server is not started"
        return self._state

    @property
    def failed(self) -> asyncio.Future[None]:
        """Ends with an error when a background task dies: the server should be stopped then."""
        return self._supervisor.failed

    async def start(self) -> None:
        """Read the key-value table, listen, and look for dead brokers from now on.

        Raises:
            StateFileError: the key-value file can't be understood.
            BindFailed: the port can't be had.
        """
        self._state = SharedState.load(self.config, self._clock)
        await self._server.start()
        self._supervisor.spawn(self._scan(), "scan for dead brokers")
        if self.config.ignored_keys:
            _log.info("settings without effect", keys=list(self.config.ignored_keys))
        if not is_loopback(self.config.bind_host):
            _log.warning(
                "everybody who reaches this address may read and change routes: there is no "
                "access control and no TLS",
                address=self.address,
            )
        _log.info("name server started", address=self.address)

    async def stop(self) -> None:
        """Let requests in progress finish, then close everything. May be called twice."""
        await self._supervisor.close()
        await self._server.stop()
        if self._state is not None:
            _log.info("name server stopped", address=self.address)

    def measure(self, around: Callable[[Handler], Handler]) -> None:
        """Have each request done by ``around(handler)`` from now on; for metrics."""
        self._server.endpoint.handler = around(self._handle)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _handle(self, command: Command, connection: Connection) -> Answer:
        return process(self.state, command, connection)

    def _closed(self, connection: Connection) -> None:
        self.state.closed(connection)

    async def _scan(self) -> None:
        # The settings may change while the server runs.
        while True:
            await asyncio.sleep(self.state.config.scan_not_active_broker_interval_ms / 1000)
            self.state.scan()
