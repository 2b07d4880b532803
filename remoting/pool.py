"""A client's connections: one per address, shared by all callers.

Concurrent callers for one address share one connection attempt. After a failure no attempt is made
for a while (exponential back-off, with jitter and an upper bound); callers fail at once meanwhile
instead of waiting for a dead server. There is no background reconnect: the next request connects,
so an address that is no longer used is never connected to again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Self

from remoting.addresses import parse_address
from remoting.connection import Connection
from remoting.counters import Counters
from remoting.endpoint import ConnectionCallback, Endpoint, Handler
from remoting.errors import AnswerTimeout, ConnectFailed
from remoting.limits import (
    BACKOFF_FIRST,
    BACKOFF_MAX,
    CONNECT_TIMEOUT,
    MAX_POOL_ADDRESSES,
)
from remoting.protocol.command import Command
from remoting.runtime.clock import Clock, SystemClock
from remoting.security.credentials import Signer
from remoting.security.tls import ClientTls, Tls, TlsError, connect_failure


class _Address:
    """The pool's state for one address."""

    __slots__ = ("connecting", "connection", "failures", "last", "retry_at")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.last = ("", "")
        self.retry_at = 0.0


class ConnectionPool:
    """Connections by address, made on first use.

    Args:
        handler: processes requests from servers; without one they are answered "not supported".
        connect_timeout: seconds for one attempt, with the TLS handshake.
        tls: the settings of TLS; None for plain connections. The server's certificate has to be
            for the host in the address.
        offer_msgpack: offer PocketMQ's msgpack header codec to each server.
        on_close: called with each connection that has closed.
        signer: signs the requests; None sends them unsigned.
        clock: for tests.
        jitter: returns a number in [0, 1); spreads the attempts of many clients.
        max_backoff: the longest pause in seconds between attempts to connect.
        max_addresses: above this number, addresses without a connection are removed.
        name: used in the names of tasks.
    """

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        tls: ClientTls | None = None,
        offer_msgpack: bool = False,
        on_close: ConnectionCallback | None = None,
        signer: Signer | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
        max_backoff: float = BACKOFF_MAX,
        max_addresses: int = MAX_POOL_ADDRESSES,
        name: str = "pool",
    ) -> None:
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._jitter = jitter
        self._max_backoff = max_backoff
        self._max_addresses = max_addresses
        self._addresses: dict[str, _Address] = {}
        self._closed = False
        self._clock = clock or SystemClock()
        self.endpoint = Endpoint(
            name=name,
            serving=False,
            handler=handler,
            clock=self._clock,
            offer_msgpack=offer_msgpack,
            on_close=on_close,
            signer=signer,
        )
        # Started by the first connection: a pool may be made before there is an event loop.
        self._watches = signer is None or not signer.changes

    def __len__(self) -> int:
        """Return the number of addresses it has state for."""
        return len(self._addresses)

    @property
    def counters(self) -> Counters:
        """The counters of all its connections."""
        return self.endpoint.counters

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def connected(self, address: str) -> Connection | None:
        """Return the open connection to ``address``, or None."""
        entry = self._addresses.get(address)
        if entry is None or entry.connection is None or entry.connection.closed:
            return None
        return entry.connection

    async def get(self, address: str) -> Connection:
        """Return the connection to ``address`` (``host:port``); connect if there is none.

        Cancelling the caller does not cancel the attempt, which others may share.

        Raises:
            ConnectFailed: connecting failed, or failed so recently that no attempt is made yet.
        """
        connection = self.connected(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectFailed(address, "the client is closed", "make a new one")
        entry = self._entry(address)
        if entry.connecting is None:
            pause = entry.retry_at - self._clock.monotonic()
            if pause > 0:
                reason, hint = entry.last
                raise ConnectFailed(
                    address, reason, f"the next attempt is made in {pause:.1f} s; {hint}"
                )
            if self.endpoint.signer is not None and not self._watches:
                self._watches = True
                self.endpoint.tasks.spawn(self.endpoint.signer.watch(), "credentials")
            entry.connecting = self.endpoint.tasks.spawn(
                self._connect(address, entry),
                f"connect {address}",
                on_done=lambda task: _connect_ended(entry, task),
            )
        return await self._share(address, entry.connecting)

    async def request(self, address: str, command: Command, *, timeout: float) -> Command:
        """Connect if necessary, send a request, return its answer: all within ``timeout`` seconds.

        Raises:
            ConnectFailed: there is no connection; nothing was sent.
            AnswerTimeout: neither connected nor answered in time.
            ConnectionLost, TooManyRequests, CommandTooLarge: see ``Connection.request``.
        """
        connection = self.connected(address)
        if connection is None:
            begin = self._clock.monotonic()
            try:
                async with asyncio.timeout(timeout):
                    connection = await self.get(address)
            except TimeoutError:
                raise AnswerTimeout(address, command.code, timeout) from None
            left = timeout - (self._clock.monotonic() - begin)
            if left <= 0:
                raise AnswerTimeout(address, command.code, timeout)
            timeout = left
        return await connection.request(command, timeout=timeout)

    async def close(self) -> None:
        """Close all connections after sending what is queued. May be called twice."""
        self._closed = True
        await self.endpoint.stop("the client is closed", drain_timeout=0)
        self._addresses.clear()

    async def _share(self, address: str, connecting: asyncio.Task[Connection]) -> Connection:
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise ConnectFailed(
                address, "the client was closed meanwhile", "make a new one"
            ) from None

    def _entry(self, address: str) -> _Address:
        entry = self._addresses.get(address)
        if entry is None:
            if len(self._addresses) >= self._max_addresses:
                for unused, other in list(self._addresses.items()):
                    if other.connecting is None and self.connected(unused) is None:
                        del self._addresses[unused]
            entry = self._addresses[address] = _Address()
        return entry

    async def _connect(self, address: str, entry: _Address) -> Connection:
        try:
            host, port = parse_address(address)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(self._connect_timeout):
                context = self._tls
                if isinstance(context, Tls):
                    # Its files are read for each connection anew.
                    context = await asyncio.to_thread(context.context)
                _, connection = await loop.create_connection(
                    lambda: Connection(self.endpoint),
                    host,
                    port,
                    ssl=context,
                    server_hostname=host if context else None,
                    # Ends the handshake of a connection whose caller has given up already.
                    ssl_handshake_timeout=self._connect_timeout if context else None,
                )
        except (OSError, TlsError) as failure:
            raise self._failed(address, entry, failure) from failure
        entry.connection = connection
        entry.failures = 0
        return connection

    def _failed(self, address: str, entry: _Address, failure: OSError | TlsError) -> ConnectFailed:
        pause = min(BACKOFF_FIRST * 2 ** min(entry.failures, 30), self._max_backoff)
        entry.failures += 1
        entry.retry_at = self._clock.monotonic() + pause * (0.5 + self._jitter() / 2)
        self.counters.connects_failed += 1
        reason, hint = connect_failure(
            failure, tls=self._tls is not None, timeout=self._connect_timeout
        )
        problem = ConnectFailed(address, reason, hint)
        entry.last = problem.reason, problem.hint
        return problem


def _connect_ended(entry: _Address, task: asyncio.Task[Connection]) -> None:
    entry.connecting = None
    if not task.cancelled():
        # Retrieve the exception, or asyncio reports it when all callers were cancelled meanwhile.
        task.exception()
