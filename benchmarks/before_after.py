"""Compare the broker of an earlier commit with that of the working tree, at ``make bench``'s loads.

    python -m benchmarks.before_after --before REV
        [--after REV] [--different-cores] [--pairs 10] [--only send-4x64 ...] [--seconds 3]
        [--dir DIR] [--json FILE]

REV is checked out into a temporary git worktree. ``--after`` replaces the working tree; comparing a
commit with itself shows the random variation of the ratios. The wheel of each side is installed
with its runtime dependencies in a separate environment; both have to run the same core. A pair is
two consecutive runs, in the order A B B A. The brokers are restarted with empty stores after two
pairs, so that properties of a single process (addresses of objects, hash seeds) are not mistaken
for a difference between commits.

CPU time is counted until the broker is idle, see ``resting``, and the limits apply to that. The CPU
time while the load ran is shown too; that is how ``make bench`` measures Apache's broker.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import environments, machine, report, resting
from benchmarks.environments import Environment
from benchmarks.figures import RATIOS, Figures, Spread, spread
from benchmarks.scenarios import PREFILL, SCENARIOS, Scenario
from benchmarks.servers import directory, ours
from benchmarks.tools import BenchmarkError, Target, fill, load, loadgen, say

ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT_LOADS: Final = (
    *("send-mixed", "send-topics", "pull-mixed"),
    *("send-1x1", "send-1x16", "send-4x64", "send-128b-4x64", "batch", "sync-4x64"),
    *("pull-1", "pull-4", "long-poll"),
)
LOADS: Final = {item.name: item for item in SCENARIOS if not item.by_java_client and not item.tls}
PAIRS_OF_A_LIFE: Final = 2

MOST_CPU: Final = 1.05
"""The largest permitted ratio of CPU time per message, after/before."""

LEAST: Final = 0.9
"""The least permitted ratio of a rate, after/before; for a latency the limit is the inverse."""

HEAD: Final = ("load", "before", "after", "rate", "CPU/msg", "under load", "p50", "p99", "verdict")
LEGEND: Final = (
    "Ratios are after/before: median (range) of the pairs. Beside a rate: p50/p99; then CPU/msg,"
    " with what was done when the load was over; `under load`: without that."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The amounts of a run; times in seconds."""

    pairs: int = 10
    seconds: float = 3.0
    warm_up: float = 0.5
    prefill: int = PREFILL
    where: Path | None = None


FULL: Final = Plan()


@dataclass(slots=True)
class Comparison:
    """All pairs of a load; entries of ``before`` and ``after`` with the same index are a pair."""

    scenario: Scenario
    before: list[Figures] = field(default_factory=list)
    after: list[Figures] = field(default_factory=list)

    def ratio(self, name: str) -> Spread:
        """Return the ratio after/before of a figure."""
        figure, _ = RATIOS[name]
        pairs = zip(self.before, self.after, strict=True)
        return spread([b[figure] / a[figure] if a[figure] else 0.0 for a, b in pairs])

    @property
    def under_load(self) -> Spread:
        """The ratio after/before of CPU time per message while the load ran."""
        pairs = zip(self.before, self.after, strict=True)
        return spread([b["cpu_us_at_once"] / a["cpu_us_at_once"] for a, b in pairs])

    @property
    def missed(self) -> list[str]:
        """The limits that are exceeded, as text."""
        texts = []
        for name, bar in bars(self.scenario).items():
            median = self.ratio(name).median
            if median < bar if RATIOS[name][1] else median > bar:
                texts.append(f"{name} {median:.3f}, not {_bar(name, bar)}")
        return texts

    def as_json(self) -> dict[str, Any]:
        """Return all results for the JSON file."""
        return {
            "name": self.scenario.name,
            "text": self.scenario.text,
            "bars": bars(self.scenario),
            "ratios": {name: self.ratio(name)._asdict() for name in RATIOS},
            "cpu_under_load": self.under_load._asdict(),
            "missed": self.missed,
            "before": [dict(figures) for figures in self.before],
            "after": [dict(figures) for figures in self.after],
        }


def bars(scenario: Scenario) -> dict[str, float]:
    """Return the limits: for CPU time per message and all figures limited by ``make bench``."""
    return {
        "cpu": MOST_CPU,
        **{name: LEAST if RATIOS[name][1] else 1 / LEAST for name in scenario.bars},
    }


def _bar(name: str, bar: float) -> str:
    return f"{'>=' if RATIOS[name][1] else '<='} {bar:.3g}"


# --- the two trees


def git(*words: str, tree: Path = ROOT) -> str:
    """Run git in a tree and return its output. Raises BenchmarkError with its message."""
    return environments.run(["git", "-C", tree, *words])


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check out a commit into a worktree that is removed at the end of the block."""
    home = Path(tempfile.mkdtemp(prefix="pocketmq-before-"))
    tree = home / "tree"
    try:
        git("worktree", "add", "--detach", str(tree), revision)
        yield tree
    finally:
        if tree.exists():
            git("worktree", "remove", "--force", str(tree))
        shutil.rmtree(home, ignore_errors=True)


def name_of(tree: Path) -> str:
    """Return a tree's commit, with a suffix if there are uncommitted changes."""
    return git("describe", "--always", "--dirty", "--exclude=*", tree=tree)


def check_cores(sides: Mapping[str, Environment], *, allowed: bool) -> None:
    """Check that both sides run the same core.

    Raises:
        BenchmarkError: they don't, and that is not allowed.
    """
    before, after = sides["before"].core, sides["after"].core
    if before != after and not allowed:
        raise BenchmarkError(
            f"before runs the core {before!r}, after {after!r}: --different-cores allows that"
        )


# --- measuring


def compare(scenario: Scenario, pythons: Mapping[str, Path], plan: Plan) -> Comparison:
    """Run all pairs of a load."""
    made = Comparison(scenario)
    for life, first in enumerate(range(0, plan.pairs, PAIRS_OF_A_LIFE)):
        with ExitStack() as stack:
            home = stack.enter_context(directory(plan.where))
            targets = {
                side: stack.enter_context(
                    ours(home / side, sync_flush=scenario.sync_flush, python=python)
                )
                for side, python in pythons.items()
            }
            for target in targets.values():
                _prepare(scenario, target, plan)
            for pair in range(first, min(first + PAIRS_OF_A_LIFE, plan.pairs)):
                for side in order(pair, life):
                    figures = resting.load(scenario, targets[side], seconds=plan.seconds)
                    getattr(made, side).append(figures)
                say(f"  {scenario.name} pair {pair + 1}: {_last(made)}")
    return made


def order(pair: int, life: int) -> tuple[str, str]:
    """Return the order of a pair: A B, B A, and the reverse after the next restart."""
    return ("before", "after") if (pair + life) % 2 == 0 else ("after", "before")


def _prepare(scenario: Scenario, target: Target, plan: Plan) -> None:
    if scenario.mode in {"pull", "push"}:
        fill(target, scenario.name, plan.prefill, vary="vary" in scenario.options)
    load(scenario, target, seconds=plan.warm_up, warm=0.0)
    resting.rest(target.pid, resting.REST_SECONDS)


def _last(made: Comparison) -> str:
    before, after = made.before[-1], made.after[-1]
    return "; ".join(
        f"{name} {before[figure]:,.1f} -> {after[figure]:,.1f}"
        for name, (figure, _) in RATIOS.items()
    )


# --- reporting


def table(comparisons: Sequence[Comparison]) -> str:
    """Return a table with a row per load, and the ratio of CPU time per message over all loads."""
    text = report.aligned([HEAD, *(_row(made) for made in comparisons)])
    ratios = [math.log(made.ratio("cpu").median) for made in comparisons]
    mean = math.exp(sum(ratios) / len(ratios))
    return f"{text}\nCPU/msg over all loads (geometric mean of the medians): {mean:.3f}"


def _row(made: Comparison) -> tuple[str, ...]:
    kept = bars(made.scenario)
    cells = []
    for name in ("rate", "cpu", "p50", "p99"):
        ratio = made.ratio(name)
        bar = f" {_bar(name, kept[name])}" if name in kept else ""
        cells.append(f"{_told(ratio)}{bar}")
        if name == "cpu":
            cells.append(_told(made.under_load))
    verdict = "missed: " + ", ".join(made.missed) if made.missed else "kept"
    return (
        *(made.scenario.name, _absolute(made.before), _absolute(made.after)),
        *(*cells, verdict),
    )


def _told(ratio: Spread) -> str:
    return f"{ratio.median:.3f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _absolute(runs: Sequence[Figures]) -> str:
    rate, p50, p99, cpu = (
        spread([figures[name] for figures in runs]).median
        for name in ("per_s", "p50_us", "p99_us", "cpu_us_per")
    )
    return f"{rate:,.0f}/s {p50:,.0f}/{p99:,.0f} us {cpu:.2f} us"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.before_after", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--before", required=True, metavar="REV", help="a commit")
    parser.add_argument("--after", metavar="REV", help="a commit [the working tree]")
    parser.add_argument(
        "--different-cores", action="store_true", help="compare a compiled core with Python's"
    )
    parser.add_argument(
        "--only", action="append", choices=LOADS, metavar="LOAD", help=" ".join(LOADS)
    )
    parser.add_argument("--pairs", type=int, default=FULL.pairs, help=f"[{FULL.pairs}]")
    parser.add_argument(
        "--seconds", type=float, default=FULL.seconds, help=f"of each run [{FULL.seconds:g}]"
    )
    parser.add_argument(
        "--dir", type=Path, help="where the stores lie: a real disk with 20 GB free"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure of every run")
    return parser.parse_args(words)


def run(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Measure and print; return the content of the JSON file.

    Raises:
        BenchmarkError: a program is missing, or a run failed.
    """
    if shutil.which("cc") is None:
        raise BenchmarkError("cc builds the load generator; Debian: apt install gcc libc6-dev")
    loadgen()
    calibrations = [machine.calibration_ms()]
    comparisons = []
    after = options.after
    with ExitStack() as stack:
        trees = {
            "before": stack.enter_context(checked_out(options.before)),
            "after": stack.enter_context(checked_out(after)) if after else ROOT,
        }
        sides = {side: environments.of(tree) for side, tree in trees.items()}
        check_cores(sides, allowed=options.different_cores)
        pythons = {side: made.python for side, made in sides.items()}
        for name in options.only or DEFAULT_LOADS:
            comparisons.append(compare(LOADS[name], pythons, plan))
            calibrations.append(machine.calibration_ms())
        names = {side: name_of(tree) for side, tree in trees.items()}
    quiet = spread(calibrations)
    print(", ".join(f"{side}: {name}, core {sides[side].core}" for side, name in names.items()))
    print(LEGEND)
    print(f"Calibration loop: {quiet.median:.2f} ms ({quiet.low:.2f}-{quiet.high:.2f})\n")
    print(table(comparisons))
    return {
        "machine": machine.facts(),
        **names,
        "cores": {side: made.core for side, made in sides.items()},
        "seconds": plan.seconds,
        "calibration_ms": calibrations,
        "loads": [made.as_json() for made in comparisons],
    }


def main() -> int:
    """Measure and print; return 1 if something could not be measured."""
    options = arguments()
    plan = Plan(pairs=options.pairs, seconds=options.seconds, where=options.dir)
    try:
        document = run(options, plan)
    except BenchmarkError as problem:
        say(str(problem))
        return 1
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
