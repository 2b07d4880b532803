"""Draws the headline ratios as a bar chart in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.figures import Outcome

LEFT, WIDTH, ROW, TOP = 290, 520, 26, 44
INK, FILL, LINE = "#1f2933", "#3e7cb1", "#c0392b"


def svg(outcomes: Sequence[Outcome], subtitle: str) -> str:
    """Return the chart: bars with ranges; a red line is the ratio to reach, the dotted one is 1."""
    ratios = [outcome.ratio(outcome.scenario.headline) for outcome in outcomes]
    longest = max([1.0, *(ratio.high for ratio in ratios)])
    scale = WIDTH / (longest * 1.05)
    height = TOP + ROW * len(outcomes) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="18" font-size="15">PocketMQ against Apache RocketMQ: times better</text>',
        f'<text x="10" y="34">{escape(subtitle)}</text>',
    ]
    for row, (outcome, ratio) in enumerate(zip(outcomes, ratios, strict=True)):
        y = TOP + ROW * row
        middle = y + ROW / 2 - 2
        bar = outcome.scenario.bars[outcome.scenario.headline]
        low, high, at = (LEFT + value * scale for value in (ratio.low, ratio.high, bar))
        name = outcome.scenario.headline
        label = outcome.scenario.text + ("" if name == "rate" else f" ({name})")
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{ratio.median * scale:.1f}" height="{ROW - 10}" '
            f'fill="{FILL}"/>',
            f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}" stroke="{INK}"/>',
            f'<path d="M{at:.1f} {y}v{ROW - 4}" stroke="{LINE}" stroke-width="2"/>',
            f'<text x="{max(high, at) + 6:.1f}" y="{middle + 4:.1f}">{ratio.median:.2f}</text>',
        ]
    one = LEFT + scale
    parts.append(
        f'<path d="M{one:.1f} {TOP}V{height - 20}" stroke="{INK}" stroke-dasharray="2 3"/></svg>'
    )
    return "\n".join(parts) + "\n"
