"""Measurements of two sides in turns, beside the scenarios: starts, recovery, many queues, workers.

A recovery is the start after a broker with a filled log was killed. The Java push consumer reads
the same prefilled topics of eight queues from both brokers; each of its runs is a process with a
new group, which first consumes another topic as a warm-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import client
from benchmarks.figures import MORE_IS_BETTER, Figures, Spread, spread
from benchmarks.scenarios import KIB, Scenario
from benchmarks.servers import HERE, directory, ours, pair
from benchmarks.store import start
from benchmarks.tools import Target, fill, java, load, run
from tests.support.ports import free_ports

FEW_QUEUES: Final = 4
WORKERS: Final = 2
WORKERS_NAME: Final = "bench"
PUSH_QUEUES: Final = 8
PUSH_SECONDS: Final = 240.0
"""The planned time of a run of the push consumer; it is stopped a minute later."""

BODY_OF_WORKERS: Final = Scenario(
    name="workers",
    text="send 1 KiB, 2 x 64 to each worker",
    mode="send",
    options={"conns": 2, "inflight": 64, "size": KIB},
    bars={},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amounts of a run of ``python -m benchmarks``; times in seconds.

    Attributes:
        rounds: rounds per scenario.
        seconds: counted time of each run.
        warm_up: warm-up of the Java broker before the first round.
        settle: warm-up at the start of each run, not counted.
        client_warm_up: the same for runs of the Java producer, which is a new process each time.
        recovery_messages: messages of 1 KiB in the log that is recovered.
        push_messages: messages that the Java push consumer counts.
        push_warm_up: messages that it consumes before.
        queues: the larger number of queues that are sent to.
        catch_up_messages: messages of 1 KiB that a slave copies.
        where: the directory for the stores; None for temporary files.
        python: the interpreter of the environment in which PocketMQ runs.
        pure: whether to measure PocketMQ's Python path too.
    """

    rounds: int
    seconds: float
    warm_up: float
    settle: float = 1.0
    client_warm_up: float = 4.0
    recovery_messages: int = 900_000
    push_messages: int = 400_000
    push_warm_up: int = 200_000
    queues: int = 10_000
    catch_up_messages: int = 4_500_000
    where: Path | None = None
    python: Path = HERE
    pure: bool = False


@dataclass(slots=True, kw_only=True)
class Beside:
    """All rounds of two sides whose runs alternate.

    Attributes:
        name: its name on the command line.
        text: its description in the report.
        sides: the names of both; a ratio above 1 is better for the first.
        shown: the format of each figure in the report; the first one is the headline.
        bars: the least ratio by figure.
        runs: the figures of each side; runs with the same index are consecutive.
    """

    name: str
    text: str
    sides: tuple[str, str]
    shown: Mapping[str, str]
    bars: Mapping[str, float] = field(default_factory=dict)
    runs: dict[str, list[Figures]] = field(default_factory=dict)

    def measure(self, rounds: int, run_side: Callable[[str], Figures]) -> None:
        """Run all rounds, in the order A B B A."""
        for number in range(rounds):
            for side in self.sides if number % 2 == 0 else self.sides[::-1]:
                self.runs.setdefault(side, []).append(run_side(side))

    def ratio(self, figure: str) -> Spread:
        """Return the ratios of the rounds; above 1 is better for the first side."""
        pairs = zip(*(self.runs[side] for side in self.sides), strict=True)
        if figure in MORE_IS_BETTER:
            return spread([first[figure] / second[figure] for first, second in pairs])
        return spread([second[figure] / first[figure] for first, second in pairs])

    def line(self) -> str:
        """Return a line for the report."""
        parts = []
        for side in self.sides:
            medians = {
                name: spread([figures[name] for figures in self.runs[side]]).median
                for name in self.shown
            }
            parts.append(
                f"{side} "
                + ", ".join(text.format(medians[name]) for name, text in self.shown.items())
            )
        for figure in dict.fromkeys([next(iter(self.shown)), *self.bars]):
            ratio = self.ratio(figure)
            part = f"{figure} {ratio.text()} times"
            if figure in self.bars:
                verdict = "met" if ratio.median >= self.bars[figure] else "missed"
                part += f" >= {self.bars[figure]:g}: {verdict}"
            parts.append(part)
        twice = sum(run.get("extra", 0) for runs in self.runs.values() for run in runs)
        if twice:
            parts.append(f"{twice:.0f} messages came twice")
        return f"{self.text}: {'; '.join(parts)}"

    def as_json(self) -> dict[str, Any]:
        """Return all results for the JSON file."""
        figures = dict.fromkeys([next(iter(self.shown)), *self.bars])
        return {
            "name": self.name,
            "text": self.line(),
            "bars": dict(self.bars),
            "ratios": {figure: self.ratio(figure)._asdict() for figure in figures},
            "runs": {side: [dict(run) for run in runs] for side, runs in self.runs.items()},
        }


def starts(plan: Plan) -> Beside:
    """Measure starts of both brokers with empty stores."""
    return _starts("start", "start to first acknowledged send", plan, messages=0)


def recoveries(plan: Plan) -> Beside:
    """Measure starts of both brokers after filling their logs and killing them."""
    messages = plan.recovery_messages
    text = f"start after kill -9 with {messages:,} messages of 1 KiB"
    plan = replace(plan, rounds=max(plan.rounds // 2, 1))
    return _starts("recovery", text, plan, messages=messages)


def _starts(name: str, text: str, plan: Plan, *, messages: int) -> Beside:
    made = Beside(
        name=name,
        text=text,
        sides=("PocketMQ", "Apache"),
        shown={"seconds": "{:.3f} s", "private_mb": "{:.0f} MB private"},
    )
    commands: dict[str, Callable[[int, Path], list[str]]] = {
        "PocketMQ": partial(start.ours, python=plan.python),
        "Apache": start.theirs,
    }

    def once(side: str) -> Figures:
        with directory(plan.where) as home:
            port = free_ports(3)
            command = commands[side](port, home)
            if messages:
                with start.process(command) as (running, started):
                    start.seconds_until_acknowledged(port, started)
                    fill(Target("", f"127.0.0.1:{port}", running.pid), "filled", messages)
            return start.start_once(command, port)

    made.measure(plan.rounds, once)
    return made


def queues(plan: Plan) -> Beside:
    """Compare the rate of sends to many queues with that to four, on one broker."""
    many = plan.queues
    loads = {
        f"{count:,} queues": Scenario(
            name=f"queues-{count}",
            text=f"send 1 KiB, 4 x 64, {count} queues",
            mode="send",
            options={"conns": 4, "inflight": 64, "size": KIB, "queues": count},
            bars={},
        )
        for count in (many, FEW_QUEUES)
    }
    first, second = loads
    made = Beside(
        name="send-queues",
        text="send 1 KiB, 4 x 64",
        sides=(first, second),
        shown={"per_s": "{:,.0f}/s"},
        bars={"per_s": 0.5},
    )
    with (
        directory(plan.where) as home,
        ours(home / "pocketmq", sync_flush=False, python=plan.python) as target,
    ):
        # A send would create at most eight queues.
        _create(target, {each.name: each.options["queues"] for each in loads.values()})
        for each in loads.values():
            # The first message of a queue creates its file, which is not to be measured.
            count = each.options["queues"]
            fill(target, each.name, 2 * count, queues=count)
        made.measure(
            plan.rounds, lambda side: load(loads[side], target, seconds=plan.seconds, warm=1.0)
        )
    return made


def workers(plan: Plan) -> Beside:
    """Compare two workers with one: the total rate, and the CPU time per message."""
    both, alone = f"{WORKERS} workers", "1 worker"
    made = Beside(
        name="workers",
        text=BODY_OF_WORKERS.text,
        sides=(both, alone),
        shown={"per_s": "{:,.0f}/s", "cpu_us_per": "{:.2f} us CPU each"},
        # At most 1.15 times the CPU time per message.
        bars={"cpu_us_per": 1 / 1.15},
    )
    with (
        directory(plan.where) as home,
        ours(
            home,
            sync_flush=False,
            python=plan.python,
            options=[f"--name={WORKERS_NAME}", f"--workers={WORKERS}"],
            brokers=WORKERS,
        ) as first,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        host, _, port = first.broker.partition(":")
        targets = [
            Target(
                first.nameserver,
                f"{host}:{int(port) + 10 * number}",
                _pid_of_worker(first.pid, number),
            )
            for number in range(WORKERS)
        ]

        def loaded(side: str) -> Figures:
            runs = list(
                pool.map(
                    lambda target: load(BODY_OF_WORKERS, target, seconds=plan.seconds, warm=1.0),
                    targets if side == both else targets[:1],
                )
            )
            total = sum(figures["n"] for figures in runs)
            cpu = sum(figures["cpu_us_per"] * figures["n"] for figures in runs)
            return {
                "per_s": sum(figures["per_s"] for figures in runs),
                "cpu_us_per": cpu / total,
                "n": total,
            }

        made.measure(plan.rounds, loaded)
    return made


def _pid_of_worker(supervisor: int, number: int) -> int:
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    name = f"brokerName={WORKERS_NAME}-{number}".encode()
    return next(int(pid) for pid in children if name in Path(f"/proc/{pid}/cmdline").read_bytes())


def push(plan: Plan) -> Beside:
    """Compare the Java push consumer at both brokers."""
    made = Beside(
        name="push-java",
        text="the Java push consumer, concurrent",
        sides=("on PocketMQ's broker", "on Apache's"),
        shown={"per_s": "{:,.0f}/s", "cpu_us_per": "{:.2f} us CPU each"},
        bars={"per_s": 1.2},
    )
    topics = {"warm": plan.push_warm_up, "counted": plan.push_messages}
    with pair(plan.where, python=plan.python) as brokers:
        targets = dict(zip(made.sides, (brokers.ours, brokers.theirs), strict=True))
        for target in targets.values():
            for topic, messages in topics.items():
                fill(target, topic, messages, queues=PUSH_QUEUES)
        stored = {
            (side, topic): _stored(target, topic)
            for side, target in targets.items()
            for topic in topics
        }

        def consumed(side: str) -> Figures:
            group = f"push-{len(made.runs.get(side, ()))}"
            words = [*java("JavaConsume"), targets[side].nameserver, group]
            for topic in topics:
                words += [topic, str(stored[side, topic])]
            return run(words, PUSH_SECONDS)

        made.measure(plan.rounds, consumed)
    return made


def _create(target: Target, topics: Mapping[str, int]) -> None:
    async def create() -> None:
        async with client.Admin(target.nameserver) as admin:
            for topic, count in topics.items():
                await admin.create_topic(topic, queues=count)

    asyncio.run(create())


def _stored(target: Target, topic: str) -> int:
    async def count() -> int:
        async with client.Admin(target.nameserver) as admin:
            offsets = (await admin.topic_stats(topic)).values()
        return sum(offset.max_offset for offset in offsets)

    return asyncio.run(count())


PARTS: Final[Mapping[str, Callable[[Plan], Beside]]] = {
    "send-queues": queues,
    "start": starts,
    "recovery": recoveries,
    "workers": workers,
    "push-java": push,
}
