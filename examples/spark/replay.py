"""Pipeline 4: an archive (pipeline 2) sent to a topic again.

Bodies, keys, tags and properties are what they were, messages with one key come in their order, and
each has its old unique key, so that a replay that was broken off can be begun again. With
``--rate`` it takes its time.

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
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

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
        directory: of the archive.
        old: the topic that was archived.
        new: the topic to send to; it has to be there.
        rate: messages per second at most.
    """
    messages = spark.read.parquet(f"{directory}/messages").filter(F.col("topic") == old)
    # One queue is one task's, in its order: then one key's messages are, too.
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
        # The sink gets its rows in batches: they must not be of a minute.
        spark.conf.set(BATCH, str(max(1, int(per_task / STEPS_PER_SECOND))))
        rows = spark.createDataFrame(rows.rdd.mapPartitions(paced(per_task)), rows.schema)
    sink = rows.write.format("rocketmq").mode("append").option("partitioner", "hashKeys")
    sink.option("nameServer", nameserver).option("topic", new).save()


def paced(
    per_second: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function that lets so many rows of a task pass per second."""

    def pace(rows: Iterable[Any]) -> Iterator[Any]:
        began = clock()
        for number, row in enumerate(rows):
            sleep(max(0.0, began + number / per_second - clock()))
            yield row

    return pace


def main() -> None:
    """Replay."""
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
