"""Compares two workers with one: total messages per second, and CPU time per message."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Figures, spread
from benchmarks.scenarios import KIB, Scenario
from benchmarks.servers import HERE, directory, process, wait_until_registered
from benchmarks.tools import Target, load
from tests.support.ports import free_port, free_ports

WORKERS: Final = 2
NAME: Final = "bench"
MOST_EXTRA: Final = 1.15
"""The bar: the largest ratio of CPU time per message with two workers to that with one."""

LOAD: Final = Scenario(
    name="workers",
    text="send 1 KiB, 2 x 64 to each worker",
    mode="send",
    options={"conns": 2, "inflight": 64, "size": KIB},
    bars={},
)


@dataclass(slots=True)
class Workers:
    """The figures of each round: one worker alone, and both workers at the same time."""

    alone: list[Figures] = field(default_factory=list)
    together: list[list[Figures]] = field(default_factory=list)

    def text(self) -> str:
        """Return a line for the report."""
        rates, costs = [], []
        for one, both in zip(self.alone, self.together, strict=True):
            rates.append(sum(figures["per_s"] for figures in both) / one["per_s"])
            seconds = sum(figures["cpu_us_per"] * figures["n"] for figures in both)
            costs.append(seconds / sum(figures["n"] for figures in both) / one["cpu_us_per"])
        rate, cost = spread(rates), spread(costs)
        return (
            f"{WORKERS} workers beside one: "
            f"{rate.median:.2f} ({rate.low:.2f}-{rate.high:.2f}) times the rate; "
            f"CPU/msg {cost.median:.2f} ({cost.low:.2f}-{cost.high:.2f}) <= {MOST_EXTRA}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return all results for the JSON file."""
        return {"name": "workers", "alone": self.alone, "together": self.together}


def _pid(supervisor: int, number: int) -> int:
    """Return the process id of a worker, found by its broker name."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    name = f"brokerName={NAME}-{number}".encode()
    return next(int(pid) for pid in children if name in Path(f"/proc/{pid}/cmdline").read_bytes())


def measure(rounds: int, seconds: float, where: Path | None, python: Path = HERE) -> Workers:
    """Alternate load on the first worker with load on both."""
    result = Workers()
    with ExitStack() as stack:
        home = stack.enter_context(directory(where))
        port, broker_port = free_port(), free_ports(10 * WORKERS + 3)
        nameserver = f"127.0.0.1:{port}"
        pocketmq = [str(python), "-P", "-m", "pocketmq"]
        names = [*pocketmq, "nameserver", f"--port={port}", f"--set=kvConfigPath={home}/kv.json"]
        broker = [
            *(*pocketmq, "broker", f"--nameserver={nameserver}", f"--port={broker_port}"),
            *(f"--store={home}", f"--name={NAME}", f"--workers={WORKERS}"),
        ]
        log = home / "broker.log"
        stack.enter_context(process(names, home, home / "nameserver.log"))
        running = stack.enter_context(process(broker, home, log))
        wait_until_registered(nameserver, running, log, brokers=WORKERS)
        targets = [
            Target(nameserver, f"127.0.0.1:{broker_port + 10 * number}", _pid(running.pid, number))
            for number in range(WORKERS)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))

        def run(target: Target) -> Figures:
            return load(LOAD, target, seconds=seconds, warm=1.0)

        for number in range(rounds):
            if number % 2:
                result.together.append(list(pool.map(run, targets)))
            result.alone.append(run(targets[0]))
            if not number % 2:
                result.together.append(list(pool.map(run, targets)))
    return result
