"""Frames and streams written to topics by Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import concat, lit

from client import ReceivedMessage
from pocketmq.testing import StandaloneServer
from tests.integration.spark_connector.writing import received as written

Write = Callable[..., None]
Received = Callable[[str, int], list[ReceivedMessage[bytes]]]


@pytest.fixture
def write(server: StandaloneServer) -> Write:
    """Writes a frame: ``write(frame, topic="t", uniqKey="random")``."""

    def run(frame: Any, *, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format("rocketmq").option("nameServer", server.nameserver).mode(mode)
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.save()

    return run


@pytest.fixture
def received(server: StandaloneServer) -> Received:
    """All messages of a topic, at least so many."""

    return partial(written, server.nameserver, group="sink-readers")


def test_a_frame_is_written_with_all_its_columns(
    spark: Any, write: Write, received: Received, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    frame = spark.createDataFrame(
        [("one", "k1 k2", "t", {"carrier": "DL"}), ("two", None, None, None)],
        "value string, key string, tags string, properties map<string,string>",
    )
    write(frame, topic=topic)
    one, two = sorted(received(topic, 2), key=lambda message: message.body)
    assert (one.body, list(one.keys), one.tag) == (b"one", ["k1", "k2"], "t")
    assert one.properties["carrier"] == "DL"
    assert (two.body, list(two.keys), two.tag) == (b"two", [], None)


def test_rows_go_to_the_topics_that_a_column_names(
    spark: Any, write: Write, received: Received, new_topic: Callable[..., str]
) -> None:
    topics = [new_topic(), new_topic()]
    frame = spark.range(1000).selectExpr(
        "cast(id as string) as body", f"if(id % 2 = 0, '{topics[0]}', '{topics[1]}') as topic"
    )
    write(frame)
    for index, topic in enumerate(topics):
        numbers = sorted(int(message.body) for message in received(topic, 500))
        assert numbers == list(range(index, 1000, 2))


def test_one_key_stays_in_one_queue_and_in_order(
    spark: Any, write: Write, received: Received, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    frame = spark.range(4000).selectExpr(
        "cast(id as string) as body", "concat('order-', id % 10) as shardingKey"
    )
    write(frame.repartition("shardingKey").sortWithinPartitions("body"), topic=topic)
    last: dict[int, str] = {}
    queues: dict[int, set[int]] = {}
    for message in received(topic, 4000):
        key, body = int(message.body) % 10, message.body.decode()
        queues.setdefault(key, set()).add(message.queue.queue_id)
        assert last.get(key, "") < body
        last[key] = body
    assert all(len(found) == 1 for found in queues.values())


@pytest.mark.parametrize(
    ("frame", "options", "words"),
    [
        ("'x' as text", {}, "the sink has no column 'text'"),
        ("'x' as body", {"uniqKye": "random"}, "no option 'uniqkye'.*did you mean 'uniqKey'"),
        ("'x' as body", {"uniqKey": "column"}, "needs the column uniqKey"),
        ("'x' as body", {"mode": "overwrite"}, "messages of a topic can't be replaced"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_runs(
    spark: Any, write: Write, frame: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        write(spark.range(1).selectExpr(frame), topic="Refused", **options)


def test_a_row_that_cannot_be_sent_fails_the_write_by_name(
    spark: Any, write: Write, new_topic: Callable[..., str]
) -> None:
    frame = spark.sql("select cast(null as string) as body")
    with pytest.raises(Exception, match="row 0 of the task can't be sent: its body is null"):
        write(frame, topic=new_topic())


def stream_once(
    spark: Any, server: StandaloneServer, source: Path, topic: str, checkpoint: Path
) -> None:
    """Write the contents of new files, with the trigger AvailableNow."""
    lines = spark.readStream.schema("value string").text(str(source))
    query = (
        lines.writeStream.format("rocketmq")
        .option("nameServer", server.nameserver)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert query.exception() is None


@pytest.mark.newer_spark
def test_a_stream_writes_each_micro_batch_once(
    spark: Any,
    server: StandaloneServer,
    received: Received,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, source = new_topic(), tmp_path / "in"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.txt").write_text("\n".join(f"{number}-{i}" for i in range(50)))
        stream_once(spark, server, source, topic, tmp_path / "checkpoint")
    messages = received(topic, 100)
    assert len({message.body for message in messages}) == len(messages) == 100
    assert len({message.id for message in messages}) == 100


@pytest.mark.newer_spark
def test_a_micro_batch_that_runs_again_gives_the_same_unique_keys(
    spark: Any,
    server: StandaloneServer,
    received: Received,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, source, checkpoint = new_topic(), tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    (source / "0.txt").write_text("\n".join(str(i) for i in range(50)))
    stream_once(spark, server, source, topic, checkpoint)
    # As if the driver had died before it could note that the batch was done.
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    stream_once(spark, server, source, topic, checkpoint)
    messages = received(topic, 100)
    assert len(messages) == 100
    ids = {
        message.body: {other.id for other in messages if other.body == message.body}
        for message in messages
    }
    assert all(len(found) == 1 for found in ids.values())
    assert len(ids) == 50


def test_a_topic_that_is_archived_and_replayed_is_the_same_again(
    spark: Any,
    write: Write,
    read: Callable[..., Any],
    fill: Callable[..., None],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, again, archive = new_topic(), new_topic(), str(tmp_path / "archive")
    fill(topic, 500)
    read(topic).write.parquet(archive)
    columns = ["body", "keys", "tags", "properties", "queueId", "messageId as uniqKey"]
    rows = spark.read.parquet(archive).sort("queueId", "queueOffset").selectExpr(*columns)
    write(rows, topic=again)
    what = ["queueId", "queueOffset", "messageId", "body", "keys", "tags", "properties"]
    first, second = (
        read(name).select(what).sort("queueId", "queueOffset").collect() for name in (topic, again)
    )
    assert len(first) == 500
    assert second == first


def test_the_changes_of_a_streaming_aggregation_are_written_by_for_each_batch(
    write: Write,
    received: Received,
    stream: Callable[..., Any],
    fill: Callable[..., None],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, counts = new_topic(), new_topic()
    fill(topic, 300)
    lines = stream(topic, startingOffsets="earliest").groupBy("tags").count()
    changes = lines.selectExpr("concat(tags, '=', count) as value", "tags as key")

    def each(frame: Any, number: int) -> None:
        keyed = frame.withColumn("uniqKey", concat(lit(f"{number} "), "key"))
        write(keyed, topic=counts, partitioner="hashKeys")

    query = (
        changes.writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert {message.body for message in received(counts, 2)} == {b"even=150", b"odd=150"}
