"""The name server: start and stop, its server, and the periodic scan for dead brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import structlog

from nameserver.config import NameServerConfig
from nameserver.permissions import FROM_BROKERS, PERMISSIONS
from nameserver.requests import HANDLERS, Answer, process
from nameserver.state import SharedState, StateFileError
from remoting.access.accounts import AclError
from remoting.access.audit import AuditLog
from remoting.access.file import AclFile
from remoting.access.guard import Guard
from remoting.connection import Connection
from remoting.counters import Counters
from remoting.endpoint import Handler
from remoting.limits import ServerLimits
from remoting.protocol.command import Command
from remoting.runtime import DOCS
from remoting.runtime.clock import Clock, SystemClock
from remoting.runtime.process_limits import ConnectionRoom
from remoting.runtime.tasks import Supervisor
from remoting.security.server_tls import ServerTls
from remoting.server import Server

AUDITED: Final = HANDLERS.keys() - PERMISSIONS.needs.keys() - PERMISSIONS.open - FROM_BROKERS
"""What needs an administrator is recorded in the audit log."""

_log = structlog.get_logger("nameserver")


class NameServer:
    """A name server in this process's event loop.

    ``async with NameServer(config) as server`` serves at ``server.address``. Only the key-value
    table is saved; routes are rebuilt from the brokers' registrations after a restart.

    Args:
        config: the settings.
        clock: the time.
        counters: counters of the connections.
        room: limits the connections of the process, shared with other servers in it.

    Attributes:
        guard: checks requests; None while ``aclEnable`` is false, and before the start.
        audit: records changes and denials; None while there is no audit log.
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
        self.guard: Guard | None = None
        self.audit: AuditLog | None = None
        self.tls = ServerTls.of(self.config, self._clock)
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
            tls=self.tls,
            clock=self._clock,
            name="nameserver",
        )
        # A header in msgpack has no names of fields, so its signature can't be checked.
        self._server.endpoint.accept_msgpack = not self.config.acl_enable

    @property
    def port(self) -> int:
        """The port that the server listens on; not 0 after ``start``."""
        return self._server.port

    @property
    def address(self) -> str:
        """The address for clients and brokers: ``host:port``."""
        return self._server.address

    @property
    def state(self) -> SharedState:
        """The tables; available after ``start``. Callers must not modify them."""
        assert self._state is not None, "the name server is not started"
        return self._state

    @property
    def failed(self) -> asyncio.Future[None]:
        """A future that fails when a background task fails; the server must then be stopped."""
        return self._supervisor.failed

    async def start(self) -> None:
        """Read the key-value table and the accounts, listen, and start the scan for dead brokers.

        Raises:
            StateFileError: the key-value file can't be parsed, or the accounts can't be used.
            ConfigError: the audit log can't be written.
            BindFailed: the port is in use or not permitted.
            TlsError: the certificate can't be used.
        """
        if self.tls is not None:
            await asyncio.to_thread(self.tls.open)
        self._state = SharedState.load(self.config, self._clock)
        path = self.config.audit_path
        self.audit = await AuditLog.open(path, "nameserver", self._clock) if path else None
        if self.config.acl_enable:
            self.guard = await self._make_guard()
        handler: Handler = self._handle
        if self.audit is not None:
            handler = self.audit.wrap(handler, AUDITED, self.guard)
        self._server.endpoint.handler = self.guard.wrap(handler) if self.guard else handler
        await self._server.start()
        self._supervisor.spawn(self._scan(), "scan for dead brokers")
        if self.tls is not None:
            self._supervisor.spawn(self.tls.watch(), "certificate")
        if self.config.ignored_keys:
            _log.info("settings without effect", keys=list(self.config.ignored_keys))
        if self.config.open_to_network:
            _log.warning(
                "everybody who reaches this address may read and change routes: set "
                f"aclEnable=true, or listen on 127.0.0.1; see {DOCS}security/index.md",
                address=self.address,
            )
        _log.info("name server started", address=self.address)

    async def stop(self) -> None:
        """Finish requests in progress, then close everything. Calling it again has no effect."""
        await self._supervisor.close()
        await self._server.stop()
        audit, self.audit = self.audit, None
        if audit is not None:
            await audit.close()
        if self._state is not None:
            _log.info("name server stopped", address=self.address)

    def measure(self, around: Callable[[Handler], Handler]) -> None:
        """Handle requests with ``around(handler)`` from now on; the server must be started."""
        handler = self._server.endpoint.handler
        assert handler is not None
        self._server.endpoint.handler = around(handler)

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

    async def _make_guard(self) -> Guard:
        default = self.config.kv_config_path.with_name("plain_acl.yml")
        file = AclFile(self.config.acl_file or default)
        try:
            await asyncio.to_thread(file.open)
        except AclError as error:
            raise StateFileError(
                f"aclEnable is true, and the accounts can't be used: {error}"
            ) from None
        self._supervisor.spawn(file.watch(), "accounts")
        on_denied = self.audit.denied if self.audit is not None else None
        return Guard(file, PERMISSIONS, self._clock, on_denied)

    async def _scan(self) -> None:
        # The interval is read each time because UPDATE_NAMESRV_CONFIG may change it.
        while True:
            await asyncio.sleep(self.state.config.scan_not_active_broker_interval_ms / 1000)
            self.state.scan()
