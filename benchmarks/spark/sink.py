"""Measure how fast ``format("rocketmq")`` writes: the encoder, one task, and Spark.

Rows have a body of 100 B or 1 KiB (a quarter as many), a unique key and a tag. Every round writes
each size in all variants: encoded only, sent by one task without Spark to a broker in a separate
process, and by ``df.write`` with Spark's ``local[2]``, round robin, by key, and one-way. The first
round is a warm-up. The bars apply to the median with Spark, round robin. The broker runs on the
same machine, and the figure includes the generation of the rows by Spark.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import Any, Final

from benchmarks.spark.results import SIZES, Plan, Result, rates, session
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from remoting.protocol.queue import MessageQueue

TOPIC: Final = "SparkSink"
BARS: Final = {"sink, 100 B, spark": 100_000, "sink, 1024 B, spark": 60_000}
BATCH_ROWS: Final = 10_000
"""The rows of a batch that Spark passes to a writer."""

WAYS: Final[dict[str, dict[str, str]]] = {
    "spark": {},
    "spark, by key": {"partitioner": "hashKeys"},
    "spark, one way": {"sendMode": "oneway"},
}
"""The options of each variant with Spark; the bars apply to the first one."""

FIELDS: Final = [("body", "binary"), ("keys", "string"), ("tags", "string")]


def rows_of(size: int) -> Any:
    """Return a batch as passed by Spark, with bodies of ``size`` bytes plus or minus a fifth."""
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
    """Return the seconds for encoding ``count`` rows."""
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
    """Return the seconds in which one task without Spark sends ``count`` rows."""
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
    """Return the seconds in which ``df.write`` writes ``count`` rows."""
    frame = spark.range(0, count, 1, 2).selectExpr(
        f"cast(rpad(cast(id as string), {size}, '.') as binary) as body",
        "concat('key-', id) as keys",
        "'TagA' as tags",
    )
    given = {"nameServer": server.nameserver, "topic": TOPIC, **options}
    started = time.perf_counter()
    frame.write.format("rocketmq").options(**given).mode("append").save()
    return time.perf_counter() - started


def measure(plan: Plan) -> list[Result]:
    """Measure the rows per second of every size and variant.

    With half the messages of other parts, because each round stores them again.
    """
    counts = replace(plan, messages=plan.messages // 2).counts(BATCH_ROWS)
    spark = session()

    def one_round(size: int) -> dict[str, float]:
        # A new store for each, so that the disk doesn't have to hold all rounds.
        with testing.broker(settings={"mappedFileSizeCommitLog": str(1 << 30)}) as server:
            return _round(spark, server, size, counts[size])

    try:
        cases = {f"sink, {size} B": partial(one_round, size) for size in SIZES}
        return rates(plan.rounds, cases, BARS)
    finally:
        spark.stop()


def _round(spark: Any, server: StandaloneServer, size: int, count: int) -> dict[str, float]:
    batch = rows_of(size)
    seconds = {"encoder": encoded(batch, count), "task": sent(server, batch, count)}
    for way, options in WAYS.items():
        seconds[way] = through_spark(spark, server, size, count, options)
    return {way: count / taken for way, taken in seconds.items()}
