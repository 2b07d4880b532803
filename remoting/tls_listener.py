"""Accepts connections with and without TLS on the same port.

The first byte decides (cf. NettyRemotingServer.TlsModeHandler): 22 begins a TLS handshake, and no
frame of RocketMQ. It is peeked, so that TLS reads it again; therefore sockets are accepted here,
and get their transport when the byte has arrived. Until a handshake ends, a peer is bounded by
``handshake_timeout`` and ``max_handshakes``, and leaves file descriptors for the others.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from remoting.addresses import address_text
from remoting.connection import Connection
from remoting.counters import TlsFailure
from remoting.endpoint import Endpoint
from remoting.limits import ServerLimits
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor
from remoting.security.server_tls import ServerTls

_log = Log("remoting")

_HANDSHAKE: Final = b"\x16"
"""The type of a TLS record that begins a handshake."""

_SCARCE_PAUSE: Final = 1.0
"""Seconds without accepting when descriptors or memory are short, as in asyncio."""

_OLD_VERSIONS: Final = {"UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW"}


class _Handshake(NamedTuple):
    """A peer's address, and when it was accepted, in the loop's time."""

    peer: str
    begun: float


class TlsListener:
    """The listening sockets of one server, and the handshakes of its new connections.

    Args:
        endpoint: of the connections.
        limits: of the server.
        tls: the certificate.
        factory: makes the connection of an accepted socket.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: ServerLimits,
        tls: ServerTls,
        factory: Callable[[], Connection],
    ) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._tls = tls
        self._factory = factory
        self._tasks = Supervisor(f"{endpoint.name} TLS")
        self._handshakes: dict[asyncio.Task[bool], _Handshake] = {}
        """In the order in which they were accepted."""
        self._one_ended = asyncio.Event()
        self.sockets: list[socket.socket] = []

    @property
    def handshakes(self) -> int:
        """The number of accepted sockets that are no connections yet."""
        return len(self._handshakes)

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Listen on all addresses of ``host``.

        Raises:
            OSError: it can't listen there.
        """
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(addresses):
                sock = socket.create_server(address[:2], family=family, backlog=backlog)
                self.sockets.append(sock)
                sock.setblocking(False)
        except OSError:
            await self.stop()
            raise
        for sock in self.sockets:
            self._tasks.spawn(self._accept(sock), "accept")

    async def stop(self) -> None:
        """Stop listening, and close the sockets whose handshake has not ended."""
        await self._tasks.close()
        for sock in self.sockets:
            sock.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._is_crowded():
                await _readable(listener)
                await self._wait_for_room()
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                await _readable(listener)
                continue
            except ConnectionAbortedError:
                continue  # the peer has gone before it was accepted
            except OSError as failure:
                # Usually descriptors or memory are short.
                _log.error("connections can't be accepted", reason=str(failure))
                await asyncio.sleep(_SCARCE_PAUSE)
                continue
            sock.setblocking(False)
            task = self._tasks.spawn(
                self._connect(sock, peer[:2]), "handshake", on_done=partial(self._ended, sock)
            )
            self._handshakes[task] = _Handshake(address_text(peer[:2]), loop.time())
            if self._endpoint.room is not None:
                self._endpoint.room.waiting += 1
            # A burst of connections must not keep others from being served.
            await asyncio.sleep(0)

    async def _wait_for_room(self) -> None:
        """Wait until a handshake ends, and end the oldest one when it has had its time.

        New connections wait in the backlog meanwhile: when all clients reconnect at once, each gets
        its turn.
        """
        while self._handshakes and self._is_crowded():
            oldest, (remote, begun) = next(iter(self._handshakes.items()))
            rest = begun + self._limits.fair_handshake_seconds - asyncio.get_running_loop().time()
            if rest <= 0:
                oldest.cancel()
                self._forget(oldest)
                self._failed(
                    TlsFailure.CROWDED, remote, "ended for a new one: too many are unfinished"
                )
                return
            self._one_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._one_ended.wait()

    def _is_crowded(self) -> bool:
        room = self._endpoint.room
        return len(self._handshakes) >= self._limits.max_handshakes or (
            room is not None and room.taken + room.waiting >= room.allowed
        )

    def _forget(self, task: asyncio.Task[bool]) -> None:
        if self._handshakes.pop(task, None) is not None and self._endpoint.room is not None:
            self._endpoint.room.waiting -= 1

    def _ended(self, sock: socket.socket, task: asyncio.Task[bool]) -> None:
        self._forget(task)
        self._one_ended.set()
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            _log.error("accepting a connection failed", exc_info=failure)
        if task.cancelled() or failure is not None or not task.result():
            sock.close()

    async def _connect(self, sock: socket.socket, address: tuple[str, int]) -> bool:
        """Make a connection of an accepted socket; return whether a transport owns the socket."""
        context, owned, peer = None, False, address_text(address)
        try:
            async with asyncio.timeout(self._limits.handshake_timeout):
                # A connection that is too many refuses itself, without a handshake.
                if not self._endpoint.reason_to_refuse(address[0]):
                    first = await _peek(sock)
                    if first == _HANDSHAKE:
                        context = self._tls.context
                    elif not first:
                        return False
                    elif self._tls.enforcing:
                        self._failed(
                            TlsFailure.PLAIN, peer, "no TLS, and tls.server.mode is enforcing"
                        )
                        return False
                owned = True
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._factory,
                    sock,
                    ssl=context,
                    ssl_handshake_timeout=self._limits.handshake_timeout if context else None,
                    ssl_shutdown_timeout=self._limits.close_timeout if context else None,
                )
        except OSError as failure:
            reason, text = _why_failed(failure)
            self._failed(reason, peer, text)
        return owned

    def _failed(self, reason: TlsFailure, peer: str, text: str) -> None:
        self._endpoint.counters.tls_failed[reason] += 1
        self._endpoint.peer_log.write("TLS handshake failed", remote=peer, reason=text)


async def _peek(sock: socket.socket) -> bytes:
    """Return the first byte, which stays to be read; empty if the peer has closed."""
    while True:
        try:
            return sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            await _readable(sock)
        except ConnectionError:
            return b""


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)


def _why_failed(failure: OSError) -> tuple[TlsFailure, str]:
    """Return the reason to count, and the text for the log."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return TlsFailure.CERTIFICATE, f"its certificate is refused: {failure.verify_message}"
    if isinstance(failure, ssl.SSLError) and not isinstance(failure, ssl.SSLEOFError):
        name = failure.reason or ""
        words = name.lower().replace("_", " ") or str(failure)
        if name == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return (
                TlsFailure.CERTIFICATE,
                "it has no certificate; tls.server.need.client.auth is require",
            )
        if name in _OLD_VERSIONS:
            return TlsFailure.VERSION, "it offers no TLS version from 1.2 on"
        if "ALERT" in name:
            return TlsFailure.REJECTED, f"it refuses this server: {words}"
        return TlsFailure.INVALID, words
    # asyncio's own timeout of handshakes is a ConnectionAbortedError.
    if isinstance(failure, TimeoutError | ConnectionAbortedError):
        return TlsFailure.SLOW, "it did not end in time"
    return TlsFailure.CLOSED, "closed by the peer; it may not trust this server's certificate"
