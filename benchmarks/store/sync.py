"""Measure the time a SYNC_FLUSH acknowledgement takes in addition to the flush itself.

Three lanes alternate on one disk:

- ``disk``: a loop that appends records of 1 KiB to a file whose blocks have been written before,
  with fdatasync after each;
- ``broker``: a broker with SYNC_FLUSH and the load generator with one message of 1 KiB in flight;
- ``many``: the same with 4 connections and 64 messages in flight on each, to measure how many
  messages share one fdatasync; the number of flushes is taken from the broker's metrics.

The result is the difference between the p50s of ``broker`` and ``disk`` in the same round. The
quantiles of the load generator have an error of up to 3 %.
"""

from __future__ import annotations

import os
import re
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks import report
from benchmarks.figures import Spread, spread
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.servers import directory, ours
from benchmarks.tools import BenchmarkError, Target, load, say
from tests.support.ports import free_ports

RECORD_BYTES: Final = 1024
FILE_BYTES: Final = 64 << 20
CHUNK: Final = bytes(1 << 20)
MOST_ADDED_US: Final = 200.0
MOST_SYNCS: Final = 0.1
"""The most flushes of the commit log per message at 4 x 64: without sharing it would be 1, with
perfect sharing 1/256."""

ONE, MANY = (
    next(scenario for scenario in SCENARIOS if scenario.name == name)
    for name in ("sync-1x1", "sync-4x64")
)
_SYNCS: Final = re.compile(r"^pocketmq_fsync_seconds_count ([0-9.e+]+)", re.MULTILINE)

Append = Callable[[int], None]
Row = dict[str, float]


@contextmanager
def by_write(path: Path) -> Iterator[Append]:
    """Yield a function that appends with pwrite and fdatasync."""
    preallocate(path)
    record = b"x" * RECORD_BYTES
    descriptor = os.open(path, os.O_RDWR)
    try:

        def append(position: int) -> None:
            os.pwrite(descriptor, record, position)
            os.fdatasync(descriptor)

        yield append
    finally:
        os.close(descriptor)


def preallocate(path: Path) -> None:
    """Write a file so that all its blocks are allocated and on the disk."""
    with path.open("wb") as file:
        for _ in range(FILE_BYTES // len(CHUNK)):
            file.write(CHUNK)
        file.flush()
        os.fsync(file.fileno())


class Appender:
    """Appends records to a file, starting again at its beginning when it is full."""

    def __init__(self, append: Append) -> None:
        self._append = append
        self._position = 0

    def run(self, seconds: float) -> Row:
        """Append for some seconds; return the count and the quantiles in microseconds."""
        took = []
        stop = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < stop:
            self._append(self._position)
            took.append(time.perf_counter() - begun)
            self._position = (self._position + RECORD_BYTES) % FILE_BYTES
        cuts = statistics.quantiles(took, n=100)
        return {"n": len(took), "p50_us": 1e6 * cuts[49], "p99_us": 1e6 * cuts[98]}


def syncs(address: str) -> float:
    """Return how often the broker has flushed its commit log."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        count = _SYNCS.search(answer.read().decode())
    if count is None:
        raise BenchmarkError(f"{address} says nothing of syncs")
    return float(count[1])


class Broker:
    """The two loads on a broker with SYNC_FLUSH."""

    def __init__(self, target: Target, metrics: str) -> None:
        self._target = target
        self._metrics = metrics

    def one(self, seconds: float) -> Row:
        """Run the load with one message in flight."""
        return self._run(ONE, seconds)

    def many(self, seconds: float) -> Row:
        """Run the load with 256 messages in flight."""
        return self._run(MANY, seconds)

    def _run(self, scenario: Scenario, seconds: float) -> Row:
        before = syncs(self._metrics)
        figures = load(scenario, self._target, seconds=seconds, warm=0.0)
        made = syncs(self._metrics) - before
        kept = {key: figures[key] for key in ("n", "per_s", "p50_us", "p99_us")}
        return {**kept, "syncs_per_message": made / figures["n"]}


def measure(rounds: int, seconds: float, where: Path | None) -> dict[str, list[Row]]:
    """Run all rounds; the order of the lanes is reversed in every other one."""
    with ExitStack() as stack:
        home = stack.enter_context(directory(where))
        port = free_ports(1)
        options = [f"--metrics-port={port}"]
        target = stack.enter_context(ours(home / "pocketmq", sync_flush=True, options=options))
        broker = Broker(target, f"http://127.0.0.1:{port}/metrics")
        lanes: dict[str, Callable[[float], Row]] = {
            "disk": Appender(stack.enter_context(by_write(home / "written"))).run,
            "broker": broker.one,
            "many": broker.many,
        }
        for lane in lanes.values():
            lane(seconds / 4)
        results: dict[str, list[Row]] = {name: [] for name in lanes}
        for number in range(rounds):
            turns = list(lanes.items())
            for name, lane in turns if number % 2 == 0 else reversed(turns):
                results[name].append(lane(seconds))
            say(f"  round {number + 1}: {_last(results)}")
        return results


def _last(results: dict[str, list[Row]]) -> str:
    return "; ".join(f"{name} p50 {rows[-1]['p50_us']:,.0f} us" for name, rows in results.items())


def added(results: dict[str, list[Row]], figure: str = "p50_us") -> Spread:
    """Return the differences between the lanes ``broker`` and ``disk``, of each round."""
    pairs = zip(results["broker"], results["disk"], strict=True)
    return spread([broker[figure] - disk[figure] for broker, disk in pairs])


def shared(results: dict[str, list[Row]], name: str) -> Spread:
    """Return the flushes of the commit log per message."""
    return spread([row["syncs_per_message"] for row in results[name]])


def verdicts(results: dict[str, list[Row]]) -> list[tuple[str, float, float]]:
    """Return the checks: description, figure and upper limit of each."""
    return [
        ("broker p50 - disk p50, us", added(results).median, MOST_ADDED_US),
        ("syncs per message at 4 x 64", shared(results, "many").median, MOST_SYNCS),
    ]


def text(results: dict[str, list[Row]]) -> str:
    """Return the report."""
    rows: list[Sequence[str]] = [("lane", "p50 us", "p99 us", "syncs per message")]
    for name, lane in results.items():
        cells = [spread([row[figure] for row in lane]).text(0) for figure in ("p50_us", "p99_us")]
        each = shared(results, name).text(4) if "syncs_per_message" in lane[0] else "1"
        rows.append((name, *cells, each))
    lines = [report.aligned(rows)]
    for figure in ("p50_us", "p99_us"):
        what = f"broker - disk, {figure.removesuffix('_us')}"
        lines.append(f"{what}: {added(results, figure).text(0)} us")
    lines += [
        f"{what}: {figure:.4g} <= {bar:g}: {'yes' if figure <= bar else 'NO'}"
        for what, figure, bar in verdicts(results)
    ]
    return "\n".join(lines)
