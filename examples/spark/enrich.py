"""Pipeline 6: join flights with the airlines' names; others go to a dead-letter topic.

Both inputs are topics. Each run reads the airlines anew; the last message of an airline counts.
One query writes to two topics, because the column ``topic`` has the topic of each row. Flights with
a known airline go to one topic. The others go unchanged to a dead-letter topic, with two
properties: the reason and the origin of the message.

    python examples/spark/send_flights.py
    python examples/spark/enrich.py --directory /tmp/enrich
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

from client.blocking import Admin

FLIGHT = (
    "scheduled timestamp, carrier string, flight int, tail string, origin string, dest string,"
    " delay int"
)


def airlines(spark: SparkSession, nameserver: str, topic: str) -> DataFrame:
    """Return the airlines' names by their two-letter codes."""
    messages = (
        spark.read.format("rocketmq")
        .schema("body binary, storeTimestamp timestamp, queueOffset bigint")
        .option("nameServer", nameserver)
        .option("topic", topic)
        .load()
    )
    airline = F.from_json(F.col("body").cast("string"), "carrier string, name string")
    age = F.struct("storeTimestamp", "queueOffset")
    named = messages.select(airline.alias("airline"), age.alias("age"))
    return named.groupBy("airline.carrier").agg(F.max_by("airline.name", "age").alias("airline"))


def enriched(messages: DataFrame, names: DataFrame, good: str, bad: str) -> DataFrame:
    """Return the rows for the sink: enriched flights, and messages that could not be joined."""
    flight = F.from_json(F.col("body").cast("string"), FLIGHT)
    read = messages.withColumn("flight", flight).withColumn("carrier", F.col("flight.carrier"))
    joined = read.join(F.broadcast(names), "carrier", "left")
    reason = F.when(F.col("carrier").isNull(), "no flight in JSON").when(
        F.col("airline").isNull(), F.concat(F.lit("no airline "), "carrier")
    )
    place = F.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset")
    whole = F.to_json(F.struct("flight.*", "airline")).cast("binary")
    return joined.withColumn("reason", reason).select(
        F.when(F.col("reason").isNull(), good).otherwise(bad).alias("topic"),
        F.when(F.col("reason").isNull(), whole).otherwise(F.col("body")).alias("body"),
        *("keys", "tags"),
        F.when(
            F.col("reason").isNotNull(),
            F.create_map(F.lit("reason"), "reason", F.lit("from"), place),
        ).alias("properties"),
        place.alias("uniqKey"),
    )


def start(
    spark: SparkSession,
    nameserver: str,
    directory: str,
    *,
    flights: str = "flights",
    names: str = "airlines",
    good: str = "flights-named",
    bad: str = "flights-dead",
) -> Any:
    """Start the query; it ends when it has read all messages that exist at its start."""
    messages = (
        spark.readStream.format("rocketmq")
        .schema(
            "topic string, brokerName string, queueId int, queueOffset bigint, body binary,"
            " keys string, tags string"
        )
        .option("nameServer", nameserver)
        .option("topic", flights)
        .option("startingOffsets", "earliest")
        .option("consumerGroup", "enrich")
        .load()
    )
    rows = enriched(messages, airlines(spark, nameserver, names), good, bad)
    sink = rows.writeStream.queryName("enrich").format("rocketmq")
    sink = sink.option("nameServer", nameserver)
    sink = sink.option("checkpointLocation", f"{directory}/checkpoint")
    return sink.trigger(availableNow=True).start()


def main() -> None:
    """Run the pipeline."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nameserver", default=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    parser.add_argument("--directory", default="enrich")
    given = parser.parse_args()
    with Admin(given.nameserver) as admin:
        for topic in {"flights-named", "flights-dead"} - set(admin.topics()):
            admin.create_topic(topic, queues=4)
    spark = SparkSession.builder.appName("enrich").getOrCreate()
    start(spark, given.nameserver, given.directory).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
