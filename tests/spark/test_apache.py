"""Topics of a real Apache RocketMQ in Spark: read, written, streamed, and shown by its tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.blocking import Admin, Producer
from tests.integration.spark_connector.querying import send
from tests.interop.apache import Apache, apache, mqadmin

VERSION = "4.9.7"
WAIT = 120
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    with apache(VERSION, tmp_path_factory.mktemp("apache")) as running:
        yield running


@pytest.fixture(scope="module")
def fill_there(there: Apache) -> Iterator[Callable[[str, range], None]]:
    """Send numbers to a topic, and create it if it doesn't exist."""
    with (
        Admin(there.nameserver) as admin,
        Producer(there.nameserver, group="spark-tests") as producer,
    ):

        def fill(topic: str, numbered: range) -> None:
            if topic not in admin.topics():
                admin.create_topic(topic, queues=4)
            send(admin, producer, topic, numbered)

        yield fill


@pytest.fixture(scope="module")
def topic(fill_there: Any) -> str:
    """200 messages in four queues."""
    fill_there("Batch", range(200))
    return "Batch"


def load(reader: Any, there: Apache, topic: str, **options: Any) -> Any:
    reader = reader.format("rocketmq").option("nameServer", there.nameserver)
    return reader.options(topic=topic, **options).load()


def numbers(frame: Any) -> list[int]:
    return sorted(int(bytes(row["body"])) for row in frame.select("body").collect())


def available_now(frame: Any, to: Path) -> list[int]:
    """Run a query to its end; return the sizes of its batches."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(to / "out"))
        .option("checkpointLocation", str(to / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT)
    return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]


def test_a_topic_is_read_whole_and_in_parts(spark: Any, there: Apache, topic: str):
    assert numbers(load(spark.read, there, topic)) == list(range(200))
    row = load(spark.read, there, topic).where("keys = 'k7'").first()
    assert (row["topic"], row["brokerName"], row["queueOffset"]) == (topic, "broker-a", 1)
    assert row["properties"]["UNIQ_KEY"] == row["messageId"]
    assert load(spark.read, there, topic, startingOffsets="latest").count() == 0
    assert load(spark.read, there, topic, startingTimestamp="-1h").count() == 200
    assert numbers(load(spark.read, there, topic, filterTags="odd")) == list(range(1, 200, 2))
    assert numbers(load(spark.read, there, topic, minPartitions=9)) == list(range(200))


@pytest.mark.parametrize("pushed", [False, True], ids=["filtered by spark", "pushed down"])
def test_filters_find_the_same_pushed_down_or_not(
    spark: Any, there: Apache, topic: str, pushed: bool
):
    spark.conf.set(PUSH_DOWN, str(pushed).lower())
    try:
        for condition, expected in (
            ("queueOffset > 48 AND tags = 'odd'", [197, 199]),
            ("keys = 'k42'", [42]),
            ("storeTimestamp < timestamp'2020-01-01 00:00:00'", []),
        ):
            frame = load(spark.read.option("pushDown", pushed), there, topic)
            assert numbers(frame.where(condition)) == expected
    finally:
        spark.conf.unset(PUSH_DOWN)


def test_what_spark_writes_is_read_by_every_client(spark: Any, there: Apache, fill_there: Any):
    fill_there("Written", range(0))
    frame = spark.range(1000).selectExpr(
        "CAST(id AS string) AS value", "concat('k', id) AS key", "'new' AS tags"
    )
    writer = frame.write.format("rocketmq").option("nameServer", there.nameserver)
    writer.option("topic", "Written").mode("append").save()
    found = load(spark.read, there, "Written")
    assert numbers(found) == list(range(1000))
    assert found.where("keys = concat('k', CAST(body AS string)) AND tags = 'new'").count() == 1000


def test_a_stream_is_written_to_a_topic_and_its_group_ends_without_lag(
    spark: Any, there: Apache, fill_there: Any, tmp_path: Path
):
    fill_there("Copied", range(100))
    fill_there("Copy", range(0))
    frame = load(
        spark.readStream, there, "Copied", startingOffsets="earliest", consumerGroup="copiers"
    )
    query = (
        frame.select("body", "keys")
        .writeStream.format("rocketmq")
        .option("nameServer", there.nameserver)
        .option("topic", "Copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT)
    assert numbers(load(spark.read, there, "Copy")) == list(range(100))
    assert lag(there, "copiers") == 0


@pytest.mark.slow
def test_a_stream_continues_from_its_checkpoint_and_apaches_tool_sees_how_far(
    spark: Any, there: Apache, fill_there: Any, tmp_path: Path
):
    fill_there("Followed", range(100))
    options = {
        "startingOffsets": "earliest",
        "consumerGroup": "followers",
        "maxOffsetsPerTrigger": 40,
    }
    frame = load(spark.readStream, there, "Followed", **options)
    assert available_now(frame, tmp_path) == [40, 40, 20]
    assert lag(there, "followers") == 0
    fill_there("Followed", range(100, 130))
    assert lag(there, "followers") == progress(there, tmp_path, "followers") == 30
    assert available_now(frame, tmp_path) == [30]
    assert lag(there, "followers") == progress(there, tmp_path, "followers") == 0
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(130))


@pytest.mark.slow
def test_lag_falls_during_a_run_and_apaches_tool_says_the_same(
    spark: Any, there: Apache, fill_there: Any, tmp_path: Path
):
    fill_there("Falling", range(100))
    seen = []

    def look(frame: Any, _: int) -> None:
        left = lag(there, "fallers"), progress(there, tmp_path, "fallers")
        seen.append((frame.count(), *left))

    frame = load(
        spark.readStream,
        there,
        "Falling",
        startingOffsets="earliest",
        consumerGroup="fallers",
        maxOffsetsPerTrigger=40,
    )
    query = (
        frame.writeStream.foreachBatch(look)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT)
    assert seen[1:] == [(40, 60, 60), (20, 20, 20)]
    assert lag(there, "fallers") == progress(there, tmp_path, "fallers") == 0


def lag(there: Apache, group: str) -> int:
    with Admin(there.nameserver) as admin:
        return admin.lag(group).total


def progress(there: Apache, home: Path, group: str) -> int:
    """Return the lag that Apache's consumerProgress prints for a group."""
    table = mqadmin(VERSION, home, there.nameserver, "consumerProgress", "-g", group)
    (total,) = (line.split()[-1] for line in table.splitlines() if "Diff Total:" in line)
    return int(total)
