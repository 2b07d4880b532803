"""Networks that can be cut: hosts as network namespaces of Linux, and a proxy that delays.

A dropped packet differs from a killed process: no connection is closed, so timeouts decide. Packets
are dropped by iptables, which needs root; delays are the proxy's, which needs nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_CLONE_NEWNET: Final = 0x40000000
_NAMESPACES: Final = Path("/run/netns")

ROUTER: Final = "router"
"""The host between the others, on which a test runs its clients."""

READ_BYTES: Final = 65536


def why_not() -> str:
    """Return why this machine can't make networks; empty: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    lacking = [name for name in ("ip", "iptables") if shutil.which(name) is None]
    return f"network namespaces need {', '.join(lacking)} on the PATH" if lacking else ""


class Network:
    """Hosts with a cable each to a router.

    Args:
        hosts: their names.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._prefix = f"pocketmq-{os.getpid()}"
        self._numbers = {host: number for number, host in enumerate((ROUTER, *hosts))}

    def address(self, host: str) -> str:
        """Return a host's address."""
        return f"10.99.{self._numbers[host]}.{1 if host == ROUTER else 2}"

    def open(self) -> None:
        """Make the network. Raises ``CalledProcessError``."""
        router = self._namespace(ROUTER)
        self._ip("netns", "add", router)
        self._ip("-n", router, "link", "set", "lo", "up")
        self._ip("-n", router, "addr", "add", f"{self.address(ROUTER)}/32", "dev", "lo")
        self.run(ROUTER, Path("/proc/sys/net/ipv4/ip_forward").write_text, "1")
        for host, number in self._numbers.items():
            if host == ROUTER:
                continue
            space, cable, gateway = self._namespace(host), f"to-{number}", f"10.99.{number}.1"
            self._ip("netns", "add", space)
            ends = ["name", cable, "netns", router, "type", "veth", "peer"]
            self._ip("link", "add", *ends, "name", "eth0", "netns", space)
            self._ip("-n", router, "addr", "add", f"{gateway}/24", "dev", cable)
            self._ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for link in ((router, cable), (space, "lo"), (space, "eth0")):
                self._ip("-n", link[0], "link", "set", link[1], "up")
            self._ip("-n", space, "route", "add", "default", "via", gateway)

    def close(self) -> None:
        """Remove the network; processes in it keep their namespaces until they end."""
        for host in self._numbers:
            if (_NAMESPACES / self._namespace(host)).exists():
                self._ip("netns", "del", self._namespace(host))

    def cut(self, source: str, target: str) -> None:
        """Drop the packets from one host to another."""
        chain = {source: "OUTPUT", target: "INPUT"}.get(ROUTER, "FORWARD")
        cables = []
        if source != ROUTER:
            cables += ["-i", f"to-{self._numbers[source]}"]
        if target != ROUTER:
            cables += ["-o", f"to-{self._numbers[target]}"]
        self._iptables("-A", chain, *cables, "-j", "DROP")

    def heal(self) -> None:
        """Drop nothing any more."""
        self._iptables("-F")

    def run(self, host: str, call: Callable[..., T], *arguments: object) -> T:
        """Return what a function returns in a thread on a host; so do its threads and processes."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._enter_and_call, host, call, arguments).result()

    def _enter_and_call(self, host: str, call: Callable[..., T], arguments: Sequence[object]) -> T:
        # A thread of its own: the namespace is the calling thread's, and inherited from it.
        with (_NAMESPACES / self._namespace(host)).open("rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), host)
        return call(*arguments)

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _iptables(self, *arguments: str) -> None:
        self._ip("netns", "exec", self._namespace(ROUTER), "iptables", *arguments)

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)


class Proxy:
    """A TCP proxy between a slave and its master's replication port.

    Args:
        target: where it connects, host and port.

    Attributes:
        address: where it listens, ``host:port``.
        delay: seconds for which it keeps what passes, in both directions.
        silent: the directions in which nothing passes, ``up`` to the target and ``down``.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.address = ""
        self.delay = 0.0
        self.silent: set[str] = set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> None:
        """Listen on a port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.address = f"127.0.0.1:{port}"

    async def close(self) -> None:
        """Listen no more, and close all connections."""
        if self._server is not None:
            self._server.close()
        await self.drop()

    async def drop(self) -> None:
        """Close all connections."""
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        pumps = [
            asyncio.create_task(self._pump(reader, other_writer, "up")),
            asyncio.create_task(self._pump(other_reader, writer, "down")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, other_writer):
                end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await asyncio.sleep(self.delay)
                while direction in self.silent:  # noqa: ASYNC110 - a test sets it
                    await asyncio.sleep(0.01)
                writer.write(data)
                await writer.drain()
