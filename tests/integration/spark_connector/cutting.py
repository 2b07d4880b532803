"""A proxy to a broker that repeatedly closes after a number of bytes of answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from remoting.addresses import parse_address


class CuttingProxy:
    """Forwards bytes between readers and a broker, and cuts connections.

    Args:
        broker: its address.
        limits: how many bytes of answers each next connection carries; then they go on for ever.

    Attributes:
        address: where it listens.
        connections: how many were made.
    """

    def __init__(self, broker: str, limits: list[int]) -> None:
        self._broker = parse_address(broker)
        self._limits = limits
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._threads = [threading.Thread(target=self._serve)]
        self._open: list[socket.socket] = []
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            _end(sock)
        for thread in self._threads:
            thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                reader, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._broker)
            limit = self._limits[self.connections] if self.connections < len(self._limits) else None
            self.connections += 1
            self._open += [reader, broker]
            for source, target, most in ((reader, broker, None), (broker, reader, limit)):
                thread = threading.Thread(target=_carry, args=(source, target, most))
                self._threads.append(thread)
                thread.start()


def _carry(source: socket.socket, target: socket.socket, most: int | None) -> None:
    with suppress(OSError):
        while most is None or most > 0:
            data = source.recv(65536 if most is None else min(most, 65536))
            if not data:
                break
            target.sendall(data)
            if most is not None:
                most -= len(data)
    _end(source)
    _end(target)


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


@contextmanager
def cutting(broker: str, limits: list[int]) -> Iterator[CuttingProxy]:
    """Run a proxy during the block."""
    proxy = CuttingProxy(broker, limits)
    try:
        yield proxy
    finally:
        proxy.close()
