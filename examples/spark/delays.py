"""Pipeline 1: flights in a topic, made into delays per day, airport and carrier.

The figures of each day go to a topic and to Parquet files. Run it as often as you like: it
continues where it was.

    python examples/spark/send_flights.py
    python examples/spark/delays.py --directory /tmp/delays
    spark-submit --master spark://127.0.0.1:7077 examples/spark/delays.py --every "10 seconds"

The JSON body of a message has its flight. A flight that comes twice, as after a producer's retry,
counts once. A day is complete, and its figures are written, when the flights have come a week
further: later ones are left out. Then Spark forgets the day.

The session's time zone (``spark.sql.session.timeZone``) has to be UTC: days are those of UTC.

One query writes both results batch by batch. A batch that runs again, because the driver died in
the middle of it, overwrites its own directory of files, and its messages have the same unique keys.
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
"""A flight in a body; Spark's DDL."""

FIGURES: Final = (
    "day date, origin string, carrier string, flights long, departed long, late long, minutes long"
)
"""What is found, in files and in bodies of the result topic."""

COLUMNS: Final = "body binary, messageId string"
"""What is read of the messages: Spark reads all columns of a source in Python unless told."""

GROUP: Final = "delays"
"""Its offsets are what the query has done."""

WINDOW: Final = "1 day"
LATE: Final = "7 days"
LATE_MINUTES: Final = 15
"""From here on a departure counts as late (as the Bureau of Transportation Statistics does)."""


def flights_of(messages: DataFrame) -> DataFrame:
    """The flights in messages; a body that is no flight gives a row of nulls."""
    flight = F.from_json(F.col("body").cast("string"), BODY)
    return messages.select("messageId", flight.alias("flight")).select("messageId", "flight.*")


def delays(messages: DataFrame) -> DataFrame:
    """The figures of each day, airport and carrier."""
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
    """Figures as what the sink takes: in one queue, and so in order, those of one airport."""
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
        spark: the session.
        topic: where the flights are.
        result_topic: where the figures go; it has to be there.
        directory: for Parquet files and checkpoint, reached by driver and executors.
        per_batch: messages of a batch at most.
        every: how often a batch is read, as ``10 seconds``; None: what is there now, then the end.

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
    """All figures that are in the files."""
    return list(spark.read.parquet(f"{directory}/delays").drop("batch").collect())


def in_topic(spark: Any, nameserver: str, topic: str) -> list[Any]:
    """All figures that are in the topic."""
    reader = spark.read.format("rocketmq").schema("body binary").option("topic", topic)
    bodies = reader.option("nameServer", nameserver).load()
    figures = F.from_json(F.col("body").cast("string"), FIGURES)
    return list(bodies.select(figures.alias("figures")).select("figures.*").collect())


def by_airport(spark: Any, directory: str) -> list[Any]:
    """Per airport and carrier, from the files: flights, mean delay and share of late ones.

    The largest mean delay comes first.
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
    """Per day and airport, from the files: the mean delay in minutes."""
    figures = spark.read.parquet(f"{directory}/delays").groupBy("day", "origin")
    means = figures.agg((F.sum("minutes") / F.sum("departed")).alias("mean_delay"))
    return list(means.filter("mean_delay IS NOT NULL").orderBy("day", "origin").collect())


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nameserver", default=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--result-topic", default="delays")
    parser.add_argument("--directory", default="delays")
    parser.add_argument("--per-batch", type=int, default=60_000)
    parser.add_argument("--every", help="go on for ever, with a batch so often")
    return parser.parse_args()


def main() -> None:
    """Run the pipeline and show what it found."""
    given = arguments()
    with Admin(given.nameserver) as admin:
        if given.result_topic not in admin.topics():
            admin.create_topic(given.result_topic, queues=3)
    builder = SparkSession.builder.appName("delays")
    # The session's time zone is that of days in figures; the shuffle is small.
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
