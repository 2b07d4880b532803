"""Free ports for servers that can't use port 0, and waiting for a server to listen."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterable, Iterator
from itertools import cycle

START_TIMEOUT = 60.0

_SINGLE = range(30_000, 32_000)
_NEIGHBOURS = range(20_000, 30_000, 50)
"""Below the ephemeral ports, so that a port stays free while its server is down."""


def _shuffled(ports: range) -> Iterator[int]:
    """Yield a range's ports in turns, none twice in a turn; test processes have one part each.

    So nobody else takes a port before its server listens, or while it is down.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    part = ports[own::processes]
    # Not the generator that tests seed.
    return cycle(random.SystemRandom().sample(part, len(part)))


_singles = _shuffled(_SINGLE)
_neighbours = _shuffled(_NEIGHBOURS)


def free_port() -> int:
    """Return a port that is free now."""
    return next(port for port in _singles if are_free([port]))


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports, at most 48; the two before are free."""
    while True:
        first = next(_neighbours) + 2
        sockets = [socket.socket() for _ in range(count + 2)]
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


def wait_until_listening(port: int, host: str = "127.0.0.1") -> None:
    """Wait until a server accepts connections at the port.

    Raises:
        AssertionError: No server did in time.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        time.sleep(0.05)
    msg = f"nobody listens on port {port} after {START_TIMEOUT:.0f} s"
    raise AssertionError(msg)
