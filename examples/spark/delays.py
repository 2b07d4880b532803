"""Pipeline 1: flights in a topic, made into delays per day, airport and carrier.

The figures of each day go to a topic and to Parquet files. Run it as often as you like: it goes on
where it was. The query itself is in ``pocketmq.demo.delays``, for ``pocketmq demo --spark`` runs it
too.

    python examples/spark/send_flights.py
    python examples/spark/delays.py --directory /tmp/delays
    spark-submit --master spark://127.0.0.1:7077 examples/spark/delays.py --every "10 seconds"
"""

from __future__ import annotations

import argparse
import os
import sys

# Executors on this machine run this Python, which has what they need.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession

from client.blocking import Admin
from pocketmq.demo import delays


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
    query = delays.start(
        spark,
        given.nameserver,
        topic=given.topic,
        result_topic=given.result_topic,
        directory=given.directory,
        per_batch=given.per_batch,
        every=given.every,
    )
    query.awaitTermination()
    for row in delays.by_airport(spark, given.directory):
        print(
            f"{row.origin} {row.carrier}: {row.flights} flights, {row.mean_delay:+.1f} min,"
            f" {row.late_percent:.1f} % late"
        )
    spark.stop()


if __name__ == "__main__":
    main()
