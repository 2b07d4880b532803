"""The report: a table with a row per scenario, with ratios and bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.figures import RATIOS, Outcome, Spread

HEAD = (
    *("scenario", "PocketMQ", "Apache", "rate", "p50", "p99", "CPU/msg", "MB private"),
    *("Python path", "verdict"),
)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table; ratios are median (low-high), followed by their bar, if any."""
    return aligned([HEAD, *(_row(outcome) for outcome in outcomes)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _row(outcome: Outcome) -> tuple[str, ...]:
    bars = outcome.scenario.all_bars
    ratios = {name: _ratio(outcome.ratio(name), bars.get(name)) for name in RATIOS}
    verdict = "missed: " + ", ".join(outcome.below) if outcome.below else "met"
    for whose, name in (("ours", "PocketMQ"), ("theirs", "Apache")):
        if refused := outcome.refused(whose):
            verdict += f"; {name} refused {refused} requests"
    return (
        outcome.scenario.text,
        *(_absolute(outcome, whose) for whose in ("ours", "theirs")),
        *(ratios[name] for name in ("rate", "p50", "p99", "cpu")),
        f"{outcome.memory['ours']:.0f} / {outcome.memory['theirs']:.0f}",
        _pure(outcome),
        verdict,
    )


def _pure(outcome: Outcome) -> str:
    if not outcome.pure:
        return "-"
    rate, p50, p99, cpu = (outcome.ratio(name, "pure").median for name in RATIOS)
    return f"{rate:.2f}, {p50:.2f}/{p99:.2f}, CPU {cpu:.2f}"


def _absolute(outcome: Outcome, whose: str) -> str:
    rate = outcome.median(whose, "per_s")
    p50, p99 = outcome.median(whose, "p50_us"), outcome.median(whose, "p99_us")
    return f"{rate:,.0f}/s {p50:,.0f}/{p99:,.0f} us"


def _ratio(ratio: Spread, bar: float | None) -> str:
    text = f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
    return text if bar is None else f"{text} >= {bar:g}"


def machine_line(facts: dict[str, Any]) -> str:
    """Return machine and interpreter in one line."""
    build = "profile-guided" if facts["profile_guided"] else "not profile-guided"
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB; "
        f"Python {facts['python']}, a {build} build ({facts['interpreter']}); {facts['java']}"
    )


def heading(facts: dict[str, Any]) -> str:
    """Return the heading: machine, interpreter and environment, and how to read the table."""
    return (
        f"{machine_line(facts)}\n"
        f"{facts['environment']}\n"
        "Ratios: median (range) of interleaved rounds; more than 1 is better for PocketMQ. "
        "Beside a rate: p50/p99. "
        "Python path: rate, p50/p99 and CPU/msg with POCKETMQ_PURE=1, against Apache too."
    )
