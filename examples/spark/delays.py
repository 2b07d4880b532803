"""Pipeline 1: compute the delays per day, airport and carrier from a topic of flights.

The results of each day are written to a topic and to Parquet files. Each run continues where the
last one ended.

    python examples/spark/send_flights.py
    python examples/spark/delays.py --directory /tmp/delays
    spark-submit --master spark://127.0.0.1:7077 examples/spark/delays.py --every "10 seconds"

The body of a message is a flight in JSON. A duplicate, for example after a producer's retry, counts
once. The results of a day are written, and its state is dropped, when a flight a week later has
been read. Flights that arrive after that are ignored.

The session's time zone (``spark.sql.session.timeZone``) has to be UTC, as days are UTC days.

One query writes both results, batch by batch. If a batch is repeated because the driver was killed,
it overwrites its own directory of files, and its messages get the same unique keys again.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Final

# Executors on this machine run this Python, which has what they need.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from client.blocking import Admin

BODY: Final = (
    "scheduled timestamp, carrier string, flight int, tail string, origin string, dest string,"
    " delay int"
)
"""The columns of a flight in a message body, as a DDL string."""

FIGURES: Final = (
    "day date, origin string, carrier string, flights long, departed long, late long, minutes long"
)
"""The columns of the results, in files and in message bodies."""

COLUMNS: Final = "body binary, messageId string"
"""The columns to read: without a schema Spark reads all columns of a Python source."""

GROUP: Final = "delays"
"""The consumer group to which the query commits its progress."""

WINDOW: Final = "1 day"
LATE: Final = "7 days"
"""How long results wait for flights that arrive late."""

LATE_MINUTES: Final = 15
"""The delay from which a departure counts as late (as in the US Bureau of Transportation
Statistics)."""


def flights_of(messages: DataFrame) -> DataFrame:
    """Return the flights in messages; a body that is not a flight becomes a row of nulls."""
    flight = F.from_json(F.col("body").cast("string"), BODY)
    return messages.select("messageId", flight.alias("flight")).select("messageId", "flight.*")


def delays(messages: DataFrame) -> DataFrame:
    """Return the results for each day, airport and carrier."""
    return (
        flights_of(messages)
        .withWatermark("scheduled", LATE)
        .dropDuplicatesWithinWatermark(["messageId"])
        .groupBy(F.window("scheduled", WINDOW), "origin", "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count("delay").alias("departed"),
            _number(F.col("delay") >= LATE_MINUTES).alias("late"),
            F.coalesce(F.sum("delay"), F.lit(0)).alias("minutes"),
        )
        .select(
            F.to_date("window.start").alias("day"),
            *("origin", "carrier", "flights", "departed", "late", "minutes"),
        )
    )


def _number(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def as_messages(figures: DataFrame) -> DataFrame:
    """Return results as rows for the sink; those of one airport go to one queue, in order."""
    return figures.select(
        F.to_json(F.struct("*")).cast("binary").alias("body"),
        F.concat_ws("-", "origin", "carrier").alias("keys"),
        F.col("origin").alias("tags"),
        F.col("origin").alias("shardingKey"),
        F.concat_ws("/", "day", "origin", "carrier").alias("uniqKey"),
    )


def start(
    spark: Any,
    nameserver: str,
    *,
    topic: str,
    result_topic: str,
    directory: str,
    per_batch: int = 60_000,
    every: str | None = None,
) -> Any:
    """Start the query.

    Args:
        spark: the Spark session.
        nameserver: the name server, ``host:port``.
        topic: the topic with the flights.
        result_topic: the topic for the results, which must exist.
        directory: the directory for Parquet files and checkpoint, shared by driver and executors.
        per_batch: the most messages of a batch.
        every: the period of batches, such as ``10 seconds``; None to read the existing messages
            and end.

    Returns:
        The running ``StreamingQuery``.
    """
    messages = (
        spark.readStream.format("rocketmq")
        .schema(COLUMNS)
        .option("nameServer", nameserver)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("consumerGroup", GROUP)
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )

    def write(figures: DataFrame, batch: int) -> None:
        figures.persist()
        figures.write.mode("overwrite").parquet(f"{directory}/delays/batch={batch}")
        sink = as_messages(figures).write.format("rocketmq").mode("append")
        sink.option("nameServer", nameserver).option("topic", result_topic).save()
        figures.unpersist()

    writer = delays(messages).writeStream.queryName("delays").foreachBatch(write)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    trigger = {"processingTime": every} if every else {"availableNow": True}
    return writer.trigger(**trigger).start()


def in_files(spark: Any, directory: str) -> list[Any]:
    """Return all results in the files."""
    return list(spark.read.parquet(f"{directory}/delays").drop("batch").collect())


def in_topic(spark: Any, nameserver: str, topic: str) -> list[Any]:
    """Return all results in the topic."""
    reader = spark.read.format("rocketmq").schema("body binary").option("topic", topic)
    bodies = reader.option("nameServer", nameserver).load()
    figures = F.from_json(F.col("body").cast("string"), FIGURES)
    return list(bodies.select(figures.alias("figures")).select("figures.*").collect())


def by_airport(spark: Any, directory: str) -> list[Any]:
    """Return flights, mean delay and share of late flights by airport and carrier, from the files.

    The rows are sorted by mean delay in minutes, the largest first.
    """
    figures = spark.read.parquet(f"{directory}/delays").groupBy("origin", "carrier")
    sums = figures.agg(
        *(F.sum(name).alias(name) for name in ("flights", "departed", "late", "minutes"))
    )
    rows = sums.filter("departed > 0").select(
        *("origin", "carrier", "flights"),
        F.round(F.col("minutes") / F.col("departed"), 1).alias("mean_delay"),
        F.round(100 * F.col("late") / F.col("departed"), 1).alias("late_percent"),
    )
    return list(rows.orderBy(F.desc("mean_delay"), "origin", "carrier").collect())


def by_day(spark: Any, directory: str) -> list[Any]:
    """Return the mean delay in minutes by day and airport, from the files."""
    figures = spark.read.parquet(f"{directory}/delays").groupBy("day", "origin")
    means = figures.agg((F.sum("minutes") / F.sum("departed")).alias("mean_delay"))
    return list(means.filter("mean_delay IS NOT NULL").orderBy("day", "origin").collect())


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nameserver", default=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--result-topic", default="delays")
    parser.add_argument("--directory", default="delays")
    parser.add_argument("--per-batch", type=int, default=60_000)
    parser.add_argument("--every", help="run until stopped, with a batch in each period")
    return parser.parse_args()


def main() -> None:
    """Run the pipeline and print the results by airport and carrier."""
    given = arguments()
    with Admin(given.nameserver) as admin:
        if given.result_topic not in admin.topics():
            admin.create_topic(given.result_topic, queues=3)
    builder = SparkSession.builder.appName("delays")
    # Days are UTC days; the data is small, so two shuffle partitions are enough.
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    query = start(
        spark,
        given.nameserver,
        topic=given.topic,
        result_topic=given.result_topic,
        directory=given.directory,
        per_batch=given.per_batch,
        every=given.every,
    )
    query.awaitTermination()
    for row in by_airport(spark, given.directory):
        print(
            f"{row.origin} {row.carrier}: {row.flights} flights, {row.mean_delay:+.1f} min,"
            f" {row.late_percent:.1f} % late"
        )
    spark.stop()


if __name__ == "__main__":
    main()
