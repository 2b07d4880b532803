"""Measure what people meet every day: the console, FastStream, and the test kit.

    python -m benchmarks.everyday [--rounds 5] [--seconds 20] [--only console] [--only faststream]
        [--only kit]

The figures of the console are those of a browser without a cache: the first page with all that it
links to, from a console that has just started. A tab keeps a connection for live figures. The CPU
time that 100 tabs cost a broker is that with them less that without a console. FastStream and the
bare consumer handle the same topic in turns, in this process, without a log of each message; the
ratio is of their CPU time.
A cycle of the test kit is one test: a topic, a group, a send, a consume, and what deletes them.

Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import http
import http.client
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import client
from benchmarks import machine
from benchmarks.resting import cpu_seconds
from client import blocking
from pocketmq import testing
from pocketmq.faststream import PocketBroker
from pocketmq.testing import ServerProcess, StandaloneServer

TOPICS: Final = 50
TABS: Final = 100
MESSAGES: Final = 20_000
TESTS: Final = 30
TARGETS: Final = {
    "console: first page, ms": 300.0,
    "console: first page, KB": 150.0,
    "console: memory, MB": 70.0,
    "broker: CPU for 100 tabs, %": 1.0,
    "FastStream: CPU per message / bare consumer's": 1.3,
    "test kit: a cycle, ms": 20.0,
}
TEST: Final = f"""
import pytest
from client import FIRST, blocking

@pytest.mark.parametrize("number", range({TESTS}))
def test_cycle(number, pocketmq, pocketmq_topic, pocketmq_group):
    with blocking.Producer(pocketmq.nameserver, group="bench") as producer:
        producer.send(pocketmq_topic, b"tea")
    with blocking.PushConsumer(
        pocketmq.nameserver, group=pocketmq_group, subscribe={{pocketmq_topic: "*"}},
        start_from=FIRST,
    ) as consumer:
        assert consumer.get(10).body == b"tea"
"""

Figures = dict[str, float]


@contextmanager
def console(server: StandaloneServer) -> Iterator[ServerProcess]:
    """Run a console beside a broker."""
    process = ServerProcess(["console", "--nameserver", server.nameserver, "--port", "0"])
    process.start()
    try:
        yield process
    finally:
        process.kill()


def first_page(url: str) -> tuple[float, int]:
    """Load the first page and what it links to; return milliseconds and bytes, with headers."""
    parts = urlsplit(url)
    begun, size = time.perf_counter(), 0
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    pages, text = ["/"], ""
    for number, page in enumerate(pages):
        connection.request("GET", page, headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == http.HTTPStatus.OK, f"{page}: {answer.status}"
        size += len(body) + sum(len(name) + len(value) + 4 for name, value in answer.getheaders())
        if number == 0:
            text = body.decode()
            pages += {f"/{name}" for name in re.findall(r'(?:src|href)="(static/[^"]+)"', text)}
    connection.close()
    return (time.perf_counter() - begun) * 1000, size


def memory_mb(pid: int) -> float:
    """Return the memory of a process, shared pages by their share."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.findall(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)[0]) / 1024


def measure_console(rounds: int, seconds: float) -> Figures:
    """Measure first pages, memory, and what tabs cost."""
    loads = []
    with testing.broker() as server:
        for number in range(TOPICS):
            server.admin.create_topic(f"topic-{number}", queues=4)
        broker = server.pid

        def share() -> float:
            before = cpu_seconds(broker)
            time.sleep(seconds)
            return (cpu_seconds(broker) - before) / seconds * 100

        idle = share()
        for _ in range(rounds):
            with console(server) as process:
                loads.append(first_page(process.addresses["console"]))
        with console(server) as process, ExitStack() as tabs:
            parts = urlsplit(process.addresses["console"])
            for _ in range(TABS):
                tab = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
                tabs.callback(tab.close)
                tab.request("GET", "/events")
                assert tab.getresponse().status == http.HTTPStatus.OK
            watched = share()
            memory = memory_mb(process.pid)
    return {
        "console: first page, ms": median(load[0] for load in loads),
        "console: first page, KB": loads[0][1] / 1024,
        "console: memory, MB": memory,
        "broker: CPU for 100 tabs, %": watched - idle,
    }


async def bare(nameserver: str, group: str) -> float:
    """Return the CPU time in which a push consumer handles all messages."""
    handled, done = 0, asyncio.Event()

    async def handle(_: client.ReceivedMessage[bytes]) -> None:
        nonlocal handled
        handled += 1
        if handled == MESSAGES:
            done.set()

    begun = time.process_time()
    async with client.PushConsumer(
        nameserver, group=group, subscribe={"orders": "*"}, handler=handle, start_from=client.FIRST
    ):
        await done.wait()
        return time.process_time() - begun


async def framed(nameserver: str, group: str) -> float:
    """Return the CPU time in which FastStream handles all messages."""
    broker = PocketBroker(nameserver, logger=None)  # by default it logs two lines per message
    handled, done = 0, asyncio.Event()

    @broker.subscriber("orders", group=group, start_from=client.FIRST)
    async def handle(_: str) -> None:
        nonlocal handled
        handled += 1
        if handled == MESSAGES:
            done.set()

    begun = time.process_time()
    async with broker:
        await broker.start()
        await done.wait()
        return time.process_time() - begun


def measure_faststream(rounds: int, _: float) -> Figures:
    """Compare FastStream with the bare consumer."""
    ours, theirs = [], []
    with testing.broker() as server:
        server.admin.create_topic("orders", queues=4)
        with blocking.Producer(server.nameserver, group="bench") as producer:
            producer.send_many(
                client.Message("orders", b"order %d%200d" % (n, n)) for n in range(MESSAGES)
            )
        for number in range(rounds):
            ours.append(asyncio.run(bare(server.nameserver, f"bare-{number}")))
            theirs.append(asyncio.run(framed(server.nameserver, f"framed-{number}")))
    one, other = (median(seconds) / MESSAGES * 1e6 for seconds in (ours, theirs))
    print(f"CPU per message: the bare consumer {one:.1f} us, FastStream {other:.1f} us")
    return {"FastStream: CPU per message / bare consumer's": other / one}


def measure_kit(rounds: int, _: float) -> Figures:
    """Measure tests that pytest runs."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "test_cycle.py").write_text(TEST)
        for _ in range(rounds):
            report = home / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            command += ["-o", "asyncio_default_fixture_loop_scope=function"]
            command += ["-o", "junit_duration_report=total", f"--junitxml={report}", str(home)]
            subprocess.run(command, check=True, cwd=home, stdout=subprocess.DEVNULL)
            cases = [float(case.get("time", "0")) for case in ET.parse(report).iter("testcase")]
            times += cases[1:]  # the first one starts the broker
    return {"test kit: a cycle, ms": median(times) * 1000}


MEASURED: Final = {
    "console": measure_console,
    "faststream": measure_faststream,
    "kit": measure_kit,
}


def main() -> int:
    """Measure and print; return 1 if a target is missed."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.everyday", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="[5]")
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU time of a broker [20]")
    parser.add_argument("--only", action="append", choices=MEASURED)
    options = parser.parse_args()
    before = machine.calibration_ms()
    figures: Figures = {}
    for name in options.only or MEASURED:
        figures |= MEASURED[name](options.rounds, options.seconds)
    print(f"Calibration loop: {before:.2f} and {machine.calibration_ms():.2f} ms\n")
    for name, figure in figures.items():
        kept = figure <= TARGETS[name]
        print(f"{name:48} {figure:8.2f}  target {TARGETS[name]:6g}  {'' if kept else 'missed'}")
    return int(any(figure > TARGETS[name] for name, figure in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
