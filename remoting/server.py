"""A listening socket and its connections.

``ServerLimits`` bounds what a peer may use; connections that exceed it are dropped and counted. A
stop is graceful: the server stops accepting, begins no requests, lets handlers in progress finish
within the drain timeout, sends their answers, and then closes the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import weakref
from typing import Final, Self

from remoting.addresses import address_text
from remoting.connection import Connection
from remoting.counters import Counters
from remoting.endpoint import ConnectionCallback, Endpoint, Handler
from remoting.errors import BindFailed
from remoting.limits import BACKLOG, DRAIN_TIMEOUT, ServerLimits
from remoting.runtime.clock import Clock, SystemClock
from remoting.runtime.log import Log
from remoting.runtime.process_limits import SHORT_BACKLOG
from remoting.security.server_tls import ServerTls
from remoting.tls_listener import TlsListener

_log = Log("remoting")

_ACCEPT_ITERATIONS: Final = 2
"""Iterations of asyncio's loop between accepting a socket and creating its connection."""

_STOPPED: Final = "the server is stopping"

_HINTS: Final = {
    errno.EADDRINUSE: "another process listens there: stop it, or choose another port "
    "(0 picks a free one)",
    errno.EACCES: "ports below 1024 need privileges: choose a higher one",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one of its own, "
    "127.0.0.1 for this machine only, 0.0.0.0 for all",
}


class Server:
    """A server: accepts connections and passes their requests to ``handler``.

    Args:
        handler: processes a request; see ``endpoint.Handler``.
        host: the host name or IP address to listen on.
        port: the port to listen on; 0 picks a free one.
        limits: the defaults of ``ServerLimits`` if None.
        on_close: called when an accepted connection has closed; its exceptions are only logged.
        counters: where to count; new ones if None.
        tls: the certificate for connections with TLS, opened before ``start``; None for no TLS.
        clock: for tests.
        name: used in the names of tasks and in the log.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ServerLimits | None = None,
        on_close: ConnectionCallback | None = None,
        counters: Counters | None = None,
        tls: ServerTls | None = None,
        clock: Clock | None = None,
        name: str = "server",
    ) -> None:
        limits = limits or ServerLimits()
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._listener: TlsListener | None = None
        self._made: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.endpoint = Endpoint(
            name=name,
            serving=True,
            handler=handler,
            limits=limits,
            counters=counters or Counters(),
            clock=clock or SystemClock(),
            accept_msgpack=True,
            on_close=on_close,
            max_connections=limits.max_connections,
            max_connections_per_address=limits.max_connections_per_address,
            room=limits.room,
        )
        if tls is not None:
            self._listener = TlsListener(self.endpoint, limits, tls, self._make_connection)

    @property
    def host(self) -> str:
        """The host to listen on, as passed to the constructor."""
        return self._host

    @property
    def port(self) -> int:
        """The port it listens on; before ``start`` the one passed to the constructor."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port``."""
        return address_text((self._host, self._port))

    @property
    def connections(self) -> set[Connection]:
        """The open connections; callers must not change the set."""
        return self.endpoint.connections

    @property
    def handshakes(self) -> int:
        """The number of connections whose first byte or TLS handshake is awaited."""
        return 0 if self._listener is None else self._listener.handshakes

    @property
    def counters(self) -> Counters:
        """The counters of all its connections."""
        return self.endpoint.counters

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen and begin to accept connections.

        Raises:
            BindFailed: it can't listen there; the text includes a hint.
        """
        assert self._server is None, "a server is started once"
        loop = asyncio.get_running_loop()
        room, limit = self.endpoint.room, self.endpoint.max_connections
        is_roomy = room is None or room.allowed > 4 * BACKLOG
        backlog = BACKLOG if is_roomy else SHORT_BACKLOG
        try:
            if self._listener is not None:
                await self._listener.start(self._host, self._port, backlog)
                at = self._listener.sockets[0].getsockname()
            else:
                self._server = await loop.create_server(
                    self._make_connection,
                    self._host,
                    self._port,
                    backlog=backlog,
                    reuse_address=True,
                    start_serving=False,
                )
                # Apart: cancelled here, ``create_server`` would leave a socket that listens.
                await self._server.start_serving()
                at = self._server.sockets[0].getsockname()
        except OSError as failure:
            raise bind_failed(self.address, failure) from failure
        self._port = at[1]
        if room is not None and room.allowed < limit:
            _log.info(
                "fewer connections than set: the process has no file descriptors for more",
                server=self.endpoint.name,
                set=limit,
                most=room.allowed,
            )

    async def stop(self, *, drain_timeout: float = DRAIN_TIMEOUT) -> None:
        """Stop gracefully; cancel handlers still in progress after ``drain_timeout`` seconds.

        May be called twice, and before ``start``. Cancelling this coroutine aborts the connections.
        """
        self.endpoint.draining = True
        server = self._server
        try:
            if self._listener is not None:
                await self._listener.stop()
            if server is not None:
                await _stop_listening(server)
            await self.endpoint.stop(_STOPPED, drain_timeout=drain_timeout)
        finally:
            self.endpoint.cut_off(_STOPPED)
        if server is not None:
            # Sockets accepted just before the listener closed still become connections, which
            # refuse themselves because the endpoint is draining. Wait for their end too.
            ends = [asyncio.ensure_future(connection.wait_closed()) for connection in self._made]
            if ends:
                _, still_open = await asyncio.wait(ends, timeout=self.endpoint.limits.close_timeout)
                for end in still_open:
                    end.cancel()
            await server.wait_closed()

    def _make_connection(self) -> Connection:
        connection = Connection(self.endpoint)
        self._made.add(connection)
        return connection


async def _stop_listening(server: asyncio.Server) -> None:
    """Close the listener in two steps, so that no accepted socket is leaked.

    asyncio leaks a socket that is accepted in the iteration in which the server is closed. So first
    stop accepting, then wait until accepted sockets have their connections, then close.
    """
    loop = asyncio.get_running_loop()
    try:
        for sock in server.sockets:
            with contextlib.suppress(NotImplementedError):  # not available on Windows
                loop.remove_reader(sock)
        for _ in range(_ACCEPT_ITERATIONS):
            await asyncio.sleep(0)
    finally:
        server.close()


def bind_failed(address: str, failure: OSError) -> BindFailed:
    """Return the error of a server that can't listen on an address, with a hint."""
    if isinstance(failure, socket.gaierror):
        return BindFailed(
            address,
            failure.errno or 0,
            "the host name is not known",
            "check it, or give an IP address",
        )
    # Since Python 3.13, asyncio sets no errno for an address that this machine doesn't have.
    number = failure.errno or errno.EADDRNOTAVAIL
    name = errno.errorcode.get(number, "error")
    reason = f"{os.strerror(number)} ({name})"
    hint = _HINTS.get(number, "check the address and the permissions")
    return BindFailed(address, number, reason, hint)
