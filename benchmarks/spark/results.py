"""The amounts of ``make bench-spark``, and its report: a row for each figure, with its bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.figures import Spread, spread

HEAD: Final = ("", "median (range)", "unit", "bar", "verdict")
SIZES: Final = (100, 1024)
"""Bytes of a body; bodies differ from that by a fifth."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amounts of a run.

    Attributes:
        rounds: the number of counted rounds.
        messages: messages of 100 B in each part; a quarter as many have 1 KiB.
        batches: empty micro-batches of a round.
        idle: seconds for which the requests of an idle query are counted.
        where: the directory for the stores that are read directly; None for temporary files.
    """

    rounds: int
    messages: int
    batches: int
    idle: float
    where: Path | None = None

    def counts(self, multiple: int) -> dict[int, int]:
        """Return the number of messages by size, rounded down to a multiple."""
        first, second = SIZES
        return {
            first: self.messages // multiple * multiple,
            second: self.messages // 4 // multiple * multiple,
        }


@dataclass(frozen=True, slots=True)
class Result:
    """One figure.

    Attributes:
        name: what was measured.
        unit: the unit of ``values`` and ``bar``.
        values: median and range over the rounds.
        bar: the limit for the median, or None.
        at_most: whether the bar is an upper limit.
    """

    name: str
    unit: str
    values: Spread
    bar: float | None = None
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the median reaches the bar; true without a bar."""
        if self.bar is None:
            return True
        if self.at_most:
            return self.values.median <= self.bar
        return self.values.median >= self.bar

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        median, low, high = map(_number, self.values)
        text = f"{median} ({low}-{high})"
        if self.bar is None:
            return self.name, text, self.unit, "", ""
        bar = f"{'<=' if self.at_most else '>='} {_number(self.bar)}"
        times = self.values.median / self.bar
        verdict = f"{'reached' if self.reached else 'MISSED'}, {times:.2f} of it"
        return self.name, text, self.unit, bar, verdict

    def as_json(self) -> dict[str, Any]:
        """Return the figure for the JSON file."""
        return {
            "name": self.name,
            "unit": self.unit,
            **self.values._asdict(),
            "bar": self.bar,
            "at_most": self.at_most,
            "reached": self.reached,
        }


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def table(results: Sequence[Result]) -> str:
    """Return the table, with aligned columns."""
    return report.aligned([HEAD, *(result.cells() for result in results)])


def rates(
    rounds: int,
    cases: Mapping[str, Callable[[], Mapping[str, float]]],
    bars: Mapping[str, float],
    unit: str = "rows/s",
) -> list[Result]:
    """Run all cases in each round, the first of which is a warm-up.

    Args:
        rounds: the number of counted rounds.
        cases: by name; each returns a rate for every way of doing it.
        bars: by the names of case and way, as in the table.
        unit: the unit of the rates.
    """
    values: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for case, run in cases.items():
            for way, rate in run().items():
                if number:
                    values.setdefault(f"{case}, {way}", []).append(rate)
    return [Result(name, unit, spread(all_), bars.get(name)) for name, all_ in values.items()]


def measure(part: str, plan: Plan) -> list[Result]:
    """Measure one part, the module of that name.

    It is here and not in ``__main__``, which a spawned process can't import.
    """
    results: list[Result] = import_module(f"benchmarks.spark.{part}").measure(plan)
    return results


def session(settings: Mapping[str, str] | None = None) -> Any:
    """Start Spark with two threads and additional settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("benchmarks")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        **(settings or {}),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
