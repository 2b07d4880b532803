"""The figures of interleaved runs, their ratios, and whether these reach the bars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from benchmarks.scenarios import Scenario

Figures = Mapping[str, float]

RATIOS: Final = {
    "rate": ("per_s", True),
    "p50": ("p50_us", False),
    "p99": ("p99_us", False),
    "cpu": ("cpu_us_per", False),
}
"""Maps the name of a ratio to its figure, and to whether a larger figure is better."""

MORE_IS_BETTER: Final = {figure for figure, more_is_better in RATIOS.values() if more_is_better}
"""Figures of which a larger one is better."""


class Spread(NamedTuple):
    """Median and range."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """Return the median with the range in brackets."""
        median, low, high = (f"{value:,.{digits}f}" for value in self)
        return f"{median} ({low}-{high})"


def spread(values: Sequence[float]) -> Spread:
    """Return median and range of some values."""
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(slots=True)
class Outcome:
    """All rounds of a scenario; runs with the same index are consecutive."""

    scenario: Scenario
    ours: list[Figures] = field(default_factory=list)
    theirs: list[Figures] = field(default_factory=list)
    pure: list[Figures] = field(default_factory=list)
    """PocketMQ on its Python path; empty if that is not measured."""

    memory: dict[str, float] = field(default_factory=dict)
    """Private megabytes after the load: ``ours`` and ``theirs``."""

    def ratio(self, name: str, whose: str = "ours") -> Spread:
        """Return the ratios of ``ours`` or ``pure`` to Apache; above 1 is better for PocketMQ."""
        runs: list[Figures] = getattr(self, whose)
        figure, more_is_better = RATIOS[name]
        pairs = [(a[figure], b[figure]) for a, b in zip(runs, self.theirs, strict=True)]
        if not more_is_better:
            pairs = [(b, a) for a, b in pairs]
        return spread([a / b if b else 0.0 for a, b in pairs])

    def median(self, whose: str, figure: str) -> float:
        """Return a figure's median over the rounds of ``ours`` or ``theirs``."""
        rounds: list[Figures] = getattr(self, whose)
        return statistics.median(figures[figure] for figures in rounds)

    def refused(self, whose: str) -> int:
        """Return the number of refused requests of ``ours`` or ``theirs`` in all rounds."""
        rounds: list[Figures] = getattr(self, whose)
        return sum(int(figures["errs"]) for figures in rounds)

    @property
    def below(self) -> list[str]:
        """The bars that are not reached, as text."""
        return [
            f"{name} {self.ratio(name).median:.2f} < {bar:g}"
            for name, bar in self.scenario.all_bars.items()
            if self.ratio(name).median < bar
        ]

    def as_json(self) -> dict[str, Any]:
        """Return all results for the JSON file."""
        return {
            "name": self.scenario.name,
            "text": self.scenario.text,
            "bars": self.scenario.all_bars,
            "ratios": {name: self.ratio(name)._asdict() for name in RATIOS},
            "below": self.below,
            "private_megabytes": self.memory,
            "pocketmq": [dict(figures) for figures in self.ours],
            "pure": [dict(figures) for figures in self.pure],
            "apache": [dict(figures) for figures in self.theirs],
        }
