"""The time from a broker's start to its first acknowledged message, and its private memory.

The time is that from the start of the process to the first acknowledged send, over a raw socket
with repeated attempts to connect. The memory is without shared file mappings.

For a recovery, a process fills a store at full speed, then for three seconds at 5,000 messages per
second; then it is killed, or stopped. Each round uses a new copy of the killed store.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.figures import Figures, spread
from benchmarks.servers import directory
from pocketmq.server.process import private_megabytes
from remoting.protocol import frame
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from tests.interop import apache
from tests.support.ports import free_ports

GIVE_UP_AFTER: Final = 60.0
BODY: Final = b"x" * 1024

WRITER: Final = """
import asyncio, sys, time
from pathlib import Path
from broker.store.engine import MessageStore, PendingMessage, StoreConfig

async def main(root, size):
    store = MessageStore(StoreConfig(root=Path(root)))
    store.open()
    loop = asyncio.get_running_loop()
    store.start(loop)
    message = [PendingMessage("load", q, b"x" * 1024, b"TAGS\\x01t", 116) for q in range(16)]
    number = 0
    while store.log.end < size:
        for _ in range(10):
            store.put_batch([message[number % 16]] * 32)
            number += 1
        await asyncio.sleep(0)
    stop = loop.time() + 3
    while loop.time() < stop:
        for _ in range(50):
            store.put(message[number % 16])
            number += 1
        await asyncio.sleep(0.01)
    print("filled", flush=True)
    sys.stdin.readline()
    store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

Runs = dict[str, list[Figures]]


def first_send() -> bytes:
    """Return the frame of a send that creates its topic."""
    header = SendMessageRequestHeaderV2(
        producer_group="startup",
        topic="startup",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties="",
    )
    return frame.encode(Command.request(RequestCode.SEND_MESSAGE_V2, header, body=BODY))


def seconds_until_acknowledged(port: int, started: float) -> float:
    """Try until a send is acknowledged; return the seconds since ``started`` (monotonic)."""
    request = first_send()
    while time.monotonic() - started < GIVE_UP_AFTER:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(request)
                answer = connection.recv(65536)
                cut = frame.cut(answer)
                if cut is not None and frame.decode(cut).code == 0:
                    return time.monotonic() - started
        except OSError:
            pass
        time.sleep(0.001)
    msg = f"no acknowledgement from port {port} after {GIVE_UP_AFTER:.0f} s"
    raise TimeoutError(msg)


@contextmanager
def process(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Run a broker; yield its process and the time it was started."""
    started = time.monotonic()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield running, started
    finally:
        running.kill()
        running.wait()


def ours(port: int, home: Path, python: Path = Path(sys.executable)) -> list[str]:
    """Return the command line of our broker with default settings."""
    return [
        *(str(python), "-P", "-m", "pocketmq", "broker"),
        *(f"--port={port}", f"--store={home}"),
    ]


def theirs(port: int, home: Path) -> list[str]:
    """Return the command line of Apache's broker with default settings and a heap of 1 GiB."""
    return apache.broker_command("4.9.7", home, port, heap="1g")


def start_once(command: list[str], port: int) -> Figures:
    """Start a broker; return seconds to the first acknowledgement, and private MB after it."""
    with process(command) as (running, started):
        seconds = seconds_until_acknowledged(port, started)
        return {"seconds": seconds, "private_mb": private_megabytes(running.pid)}


def starts(rounds: int, where: Path | None, *, with_apache: bool) -> Runs:
    """Measure starts with empty stores, in turns."""
    commands = {"PocketMQ": ours, **({"Apache": theirs} if with_apache else {})}
    runs: Runs = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            with directory(where) as home:
                port = free_ports(3)
                runs[name].append(start_once(command(port, home), port))
    return runs


def recoveries(rounds: int, size: int, where: Path | None, *, with_apache: bool) -> Runs:
    """Measure starts after a kill and after a clean stop, with a log of ``size`` bytes.

    Apache's broker opens copies of the killed store too, alternating with ours.
    """
    runs: Runs = {"killed": [], **({"Apache": []} if with_apache else {}), "stopped": []}
    with directory(where) as home:
        fill(home / "killed", size, kill=True)
        fill(home / "stopped", size, kill=False)
        for _ in range(rounds):
            killed = home / "killed"
            runs["killed"].append(_start_on_copy(killed, lambda port, at: ours(port, at / "store")))
            if with_apache:
                runs["Apache"].append(_start_on_copy(killed, theirs))
            # Not a copy: the state written by a clean stop is used only in its original directory.
            port = free_ports(3)
            runs["stopped"].append(start_once(ours(port, home / "stopped"), port))
            fill(home / "stopped", 0, kill=False)
    return runs


def _start_on_copy(store: Path, command: Callable[[int, Path], list[str]]) -> Figures:
    """Start a broker on a copy, which is in ``store`` of a directory, as Apache's expects."""
    with directory(store.parent) as home:
        subprocess.run(
            ["cp", "-r", "--reflink=auto", "--sparse=always", str(store), f"{home}/store"],
            check=True,
        )
        # The store of a killed broker is on the disk except for the last half second; without a
        # sync the copy would be in memory only.
        os.sync()
        port = free_ports(3)
        return start_once(command(port, home), port)


def fill(root: Path, size: int, *, kill: bool) -> None:
    """Create a store of a broker that was killed or stopped."""
    command = [sys.executable, "-c", WRITER, str(root), str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        writer.stdout.readline()
        if kill:
            writer.send_signal(signal.SIGKILL)
        else:
            writer.stdin.write(b"\n")
            writer.stdin.flush()


def text(runs: Runs) -> str:
    """Return a line for each kind of start."""
    lines = []
    for name, figures in runs.items():
        seconds = spread([run["seconds"] for run in figures])
        memory = spread([run["private_mb"] for run in figures]).median
        lines.append(
            f"{name:10} first acknowledged send {seconds.text(3)} s, private memory {memory:.1f} MB"
        )
    return "\n".join(lines)
