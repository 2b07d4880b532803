"""How fast ``format("rocketmq")`` writes: the encoder, one task without Spark, and through Spark.

    python -m benchmarks.spark_sink [--rounds 5] [--messages 1000000] [--json FILE]

Rows have a body of 100 B or 1 KiB (a quarter as many), a key of their own and a tag. Every round
writes each size all ways: encoded into nothing, sent by one task to a broker of ours in a process
of its own, and by ``df.write`` with Spark's ``local[2]``, round robin, by key, and one way. The
first round warms up and is not counted. What counts is the median through Spark, round robin; the
broker works on the same processors, and what Spark's own source of rows takes is in the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.figures import Spread, spread
from benchmarks.spark_store import session
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from remoting.protocol.queue import MessageQueue

TOPIC: Final = "SparkSink"
SIZES: Final = (100, 1024)
BARS: Final = {100: 100_000, 1024: 60_000}
"""Rows a second through Spark, by bytes of the body."""

BATCH_ROWS: Final = 10_000
"""What Spark hands to a writer at once."""

WAYS: Final[dict[str, dict[str, str]]] = {
    "spark": {},
    "spark, by key": {"partitioner": "hashKeys"},
    "spark, one way": {"sendMode": "oneway"},
}
"""Options of each way through Spark; the first has the bar."""

FIELDS: Final = [("body", "binary"), ("keys", "string"), ("tags", "string")]


def rows_of(size: int) -> Any:
    """One batch as Spark hands it over, bodies of ``size`` bytes give or take a fifth."""
    import pyarrow as pa

    noise = os.urandom(3 * size)
    numbers = range(BATCH_ROWS)
    bodies = [
        noise[at : at + size * (80 + n % 41) // 100] for n in numbers if (at := n % size) >= 0
    ]
    return pa.record_batch(
        {
            "body": pa.array(bodies),
            "keys": pa.array([f"key-{n}" for n in numbers]),
            "tags": pa.array(["TagA"] * BATCH_ROWS),
        }
    )


def encoded(batch: Any, count: int) -> float:
    """Seconds for encoding ``count`` rows."""
    from spark_connector.sink.encoder import Encoder, Recipe
    from spark_connector.sink.unique_keys import PositionKeys

    queues = [MessageQueue(TOPIC, "broker-a", index) for index in range(8)]
    chosen = {name: name for name, _ in FIELDS}
    encoder = Encoder(Recipe(chosen, TOPIC, (), PositionKeys("bench", 0)), lambda _: queues)
    started = time.perf_counter()
    for _ in range(count // BATCH_ROWS):
        for _parcel in encoder.encode(batch):
            pass
    return time.perf_counter() - started


def sent(server: StandaloneServer, batch: Any, count: int) -> float:
    """Seconds one task takes for ``count`` rows, without Spark."""
    from spark_connector.sink.options import sink_options
    from spark_connector.sink.writer import SinkPlan, write_rows

    options = sink_options({"nameServer": server.nameserver, "topic": TOPIC})
    plan = SinkPlan.of(options, FIELDS)
    started = time.perf_counter()
    write_rows(plan, iter([batch] * (count // BATCH_ROWS)), "bench", 0)
    return time.perf_counter() - started


def through_spark(
    spark: Any, server: StandaloneServer, size: int, count: int, options: dict[str, str]
) -> float:
    """Seconds that ``df.write`` takes for ``count`` rows."""
    frame = spark.range(0, count, 1, 2).selectExpr(
        f"cast(rpad(cast(id as string), {size}, '.') as binary) as body",
        "concat('key-', id) as keys",
        "'TagA' as tags",
    )
    given = {"nameServer": server.nameserver, "topic": TOPIC, **options}
    started = time.perf_counter()
    frame.write.format("rocketmq").options(**given).mode("append").save()
    return time.perf_counter() - started


def measure(rounds: int, messages: int) -> dict[int, dict[str, Spread]]:
    """Rows a second of every size and way."""
    rates: dict[int, dict[str, list[float]]] = {size: {} for size in SIZES}
    spark = session()
    try:
        for number in range(rounds + 1):
            for size in SIZES:
                count = messages if size == SIZES[0] else messages // 4
                # A store of its own for each: nobody's disk has to hold all rounds.
                with testing.broker(settings={"mappedFileSizeCommitLog": str(1 << 30)}) as server:
                    found = _round(spark, server, size, count - count % BATCH_ROWS)
                if number:
                    for way, rate in found.items():
                        rates[size].setdefault(way, []).append(rate)
    finally:
        spark.stop()
    return {
        size: {way: spread(values) for way, values in ways.items()} for size, ways in rates.items()
    }


def _round(spark: Any, server: StandaloneServer, size: int, count: int) -> dict[str, float]:
    batch = rows_of(size)
    seconds = {"encoder": encoded(batch, count), "task": sent(server, batch, count)}
    for way, options in WAYS.items():
        seconds[way] = through_spark(spark, server, size, count, options)
    return {way: count / taken for way, taken in seconds.items()}


def table(figures: dict[int, dict[str, Spread]]) -> str:
    """The figures as text, with the bars."""
    lines = [f"{'':28}{'median':>12}{'range':>24}{'bar':>12}  rows/s"]
    for size, ways in figures.items():
        for way, found in ways.items():
            bar = f"{BARS[size]:,}" if way == "spark" else ""
            extent = f"{found.low:,.0f} - {found.high:,.0f}"
            lines.append(f"{f'{size} B, {way}':28}{found.median:>12,.0f}{extent:>24}{bar:>12}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of 100 B, in each round")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    given = parser.parse_args(arguments)
    facts = machine.facts()
    figures = measure(given.rounds, given.messages)
    print(table(figures))
    if given.json:
        report = {
            "machine": facts,
            "rows_per_s": {
                f"{size} B, {way}": found._asdict()
                for size, ways in figures.items()
                for way, found in ways.items()
            },
        }
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(any(figures[size]["spark"].median < bar for size, bar in BARS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
