"""Measure how fast ``rocketmq.store`` reads a store: in one process without Spark, and with Spark.

Two stores are filled, with bodies of 100 B and of 1 KiB (a quarter as many), with four queues in
rotation. Then every round reads each of them with and without Spark, by queues and by the commit
log, to the ``noop`` sink: all columns, and the body alone. The first round is a warm-up. The bars
apply to the median with Spark, ``local[2]``, of all columns read by queues. The files are in the
page cache.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.spark.results import SIZES, Plan, Result, rates, session
from broker.store.engine import MessageStore, PendingMessage, StoreConfig
from remoting.protocol.message import properties
from remoting.protocol.message.record import host_bytes
from remoting.protocol.message.tags import tags_code

QUEUES: Final = 4
TOPIC: Final = "SparkStore"
TAG: Final = "TagA"
CASES: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("queue", "all columns", None),
    ("log", "all columns", None),
    ("queue", "body only", "body binary"),
)
BARS: Final = {
    "store, 100 B, scan=queue, all columns, spark": 600_000,
    "store, 1024 B, scan=queue, all columns, spark": 300_000,
}


def fill(root: Path, size: int, count: int) -> None:
    """Create a store of ``count`` messages, with bodies of ``size`` bytes plus or minus a fifth."""
    store = MessageStore(StoreConfig(root=root))
    store.open()
    noise = os.urandom(3 * size)
    host = host_bytes("127.0.0.1", 54321)
    for number in range(count):
        begin = number % size
        text = {
            properties.UNIQ_KEY: f"7F000001547630946E09{number:012X}",
            properties.KEYS: f"key-{number}",
            properties.TAGS: TAG,
        }
        store.put(
            PendingMessage(
                TOPIC,
                number % QUEUES,
                noise[begin : begin + size * (80 + number % 41) // 100],
                properties.encode(text),
                tags_code(TAG),
                born_timestamp_ms=1_700_000_000_000 + number,
                born_host=host,
            )
        )
    store.close()


def alone(root: Path, scan: str, columns: str | None) -> tuple[int, float]:
    """Read a store in this process; return the number of rows and the seconds."""
    from spark_connector.schema import STORE_COLUMNS
    from spark_connector.source.pushdown import Pushed
    from spark_connector.store.options import store_options
    from spark_connector.store.planning import plan
    from spark_connector.store.reading import StoreTask, open_view

    options = store_options({"path": str(root), "scan": scan})
    names = STORE_COLUMNS if columns is None else ["body"]
    started = time.perf_counter()
    task = StoreTask(options, tuple(STORE_COLUMNS[name] for name in names))
    pieces = plan(open_view(options), options, Pushed())
    rows = sum(batch.num_rows for piece in pieces for batch in task.read(piece))
    return rows, time.perf_counter() - started


def through_spark(spark: Any, root: Path, scan: str, columns: str | None) -> float:
    """Return the seconds of a query that reads the whole store."""
    reader = spark.read.format("rocketmq.store").option("path", str(root)).option("scan", scan)
    if columns is not None:
        reader = reader.schema(columns)
    started = time.perf_counter()
    reader.load().write.format("noop").mode("append").save()
    return time.perf_counter() - started


def measure(plan: Plan) -> list[Result]:
    """Measure the rows per second of every case, without and with Spark."""
    counts = plan.counts(1)
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=plan.where) as directory:
            roots = {size: Path(directory) / f"store-{size}" for size in SIZES}
            for size, root in roots.items():
                fill(root, size, counts[size])

            def read(size: int, scan: str, columns: str | None) -> dict[str, float]:
                rows, seconds = alone(roots[size], scan, columns)
                if rows != counts[size]:
                    raise SystemExit(f"{rows} rows of {size} B instead of {counts[size]}")
                in_spark = through_spark(spark, roots[size], scan, columns)
                return {"without Spark": rows / seconds, "spark": rows / in_spark}

            cases = {
                f"store, {size} B, scan={scan}, {text}": partial(read, size, scan, columns)
                for size in SIZES
                for scan, text, columns in CASES
            }
            return rates(plan.rounds, cases, BARS)
    finally:
        spark.stop()
