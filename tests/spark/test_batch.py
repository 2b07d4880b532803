"""Topics as batch DataFrames."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from client.blocking import Producer

COLUMNS = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "body": "binary",
    "keys": "string",
    "tags": "string",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "bornHost": "string",
    "reconsumeTimes": "int",
    "sysFlag": "int",
    "flag": "int",
    "messageId": "string",
    "properties": "map<string,string>",
}
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def topic(new_topic: Any, fill: Any) -> str:
    """200 messages in four queues."""
    name: str = new_topic(4, "Batch")
    fill(name, 200)
    return name


def numbers(frame: Any) -> list[int]:
    return sorted(int(bytes(row["body"])) for row in frame.select("body").collect())


def test_a_topic_has_all_columns_and_all_messages(read: Any, topic: str):
    frame = read(topic)
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == COLUMNS
    assert numbers(frame) == list(range(200))
    row = frame.where("keys = 'k7'").first()
    assert (row["topic"], row["queueId"], row["queueOffset"]) == (topic, 3, 1)
    assert (row["tags"], row["flag"], bytes(row["body"])) == ("odd", 0, b"7")
    assert row["properties"]["n"] == "7"
    assert row["properties"]["UNIQ_KEY"] == row["messageId"]
    assert row["storeTimestamp"] >= row["bornTimestamp"]


def test_each_queue_is_a_task_of_its_own(read: Any, topic: str):
    frame = read(topic, schema="queueId int")
    assert frame.rdd.getNumPartitions() == 4
    assert read(topic, minPartitions=9).rdd.getNumPartitions() == 9
    assert numbers(read(topic, maxRecordsPerPartition=11)) == list(range(200))


@pytest.mark.parametrize(
    "schema",
    ["body binary", "queueOffset bigint, topic string", "properties map<string,string>"],
)
def test_columns_are_chosen_by_the_schema(read: Any, topic: str, schema: str):
    frame = read(topic, schema=schema)
    assert len(frame.collect()) == 200
    assert ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in frame.schema) == schema


def test_properties_can_be_omitted(read: Any, topic: str):
    frame = read(topic, includeProperties="false")
    assert frame.columns == [name for name in COLUMNS if name != "properties"]
    assert frame.count() == 200


def test_a_job_written_for_kafka_finds_its_columns(read: Any, topic: str):
    frame = read(None, subscribe=topic, kafkaNames="true")
    assert frame.columns == [
        *("key", "value", "topic", "partition", "offset"),
        *("timestamp", "timestampType", "headers"),
    ]
    row = frame.where("CAST(key AS STRING) = 'k7'").selectExpr(
        "CAST(value AS STRING) value", "partition", "offset", "timestampType",
        "filter(headers, h -> h.key = 'n')[0].value n",
    ).first()  # fmt: skip
    assert (row["value"], row["partition"], row["offset"]) == ("7", 3, 1)
    assert (row["timestampType"], bytes(row["n"])) == (1, b"7")


def test_positions_bound_a_batch(read: Any, topic: str):
    assert read(topic, startingOffsets="latest").count() == 0
    first = json.dumps({topic: {"0": 49, "1": 50, "2": -1, "3": -2}})
    assert read(topic, startingOffsets=first).count() == 51
    assert read(topic, startingTimestamp="-1h").count() == 200
    assert read(topic, endingTimestamp="-1h").count() == 0


def test_tags_are_filtered_by_the_broker(read: Any, topic: str):
    assert numbers(read(topic, filterTags="odd")) == list(range(1, 200, 2))
    assert read(topic, subExpression="even || odd").count() == 200


def test_a_limit_takes_no_more_than_it_needs(read: Any, topic: str):
    assert len(read(topic).limit(3).collect()) == 3
    assert read(topic).count() == 200


def test_other_bodies_are_what_was_sent(read: Any, new_topic: Any, producer: Producer):
    topic = new_topic(1, "Bodies")
    bodies = [b"\x00\xff", b"x" * 100_000, "Größe".encode()]
    for body in bodies:
        producer.send(topic, body)
    found = [bytes(row["body"]) for row in read(topic).orderBy("queueOffset").collect()]
    assert found == bodies
    raw = read(topic, decompress="false").where("sysFlag & 1 = 1").collect()
    assert len(raw) == 1
    assert len(raw[0]["body"]) < 1000


@pytest.mark.parametrize("pushed", [False, True], ids=["filtered by spark", "pushed down"])
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("queueId = 1", range(1, 200, 4)),
        (
            "queueId IN (0, 2) AND queueOffset >= 40",
            [n for n in range(160, 200) if n % 4 in {0, 2}],
        ),
        ("queueOffset > 48 AND queueOffset < 50", range(196, 200)),
        ("tags = 'odd'", range(1, 200, 2)),
        ("tags IN ('odd', 'even') AND queueOffset = 0", range(4)),
        ("tags IS NULL", []),
        ("keys = 'k42'", [42]),
        ("keys = 'k42' OR queueOffset = 0", [0, 1, 2, 3, 42]),
        ("topic = 'Nowhere'", []),
        ("storeTimestamp < timestamp'2020-01-01 00:00:00'", []),
        ("storeTimestamp > timestamp'2020-01-01 00:00:00'", range(200)),
        ("properties['n'] = '7'", [7]),
        ("NOT queueId = 1 AND queueOffset = 0", [0, 2, 3]),
    ],
)
def test_filters_find_the_same_pushed_down_or_not(
    spark: Any, read: Any, topic: str, pushed: bool, condition: str, expected: Any
):
    spark.conf.set(PUSH_DOWN, str(pushed).lower())
    try:
        assert numbers(read(topic, pushDown=pushed).where(condition)) == list(expected)
    finally:
        spark.conf.unset(PUSH_DOWN)


@pytest.mark.newer_spark
def test_filters_that_are_pushed_down_leave_less_to_read(spark: Any, read: Any, topic: str):
    spark.conf.set(PUSH_DOWN, "true")
    try:
        frame = read(topic, pushDown=True).where("queueId = 1 AND queueOffset >= 45")
        assert frame.rdd.getNumPartitions() == 1
        # Spark would keep what is left to read for later queries on the same frame.
        frame = read(topic)
        assert frame.where("queueId = 1").count() == 50
        both = frame.where("queueId = 1").union(frame.where("queueId = 2"))
        assert numbers(both) == sorted({*range(1, 200, 4), *range(2, 200, 4)})
        assert frame.count() == 200
    finally:
        spark.conf.unset(PUSH_DOWN)


def test_a_message_is_found_by_its_id(read: Any, topic: str):
    wanted = read(topic).where("keys = 'k5'").first()["messageId"]
    found = read(topic).where(F.col("messageId") == wanted)
    assert numbers(found) == [5]
