"""Pipeline 3: report the contents of a store directory, without its broker.

The whole commit log is read, including records without an entry in a consume queue. Damaged parts
are listed with their position. The broker may be running.

    python examples/spark/audit.py /var/lib/pocketmq/store
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

# Executors on this machine run this Python, which has what they need.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

COLUMNS = (
    "topic string, queueId int, queueOffset bigint, storeTimestamp timestamp,"
    " physicalOffset bigint, storeSize int, file string, crcOk boolean"
)


def records(spark: SparkSession, store: str) -> DataFrame:
    """Return every record of the commit log, with a row for each damaged part."""
    reader = spark.read.format("rocketmq.store").schema(COLUMNS)
    return reader.option("scan", "log").option("onDecodeError", "null").load(store)


def topics(found: DataFrame) -> list[Any]:
    """Return for each topic its queues, messages and bytes, and the first and last store time."""
    return list(
        found.filter("crcOk")
        .groupBy("topic")
        .agg(
            F.countDistinct("queueId").alias("queues"),
            F.count("*").alias("messages"),
            F.sum("storeSize").alias("bytes"),
            F.min("storeTimestamp").alias("first"),
            F.max("storeTimestamp").alias("last"),
        )
        .orderBy("topic")
        .collect()
    )


def damage(found: DataFrame) -> list[Any]:
    """Return the damaged parts, in the order of the commit log."""
    return list(found.filter("NOT crcOk").orderBy("physicalOffset").collect())


def main() -> None:
    """Print the report; the exit code is 1 if anything is damaged."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", help="the directory that has commitlog in it")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("audit").getOrCreate()
    found = records(spark, given.store).persist()
    for row in topics(found):
        print(
            f"{row.topic}: {row.messages} messages in {row.queues} queues,"
            f" {row.bytes} bytes, {row.first} to {row.last}"
        )
    damaged = damage(found)
    for row in damaged:
        of = "" if row.topic is None else f" of {row.topic}/{row.queueId} at {row.queueOffset}"
        print(f"damaged: {row.file} at {row.physicalOffset}, {row.storeSize} bytes{of}")
    spark.stop()
    sys.exit(1 if damaged else 0)


if __name__ == "__main__":
    main()
