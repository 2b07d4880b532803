"""Draws the results of ``benchmarks.growth`` as a page of small charts in SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

PANEL: Final = 300
"""The width of a chart with its margin, in pixels."""

HEIGHT: Final = 190
PLOT: Final = 110
TOP, LEFT, GAP = 46, 14, 20
COLUMNS: Final = 3
INK, BAR, LINE = "#1f2933", "#9fc0dd", "#c0392b"


class Panel(NamedTuple):
    """The chart of one axis.

    Attributes:
        title: its title: the parameter that is varied.
        rate: the key of the figure that is drawn as bars.
        unit: the unit of the bars.
    """

    title: str
    rate: str
    unit: str


PANELS: Final[Mapping[str, Panel]] = {
    "connections": Panel("connections, 64 sends in flight on each", "per_s", "sends/s"),
    "queues": Panel("queues written to in turn", "per_s", "sends/s"),
    "size": Panel("bytes of a message", "mb_per_s", "MB/s"),
    "backlog": Panel("messages of backlog, pulled by 32", "messages_per_s", "messages/s"),
    "parked": Panel("parked consumers, while others send", "per_s", "sends/s"),
}


def svg(axes: Mapping[str, Sequence[Mapping[str, Any]]], subtitle: str) -> str:
    """Return a page with a chart per axis: bars are rates, the line is the p99 latency in ms."""
    lines = -(-len(axes) // COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{COLUMNS * PANEL + LEFT}" '
        f'height="{TOP + lines * HEIGHT}" font-family="sans-serif" font-size="10" fill="{INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="15">As things get more</text>',
        f'<text x="{LEFT}" y="34" font-size="12">bars: rate; line: p99 of a request in ms. '
        f"{escape(subtitle)}</text>",
    ]
    for number, (axis, rows) in enumerate(axes.items()):
        down, across = divmod(number, COLUMNS)
        parts += _panel(axis, rows, LEFT + across * PANEL, TOP + down * HEIGHT)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(axis: str, rows: Sequence[Mapping[str, Any]], x: int, y: int) -> list[str]:
    panel = PANELS[axis]
    step = (PANEL - GAP) / len(rows)
    floor = y + 30 + PLOT
    most = max(row[panel.rate] for row in rows)
    slowest = max(row["p99_ms"] for row in rows)
    parts = [
        f'<text x="{x}" y="{y + 14}" font-size="11">{escape(panel.title)} ({panel.unit})</text>'
    ]
    points = []
    for column, row in enumerate(rows):
        left, middle = x + column * step, x + (column + 0.5) * step
        high = PLOT * row[panel.rate] / most
        late = floor - PLOT * row["p99_ms"] / slowest
        points.append(f"{middle:.1f},{late:.1f}")
        parts += [
            f'<rect x="{left + 2:.1f}" y="{floor - high:.1f}" width="{step - 4:.1f}" '
            f'height="{high:.1f}" fill="{BAR}"/>',
            _text(middle, floor - 4, short(row[panel.rate])),
            _text(middle, floor + 12, short(row[axis])),
            f'<circle cx="{middle:.1f}" cy="{late:.1f}" r="2.5" fill="{LINE}"/>',
            _text(middle, late - 5, f"{row['p99_ms']:.3g}", LINE),
        ]
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="{LINE}"/>'
    return [*parts, line, f'<path d="M{x} {floor}h{PANEL - GAP}" stroke="{INK}"/>']


def _text(x: float, y: float, text: str, fill: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="{fill}">{text}</text>'


def short(number: float) -> str:
    """Format a number in few characters: 12.3k, 1.25M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
