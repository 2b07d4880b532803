"""Free ports for servers that can't use port 0, and waiting for a server to listen."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterable

START_TIMEOUT = 60.0

_SINGLE = range(30_000, 32_000)
_NEIGHBOURS = range(20_000, 30_000)
"""Below the ephemeral ports, so that a port stays free while its server is down."""

# Not the generator that tests seed.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port that is free now."""
    while True:
        port = _random.choice(_SINGLE)
        if are_free([port]):
            return port


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports."""
    while True:
        first = _random.choice(_NEIGHBOURS)
        sockets = [socket.socket() for _ in range(count)]
        try:
            for step, probe in enumerate(sockets):
                probe.bind(("127.0.0.1", first - 2 + step))
        except OSError:
            continue
        else:
            return first
        finally:
            for probe in sockets:
                probe.close()


def are_free(ports: Iterable[int]) -> bool:
    """Return whether all of these ports are free now."""
    for port in ports:
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                return False
    return True


def wait_until_listening(port: int) -> None:
    """Wait until a server accepts connections at the port.

    Raises:
        AssertionError: No server did in time.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    msg = f"nobody listens on port {port} after {START_TIMEOUT:.0f} s"
    raise AssertionError(msg)
