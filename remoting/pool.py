"""The client's connections: one per address, shared by all who talk to it.

Callers who ask for the same address at once share one attempt. After a failure the address rests
for a while (doubling, with jitter, bounded), in which callers fail at once instead of queueing up
before a dead server. Nothing reconnects by itself: the next request does, so an address that nobody
needs any more is left alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable
from typing import Self

from remoting.addresses import parse_address
from remoting.clock import Clock, SystemClock
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


class _Address:
    """What the pool knows of one address."""

    __slots__ = ("connecting", "connection", "failures", "last_reason", "rests_until")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.last_reason = ""
        self.rests_until = 0.0


class ConnectionPool:
    """Connections by address, made when they are first needed.

    Args:
        handler: does what servers ask of us; without one they are answered "not supported".
        connect_timeout: seconds for one attempt.
        offer_msgpack: offer our own header codec to each server.
        on_close: told of each connection that ends.
        jitter: a number in [0, 1) at each call; spreads the attempts of many clients.
        max_addresses: addresses it remembers; above it, those without a connection are forgotten.
    """

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        offer_msgpack: bool = False,
        on_close: ConnectionCallback | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
        max_addresses: int = MAX_POOL_ADDRESSES,
        name: str = "pool",
    ) -> None:
        self._connect_timeout = connect_timeout
        self._jitter = jitter
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
        )

    def __len__(self) -> int:
        """The addresses it remembers."""
        return len(self._addresses)

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self.endpoint.counters

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def connected(self, address: str) -> Connection | None:
        """The open connection to ``address``, if there is one."""
        known = self._addresses.get(address)
        if known is None or known.connection is None or known.connection.closed:
            return None
        return known.connection

    async def get(self, address: str) -> Connection:
        """The connection to ``address`` (``host:port``), made now if there is none.

        Cancelling leaves the attempt to those who share it.

        Raises:
            ConnectFailed: it can't be made, or an attempt failed a moment ago.
        """
        connection = self.connected(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectFailed(address, "the client is closed", "make a new one")
        known = self._know(address)
        if known.connecting is None:
            rest = known.rests_until - self._clock.monotonic()
            if rest > 0:
                raise ConnectFailed(
                    address,
                    known.last_reason,
                    f"the next attempt is made in {rest:.1f} s; check that it runs, and that "
                    "the address can be reached from here",
                )
            known.connecting = self.endpoint.tasks.spawn(
                self._connect(address, known),
                f"connect {address}",
                on_done=lambda task: _connect_ended(known, task),
            )
        return await self._share(address, known.connecting)

    async def request(self, address: str, command: Command, *, timeout: float) -> Command:
        """Connect if need be, send a request, wait for its answer: all within ``timeout`` s.

        Raises:
            ConnectFailed: there is no connection; nothing was sent.
            AnswerTimeout, ConnectionLost, TooManyRequests: see ``Connection.request``.
        """
        connection = self.connected(address)
        if connection is None:
            begin = self._clock.monotonic()
            try:
                async with asyncio.timeout(timeout):
                    connection = await self.get(address)
            except TimeoutError:
                raise AnswerTimeout(address, command.code, timeout) from None
            timeout -= self._clock.monotonic() - begin
        return await connection.request(command, timeout=timeout)

    async def close(self) -> None:
        """Close all connections, sending what is left. May be called twice."""
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

    def _know(self, address: str) -> _Address:
        known = self._addresses.get(address)
        if known is None:
            if len(self._addresses) >= self._max_addresses:
                for unused, other in list(self._addresses.items()):
                    if other.connecting is None and self.connected(unused) is None:
                        del self._addresses[unused]
            known = self._addresses[address] = _Address()
        return known

    async def _connect(self, address: str, known: _Address) -> Connection:
        try:
            host, port = parse_address(address)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(
                    lambda: Connection(self.endpoint), host, port
                )
        except TimeoutError as failure:
            reason = f"no answer within {self._connect_timeout:g} s"
            raise self._failed(address, known, reason) from failure
        except OSError as failure:
            if isinstance(failure, socket.gaierror):
                reason = "the host name is not known"
            else:
                reason = os.strerror(failure.errno) if failure.errno else str(failure)
            raise self._failed(address, known, reason) from failure
        known.connection = connection
        known.failures = 0
        return connection

    def _failed(self, address: str, known: _Address, reason: str) -> ConnectFailed:
        pause = min(BACKOFF_FIRST * 2**known.failures, BACKOFF_MAX)
        known.failures += 1
        known.last_reason = reason
        known.rests_until = self._clock.monotonic() + pause * (0.5 + self._jitter() / 2)
        self.counters.connects_failed += 1
        return ConnectFailed(address, reason)


def _connect_ended(known: _Address, task: asyncio.Task[Connection]) -> None:
    known.connecting = None
    if not task.cancelled():
        # Read, lest it be reported as lost when every caller was cancelled meanwhile.
        task.exception()
