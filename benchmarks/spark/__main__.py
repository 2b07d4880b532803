"""Run all Spark benchmarks: store reader, source, sink, streams, and Kafka's source.

    make bench-spark                                     # on an otherwise idle machine
    make bench-spark BENCH=--quick                       # a short check, not for reliable figures
    python -m benchmarks.spark --only tcp --only kafka --json figures.json

=========  =======================================================================================
part       what is measured, with Spark's ``local[2]`` unless said otherwise
=========  =======================================================================================
store      ``format("rocketmq.store")``, all columns, files in the page cache
tcp        ``format("rocketmq")`` in batch, all columns, from a broker on the same machine
sink       ``df.write.format("rocketmq")`` to such a broker
stream     the connector's share of an empty micro-batch, and the requests of an idle query
kafka      Spark's Kafka source compared with ours; see ``benchmarks.spark``
=========  =======================================================================================

Each part runs in a separate process and JVM; if one fails, the others are measured. Sizes and
variants alternate within a round. The first round of each part (of ``kafka`` the first two) is a
warm-up; the bars apply to the median of the others. The whole run takes about twenty minutes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.clients.servers import KAFKA_VERSION, Unavailable
from benchmarks.report import machine_line
from benchmarks.spark.kafka_process import SPARK_VERSION
from benchmarks.spark.results import Plan, Result, measure, table
from benchmarks.tools import say

BYTES_A_MESSAGE: Final = 1_000
"""Bytes on the disk per message of ``--messages``, in the part that needs most."""

PARTS: Final = ("store", "tcp", "sink", "stream", "kafka")
FULL: Final = Plan(rounds=5, messages=2_000_000, batches=60, idle=40.0)
QUICK: Final = Plan(rounds=1, messages=160_000, batches=12, idle=10.0)


def run(names: Sequence[str], plan: Plan) -> tuple[list[Result], dict[str, str]]:
    """Run each part in a separate process; return the results, and the reasons for missing ones."""
    results: list[Result] = []
    absent: dict[str, str] = {}
    for name in names:
        say(name)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as process:
            try:
                results += process.submit(measure, name, plan).result()
            except Unavailable as reason:
                absent[name] = str(reason)
            except (Exception, SystemExit) as failure:  # noqa: BLE001 - the others are measured
                traceback.print_exception(failure)
                absent[name] = f"{type(failure).__name__}: {failure}"
    return results, absent


def check_disk(plan: Plan) -> None:
    """Exit if the disk has no room for the stores."""
    folder = plan.where or Path(tempfile.gettempdir())
    needed = plan.messages * BYTES_A_MESSAGE
    if shutil.disk_usage(folder).free < needed:
        sys.exit(
            f"{needed / 1e9:.0f} GB are needed in {folder}: make room, give --dir or TMPDIR, "
            "or fewer --messages"
        )


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=" ".join(PARTS)
    )
    parser.add_argument("--rounds", type=int, help=f"that count [{FULL.rounds}]")
    parser.add_argument("--messages", type=int, help=f"of 100 B in each part [{FULL.messages:,}]")
    parser.add_argument("--quick", action="store_true", help="see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure")
    parser.add_argument("--dir", type=Path, help="where the stores lie that are read directly")
    return parser.parse_args(words)


def plan_of(given: argparse.Namespace) -> Plan:
    """Return the plan for the options."""
    base = QUICK if given.quick else FULL
    return Plan(
        given.rounds or base.rounds,
        given.messages or base.messages,
        base.batches,
        base.idle,
        given.dir,
    )


def document(
    facts: dict[str, Any], plan: Plan, results: Sequence[Result], absent: dict[str, str]
) -> dict[str, Any]:
    """Return the content of the JSON file."""
    import pyspark

    return {
        "machine": facts,
        "versions": {
            "pyspark": pyspark.__version__,
            "pyspark of kafka": SPARK_VERSION,
            "kafka": KAFKA_VERSION,
        },
        "plan": {**asdict(plan), "where": str(plan.where or tempfile.gettempdir())},
        "absent": absent,
        "results": [result.as_json() for result in results],
    }


def main() -> int:
    """Measure and print; return 1 if a bar was missed or something could not be measured."""
    given = options()
    plan = plan_of(given)
    check_disk(plan)
    facts = machine.facts()
    calibration_ms = [machine.calibration_ms()]
    results, absent = run(given.only or PARTS, plan)
    calibration_ms.append(machine.calibration_ms())
    if given.json:
        told = {**document(facts, plan, results, absent), "calibration_ms": calibration_ms}
        given.json.write_text(json.dumps(told, indent=1) + "\n")
    print(machine_line(facts))
    before, after = calibration_ms
    print(f"Calibration loop before and after: {before:.2f} ms, {after:.2f} ms\n")
    print(table(results))
    for name, reason in absent.items():
        print(f"not measured: {name}: {reason}")
    return int(bool(absent) or not all(result.reached for result in results))


if __name__ == "__main__":
    sys.exit(main())
