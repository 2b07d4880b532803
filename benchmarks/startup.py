"""Measure the time from a broker's start to its first acknowledged message, and its memory.

    python -m benchmarks.startup [--rounds 7] [--messages 1000000] [--apache]

The time is that from the start of the process to the first acknowledged send, over a raw socket
with repeated attempts to connect. The memory is private memory, without shared file mappings. With
``--apache`` Apache's broker 4.9.7 is measured too, alternating with ours.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import client
from pocketmq import testing
from pocketmq.server.process import private_megabytes
from remoting.protocol import frame
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from tests.interop import apache
from tests.support.ports import free_ports

GIVE_UP_AFTER = 60.0
BODY = b"x" * 1024


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


def start_once(command: list[str], port: int) -> tuple[float, float]:
    """Start a broker; return seconds to the first acknowledgement, and private MB after it."""
    with process(command) as (running, started):
        seconds = seconds_until_acknowledged(port, started)
        return seconds, private_megabytes(running.pid)


def measure(name: str, results: list[tuple[float, float]]) -> float:
    """Print median and range; return the median seconds."""
    seconds = sorted(result[0] for result in results)
    median = statistics.median(seconds)
    megabytes = statistics.median(result[1] for result in results)
    print(
        f"{name:10} first acknowledged send {median:.3f} s "
        f"({seconds[0]:.3f} to {seconds[-1]:.3f}), private memory {megabytes:.1f} MB"
    )
    return median


async def load(nameserver: str, messages: int) -> None:
    """Send messages of 1 KiB."""
    async with client.Producer(nameserver, group="load") as producer:
        for start in range(0, messages, 10_000):
            batch = [
                client.Message("load", BODY) for _ in range(start, min(start + 10_000, messages))
            ]
            for result in await producer.send_many(batch):
                assert isinstance(result, client.Receipt), result


def memory_after(messages: int) -> None:
    """Print the private memory of a broker when idle and after receiving messages."""
    with testing.broker() as server:
        print(f"standalone, idle: {private_megabytes(server.pid):.1f} MB private")
        asyncio.run(load(server.nameserver, messages))
        print(
            f"standalone, after {messages:,} messages: "
            f"{private_megabytes(server.pid):.1f} MB private"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--apache", action="store_true", help="also Apache's broker, in turns")
    arguments = parser.parse_args()
    makers = {"PocketMQ": ours, **({"Apache": theirs} if arguments.apache else {})}
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
    for _ in range(arguments.rounds):
        for name, make in makers.items():
            port, home = free_ports(3), Path(tempfile.mkdtemp(prefix="startup-"))
            results[name].append(start_once(make(port, home), port))
            shutil.rmtree(home)
    medians = [measure(name, figures) for name, figures in results.items()]
    if arguments.apache:
        print(f"PocketMQ is {medians[1] / medians[0]:.1f} times sooner")
    if arguments.messages:
        memory_after(arguments.messages)


if __name__ == "__main__":
    main()
