"""Pipeline 4: send the messages of an archive (pipeline 2) to a topic.

Bodies, keys, tags and properties are the original ones, and messages with the same key keep their
order. Each message keeps its unique key, so a replay that was interrupted can be started again.
``--rate`` limits the messages per second.

    python examples/spark/replay.py --directory /tmp/archive --from flights --to flights-again
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Executors on this machine run this Python, which has what they need.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

QUEUE = ("brokerName", "queueId")
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
STEPS_PER_SECOND = 10


def replay(
    spark: SparkSession,
    directory: str,
    old: str,
    nameserver: str,
    new: str,
    rate: int | None = None,
) -> None:
    """Send the archived messages of a topic.

    Args:
        spark: the Spark session.
        directory: the directory of the archive.
        old: the topic that was archived.
        nameserver: the name server, ``host:port``.
        new: the topic to send to, which must exist.
        rate: the most messages per second, or None.
    """
    messages = spark.read.parquet(f"{directory}/messages").filter(F.col("topic") == old)
    # All messages of a queue, and so all of a key, are in one task and sorted by offset.
    tasks = spark.sparkContext.defaultParallelism
    rows = (
        messages.repartition(tasks, *QUEUE)
        .sortWithinPartitions(*QUEUE, "queueOffset")
        .select(
            *("body", "keys", "tags", "properties"),
            F.col("properties")["__SHARDINGKEY"].alias("shardingKey"),
            F.col("messageId").alias("uniqKey"),
        )
    )
    if rate is not None:
        per_task = rate / tasks
        # The sink gets rows in batches: keep them small, so that the rate is even.
        spark.conf.set(BATCH, str(max(1, int(per_task / STEPS_PER_SECOND))))
        rows = spark.createDataFrame(rows.rdd.mapPartitions(paced(per_task)), rows.schema)
    sink = rows.write.format("rocketmq").mode("append").option("partitioner", "hashKeys")
    sink.option("nameServer", nameserver).option("topic", new).save()


def paced(
    per_second: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that yields a task's rows at this rate."""

    def pace(rows: Iterable[Any]) -> Iterator[Any]:
        began = clock()
        for number, row in enumerate(rows):
            sleep(max(0.0, began + number / per_second - clock()))
            yield row

    return pace


def main() -> None:
    """Parse the command line and replay."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nameserver", default=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    parser.add_argument("--directory", default="archive")
    parser.add_argument("--from", dest="old", default="flights")
    parser.add_argument("--to", dest="new", required=True)
    parser.add_argument("--rate", type=int, help="messages per second at most")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("replay").getOrCreate()
    replay(spark, given.directory, given.old, given.nameserver, given.new, given.rate)
    spark.stop()


if __name__ == "__main__":
    main()
