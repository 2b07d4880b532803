"""Pipeline 5: report the lag of every group, the throughput of topics, and dead letters.

Offsets are requested from the brokers, times are read from the messages: the delay of a group is
the age of the oldest message that it has not consumed.

    python examples/spark/lag_report.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

# Executors on this machine run this Python, which has what they need.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from client.blocking import Admin

QUEUE = ("topic", "brokerName", "queueId")
COLUMNS = (
    "topic string, brokerName string, queueId int, queueOffset bigint, keys string, tags string,"
    " reconsumeTimes int, storeTimestamp timestamp, properties map<string,string>"
)
DEAD = "%DLQ%"


class Position(NamedTuple):
    """The committed offset of a group in one queue; fields are named like the source's columns."""

    group: str
    topic: str
    brokerName: str  # noqa: N815 - as the source's
    queueId: int  # noqa: N815
    committed: int
    end: int


def positions(admin: Admin) -> list[Position]:
    """Return the positions of all groups in all queues."""
    return [
        Position(group, *_of(queue), lag.committed, lag.end)
        for group in admin.groups()
        for queue, lag in admin.lag(group).queues.items()
        if not queue.topic.startswith("%")
    ]


def _of(queue: Any) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def unread(spark: SparkSession, nameserver: str, found: Iterable[Position]) -> DataFrame:
    """Return the messages that at least one group has not consumed."""
    starts: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for one in found:
        queues = starts[one.topic][one.brokerName]
        queues[str(one.queueId)] = min(one.committed, queues.get(str(one.queueId), one.end))
    return _topics(spark, nameserver, sorted(starts), json.dumps(starts))


def _topics(spark: SparkSession, nameserver: str, topics: list[str], starts: str) -> DataFrame:
    reader = spark.read.format("rocketmq").schema(COLUMNS).option("nameServer", nameserver)
    # Messages deleted before a group has consumed them count for the lag, but can't be read.
    reader = reader.option("onDataLoss", "skip")
    return reader.option("topic", ",".join(topics)).option("startingOffsets", starts).load()


def lags(spark: SparkSession, found: list[Position], messages: DataFrame) -> list[Any]:
    """Return for each group and topic the lag in messages, and the age of the oldest one."""
    groups = spark.createDataFrame(found)
    waiting = F.col("queueOffset") >= F.col("committed")
    oldest = F.min(F.when(waiting, F.col("storeTimestamp")))
    since = groups.join(messages, list(QUEUE)).groupBy("group", "topic").agg(oldest.alias("since"))
    behind = groups.withColumn("messages", F.greatest(F.lit(0), F.col("end") - F.col("committed")))
    sums = behind.groupBy("group", "topic").agg(F.sum("messages").alias("messages"))
    age = (F.current_timestamp().cast("double") - F.col("since").cast("double")).cast("long")
    rows = sums.join(since, ["group", "topic"], "left").withColumn("seconds", age)
    return list(rows.orderBy(F.desc("messages"), "group", "topic").collect())


def throughput(messages: DataFrame) -> list[Any]:
    """Return the number of messages stored per topic and minute."""
    minute = F.date_trunc("minute", "storeTimestamp").alias("minute")
    return list(messages.groupBy("topic", minute).count().orderBy("topic", "minute").collect())


def top_keys(messages: DataFrame, count: int = 10) -> list[Any]:
    """Return the keys with the most messages."""
    keys = messages.select("topic", F.explode(F.split("keys", " ")).alias("key"))
    found = keys.groupBy("topic", "key").count()
    return list(found.orderBy(F.desc("count"), "topic", "key").limit(count).collect())


def dead_letters(spark: SparkSession, nameserver: str, topics: list[str]) -> list[Any]:
    """Return the number of dead letters per group, original topic and reason.

    The reason is a property; without it, the number of attempts.
    """
    if not topics:
        return []
    letters = _topics(spark, nameserver, topics, "earliest")
    tried = F.concat(F.lit("tried "), F.col("reconsumeTimes") + 1, F.lit(" times"))
    reason = F.coalesce(F.col("properties")["reason"], tried)
    origin = F.coalesce(F.col("properties")["RETRY_TOPIC"], F.col("topic"))
    named = letters.select("topic", origin.alias("from"), reason.alias("reason"))
    counts = named.groupBy("topic", "from", "reason").count()
    return list(counts.orderBy("topic", "from", "reason").collect())


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nameserver", default=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    given = parser.parse_args()
    with Admin(given.nameserver) as admin:
        found = positions(admin)
        dead = [topic for topic in admin.topics(internal=True) if topic.startswith(DEAD)]
    spark = SparkSession.builder.appName("lag").getOrCreate()
    if found:
        messages = unread(spark, given.nameserver, found).persist()
        for row in lags(spark, found, messages):
            age = "" if row.seconds is None else f", the oldest waits for {row.seconds} s"
            print(f"group {row.group}: {row.messages} messages of {row.topic} behind{age}")
        for row in throughput(messages):
            print(f"unread of {row.topic}: {row['count']} stored in the minute {row.minute}")
        for row in top_keys(messages):
            print(f"key {row.key} of {row.topic}: {row['count']} unread messages")
    for row in dead_letters(spark, given.nameserver, dead):
        print(f"dead letters {row.topic}: {row['count']} of {row['from']}, {row.reason}")
    spark.stop()


if __name__ == "__main__":
    main()
