"""A name server and brokers as processes that can be stopped and killed one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pocketmq.testing import SMALL_STORE, ServerProcess
from tests.support.ports import free_port, free_ports


@dataclass(frozen=True)
class Processes:
    """Server processes whose addresses stay the same over restarts.

    Attributes:
        address: the name server's.
        brokers: by name.
    """

    nameserver: ServerProcess
    brokers: Mapping[str, ServerProcess]
    address: str

    @property
    def broker(self) -> ServerProcess:
        """The first broker."""
        return next(iter(self.brokers.values()))


def options(settings: Mapping[str, object]) -> list[str]:
    """Return a server's settings as command line options."""
    return [f"--set={key}={value}" for key, value in settings.items()]


@contextmanager
def processes(
    root: Path,
    *,
    brokers: Sequence[str] = ("broker-a",),
    settings: Mapping[str, object] | None = None,
    nameserver_settings: Mapping[str, object] | None = None,
) -> Iterator[Processes]:
    """Run a name server and brokers with their stores below ``root``; all are killed at the end."""
    port = free_port()
    kv = {"kvConfigPath": root / "kvConfig.json", **(nameserver_settings or {})}
    nameserver = ServerProcess(["nameserver", f"--port={port}", "--metrics-port=0", *options(kv)])
    servers = {
        name: ServerProcess(
            [
                *("broker", "--nameserver", f"127.0.0.1:{port}", f"--port={free_ports(3)}"),
                *("--metrics-port=0", "--store", str(root / name)),
                *options({**SMALL_STORE, "brokerName": name, **(settings or {})}),
            ]
        )
        for name in brokers
    }
    try:
        for server in (nameserver, *servers.values()):
            server.start()
        yield Processes(nameserver, servers, f"127.0.0.1:{port}")
    finally:
        for server in (*servers.values(), nameserver):
            server.kill()
