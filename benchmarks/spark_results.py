"""The report of ``make bench-spark``: a row for each figure, with its range and its bar."""

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
        unit: the unit of ``found`` and ``bar``.
        found: median and range over the rounds.
        bar: the limit for the median, or None.
        at_most: whether the bar is an upper limit.
    """

    name: str
    unit: str
    found: Spread
    bar: float | None = None
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the median reaches the bar; true without a bar."""
        if self.bar is None:
            return True
        if self.at_most:
            return self.found.median <= self.bar
        return self.found.median >= self.bar

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
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
        """Return the figure for the JSON file."""
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
    """Return the table, with aligned columns."""
    rows = [HEAD, *(result.cells() for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
