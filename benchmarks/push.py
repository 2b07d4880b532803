"""Compare push consumers: PocketMQ's with Java's, and Java's on both brokers.

Both consumers read the same prefilled topics of 8 queues. Each run is a process with a new group,
which first consumes another topic as a warm-up, and then measures from the first handled message to
the last. The handler is empty; all settings except the batch size are the clients' defaults. The
latency is that from send to handler, with producer and consumer in one process, at 500 messages per
second; each client uses its own broker.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import client
from benchmarks.figures import Figures, Spread, spread
from benchmarks.scenarios import KIB
from benchmarks.servers import HERE, Pair, pair
from benchmarks.tools import BenchmarkError, Target, fill, java, run

QUEUES: Final = 8
RATE: Final = 500
RUN_SECONDS: Final = 240.0
"""The planned time of a run; it is stopped a minute later."""

Whose = Literal["ours", "theirs"]
Client = Literal["python", "java"]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a client on a broker."""

    name: str
    client: Client
    broker: Whose


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides at the same load.

    Attributes:
        name: its name on the command line.
        text: its description in the report.
        mode: concurrent, orderly, or deliver for the latency.
        bar: the least ratio: rate of first/second, or p50 of second/first.
        batch: the most messages passed to the handler.
        first, second: the two sides.
    """

    name: str
    text: str
    mode: str
    bar: float
    batch: int = 1
    first: Side = Side("PocketMQ's client", "python", "ours")
    second: Side = Side("Java's", "java", "ours")

    @property
    def by_latency(self) -> bool:
        """Whether the p50 is compared instead of the rate."""
        return self.mode == "deliver"


COMPARISONS: Final = (
    Comparison(
        name="push-concurrent", text="push consumer, concurrent", mode="concurrent", bar=1.0
    ),
    Comparison(name="push-orderly", text="push consumer, orderly", mode="orderly", bar=0.7),
    Comparison(
        name="push-batch", text="push consumer, batches of 32", mode="concurrent", bar=1.5, batch=32
    ),
    Comparison(
        name="push-latency",
        text="send to handler, 500/s",
        mode="deliver",
        bar=2.0,
        first=Side("PocketMQ", "python", "ours"),
        second=Side("Java", "java", "theirs"),
    ),
    Comparison(
        name="push-java",
        text="the Java push consumer, concurrent",
        mode="concurrent",
        bar=1.2,
        first=Side("on PocketMQ's broker", "java", "ours"),
        second=Side("on Java's", "java", "theirs"),
    ),
)
_QUANTILES: Final = ("p50_us", "p99_us")
NAMES: Final = tuple(comparison.name for comparison in COMPARISONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The amounts of a run.

    Attributes:
        messages: counted messages of a run.
        warm_up: messages consumed before as a warm-up.
        seconds: counted seconds of a latency run.
        latency_warm_up: seconds of warm-up before them.
    """

    messages: int
    warm_up: int
    seconds: float
    latency_warm_up: float


FULL: Final = Amounts(messages=400_000, warm_up=200_000, seconds=8.0, latency_warm_up=8.0)
QUICK: Final = Amounts(messages=50_000, warm_up=50_000, seconds=2.0, latency_warm_up=2.0)


@dataclass(slots=True)
class Result:
    """All rounds of a comparison; the two runs of a round are consecutive."""

    comparison: Comparison
    first: list[Figures] = field(default_factory=list)
    second: list[Figures] = field(default_factory=list)

    def ratio(self) -> Spread:
        """Return the ratios of the rounds; above 1 is better for the first side."""
        pairs = zip(self.first, self.second, strict=True)
        if self.comparison.by_latency:
            return spread([b["p50_us"] / a["p50_us"] for a, b in pairs])
        return spread([a["per_s"] / b["per_s"] for a, b in pairs])

    def text(self) -> str:
        """Return a line for the report."""
        comparison, ratio = self.comparison, self.ratio()
        sides = ", ".join(
            f"{side.name} {_said(comparison, runs)}"
            for side, runs in ((comparison.first, self.first), (comparison.second, self.second))
        )
        verdict = "reached" if ratio.median >= comparison.bar else "below"
        twice = sum(figures["extra"] for figures in (*self.first, *self.second))
        return (
            f"{comparison.text}: {sides}; {ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f}) "
            f">= {comparison.bar:g}: {verdict}"
        ) + (f"; {twice:.0f} messages came twice" if twice else "")

    def as_json(self) -> dict[str, Any]:
        """Return all results for the JSON file."""
        return {
            "name": self.comparison.name,
            "text": self.text(),
            "bar": self.comparison.bar,
            "ratio": self.ratio()._asdict(),
            self.comparison.first.name: [dict(figures) for figures in self.first],
            self.comparison.second.name: [dict(figures) for figures in self.second],
        }


def _said(comparison: Comparison, runs: Sequence[Figures]) -> str:
    cpu = spread([figures["cpu_us_per"] for figures in runs]).median
    if comparison.by_latency:
        p50, p99 = (spread([figures[name] for figures in runs]).median for name in _QUANTILES)
        return f"p50 {p50:,.0f} us, p99 {p99:,.0f} us ({cpu:.0f} us CPU each)"
    rate = spread([figures["per_s"] for figures in runs]).median
    return f"{rate:,.0f}/s ({cpu:.2f} us CPU each)"


class _Bench:
    """Runs comparisons on a pair of brokers, and fills topics when they are first needed."""

    def __init__(self, brokers: Pair, rounds: int, amounts: Amounts) -> None:
        self._brokers = brokers
        self._rounds = rounds
        self._amounts = amounts
        self._runs = 0
        self._stored: dict[tuple[Whose, str], int] = {}

    def measure(self, comparison: Comparison, say: Callable[[str], None]) -> Result:
        """Run all rounds of a comparison."""
        result = Result(comparison)
        sides = ((comparison.first, result.first), (comparison.second, result.second))
        for number in range(self._rounds):
            for side, runs in sides if number % 2 == 0 else sides[::-1]:
                runs.append(self._run(comparison, side))
            say(f"  {comparison.name} round {number + 1}: {_last(result)}")
        return result

    def _run(self, comparison: Comparison, side: Side) -> Figures:
        self._runs += 1
        target: Target = getattr(self._brokers, side.broker)
        program = {
            "python": [sys.executable, "-m", "benchmarks.push_lane"],
            "java": java("JavaConsume"),
        }[side.client]
        group = f"{comparison.name}-{self._runs}"
        words = [*program, comparison.mode, target.nameserver, group]
        amounts = self._amounts
        try:
            if comparison.by_latency:
                # A new topic, because a group without offsets begins at the first message.
                _create(target, group)
                words += [group, str(KIB), str(RATE)]
                words += [str(amounts.seconds), str(amounts.latency_warm_up)]
            else:
                words.append(str(comparison.batch))
                for topic, number in (("warm", amounts.warm_up), ("counted", amounts.messages)):
                    words += [topic, str(self._filled(side.broker, topic, number))]
            return run(words, RUN_SECONDS)
        except BenchmarkError as problem:
            raise BenchmarkError(f"{side.name}: {problem}") from problem

    def _filled(self, broker: Whose, topic: str, messages: int) -> int:
        """Fill a topic, unless it has been filled; return the number of its messages."""
        if (broker, topic) not in self._stored:
            target: Target = getattr(self._brokers, broker)
            fill(target, topic, messages, queues=QUEUES)
            self._stored[broker, topic] = _stored(target, topic)
        return self._stored[broker, topic]


def _last(result: Result) -> str:
    comparison = result.comparison
    first, second = (_said(comparison, runs[-1:]) for runs in (result.first, result.second))
    return f"{first} and {second}"


def _create(target: Target, topic: str) -> None:
    async def create() -> None:
        async with client.Admin(target.nameserver) as admin:
            await admin.create_topic(topic, queues=QUEUES)

    asyncio.run(create())


def _stored(target: Target, topic: str) -> int:
    async def count() -> int:
        async with client.Admin(target.nameserver) as admin:
            offsets = (await admin.topic_stats(topic)).values()
        return sum(offset.max_offset for offset in offsets)

    return asyncio.run(count())


def measure(
    names: Sequence[str],
    rounds: int,
    amounts: Amounts,
    where: Path | None,
    say: Callable[[str], None],
    python: Path = HERE,
) -> list[Result]:
    """Run the named comparisons on one pair of brokers.

    Raises:
        BenchmarkError: something could not be measured.
    """
    wanted = [comparison for comparison in COMPARISONS if comparison.name in names]
    if not wanted:
        return []
    with pair(where, python=python) as brokers:
        bench = _Bench(brokers, rounds, amounts)
        return [bench.measure(comparison, say) for comparison in wanted]
