"""Many peers that are slow or broken in the TLS handshake must not delay a good client.

A well-behaved client with TLS times its sends in a separate process, first at rest, then while the
peers connect again and again. In full size its p99 may be three times as long as at rest; in any
size each send is answered, and the peers' memory is bounded and freed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Any

from pocketmq import testing
from pocketmq.server.process import private_megabytes
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from tests.integration.bad_input.peer import PATIENCE, Peer
from tests.support.sizes import SIZE, size
from tests.unit.broker.harness import send_command

PEERS = size(ci=70, soak=1000)
SECONDS = size(ci=1.0, soak=60.0)
REST_SECONDS = size(ci=0.2, soak=30.0)
BYTE_SECONDS = 1.0
"""A slow peer's pause between two bytes."""

MAX_MEGABYTES = PEERS * 0.2 + 20
"""What the handshakes may take, 0.2 MB each, and the broker's own growth."""


def sends(address: str, ca: str, started: threading.Event, stop: threading.Event) -> list[float]:
    """Return the duration of each send, in seconds, until stopped."""
    taken = []
    with Peer(address, tls=ssl.create_default_context(cafile=ca)) as peer:
        assert peer.ask(send_command("Existing")).code == 0
        started.set()
        while not stop.is_set():
            begun = time.perf_counter()
            assert peer.ask(send_command("Existing")).code == 0
            taken.append(time.perf_counter() - begun)
            time.sleep(0.001)
    return sorted(taken)


def hello() -> bytes:
    """Return the first bytes of a client with TLS."""
    out = ssl.MemoryBIO()
    side = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        side.do_handshake()
    return out.read()


async def bad_peer(address: str, kind: int, first: bytes, tls: ssl.SSLContext) -> None:
    """Break the handshake, or what follows it, in one of seven ways, until cancelled."""
    host, port = address.split(":")
    context = tls if kind == 6 else None
    # Not all at once: the machine's own work for them is not the server's.
    await asyncio.sleep(random.random())
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            try:
                match kind:
                    case 0:
                        pass
                    case 1:
                        writer.write(first[:100])
                    case 2:
                        writer.write(first)
                    case 3:
                        writer.write(b"\x16" + random.randbytes(500))
                    case 4:
                        writer.write(first + random.randbytes(500))
                    case 5 | 6:
                        slow = first if kind == 5 else encode(Command.request(10))
                        for byte in slow:
                            if writer.is_closing():
                                break
                            writer.write(bytes((byte,)))
                            await asyncio.sleep(BYTE_SECONDS)
                while await reader.read(65536):
                    pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(BYTE_SECONDS)


def attack(address: str, ca: str) -> None:
    """Run the bad peers for a while; their own work must not be what delays the good client."""
    os.nice(10)

    async def run() -> None:
        first, tls = hello(), ssl.create_default_context(cafile=ca)
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
                for number in range(PEERS):
                    group.create_task(bad_peer(address, number % 7, first, tls))

    asyncio.run(run())


def test_slow_and_broken_tls_peers_do_not_delay_a_good_client(
    record_property: Callable[[str, Any], None],
) -> None:
    context = multiprocessing.get_context("spawn")
    with (
        testing.broker(tls=True) as server,
        context.Manager() as manager,
        ProcessPoolExecutor(2, mp_context=context) as pool,
    ):
        assert server.tls is not None
        where = (server.broker, server.tls)

        def timed(meanwhile: Callable[[], None]) -> list[float]:
            started, stop = manager.Event(), manager.Event()
            taken = pool.submit(sends, *where, started, stop)
            try:
                assert started.wait(PATIENCE)
                meanwhile()
            finally:
                stop.set()
            return taken.result()

        most = before = private_megabytes(server.pid)

        def under_attack() -> None:
            nonlocal most
            attacking = pool.submit(attack, *where)
            while not attacking.done():
                most = max(most, private_megabytes(server.pid))
                time.sleep(0.1)
            attacking.result()

        quiet = timed(lambda: time.sleep(REST_SECONDS))
        under = timed(under_attack)
    p99, quiet_p99 = (values[len(values) * 99 // 100] for values in (under, quiet))
    figures = f"p99 {quiet_p99 * 1e3:.2f} ms at rest, {p99 * 1e3:.2f} ms with {PEERS} bad peers"
    record_property("TLS peers", f"{figures}; {before:.0f} MB before, {most:.0f} MB at most")
    assert most - before < MAX_MEGABYTES
    if SIZE == "soak":
        assert p99 <= 3 * quiet_p99, figures
