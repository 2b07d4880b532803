"""What ``make bench-spark`` prints: a row a figure, with its range and its bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.figures import Spread

HEAD: Final = ("", "median (range)", "unit", "bar", "verdict")


@dataclass(frozen=True, slots=True)
class Result:
    """One figure.

    Attributes:
        name: what was measured.
        unit: of ``found`` and ``bar``.
        found: median and range over the rounds.
        bar: what the median has to be; None: nothing depends on it.
        at_most: the bar is an upper one.
    """

    name: str
    unit: str
    found: Spread
    bar: float | None = None
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the median is as good as it has to be."""
        if self.bar is None:
            return True
        if self.at_most:
            return self.found.median <= self.bar
        return self.found.median >= self.bar

    def cells(self) -> tuple[str, ...]:
        """The row of the table, without its verdict's ratio when it has no bar."""
        spread = (
            f"{_number(self.found.median)} ({_number(self.found.low)}-{_number(self.found.high)})"
        )
        if self.bar is None:
            return self.name, spread, self.unit, "", ""
        bar = f"{'<=' if self.at_most else '>='} {_number(self.bar)}"
        times = self.found.median / self.bar
        verdict = f"{'reached' if self.reached else 'MISSED'}, {times:.2f} of it"
        return self.name, spread, self.unit, bar, verdict

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "unit": self.unit,
            **self.found._asdict(),
            "bar": self.bar,
            "at_most": self.at_most,
            "reached": self.reached,
        }


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def table(results: Sequence[Result]) -> str:
    """All rows, aligned."""
    rows = [HEAD, *(result.cells() for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
