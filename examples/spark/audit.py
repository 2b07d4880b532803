"""Pipeline 3: what a store's directory holds, read without its broker.

The log is read from end to end, so that records are counted which no queue names any more, and what
can't be read is listed with its place. The broker may run meanwhile, or be long gone.

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
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

COLUMNS = (
    "topic string, queueId int, queueOffset bigint, storeTimestamp timestamp,"
    " physicalOffset bigint, storeSize int, file string, crcOk boolean"
)


def records(spark: SparkSession, store: str) -> DataFrame:
    """Every record of the log; what is damaged is a row too."""
    reader = spark.read.format("rocketmq.store").schema(COLUMNS)
    return reader.option("scan", "log").option("onDecodeError", "null").load(store)


def topics(found: DataFrame) -> list[Any]:
    """Per topic: queues, messages, bytes, and when the first and the last one was stored."""
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
    """What can't be read, in the order of the log."""
    return list(found.filter("NOT crcOk").orderBy("physicalOffset").collect())


def main() -> None:
    """Print the audit; the exit code is 1 if anything is damaged."""
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
