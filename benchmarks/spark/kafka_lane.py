"""A process with Spark's Kafka source, controlled by JSON lines on stdin: fill a topic, read one.

It runs Spark 4.0 and needs no Python workers: the source runs in the JVM, and rows go to the
``noop`` sink.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import IO, Any

from benchmarks.spark.results import session

PARTITIONS = 4
HEADERS = ("UNIQ_KEY", "KEYS", "TAGS")


def create(spark: Any, kafka: str, topic: str) -> None:
    """Create a topic with four partitions."""
    java = spark.sparkContext._jvm
    properties = java.java.util.Properties()
    properties.setProperty("bootstrap.servers", kafka)
    admin = java.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        optional = java.java.util.Optional
        made = java.org.apache.kafka.clients.admin.NewTopic(
            topic, optional.of(PARTITIONS), optional.empty()
        )
        admin.createTopics([made]).all().get()
    finally:
        admin.close()


def fill(spark: Any, kafka: str, topic: str, size: int, count: int) -> None:
    """Send messages with bodies of ``size`` bytes plus or minus a fifth, in large batches."""
    create(spark, kafka, topic)
    noise = os.urandom(3 * size).hex()
    texts = {
        "UNIQ_KEY": "'7F000001547630946E09000000000000'",
        "KEYS": "concat('k', id)",
        "TAGS": "'TagA'",
    }
    headers = ", ".join(
        f"named_struct('key', '{name}', 'value', cast({texts[name]} as binary))" for name in HEADERS
    )
    frame = spark.range(0, count, 1, PARTITIONS).selectExpr(
        f"cast({texts['KEYS']} as binary) as key",
        f"substring(X'{noise}', cast(id % {size} as int) + 1,"
        f" cast({size} * (80 + id % 41) div 100 as int)) as value",
        f"array({headers}) as headers",
        f"cast(id % {PARTITIONS} as int) as partition",
    )
    frame.write.format("kafka").option("kafka.bootstrap.servers", kafka).option(
        "topic", topic
    ).option("includeHeaders", "true").option("kafka.batch.size", str(1 << 20)).option(
        "kafka.linger.ms", "50"
    ).option("kafka.buffer.memory", str(256 << 20)).option("kafka.acks", "1").save()


def read(spark: Any, kafka: str, topic: str, *, body_only: bool) -> float:
    """Return the seconds of a query that reads the whole topic."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka)
    reader = reader.option("subscribe", topic)
    if not body_only:
        reader = reader.option("includeHeaders", "true")
    started = time.perf_counter()
    frame = reader.load()
    if body_only:
        frame = frame.select("value")
    frame.write.format("noop").mode("append").save()
    return time.perf_counter() - started


def count(spark: Any, kafka: str, topic: str) -> int:
    """Return the number of messages of a topic."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka)
    messages: int = reader.option("subscribe", topic).load().count()
    return messages


def serve(spark: Any, kafka: str, answers: IO[str]) -> None:
    """Run the commands on stdin until it is closed."""
    for line in sys.stdin:
        command = json.loads(line)
        topic = command["topic"]
        if command["command"] == "fill":
            fill(spark, kafka, topic, command["size"], command["count"])
            answer: dict[str, Any] = {"count": count(spark, kafka, topic)}
        else:
            answer = {"seconds": read(spark, kafka, topic, body_only=command["body_only"])}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Start Spark and serve."""
    kafka, jars = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    # The JVM inherits file descriptor 1 and may print to it: redirect it to stderr.
    os.dup2(2, 1)
    spark = session({"spark.driver.extraClassPath": f"{jars}/*"})
    try:
        serve(spark, kafka, answers)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
