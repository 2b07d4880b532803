"""Measure scaling with connections, queues, message sizes, backlog and parked consumers.

    python -m benchmarks.growth [--seconds 3] [--axis queues ...] [--json growth.json]
        [--chart growth.svg]

The broker runs with default settings in a separate process, the load in this one. Both share the
machine, so figures are comparable only within an axis. Each axis varies one parameter; the others
are 4 connections with 64 requests of 1 KiB in flight on each, and 4 queues.
"""

from __future__ import annotations

import argparse
import json
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import growth_chart, machine
from benchmarks.pump import Lane, cpu_seconds, pull_frame, pump, send_each, send_frame
from pocketmq import testing
from pocketmq.server.process import private_bytes

KIB: Final = 1024
QUEUES_OF_A_TOPIC: Final = 4
MOST_IN_FLIGHT_BYTES: Final = 16 * KIB * KIB
PARKED_SECONDS: Final = 60
PARKED_PER_CONNECTION: Final = 100
IDLE_SECONDS: Final = 5.0
BACKLOG_BATCH: Final = 50_000

Row = dict[str, Any]


@contextmanager
def server() -> Iterator[testing.StandaloneServer]:
    """Run a broker with file sizes as in production."""
    settings = {"mappedFileSizeCommitLog": str(1 << 30), "pocketmqMaxParkedPulls": "20000"}
    with testing.broker(settings=settings) as running:
        yield running


def frames_for(queues: int, size: int = KIB, *, prefix: str = "growth") -> list[bytes]:
    """Return a send request for each of ``queues`` queues, in topics of four queues."""
    return [
        send_frame(
            f"{prefix}-{number // QUEUES_OF_A_TOPIC}",
            number % QUEUES_OF_A_TOPIC,
            size,
            queues=QUEUES_OF_A_TOPIC,
        )
        for number in range(queues)
    ]


def sending(
    running: testing.StandaloneServer,
    seconds: float,
    *,
    connections: int = 4,
    queues: int = QUEUES_OF_A_TOPIC,
    size: int = KIB,
) -> Row:
    """Send messages to the queues in rotation and return the figures."""
    frames = frames_for(queues, size)
    send_each(running.broker, frames)
    inflight = max(1, min(64, MOST_IN_FLIGHT_BYTES // (size * connections)))
    return pump(
        running.broker,
        frames,
        connections=connections,
        inflight=inflight,
        seconds=seconds,
        warm=1.0,
        pid=running.pid,
    ).as_json()


def by_connections(count: int, seconds: float) -> Row:
    """Measure sends on ``count`` connections."""
    with server() as running:
        return sending(running, seconds, connections=count)


def by_queues(count: int, seconds: float) -> Row:
    """Measure sends to ``count`` queues, a restart, and the memory of each queue."""
    with server() as running:
        sending(running, 0.5)
        before = private_bytes(running.pid)
        figures = sending(running, seconds, queues=count)
        running.stop()
        started = time.perf_counter()
        running.restart()
        send_each(running.broker, frames_for(QUEUES_OF_A_TOPIC))
        after = time.perf_counter() - started
        taken = max(0, private_bytes(running.pid) - before)
        return {**figures, "restart_s": round(after, 3), "bytes_per_queue": taken // count}


def by_size(size: int, seconds: float) -> Row:
    """Measure sends of bodies of ``size`` bytes."""
    with server() as running:
        figures = sending(running, seconds, size=size)
        return {**figures, "mb_per_s": round(figures["per_s"] * size / 1e6, 1)}


def by_backlog(count: int, seconds: float) -> Row:
    """Measure pulls of a queue with ``count`` messages, from its start."""
    with server() as running:
        message = send_frame("backlog", 0, KIB, queues=1)
        for start in range(0, count, BACKLOG_BATCH):
            send_each(running.broker, [message] * min(BACKLOG_BATCH, count - start))
        frames = [pull_frame("backlog", 0, offset) for offset in range(0, count - 31, 32)]
        figures = pump(
            running.broker,
            frames,
            connections=1,
            inflight=4,
            seconds=seconds,
            warm=1.0,
            pid=running.pid,
        ).as_json()
        return {**figures, "messages_per_s": round(32 * figures["per_s"])}


def by_parked(count: int, seconds: float) -> Row:
    """Measure the idle CPU time of ``count`` parked pulls, and sends to other topics."""
    with server() as running, ExitStack() as stack:
        send_each(running.broker, frames_for(count, 1, prefix="parked"))
        lanes = parked(running.broker, count)
        for lane in lanes:
            stack.callback(lane.socket.close)
        time.sleep(1.0)
        before = cpu_seconds(running.pid)
        time.sleep(IDLE_SECONDS)
        idle = (cpu_seconds(running.pid) - before) / IDLE_SECONDS
        figures = sending(running, seconds)
        answered = _answered(lanes)
        return {**figures, "idle_core_percent": round(100 * idle, 2), "answered": answered}


def parked(address: str, count: int) -> list[Lane]:
    """Return connections with ``count`` pulls in total, parked at the ends of their queues."""
    frames = [
        pull_frame(
            f"parked-{number // QUEUES_OF_A_TOPIC}",
            number % QUEUES_OF_A_TOPIC,
            1,
            wait_s=PARKED_SECONDS,
        )
        for number in range(count)
    ]
    lanes = []
    for start in range(0, count, PARKED_PER_CONNECTION):
        lane = Lane(address)
        lane.send(frames[start : start + PARKED_PER_CONNECTION])
        lanes.append(lane)
    return lanes


def _answered(lanes: Sequence[Lane]) -> int:
    """Return how many of the parked pulls were answered: there should be none."""
    with selectors.DefaultSelector() as selector:
        for lane in lanes:
            selector.register(lane.socket, selectors.EVENT_READ, lane)
        return sum(len(key.data.receive()) for key, _ in selector.select(timeout=0))


AXES: Final[dict[str, tuple[Callable[[int, float], Row], Sequence[int]]]] = {
    "connections": (by_connections, (1, 4, 16, 64, 256)),
    "queues": (by_queues, (1, 10, 100, 1000, 10_000)),
    "size": (by_size, (16, 128, KIB, 16 * KIB, 128 * KIB, KIB * KIB)),
    "backlog": (by_backlog, (1000, 10_000, 100_000, 1_000_000)),
    "parked": (by_parked, (1, 100, 1000, 5000)),
}


def table(axis: str, rows: Sequence[Row]) -> str:
    """Return the table of one axis."""
    names = [axis, *(name for name in rows[0] if name != axis)]
    cells = [names, *([f"{row[name]:,}" for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--axis", action="append", choices=AXES, help="only this one; repeatable")
    parser.add_argument("--seconds", type=float, default=3.0, help="that count, of each row")
    parser.add_argument("--json", type=Path, help="write everything there as well")
    parser.add_argument("--chart", type=Path, help="where to draw it, as SVG")
    arguments = parser.parse_args()
    results: dict[str, list[Row]] = {}
    for axis in arguments.axis or AXES:
        measure, values = AXES[axis]
        results[axis] = [{axis: value, **measure(value, arguments.seconds)} for value in values]
        print(table(axis, results[axis]), end="\n\n", flush=True)
    facts = machine.facts()
    if arguments.chart:
        subtitle = f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}"
        arguments.chart.write_text(growth_chart.svg(results, subtitle))
    if arguments.json:
        content = {"machine": facts, "seconds": arguments.seconds, "axes": results}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
