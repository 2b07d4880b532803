"""Masters and slaves of both kinds: where their logs end, and what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remoting.blocking import BlockingConnection
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from tests.interop.apache import broker_command, start
from tests.support.ports import free_ports, wait_until_listening

LOG_FILE = 128 * 1024
SETTINGS = {"mappedFileSizeCommitLog": str(LOG_FILE), "mappedFileSizeConsumeQueue": "200000"}
SECONDS = 90.0


def ask(address: str, request: Command) -> Command:
    """Return a broker's answer to a request."""
    with BlockingConnection(address, timeout=30) as connection:
        return connection.request(request)


def log_end(address: str) -> int:
    """Return the physical offset where a broker's log ends; -1 while it is starting."""
    answer = ask(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    if answer.code != ResponseCode.SUCCESS:
        return -1
    return int(decode(KVTable, answer.body).table["commitLogMaxOffset"])


async def until_equal(one: str, other: str) -> int:
    """Wait until the logs of two brokers end at the same offset, and return it."""
    async with asyncio.timeout(SECONDS):
        while True:
            ends = [await asyncio.to_thread(log_end, address) for address in (one, other)]
            if ends[0] == ends[1]:
                return ends[0]
            await asyncio.sleep(0.2)


def committed(address: str, topic: str, group: str) -> dict[int, int]:
    """Return the offsets that a group has at a broker, master or slave."""
    answer = ask(address, Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET))
    table = decode(ConsumerOffsetSerializeWrapper, answer.body).offset_table
    return table.get(f"{topic}@{group}", {})


def log_bytes(store: Path, end: int) -> bytes:
    """Return the log of a store from its first file up to an offset."""
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    start = int(files[0].name)
    return b"".join(path.read_bytes() for path in files)[: end - start]


@contextmanager
def apaches_broker(
    version: str, home: Path, nameserver: str, *settings: str, port: int = 0, clean: bool = False
) -> Iterator[str]:
    """Run a broker with the store in ``home``, a slave by default; yield its address.

    It is killed at the end, or stopped, which takes ten seconds and writes down its offsets.
    """
    home.mkdir(exist_ok=True)
    port = port or free_ports(10)
    lines = [f"namesrvAddr={nameserver}", *(f"{key}={value}" for key, value in SETTINGS.items())]
    # A slave learns from its registration who its master is.
    lines += ["registerNameServerPeriod=10000"]
    lines += settings or ("brokerRole=SLAVE", "brokerId=1")
    process = start(broker_command(version, home, port, settings=lines), home, home / "broker.log")
    try:
        wait_until_listening(port)
        yield f"127.0.0.1:{port}"
        if clean:
            process.terminate()
            process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()
