"""Measure delivery to a waiting consumer while another one replays messages from the disk.

    python -m benchmarks.cold [--gib 10] [--seconds 10] [--nice 0] [--json cold.json] [--where DIR]

A broker is filled and stopped, its store is dropped from the page cache, and it is started again.
Then messages are sent at a constant rate to a consumer with a parked pull. This is done without
other load, during a replay from the disk, and, to separate the effect of the disk from that of the
load, during the same replay from memory. The results are the p99 from send to delivery, and the
longest stall of the broker's event loop, from its metrics.

On few cores the replaying process competes with the other two. ``--nice 10`` lowers its priority,
as if it ran on another machine; the result names the value, because that makes the test easier.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.pump import Lane, address_of, cpu_seconds, pull_frame, send_each, send_frame
from remoting.protocol import frame
from remoting.protocol.headers.pull import PullMessageResponseHeader
from tests.support.ports import free_ports

KIB: Final = 1024
GIB: Final = 1 << 30
RATE: Final = 200
"""Messages per second sent to the waiting consumer."""

REPLAY_QUEUES: Final = 4
PULL_MESSAGES: Final = 32
WAIT_SECONDS: Final = 30
READY_WITHIN: Final = 60.0
BARS: Final = {"p99_ratio": 3.0, "stall_ms": 20.0}
FILL_PORTION: Final = 20_000

_STALL = re.compile(
    r'^pocketmq_loop_stall_seconds_bucket\{le="([^"]+)"\} ([0-9.e+]+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Server:
    """A broker under test."""

    pid: int
    address: str
    metrics: str


@contextmanager
def server(store: Path) -> Iterator[Server]:
    """Run a name server and a broker with default settings; stopped cleanly at the end."""
    port, names, metrics = free_ports(3), free_ports(1), free_ports(1)
    command = [
        *(sys.executable, "-P", "-m", "pocketmq", "standalone", "--json"),
        *(f"--store={store}", f"--broker-port={port}", f"--nameserver-port={names}"),
        f"--metrics-port={metrics}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        try:
            assert running.stdout is not None
            if not running.stdout.readline():
                sys.exit("the broker did not start: run `pocketmq standalone` to see why")
            yield Server(running.pid, f"127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics")
        finally:
            running.terminate()
            running.wait(READY_WITHIN)


def drop_from_page_cache(store: Path) -> None:
    """Write the files of a store to the disk and drop them from the page cache."""
    for path in store.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDWR)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def stalls(address: str) -> dict[float, float]:
    """Return the broker's cumulative histogram of loop stalls, by upper bound in seconds."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        text = answer.read().decode()
    return {float(bound): float(count) for bound, count in _STALL.findall(text)}


def longest_stall_ms(before: dict[float, float], after: dict[float, float]) -> float:
    """Return the upper bound, in ms, of the bucket of the longest stall between two readings."""
    new = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = max(new.values(), default=0.0)
    return next((1000 * bound for bound, count in new.items() if count >= total), 0.0)


class Waiter:
    """A consumer with a parked pull for each message, and the producer that sends them."""

    def __init__(self, address: str) -> None:
        self._consumer = socket.create_connection(address_of(address), timeout=WAIT_SECONDS)
        self._producer = Lane(address)
        send_each(address, [send_frame("live", 0, KIB, queues=1)])
        self._offset = self._ask(0)[0]
        while (following := self._ask(self._offset, wait_s=0)[0]) > self._offset:
            self._offset = following
        self._message = send_frame("live", 0, KIB, queues=1)

    def _ask(self, offset: int, wait_s: int = 0) -> tuple[int, float]:
        self._consumer.sendall(pull_frame("live", 0, offset, wait_s=wait_s))
        return self._answer()

    def _answer(self) -> tuple[int, float]:
        """Return the next offset of an answer and the time of its arrival."""
        data = b""
        while (cut := frame.cut(data)) is None:
            more = self._consumer.recv(1 << 16)
            if not more:
                sys.exit("the broker closed the connection")
            data += more
        now = time.perf_counter()
        header = frame.decode(cut).read(PullMessageResponseHeader)
        return int(header.next_begin_offset), now

    def run(self, seconds: float) -> list[float]:
        """Send messages for some seconds; return the time to delivery of each, in seconds."""
        took = []
        begun = time.perf_counter()
        while time.perf_counter() < begun + seconds:
            self._consumer.sendall(pull_frame("live", 0, self._offset, wait_s=WAIT_SECONDS))
            time.sleep(0.001)
            sent = time.perf_counter()
            self._producer.send([self._message])
            self._offset, came = self._answer()
            took.append(came - sent)
            self._producer.receive()
            time.sleep(max(0.0, 1 / RATE - (time.perf_counter() - sent)))
        return took

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
        self._producer.socket.close()


class Replay(threading.Thread):
    """Pulls all messages from the start, in a separate process, which does not share the GIL."""

    def __init__(self, address: str, nice: int) -> None:
        super().__init__(daemon=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.cold", "--replay", address, f"--nice={nice}"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self.result: dict[str, float] = {}

    def run(self) -> None:
        """Wait for the end of the process and parse its result."""
        told, _ = self._process.communicate()
        self.result = json.loads(told or "{}")


def replay(address: str) -> None:
    """Pull all queues of the old topic to their ends; print bytes and seconds as JSON."""
    with socket.create_connection(address_of(address), timeout=WAIT_SECONDS) as connection:
        offsets = dict.fromkeys(range(REPLAY_QUEUES), 0)
        begun, received = time.perf_counter(), 0
        data = bytearray()
        while offsets:
            for queue_id, offset in list(offsets.items()):
                connection.sendall(pull_frame("old", queue_id, offset, count=PULL_MESSAGES))
                data.clear()
                while (cut := frame.cut(bytes(data))) is None:
                    wanted = 4 + int.from_bytes(data[:4], "big") if len(data) >= 4 else 4
                    while len(data) < wanted:
                        more = connection.recv(1 << 18)
                        if not more:
                            sys.exit("the broker closed the connection")
                        data += more
                command = frame.decode(cut)
                received += len(command.body)
                if command.code != 0:
                    del offsets[queue_id]
                else:
                    header = command.read(PullMessageResponseHeader)
                    offsets[queue_id] = int(header.next_begin_offset)
        seconds = time.perf_counter() - begun
    print(json.dumps({"bytes": received, "seconds": seconds}))


def fill(store: Path, size: int) -> None:
    """Send messages until the commit log has at least ``size`` bytes."""
    frames = [send_frame("old", queue, KIB, queues=REPLAY_QUEUES) for queue in range(4)]
    with server(store) as running:
        for _ in range(0, size, FILL_PORTION * KIB):
            send_each(running.address, frames * (FILL_PORTION // len(frames)), inflight=64)


def summary(took: list[float]) -> dict[str, float]:
    """Return the figures of one phase from its latencies in seconds."""
    cuts = statistics.quantiles(took, n=1000)
    return {
        "messages": len(took),
        "p50_ms": round(1000 * cuts[499], 3),
        "p99_ms": round(1000 * cuts[989], 3),
        "longest_ms": round(1000 * max(took), 3),
    }


def measure(store: Path, size: int, seconds: float, nice: int) -> dict[str, Any]:
    """Fill a store, then measure the waiting consumer without and with a replay."""
    fill(store, size)
    drop_from_page_cache(store)
    started = time.perf_counter()
    with server(store) as running:
        started = time.perf_counter() - started
        waiter = Waiter(running.address)
        waiter.run(1.0)
        quiet = waiter.run(seconds)
        cold = beside_replay(running, waiter, nice)
        warm = beside_replay(running, waiter, nice)
        waiter.close()
    result = {"quiet": summary(quiet), "cold": cold, "warm": warm}
    return {
        **result,
        "replay_nice": nice,
        "start_s": round(started, 3),
        "p99_ratio": round(result["cold"]["p99_ms"] / result["quiet"]["p99_ms"], 2),
        "stall_ms": cold["stall_ms"],
    }


def beside_replay(running: Server, waiter: Waiter, nice: int) -> dict[str, float]:
    """Measure the waiting consumer while another one replays all messages."""
    before, cpu = stalls(running.metrics), cpu_seconds(running.pid)
    replaying = Replay(running.address, nice)
    replaying.start()
    took: list[float] = []
    while replaying.is_alive():
        took += waiter.run(0.2)
    came = replaying.result
    return {
        **summary(took),
        "replayed_gib": round(came["bytes"] / GIB, 3),
        "mb_per_s": round(came["bytes"] / came["seconds"] / 1e6, 1),
        "broker_cpu_s": round(cpu_seconds(running.pid) - cpu, 2),
        "stall_ms": longest_stall_ms(before, stalls(running.metrics)),
    }


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=10.0, help="what is replayed")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the quiet phase")
    parser.add_argument("--nice", type=int, default=0, help="of the replaying process")
    parser.add_argument("--where", type=Path, help="a directory on the disk to be measured")
    parser.add_argument("--json", type=Path, help="write everything there as well")
    parser.add_argument("--replay", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.replay:
        os.nice(arguments.nice)
        replay(arguments.replay)
        return
    store = Path(tempfile.mkdtemp(prefix="pocketmq-cold-", dir=arguments.where))
    try:
        result = measure(store, int(arguments.gib * GIB), arguments.seconds, arguments.nice)
    finally:
        shutil.rmtree(store, ignore_errors=True)
    for phase in ("quiet", "cold", "warm"):
        print(f"{phase:>6}: " + "  ".join(f"{k} {v:,}" for k, v in result[phase].items()))
    print(f" start: {result['start_s']} s after a clean stop, everything cold")
    print(f"replay: at nice {result['replay_nice']}")
    for name, bar in BARS.items():
        print(f"{name} {result[name]:g} <= {bar:g}: {'yes' if result[name] <= bar else 'NO'}")
    if arguments.json:
        content = {"machine": machine.facts(), **result}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
