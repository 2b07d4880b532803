"""Measure servers that store nothing: ``python -m benchmarks.floor [--apache]``.

Such a server answers every send with the same text, and every pull with records copied from memory.
What remains is the cost of sockets, wake-ups and the load generator, an upper limit for any broker
on this machine. There are two servers, whose runs alternate: one in C, and one in Python, which is
the limit for a broker in Python. With ``--apache`` PocketMQ and Apache's broker are measured too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks import resting
from benchmarks.figures import RATIOS, Figures, Outcome, spread
from benchmarks.scenarios import PREFILL, SCENARIOS, Scenario
from benchmarks.servers import pair
from benchmarks.tools import BUILT, HERE, BenchmarkError, Target, compiled, fill, load
from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError
from tests.support.ports import free_port

SECONDS: Final = 2.0
READY_WITHIN: Final = 5.0
JAVA_WARM_SECONDS: Final = 10.0
LOADS: Final = ("send-1x1", "send-1x16", "send-4x64", "send-128b-4x64", "pull-1", "pull-4")
OURS, APACHE = "PocketMQ", "Apache"


@contextmanager
def server(command: Sequence[str]) -> Iterator[Target]:
    """Run a server that stores nothing; its port is added to the command."""
    port = free_port()
    running = subprocess.Popen([*command, str(port)])
    try:
        address = f"127.0.0.1:{port}"
        _wait(address)
        yield Target(address, address, running.pid)
    finally:
        running.kill()
        running.wait()


def _wait(address: str) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while True:
        try:
            BlockingConnection(address, connect_timeout=1.0).close()
        except RemotingError as problem:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the server did not get ready: {problem}") from problem
            time.sleep(0.02)
        else:
            return


def measure(scenario: Scenario, targets: Mapping[str, Target], rounds: int) -> None:
    """Measure and print medians, the range of the rate, and ratios to Apache's broker."""
    if scenario.mode == "pull":
        for name in targets.keys() & {OURS, APACHE}:
            fill(targets[name], scenario.name, PREFILL)
    if APACHE in targets:
        load(scenario, targets[APACHE], seconds=JAVA_WARM_SECONDS, warm=0)
    runs: dict[str, list[Figures]] = {name: [] for name in targets}
    for number in range(rounds):
        for name in list(targets)[:: 1 if number % 2 else -1]:
            # Work that our broker defers would slow down other runs and not be counted.
            run_one = resting.load if name == OURS else load
            runs[name].append(run_one(scenario, targets[name], seconds=SECONDS, warm=0.5))
    for name, figures in runs.items():
        outcome = Outcome(scenario, ours=figures, theirs=runs.get(APACHE, []))
        rate = spread([run["per_s"] for run in figures])
        line = (
            f"{scenario.text:40} {name:8} {rate.median:>11,.0f}/s "
            f"({rate.low:,.0f}-{rate.high:,.0f})"
            f"  p50 {outcome.median('ours', 'p50_us'):,.1f} us"
            f"  CPU {outcome.median('ours', 'cpu_us_per'):.2f} us"
        )
        if outcome.theirs and name != APACHE:
            beside = (f"{ratio} {outcome.ratio(ratio).median:.2f}" for ratio in RATIOS)
            line += "  beside Apache: " + ", ".join(beside)
        print(line)


def main() -> None:
    """Measure each load."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--apache", action="store_true", help="the real brokers as well")
    parser.add_argument("--only", action="append", choices=LOADS, help="one load; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    in_c = [str(compiled(BUILT / "floor", [HERE / "floor.c"]))]
    with ExitStack() as stack:
        targets = {
            "C": stack.enter_context(server(in_c)),
            "Python": stack.enter_context(
                server([sys.executable, "-m", "benchmarks.floor_python"])
            ),
        }
        if arguments.apache:
            both = stack.enter_context(pair(None))
            targets |= {OURS: both.ours, APACHE: both.theirs}
        for scenario in SCENARIOS:
            if scenario.name in (arguments.only or LOADS):
                measure(scenario, targets, arguments.rounds)


if __name__ == "__main__":
    main()
