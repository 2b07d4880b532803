"""Measure a broker's start, its recovery, its syncs, and a large store.

    python -m benchmarks.store                           everything: half an hour, and 25 GB of disk
    python -m benchmarks.store --only start --apache     beside Apache's broker 4.9.7
    python -m benchmarks.store --gigabytes 1 --queues 1000 --rounds 1     a quick check

========  =========================================================================================
part      what is measured
========  =========================================================================================
start     process start to first acknowledged send with an empty store, and private memory
recovery  the same with 1 GiB of log, after kill -9 and after a clean stop
sync      SYNC_FLUSH: the p50 in addition to the disk's, and how many messages share a sync
scale     20 GiB in 10,000 queues: start, memory, pulls, and ``pocketmq store verify``
========  =========================================================================================
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.servers import directory
from benchmarks.store import scale, start, sync
from benchmarks.tools import BenchmarkError

GIB: Final = 1 << 30
MOST_RECOVERED: Final = GIB

Figures = dict[str, Any]


def starts(options: argparse.Namespace) -> Figures:
    """Measure starts."""
    runs = start.starts(options.rounds, options.dir, with_apache=options.apache)
    print(start.text(runs))
    return {**runs}


def recovery(options: argparse.Namespace) -> Figures:
    """Measure starts on a filled store."""
    size = min(int(options.gigabytes * GIB), MOST_RECOVERED)
    runs = start.recoveries(options.rounds, size, options.dir, with_apache=options.apache)
    print(start.text(runs))
    return {**runs}


def syncs(options: argparse.Namespace) -> Figures:
    """Measure SYNC_FLUSH beside the disk."""
    if shutil.which("cc") is None:
        raise BenchmarkError("not on the PATH: cc; Debian: apt install gcc libc6-dev")
    rows = sync.measure(2 * options.rounds, options.seconds, options.dir)
    print(sync.text(rows))
    return {**rows}


def large(options: argparse.Namespace) -> Figures:
    """Measure a large store."""
    size = int(options.gigabytes * GIB)
    with directory(options.dir) as home:
        result = scale.measure(home, size, options.queues, options.in_a_row, options.rounds)
    print(scale.text(result))
    return result


PARTS: Final[Mapping[str, Callable[[argparse.Namespace], Figures]]] = {
    "start": starts,
    "recovery": recovery,
    "sync": syncs,
    "scale": large,
}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=" ".join(PARTS)
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each part [5]")
    parser.add_argument("--apache", action="store_true", help="starts of Apache's broker, in turns")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run of sync [2]")
    parser.add_argument("--gigabytes", type=float, default=20.0, help="GiB of log in scale [20]")
    parser.add_argument("--queues", type=int, default=10_000, help="of scale [10,000]")
    parser.add_argument("--in-a-row", type=int, default=32, help="messages to a queue [32]")
    parser.add_argument("--dir", type=Path, help="where the stores lie [temporary files]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and write JSON; return 1 if something could not be measured."""
    options = arguments()
    names = options.only or list(PARTS)
    document: Figures = {"machine": machine.facts()}
    try:
        for name in names:
            document[name] = PARTS[name](options)
    except (BenchmarkError, TimeoutError) as problem:
        print(problem, file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
