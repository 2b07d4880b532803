"""The results of the rounds: medians, ranges, ratios within rounds, and bars.

Ratios above 1 are better for us: our rate divided by theirs, and their latency divided by ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from benchmarks.figures import spread

OURS: Final = "pocketmq"
PRODUCE, CONSUME, DELIVER = PHASES = ("produce", "consume", "deliver")

BARS: Final[Mapping[tuple[str, str], float]] = {
    ("confluent-kafka", PRODUCE): 1.3,
    ("confluent-kafka", CONSUME): 0.9,
    ("confluent-kafka", DELIVER): 1.0,
    ("aiokafka", PRODUCE): 3.0,
    ("aiokafka", CONSUME): 2.5,
    ("aiokafka", DELIVER): 1.0,
}
"""The least ratios, by the other client and phase."""

_WHAT: Final = {
    PRODUCE: "produce, messages/s",
    CONSUME: "consume, messages/s",
    DELIVER: "delivery p50, shorter by",
}
_MICROSECONDS: Final = 1e6


class Run(NamedTuple):
    """One phase of one round: messages per second, all other figures in microseconds."""

    rate: float
    cpu_us: float
    p50_us: float | None
    p99_us: float | None

    @classmethod
    def of(cls, messages: int, seconds: float, cpu: float, latencies: Sequence[float]) -> Run:
        """Compute the figures from the times measured by a lane, in seconds."""
        ordered = sorted(latencies)
        return cls(
            messages / seconds,
            cpu / messages * _MICROSECONDS,
            percentile(ordered, 0.50) * _MICROSECONDS if ordered else None,
            percentile(ordered, 0.99) * _MICROSECONDS if ordered else None,
        )


Runs: TypeAlias = Mapping[str, Mapping[str, Sequence[Run]]]
"""The runs of all rounds in order, by client and phase."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values; ``share`` is between 0 and 1."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Comparison(NamedTuple):
    """The ratios between us and another client in one phase, by round."""

    client: str
    phase: str
    ratios: tuple[float, ...]
    bar: float | None

    @property
    def met(self) -> bool | None:
        """Whether the median meets the bar; None without a bar."""
        return None if self.bar is None else spread(self.ratios).median >= self.bar

    def line(self) -> str:
        """Return a line for the report."""
        bar = "" if self.bar is None else f"  bar {self.bar:g}: {'met' if self.met else 'MISSED'}"
        return f"{self.client:17} {_WHAT[self.phase]:26} {spread(self.ratios).text():20}{bar}"

    def as_json(self) -> dict[str, object]:
        """Return the ratios for the JSON file."""
        return {**self._asdict(), "median": spread(self.ratios).median, "met": self.met}


def compare(runs: Runs) -> list[Comparison]:
    """Compare our client with every other client that was measured."""
    ours = runs.get(OURS, {})
    return [
        Comparison(
            client,
            phase,
            tuple(_ratio(a, b) for a, b in zip(ours[phase], phases[phase], strict=True)),
            BARS.get((client, phase)),
        )
        for client, phases in runs.items()
        if client != OURS
        for phase in PHASES
        if phase in ours and phase in phases
    ]


def _ratio(ours: Run, theirs: Run) -> float:
    if ours.p50_us is not None and theirs.p50_us is not None:
        return theirs.p50_us / ours.p50_us
    return ours.rate / theirs.rate


def table(runs: Runs, guarantees: Mapping[str, str]) -> str:
    """Return a table with the medians and ranges of every client, and the comparisons."""
    lines = [
        f"{'':17} {'produce, messages/s':30} {'CPU us':>6}  {'consume, messages/s':32}"
        f" {'CPU us':>6}  {'delivery p50 / p99, us':24} guarantee"
    ]
    for client, phases in runs.items():
        produce, consume, deliver = (phases[phase] for phase in PHASES)
        lines.append(
            f"{client:17} {_rates(produce):30} {_cpu(produce):6.2f}  {_rates(consume):32}"
            f" {_cpu(consume):6.2f}  {_latency(deliver):24} {guarantees[client]}"
        )
    comparisons = compare(runs)
    if comparisons:
        lines += ["", "ours against each: medians of the rounds' ratios (range)"]
        lines += [comparison.line() for comparison in comparisons]
    return "\n".join(lines)


def _rates(runs: Sequence[Run]) -> str:
    rates = [run.rate for run in runs]
    return f"{statistics.median(rates):>9,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def _cpu(runs: Sequence[Run]) -> float:
    return statistics.median(run.cpu_us for run in runs)


def _latency(runs: Sequence[Run]) -> str:
    p50 = statistics.median(run.p50_us for run in runs if run.p50_us is not None)
    p99 = statistics.median(run.p99_us for run in runs if run.p99_us is not None)
    return f"{p50:,.0f} / {p99:,.0f}"


def report(runs: Runs) -> dict[str, object]:
    """Return every run and every ratio for the JSON file."""
    return {
        "runs": {
            client: {phase: [run._asdict() for run in rounds] for phase, rounds in phases.items()}
            for client, phases in runs.items()
        },
        "comparisons": [comparison.as_json() for comparison in compare(runs)],
    }
