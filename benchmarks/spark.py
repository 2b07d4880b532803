"""Run all Spark benchmarks: decoder, store reader, source, sink, streams, and Kafka's source.

    make bench-spark                                     # on an otherwise idle machine
    make bench-spark BENCH=--quick                       # a short check, not for reliable figures
    python -m benchmarks.spark --only tcp --only kafka --json figures.json

=========  =======================================================================================
part       what is measured, with Spark's ``local[2]`` unless said otherwise
=========  =======================================================================================
decoder    decoding pull answers to Arrow batches of all columns, on one core, without Spark
store      ``format("rocketmq.store")``, all columns, files in the page cache
tcp        ``format("rocketmq")`` in batch, all columns, from a broker on the same machine
sink       ``df.write.format("rocketmq")`` to such a broker
stream     the connector's share of an empty micro-batch, and the requests of an idle query
kafka      Spark's Kafka source compared with ours; see ``benchmarks.spark_kafka``
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import machine, spark_decode
from benchmarks.clients.servers import KAFKA_VERSION, Unavailable
from benchmarks.figures import Spread, spread
from benchmarks.report import machine_line
from benchmarks.spark_kafka.tools import SPARK_VERSION
from benchmarks.spark_results import Result, table

BYTES_A_MESSAGE: Final = 1_000
"""Bytes on the disk per message of ``--messages``, in the part that needs most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amounts of a run.

    Attributes:
        rounds: the number of counted rounds.
        messages: messages of 100 B in each part; a quarter as many have 1 KiB.
        batches: empty micro-batches of a round.
        idle: seconds for which the requests of an idle query are counted.
        where: the directory for the stores that are read directly; None for temporary files.
    """

    rounds: int
    messages: int
    batches: int
    idle: float
    where: Path | None = None


FULL: Final = Plan(rounds=5, messages=2_000_000, batches=60, idle=40.0)
QUICK: Final = Plan(rounds=1, messages=160_000, batches=12, idle=10.0)


def say(text: str) -> None:
    """Print progress to stderr; only the table goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def decoder(plan: Plan) -> list[Result]:
    """Measure the decoder without Spark."""
    found = spark_decode.rates(plan.rounds + 1)
    return [
        Result(
            f"decoder, {size} B, all columns",
            "records/s",
            spread(values[1:]),
            spark_decode.BARS[size],
        )
        for size, values in found.items()
    ]


def store(plan: Plan) -> list[Result]:
    """Measure the store reader."""
    from benchmarks import spark_store

    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=plan.where) as directory:
        found = spark_store.measure(Path(directory), plan.rounds, plan.messages)
    bars = {
        spark_store.name_of((size, "queue", None)): bar for size, bar in spark_store.BARS.items()
    }
    return [
        Result(f"store, {name}", "rows/s", ways["spark"], bars.get(name))
        for name, ways in found.items()
    ]


def tcp(plan: Plan) -> list[Result]:
    """Measure batch reads of the source."""
    from benchmarks import spark_tcp

    found = spark_tcp.measure(plan.rounds, plan.messages)
    return _by_size("tcp", found, spark_tcp.COUNTED, spark_tcp.BARS)


def sink(plan: Plan) -> list[Result]:
    """Measure batch writes of the sink, with half the messages, as each round stores them again."""
    from benchmarks import spark_sink

    found = spark_sink.measure(plan.rounds, plan.messages // 2)
    return _by_size("sink", found, "spark", spark_sink.BARS)


def _by_size(
    part: str,
    found: Mapping[int, Mapping[str, Spread]],
    counted: str,
    bars: Mapping[int, int],
) -> list[Result]:
    return [
        Result(f"{part}, {size} B, {way}", "rows/s", rate, bars[size] if way == counted else None)
        for size, ways in found.items()
        for way, rate in ways.items()
    ]


def stream(plan: Plan) -> list[Result]:
    """Measure empty micro-batches and an idle query."""
    from benchmarks import spark_stream

    return spark_stream.measure(plan.rounds, plan.batches, plan.idle, say)


def kafka(plan: Plan) -> list[Result]:
    """Compare with Spark's Kafka source."""
    from benchmarks.spark_kafka import compare

    return compare.measure(plan.rounds, plan.messages, say)


PARTS: Final[Mapping[str, Callable[[Plan], list[Result]]]] = {
    part.__name__: part for part in (decoder, store, tcp, sink, stream, kafka)
}


def run(names: Sequence[str], plan: Plan) -> tuple[list[Result], dict[str, str]]:
    """Run each part in a separate process; return the results, and the reasons for missing ones."""
    results: list[Result] = []
    absent: dict[str, str] = {}
    for name in names:
        say(name)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as process:
            try:
                results += process.submit(PARTS[name], plan).result()
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
    results, absent = run(given.only or list(PARTS), plan)
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
