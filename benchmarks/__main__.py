"""Compare PocketMQ with Apache RocketMQ 4.9.7 on this machine.

    make bench                        everything, in about forty minutes
    python -m benchmarks --quick      everything, but too short for reliable figures
    python -m benchmarks --only send-4x64 --only start --json figures.json --chart chart.svg

Needs cc, a JDK and Maven. Both brokers run on loopback with default settings (Apache's with a heap
of 1 GiB). Java warms up for ten seconds at each load before anything is counted. The runs of the
two brokers alternate (A B B A), and a ratio is that of two consecutive runs, so that slow phases of
the machine affect both. The CPU time of PocketMQ is counted until the broker is idle, because it
builds its index after the load, that of Apache while the load runs. PocketMQ runs in a separate
environment with the wheel of this tree and its runtime dependencies, created with the interpreter
that runs this program.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import beside, chart, environments, groups, machine, replication, report, resting
from benchmarks.beside import Plan
from benchmarks.figures import Outcome, spread
from benchmarks.scenarios import PREFILL, SCENARIOS, Scenario
from benchmarks.servers import Pair, pair
from benchmarks.tools import BenchmarkError, check, fill, load, say
from pocketmq.server.process import private_megabytes

SAID = {"ours": "PocketMQ", "theirs": "Apache", "pure": "PocketMQ's Python path"}
PARTS = {**beside.PARTS, **replication.PARTS, **groups.PARTS}
NAMES = (*(scenario.name for scenario in SCENARIOS), *PARTS)


FULL = Plan(rounds=7, seconds=4.0, warm_up=10.0)
QUICK = Plan(
    rounds=2,
    seconds=1.0,
    warm_up=3.0,
    settle=0.3,
    client_warm_up=2.0,
    recovery_messages=100_000,
    push_messages=50_000,
    push_warm_up=50_000,
    catch_up_messages=100_000,
)


def measure(scenario: Scenario, plan: Plan) -> Outcome:
    """Run all rounds of a scenario, with newly started brokers."""
    outcome = Outcome(scenario)
    with pair(
        plan.where,
        sync_flush=scenario.sync_flush,
        tls=scenario.tls,
        python=plan.python,
        pure=plan.pure,
    ) as brokers:
        _prepare(scenario, brokers, plan)
        warm = plan.client_warm_up if scenario.by_java_client else plan.settle
        for number in range(plan.rounds):
            order = ("pure", "ours", "theirs") if number % 2 == 0 else ("theirs", "ours", "pure")
            for whose in order[not plan.pure :] if number % 2 == 0 else order[: 2 + plan.pure]:
                target = getattr(brokers, whose)
                try:
                    # Work that our broker defers would slow down Apache's run and not be counted.
                    run_one = load if whose == "theirs" else resting.load
                    figures = run_one(scenario, target, seconds=plan.seconds, warm=warm)
                except BenchmarkError as problem:
                    raise BenchmarkError(f"{SAID[whose]}: {problem}") from problem
                getattr(outcome, whose).append(figures)
            say(f"  {scenario.name} round {number + 1}: {_last(outcome)}")
        for whose in ("ours", "theirs"):
            outcome.memory[whose] = private_megabytes(getattr(brokers, whose).pid)
    return outcome


def _prepare(scenario: Scenario, brokers: Pair, plan: Plan) -> None:
    ours = [target for target in (brokers.ours, brokers.pure) if target is not None]
    if scenario.mode in {"pull", "push"}:
        for target in (*ours, brokers.theirs):
            fill(target, scenario.name, PREFILL, vary="vary" in scenario.options)
    load(scenario, brokers.theirs, seconds=plan.warm_up, warm=0.1)
    for target in ours:
        load(scenario, target, seconds=plan.settle, warm=0.1)


def _last(outcome: Outcome) -> str:
    ours, theirs = outcome.ours[-1], outcome.theirs[-1]
    return (
        f"{ours['per_s']:,.0f}/s and {theirs['per_s']:,.0f}/s, "
        f"p50 {ours['p50_us']:,.0f} and {theirs['p50_us']:,.0f} us"
    )


def run(names: Sequence[str], plan: Plan, options: argparse.Namespace) -> bool:
    """Measure, print and write the files; return whether everything could be measured."""
    environment = environments.of()
    plan = replace(plan, python=environment.python)
    facts = machine.facts() | {"environment": environment.text(), "core": environment.core}
    say(report.heading(facts))
    calibrations = [machine.calibration_ms()]
    outcomes: list[Outcome] = []
    failed: list[str] = []
    for scenario in SCENARIOS:
        if scenario.name in names:
            try:
                outcomes.append(measure(scenario, plan))
            except BenchmarkError as problem:
                failed.append(str(problem))
                say(f"  failed: {problem}")
            calibrations.append(machine.calibration_ms())
    others = []
    for name in (name for name in PARTS if name in names):
        say(f"  {name}")
        others.append(PARTS[name](plan))
        say(f"  {others[-1].line()}")
    quiet = spread(calibrations)
    print(report.heading(facts))
    print(
        f"Calibration loop between scenarios: {quiet.median:.2f} ms "
        f"({quiet.low:.2f}-{quiet.high:.2f}); a wide range means a busy machine.\n"
    )
    if outcomes:
        print(report.table(outcomes))
    for line in [*(part.line() for part in others), *(f"failed: {text}" for text in failed)]:
        print(line)
    document: dict[str, Any] = {
        "machine": facts,
        "calibration_ms": calibrations,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "scenarios": [outcome.as_json() for outcome in outcomes],
        "others": [part.as_json() for part in others],
        "failed": failed,
    }
    _write(options, document, outcomes, facts)
    return not failed


def _write(
    options: argparse.Namespace,
    document: dict[str, Any],
    outcomes: Sequence[Outcome],
    facts: dict[str, Any],
) -> None:
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.chart and outcomes:
        build = "profile-guided" if facts["profile_guided"] else "not profile-guided"
        subtitle = f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']} ({build})"
        options.chart.write_text(chart.svg(outcomes, subtitle))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=NAMES, metavar="NAME", help=" ".join(NAMES)
    )
    parser.add_argument("--rounds", type=int, help=f"of each scenario [{FULL.rounds}]")
    parser.add_argument("--seconds", type=float, help=f"of each run [{FULL.seconds:g}]")
    parser.add_argument("--quick", action="store_true", help="see that it works")
    parser.add_argument("--pure", action="store_true", help="PocketMQ's Python path too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure of every round")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="an SVG")
    parser.add_argument(
        "--dir",
        type=Path,
        help="where the stores lie: a real disk with 20 GB free [temporary files]",
    )
    return parser.parse_args(words)


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan for the options."""
    base = QUICK if options.quick else FULL
    return replace(
        base,
        rounds=options.rounds or base.rounds,
        seconds=options.seconds or base.seconds,
        where=options.dir,
        pure=options.pure,
    )


def main() -> int:
    """Measure and print; return 1 if something could not be measured."""
    options = arguments()
    try:
        check()
        complete = run(options.only or NAMES, plan_of(options), options)
    except (BenchmarkError, subprocess.CalledProcessError) as problem:
        say(str(problem))
        return 1
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
