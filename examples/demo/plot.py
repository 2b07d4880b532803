"""Draws lines over the days of a year in a self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from html import escape
from math import ceil, floor
from typing import Final

Series = Mapping[str, Sequence[tuple[date, float]]]
"""Maps the name of a line to its days and values, in order."""

WIDTH: Final = 960
HEIGHT: Final = 360
LEFT, TOP, BOTTOM = 48, 16, 28
TICKS: Final = 6
"""The most horizontal intervals of the grid."""

COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


def page(title: str, unit: str, series: Series, table: Sequence[Mapping[str, object]]) -> str:
    """Return the page as HTML.

    Args:
        title: the title above the plot.
        unit: the unit of the values.
        series: the lines.
        table: the rows of the table below the plot, all with the same columns.
    """
    columns = list(table[0]) if table else []
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(str(row[name]))}</td>" for name in columns) + "</tr>"
        for row in table
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><title>{escape(title)}</title>
<style>
body {{ font: 14px sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse }} th, td {{ padding: 2px 12px; text-align: left }}
tr:nth-child(even) {{ background: #f3f3f3 }}
</style></head><body>
<h1>{escape(title)}</h1>
{_svg(unit, series)}
<table><tr>{head}</tr>
{rows}
</table>
</body></html>
"""


def _svg(unit: str, series: Series) -> str:
    days = sorted({day for points in series.values() for day, _ in points})
    values = [value for points in series.values() for _, value in points]
    if not days:
        return "<p>No data.</p>"
    step = _step(max(1.0, *values) - min(0.0, *values))
    low = floor(min(0.0, *values) / step) * step
    high = ceil(max(1.0, *values) / step) * step
    span = max((days[-1] - days[0]).days, 1)

    def x(day: date) -> float:
        return LEFT + (day - days[0]).days / span * (WIDTH - LEFT - 8)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" role="img">'
    ]
    parts += (
        _grid(y(value), f"{value} {unit}" if value == high else f"{value}")
        for value in range(low, high + 1, step)
    )
    firsts = (day for day in days if day.day == 1)
    parts += (_text(x(first), HEIGHT - 8, f"{first:%b}", "#555") for first in firsts)
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{x(day):.1f},{y(value):.1f}" for day, value in points)
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.3" points="{line}"/>'
        )
        parts.append(_text(LEFT + 80 + 70 * number, TOP + 12, name, colour))
    return "\n".join([*parts, "</svg>"])


def _step(span: float) -> int:
    """Return a round step (1, 2 or 5 times a power of ten) with at most ``TICKS`` in the span."""
    power = 1
    while span / (5 * power) > TICKS:
        power *= 10
    return next(step for step in (power, 2 * power, 5 * power) if span / step <= TICKS)


def _grid(height: float, label: str) -> str:
    line = f'<path d="M{LEFT} {height:.1f}H{WIDTH - 8}" stroke="#ddd"/>'
    return line + _text(4, height + 4, label, "#555")


def _text(x: float, y: float, text: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="12">{escape(text)}</text>'
