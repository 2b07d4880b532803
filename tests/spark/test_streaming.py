"""Topics as streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WAIT = 60


class Running:
    """A streaming query into a table in memory."""

    def __init__(self, spark: Any, frame: Any, name: str, checkpoint: Path) -> None:
        self._spark = spark
        self._frame = frame
        self._name = name
        self._checkpoint = checkpoint
        self.query: Any = None

    def available_now(self) -> list[int]:
        """Run to the current end; return the sizes of the batches."""
        self.start(availableNow=True)
        assert self.query.awaitTermination(WAIT)
        return [int(one["numInputRows"]) for one in self.progress() if one["numInputRows"]]

    def start(self, **trigger: Any) -> None:
        writer = self._frame.writeStream.format("parquet").option("path", f"{self._checkpoint}-out")
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        self.query = writer.trigger(**trigger or {"processingTime": "0 seconds"}).start()

    def progress(self) -> list[dict[str, Any]]:
        return [json.loads(one.json) for one in self.query.recentProgress]

    def numbers(self) -> list[int]:
        rows = self._spark.read.parquet(f"{self._checkpoint}-out").select("body").collect()
        return sorted(int(bytes(row["body"])) for row in rows)


@pytest.fixture
def run(spark: Any, stream: Any, tmp_path: Path) -> Iterator[Any]:
    made: list[Running] = []

    def make(topic: str, *, checkpoint: str = "checkpoint", **options: Any) -> Running:
        options = {"startingOffsets": "earliest"} | options
        frame = stream(topic, **options)
        made.append(Running(spark, frame, checkpoint, tmp_path / checkpoint))
        return made[-1]

    yield make
    for one in made:
        if one.query is not None:
            one.query.stop()


@pytest.mark.newer_spark
def test_available_now_keeps_to_the_limit_and_ends(run: Any, new_topic: Any, fill: Any):
    topic = new_topic()
    fill(topic, 1000)
    running = run(topic, maxOffsetsPerTrigger=300)
    assert running.available_now() == [300, 300, 300, 100]
    assert running.numbers() == list(range(1000))


def test_without_a_limit_a_batch_takes_all(run: Any, new_topic: Any, fill: Any):
    topic = new_topic()
    fill(topic, 1000)
    assert run(topic).available_now() == [1000]


def test_a_query_continues_from_its_checkpoint(run: Any, new_topic: Any, fill: Any):
    topic = new_topic()
    fill(topic, 100)
    assert run(topic).available_now() == [100]
    fill(topic, 50, first=100)
    assert run(topic).available_now() == [50]
    assert run(topic).available_now() == []
    assert run(topic).numbers() == list(range(150))


def test_a_running_query_sees_new_messages(run: Any, new_topic: Any, fill: Any):
    topic = new_topic()
    fill(topic, 10)
    running = run(topic)
    running.start()
    running.query.processAllAvailable()
    fill(topic, 10, first=10)
    running.query.processAllAvailable()
    assert running.numbers() == list(range(20))


@pytest.mark.newer_spark
def test_progress_tells_how_far_behind_a_query_is(run: Any, new_topic: Any, fill: Any):
    topic = new_topic(1)
    fill(topic, 100)
    running = run(topic, maxOffsetsPerTrigger=40)
    running.available_now()
    (source,) = running.progress()[0]["sources"]
    (at,) = source["endOffset"]["topics"][topic].values()
    (end,) = source["latestOffset"]["topics"][topic].values()
    assert (source["endOffset"]["v"], at, end) == (1, {"0": 40}, {"0": 100})


@pytest.mark.newer_spark
def test_a_batch_function_gets_each_message_once(
    spark: Any, stream: Any, new_topic: Any, fill: Any, tmp_path: Path
):
    topic = new_topic()
    fill(topic, 60)
    found: dict[int, list[int]] = {}

    def keep(frame: Any, batch_id: int) -> None:
        found[batch_id] = [int(bytes(row["body"])) for row in frame.collect()]

    frame = stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=25)
    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "each"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT)
    assert [len(found[batch]) for batch in sorted(found)] == [25, 25, 10]
    assert sorted(number for batch in found.values() for number in batch) == list(range(60))


def test_times_of_messages_make_windows(
    spark: Any, stream: Any, new_topic: Any, fill: Any, tmp_path: Path
):
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    topic = new_topic()
    fill(topic, 50)
    frame = stream(
        topic, startingOffsets="earliest", schema="tags string, storeTimestamp timestamp"
    )
    counts = frame.groupBy(F.window("storeTimestamp", "1 hour"), "tags").count()
    query = (
        counts.writeStream.format("memory")
        .queryName("windows")
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT)
    rows = spark.sql("SELECT tags, sum(count) AS n FROM windows GROUP BY tags").collect()
    assert {row["tags"]: row["n"] for row in rows} == {"even": 25, "odd": 25}
