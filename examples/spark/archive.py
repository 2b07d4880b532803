"""Pipeline 2: archive topics as Parquet files, by topic and day.

Each run archives the messages since the last run and ends; run it every hour. The files have every
message exactly once, even if earlier runs failed. This is checked at the end by the offsets of each
queue, which have no gaps.

    python examples/spark/archive.py --topics flights,airlines --directory /tmp/archive
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

# Executors on this machine run this Python, which has what they need.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

QUEUE = ("topic", "brokerName", "queueId")


def archive(
    spark: SparkSession, nameserver: str, topics: str, directory: str, per_batch: int = 500_000
) -> Any:
    """Start the query; it ends when it has archived all messages that exist at its start."""
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", nameserver)
        .option("topic", topics)
        .option("startingOffsets", "earliest")
        .option("consumerGroup", "archive")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    dated = messages.withColumn("date", F.to_date("storeTimestamp"))
    return (
        dated.writeStream.queryName("archive")
        .format("parquet")
        .partitionBy("topic", "date")
        .option("path", f"{directory}/messages")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def proof(spark: SparkSession, directory: str) -> list[Any]:
    """Return a row for each queue: its first and last offset, missing and repeated messages."""
    offset = F.col("queueOffset")
    found = spark.read.parquet(f"{directory}/messages").groupBy(*QUEUE)
    sums = found.agg(
        F.min(offset).alias("first"),
        F.max(offset).alias("last"),
        F.count(offset).alias("messages"),
        F.countDistinct(offset).alias("distinct"),
    )
    lacking = F.col("last") - F.col("first") + 1 - F.col("distinct")
    return list(
        sums.withColumn("lacking", lacking)
        .withColumn("repeated", F.col("messages") - F.col("distinct"))
        .orderBy(*QUEUE)
        .collect()
    )


def main() -> None:
    """Archive the topics and check the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nameserver", default=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    parser.add_argument("--topics", default="flights")
    parser.add_argument("--directory", default="archive")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("archive").getOrCreate()
    # Days are UTC days, independent of the machine's time zone.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    archive(spark, given.nameserver, given.topics, given.directory).awaitTermination()
    rows = proof(spark, given.directory)
    spark.stop()
    for row in rows:
        print(
            f"{row.topic}/{row.brokerName}/{row.queueId}: {row.messages} messages,"
            f" offsets {row.first} to {row.last}, {row.lacking} lack, {row.repeated} repeat"
        )
    if any(row.lacking or row.repeated for row in rows):
        sys.exit("the archive is not what the queues are")


if __name__ == "__main__":
    main()
