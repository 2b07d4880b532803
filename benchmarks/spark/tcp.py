"""Measure how fast ``format("rocketmq")`` reads from a broker, without and with Spark.

A broker in a separate process on the same machine has two topics of four queues, with bodies of
100 B and of 1 KiB (a quarter as many), keys, tags and unique keys. Every round reads each topic in
four ways: one task that pulls without decoding, one task with all columns, and Spark's ``local[2]``
with all columns and with the body alone, to the ``noop`` sink. The first round is a warm-up. The
bars apply to the median of all columns with Spark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from benchmarks.spark.results import SIZES, Plan, Result, rates, session
from pocketmq import testing
from pocketmq.testing import StandaloneServer
from tests.integration.spark_connector.filling import Filler

QUEUES: Final = 4
BARS: Final = {"tcp, 100 B, spark": 300_000, "tcp, 1024 B, spark": 120_000}
BROKER_NAME: Final = "broker-a"


def topic_of(size: int) -> str:
    """Return the topic with bodies of this size."""
    return f"SparkTcp{size}"


def fill(server: StandaloneServer, size: int, count: int) -> None:
    """Create a topic of ``count`` messages, with bodies of ``size`` bytes plus or minus a fifth."""
    noise = os.urandom(3 * size)
    filler = Filler(server.broker)
    filler.create(topic_of(size), queues=QUEUES)
    unique = {"UNIQ_KEY": "7F000001547630946E09000000000000"}
    for queue_id in range(QUEUES):
        bodies = [noise[n % size :][: size * (80 + n % 41) // 100] for n in range(count // QUEUES)]
        filler.send(topic_of(size), bodies, queue_id=queue_id, tags=("TagA",), extra=unique)
    filler.close()


class NoDecoder:
    """A replacement for the decoder that only counts."""

    def batches(
        self, _: memoryview, *, first_offset: int, end_offset: int, **__: Any
    ) -> Iterator[Any]:
        """Yield one "batch" with as many rows as there are offsets."""
        rows = end_offset - first_offset
        batch = SimpleNamespace(num_rows=rows)
        yield SimpleNamespace(batch=batch, rows=rows, skipped=0, damaged=0)


def decoder() -> Any:
    """Return the real decoder for all columns."""
    from spark_connector.decode.decoder import Decoder
    from spark_connector.decode.model import DecodeSettings
    from spark_connector.schema import COLUMNS

    return Decoder(DecodeSettings(tuple(COLUMNS.values()), BROKER_NAME))


def one_task(server: StandaloneServer, size: int, count: int, make: Callable[[], Any]) -> float:
    """Return the seconds in which one task reads all queues, one after the other."""
    from spark_connector.source.options import ReadOptions
    from spark_connector.source.pull import RangeReader
    from spark_connector.source.ranges import RangePartition

    rows = 0
    started = time.perf_counter()
    for queue_id in range(QUEUES):
        part = RangePartition(
            topic_of(size), BROKER_NAME, queue_id, 0, count // QUEUES, (server.broker,)
        )
        reader = RangeReader(part, ReadOptions(group="bench"), make())
        rows += sum(batch.num_rows for batch in reader.batches())
    seconds = time.perf_counter() - started
    if rows != count:
        raise SystemExit(f"{rows} rows instead of {count}")
    return seconds


def through_spark(spark: Any, server: StandaloneServer, size: int, columns: str | None) -> float:
    """Return the seconds of a query that reads the whole topic."""
    reader = spark.read.format("rocketmq").option("nameServer", server.nameserver)
    reader = reader.option("topic", topic_of(size))
    if columns is not None:
        reader = reader.schema(columns)
    started = time.perf_counter()
    reader.load().write.format("noop").mode("append").save()
    return time.perf_counter() - started


def one_round(spark: Any, server: StandaloneServer, size: int, count: int) -> dict[str, float]:
    """Return the rows per second of each variant."""
    seconds = {
        "one task, not decoded": one_task(server, size, count, NoDecoder),
        "one task": one_task(server, size, count, decoder),
        "spark": through_spark(spark, server, size, None),
        "spark, body only": through_spark(spark, server, size, "body binary"),
    }
    return {way: count / taken for way, taken in seconds.items()}


def measure(plan: Plan) -> list[Result]:
    """Measure the rows per second of every size and variant."""
    counts = plan.counts(QUEUES)
    with testing.broker(settings={"mappedFileSizeCommitLog": str(1 << 30)}) as server:
        for size in SIZES:
            fill(server, size, counts[size])
        spark = session()
        try:
            cases = {
                f"tcp, {size} B": partial(one_round, spark, server, size, counts[size])
                for size in SIZES
            }
            return rates(plan.rounds, cases, BARS)
        finally:
            spark.stop()
