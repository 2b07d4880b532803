"""Measure a store of 20 GiB with 10,000 queues: memory, start, pulls and ``store verify``.

A broker creates the topics with four queues each. Then the store is filled in this process:
``--in-a-row`` messages of 1 KiB with a unique key to one queue after the other, repeatedly. The
broker that opens it next is measured, alternating with one that has 64 MiB and 16 queues.

A pull requests 32 messages near the end of its queue, half of which were stored in one pass over
the queues and half in the next: with 10,000 queues these are 0.4 GB apart in the commit log. All
pulls are done once before they are counted, so that the messages are in memory. The number of pulls
that had to wait for the disk nevertheless is taken from the broker's metrics.

A queue that is read has its file mapped, which takes a file descriptor. If ``ulimit -n`` is too low
for all queues, each pull of a round maps its queue again; so the limit is printed.

There are two figures for memory. ``private`` is the private memory of the process, as in all these
benchmarks. ``rollup`` is Private_Clean + Private_Dirty of smaps_rollup, which includes pages of the
page cache that belong to store files mapped by no other process.
"""

from __future__ import annotations

import resource
import shutil
import socket
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.figures import Spread, spread
from benchmarks.pump import address_of, pull_frame
from benchmarks.store.shape import (
    ANSWER_WITHIN,
    PULL_MESSAGES,
    Running,
    Shape,
    build,
    serving,
    topic_of,
)
from benchmarks.store.verify import log_bytes, verify
from benchmarks.tools import BenchmarkError, say
from broker.store.limits import MAX_OPEN_MAPS, open_maps
from remoting.protocol.frame import cut, decode
from remoting.protocol.message.record import QUEUE_OFFSET_AT

SMALL_BYTES: Final = 64 << 20
SMALL_QUEUES: Final = 16
SPARE_BYTES: Final = 4 << 30
BARS: Final = {"private_mb": 150.0, "p99_ratio": 2.0, "verify_mb_per_s": 500.0}


def run(running: Running, places: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Pull from each (queue, offset), one after the other, and check the answers.

    Returns:
        The number of pulls, latencies in microseconds, and pulls that had to wait for the disk.
    """
    requests = [
        (pull_frame(*topic_of(queue), offset, count=PULL_MESSAGES), offset)
        for queue, offset in places
    ]
    before = running.cold_pulls()
    took = []
    with socket.create_connection(address_of(running.address), ANSWER_WITHIN) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request, offset in requests:
            begun = time.perf_counter()
            peer.sendall(request)
            answer = _receive(peer)
            took.append(time.perf_counter() - begun)
            check(answer, offset)
    cuts = statistics.quantiles(took, n=100)
    return {
        "pulls": len(took),
        "p50_us": round(1e6 * cuts[49], 1),
        "p99_us": round(1e6 * cuts[98], 1),
        "cold": running.cold_pulls() - before,
    }


def _receive(peer: socket.socket) -> bytearray:
    data = bytearray()
    wanted = 4
    while len(data) < wanted:
        more = peer.recv(1 << 18)
        if not more:
            raise BenchmarkError("the broker closed the connection")
        data += more
        wanted = 4 + int.from_bytes(data[:4], "big")
    return data


def check(answer: bytearray, offset: int) -> None:
    """Check that an answer has the requested messages.

    Raises:
        BenchmarkError: it doesn't.
    """
    whole = cut(bytes(answer))
    assert whole is not None
    command = decode(whole)
    body = memoryview(command.body)
    numbers = []
    while body:
        numbers.append(int.from_bytes(body[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big"))
        body = body[int.from_bytes(body[:4], "big") :]
    if numbers != list(range(offset, offset + PULL_MESSAGES)):
        raise BenchmarkError(
            f"a pull at {offset} was answered with {command.code} and the messages {numbers}"
        )


def pull(shapes: dict[str, Shape], rounds: int) -> dict[str, Any]:
    """Measure the memory of both brokers, and pulls that alternate in the order A B B A."""
    pulls = shapes["big"].queues
    places = {name: list(shape.places(pulls, rounds)) for name, shape in shapes.items()}
    with serving(shapes["big"].root) as big, serving(shapes["small"].root) as small:
        brokers = {"big": big, "small": small}
        memory = {"after start": big.memory()}
        for name, running in brokers.items():
            for portion in places[name]:
                run(running, portion)
        memory["after reading from all queues"] = big.memory()
        made: dict[str, list[dict[str, float]]] = {name: [] for name in brokers}
        for number in range(rounds):
            for name in list(brokers)[:: 1 if number % 2 == 0 else -1]:
                made[name].append(run(brokers[name], places[name][number]))
            last = ", ".join(f"{name} p99 {rows[-1]['p99_us']} us" for name, rows in made.items())
            say(f"  round {number + 1}: {last}")
        memory["in the end"] = big.memory()
        return {
            "start_s": {name: running.start_seconds for name, running in brokers.items()},
            "memory": memory,
            "small_memory": small.memory(),
            "pulls": made,
        }


def ratio(result: dict[str, Any], figure: str) -> Spread:
    """Return the ratio big/small of a figure in each round."""
    pairs = zip(result["pulls"]["big"], result["pulls"]["small"], strict=True)
    return spread([big[figure] / small[figure] for big, small in pairs])


def text(result: dict[str, Any]) -> str:
    """Return the report."""
    lines = [
        f"{result['log_bytes'] / 2**30:.2f} GiB of log, {result['queues']:,} queues, filled in "
        f"{result['fill_s']:.0f} s",
        f"{result['descriptors']:,} descriptors allowed: at most {result['maps']:,} files mapped"
        + (", fewer than there are queues" if result["maps"] < result["queues"] else ""),
    ]
    rows: list[Sequence[str]] = [("memory", "private MB", "rollup MB")]
    memory = {**result["memory"], "the small store's": result["small_memory"]}
    rows += [(when, f"{m['private_mb']:,}", f"{m['rollup_mb']:,}") for when, m in memory.items()]
    lines.append(report.aligned(rows))
    rows = [("store", "start s", "pull p50 us", "p99 us", "cold pulls")]
    for name, runs in result["pulls"].items():
        cells = [spread([row[f] for row in runs]).text(0) for f in ("p50_us", "p99_us")]
        cold = sum(row["cold"] for row in runs)
        rows.append((name, f"{result['start_s'][name]:.3f}", *cells, f"{cold:,.0f}"))
    lines.append(report.aligned(rows))
    lines.append(f"big/small: p50 {ratio(result, 'p50_us').text()}")
    most = max(memory["private_mb"] for memory in result["memory"].values())
    bar = BARS["private_mb"]
    lines.append(f"private memory at most {most:,} MB <= {bar:g}: {_yes(most <= bar)}")
    p99, bar = ratio(result, "p99_us"), BARS["p99_ratio"]
    lines.append(f"pull p99 big/small {p99.text()} <= {bar:g}: {_yes(p99.median <= bar)}")
    return "\n".join(lines + _verify_lines(result["verify"]))


def _verify_lines(verified: dict[str, Any] | None) -> list[str]:
    if verified is None:
        return ["store verify: there is no such command"]
    bar = BARS["verify_mb_per_s"]
    return [
        f"store verify, {name}: {run['seconds']} s, {run['cpu_s']} s of CPU time, "
        f"{run['mb_per_s']:,} MB/s >= {bar:g}: {_yes(run['mb_per_s'] >= bar)}"
        for name, run in (("cold", verified["cold"]), ("warm", verified["warm"]))
    ] + [f"the disk alone, read from the beginning: {verified['disk_mb_per_s']:,} MB/s"]


def _yes(kept: bool) -> str:
    return "yes" if kept else "NO"


def measure(home: Path, size: int, queues: int, in_a_row: int, rounds: int) -> dict[str, Any]:
    """Build both stores and run all measurements.

    Raises:
        BenchmarkError: the disk is too small, or a step failed.
    """
    if shutil.disk_usage(home).free < size + SPARE_BYTES:
        raise BenchmarkError(f"{home} has no room for {size / 2**30:.0f} GiB: give another --dir")
    shapes = {
        "small": Shape.of(home / "small", SMALL_BYTES, SMALL_QUEUES, in_a_row),
        "big": Shape.of(home / "big", size, queues, in_a_row),
    }
    filled = {}
    for name, shape in shapes.items():
        filled[name] = build(shape)
        say(f"  {name}: filled in {filled[name]:.1f} s")
    pulled = pull(shapes, rounds)
    stored = log_bytes(shapes["big"].root)
    return {
        "log_bytes": stored,
        "queues": queues,
        "in_a_row": in_a_row,
        "fill_s": filled["big"],
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "maps": open_maps(MAX_OPEN_MAPS),
        **pulled,
        "verify": verify(shapes["big"].root, stored),
    }
