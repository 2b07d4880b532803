"""Topics as tables in SQL, and frames that are written back as they were read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from pocketmq.testing import StandaloneServer

Create = Callable[..., str]


@pytest.fixture
def create(spark: Any) -> Iterator[Create]:
    """Creates a table: ``create(topic="t")`` with these options."""
    numbers, names = itertools.count(), []

    def make(**options: str) -> str:
        names.append(f"made_{next(numbers)}")
        listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
        spark.sql(f"CREATE TABLE {names[-1]} USING rocketmq OPTIONS ({listed})")
        return names[-1]

    yield make
    for name in names:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def bodies(rows: Any) -> list[str]:
    return sorted(bytes(row["body"]).decode() for row in rows.select("body").collect())


@pytest.mark.newer_spark  # 4.0 inserts whole rows only
def test_a_table_is_created_read_streamed_and_inserted_into(
    spark: Any,
    server: StandaloneServer,
    create: Create,
    new_topic: Any,
    fill: Any,
    tmp_path: Path,
):
    topic, copies = new_topic(2), new_topic(2)
    fill(topic, 10)
    options = {"nameServer": server.nameserver, "startingOffsets": "earliest"}
    # The last option is one of the sink, which reading ignores as writing does startingOffsets.
    table = create(topic=topic, sendTimeoutMs="60s", **options)
    copy = create(topic=copies, **options)
    assert bodies(spark.table(table)) == [str(number) for number in range(10)]

    spark.sql(f"INSERT INTO {copy} (body, tags) VALUES (CAST('own' AS BINARY), 'made')")
    odd_rows = f"FROM {table} WHERE tags = 'odd'"
    spark.sql(f"INSERT INTO {copy} (body, keys, tags) SELECT body, keys, tags {odd_rows}")
    with pytest.raises(Exception, match=f"rows to insert into a table have a topic.* {topic}: "):
        spark.sql(f"INSERT INTO {copy} SELECT * {odd_rows}")
    odd = [str(number) for number in range(1, 10, 2)]
    assert bodies(spark.table(copy)) == [*odd, "own"]
    assert spark.table(copy).where("tags = 'made'").count() == 1
    assert spark.table(table).count() == 10

    batches: list[int] = []
    stream = spark.readStream.option("maxOffsetsPerTrigger", 6).table(table)
    query = (
        stream.writeStream.option("checkpointLocation", str(tmp_path))
        .foreachBatch(lambda frame, _: batches.append(frame.count()))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert (sum(batches), max(batches)) == (10, 6)


def test_a_frame_read_from_a_table_is_written_where_its_options_say(
    spark: Any, server: StandaloneServer, create: Create, read: Any, new_topic: Any, fill: Any
):
    topic, other = new_topic(2), new_topic(2)
    fill(topic, 5)
    table = create(topic=topic, nameServer=server.nameserver, uniqKey="random")
    rows = spark.table(table).withColumn("uniqKey", F.concat(F.lit("key-"), "keys"))
    writer = rows.write.format("rocketmq").mode("append")
    # With the table's uniqKey=random the column uniqKey would be refused.
    writer.options(nameServer=server.nameserver, topic=other).save()
    assert bodies(read(other)) == ["0", "1", "2", "3", "4"]
    assert bodies(read(topic)) == ["0", "1", "2", "3", "4"]


def test_a_table_is_refused_options_that_are_wrong_or_secret(
    spark: Any, server: StandaloneServer, create: Create
):
    with pytest.raises(Exception, match=r"no option 'topik'.*did you mean 'topic'"):
        create(nameServer=server.nameserver, topik="T")
    secret = {"accessKey": "a", "secretKey": "hush"}
    with pytest.raises(Exception, match="can't be given to a table") as refused:
        create(nameServer=server.nameserver, topic="T", **secret)
    assert "hush" not in str(refused.value)


def test_a_table_with_columns_of_its_own_is_told_why_it_has_no_options(
    spark: Any, server: StandaloneServer, create: Create
):
    options = f"(nameServer '{server.nameserver}', topic 'T')"
    spark.sql(f"CREATE TABLE narrow (body BINARY) USING rocketmq OPTIONS {options}")
    try:
        with pytest.raises(Exception, match="only if it was created without columns"):
            spark.table("narrow").count()
    finally:
        spark.sql("DROP TABLE narrow")


@pytest.mark.parametrize("kafka_names", ["false", "true"])
def test_a_frame_that_was_read_is_written_to_fewer_queues(
    server: StandaloneServer, read: Any, new_topic: Any, fill: Any, kafka_names: str
):
    topic, copy = new_topic(4), new_topic(1)
    fill(topic, 20)
    rows = read(topic, kafkaNames=kafka_names)
    target = {"nameServer": server.nameserver, "topic": copy}
    rows.write.format("rocketmq").mode("append").options(**target).save()
    found = {bytes(row["body"]): row for row in read(copy).collect()}
    assert sorted(map(int, found)) == list(range(20))
    assert all(row["properties"]["n"] == body.decode() for body, row in found.items())
    assert {row["keys"] for row in found.values()} == {f"k{number}" for number in range(20)}
