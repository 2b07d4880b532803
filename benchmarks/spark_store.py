"""Measure how fast ``rocketmq.store`` reads a store: in one process without Spark, and with Spark.

Two stores are filled, with bodies of 100 B and of 1 KiB (a quarter as many), with four queues in
rotation. Then every round reads each of them with and without Spark, by queues and by the commit
log, to the ``noop`` sink: all columns, and the body alone. The first round is a warm-up. The bars
apply to the median with Spark, ``local[2]``, of all columns read by queues. The files are in the
page cache.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Spread, spread
from broker.store.engine import MessageStore, PendingMessage, StoreConfig
from remoting.protocol.message import properties
from remoting.protocol.message.record import host_bytes
from remoting.protocol.message.tags import tags_code

QUEUES: Final = 4
TOPIC: Final = "SparkStore"
TAG: Final = "TagA"
SIZES: Final = (100, 1024)
BARS: Final = {100: 600_000, 1024: 300_000}
"""The bars in rows per second with Spark, by body size in bytes."""

BODY_ONLY: Final = "body binary"


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


def session(settings: Mapping[str, str] | None = None) -> Any:
    """Start Spark with two threads and additional settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("spark_store")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        **(settings or {}),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def cases() -> Iterator[tuple[int, str, str | None]]:
    """Yield size, scan and columns of each case."""
    for size in SIZES:
        for scan in ("queue", "log"):
            yield size, scan, None
        yield size, "queue", BODY_ONLY


def name_of(case: tuple[int, str, str | None]) -> str:
    """Return the name of a case for the table."""
    size, scan, columns = case
    return f"{size} B, scan={scan}, {'all columns' if columns is None else 'body only'}"


def measure(where: Path, rounds: int, messages: int) -> dict[str, dict[str, Spread]]:
    """Return the rows per second of every case, without and with Spark."""
    roots, counts = {}, {}
    for size in SIZES:
        roots[size] = where / f"store-{size}"
        counts[size] = messages if size == SIZES[0] else messages // 4
        fill(roots[size], size, counts[size])
    rates: dict[str, dict[str, list[float]]] = {}
    spark = session()
    try:
        for number in range(rounds + 1):
            for case in cases():
                size, scan, columns = case
                rows, seconds = alone(roots[size], scan, columns)
                if rows != counts[size]:
                    raise SystemExit(f"{name_of(case)}: {rows} rows instead of {counts[size]}")
                in_spark = through_spark(spark, roots[size], scan, columns)
                if number:
                    found = rates.setdefault(name_of(case), {"alone": [], "spark": []})
                    found["alone"].append(rows / seconds)
                    found["spark"].append(rows / in_spark)
    finally:
        spark.stop()
    return {name: {way: spread(all_) for way, all_ in ways.items()} for name, ways in rates.items()}
