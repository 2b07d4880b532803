"""``rocketmq.store``: Spark reads a store's directory, with and without its broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketmq.testing import StandaloneServer
from spark_connector.schema import COLUMNS, STORE_COLUMNS
from tests.unit.spark_connector.store.directories import (
    golden_store,
    made_store,
    manifest_of,
    overwrite,
    places,
)

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
COUNT = 300

Store = Callable[..., Any]


@pytest.fixture
def store(spark: Any) -> Store:
    """A DataFrame of a store: ``store(path, scan="log")``."""

    def load(root: Path, *, schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("rocketmq.store").option("path", str(root))
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return made_store(tmp_path / "store", COUNT)


@contextmanager
def push_down(spark: Any, pushed: bool) -> Iterator[None]:
    spark.conf.set(PUSH_DOWN, str(pushed).lower())
    try:
        yield
    finally:
        spark.conf.unset(PUSH_DOWN)


def numbers(frame: Any) -> list[int]:
    return sorted(int(bytes(row["body"]).rstrip(b".")) for row in frame.select("body").collect())


def test_it_has_the_columns_of_a_topic_and_four_more(store: Store, made: Path) -> None:
    frame = store(made)
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == {
        column.name: column.ddl for column in STORE_COLUMNS.values()
    }


@pytest.mark.parametrize("scan", ["queue", "log"])
def test_a_store_of_apache_is_read_whole(
    store: Store, golden: Path, tmp_path: Path, scan: str
) -> None:
    root = golden_store(golden, "clean", tmp_path)
    frame = store(root, scan=scan, maxRecordsPerPartition=50, maxBytesPerPartition=30_000)
    wanted = manifest_of(golden, "clean")["messages_by_topic"]
    found = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert found == wanted
    assert frame.where("not crcOk").count() == 0


def test_beside_a_running_broker_it_reads_what_the_broker_gives(
    store: Store,
    read: Callable[..., Any],
    server: StandaloneServer,
    new_topic: Callable[..., str],
    fill: Callable[..., None],
) -> None:
    topic = new_topic(3, "Beside")
    fill(topic, 150)
    names = [name for name in COLUMNS if name not in {"brokerName", "properties"}]
    by_broker = read(topic).select(*names, "properties.n").orderBy("queueId", "queueOffset")
    by_files = store(server.store, topic=topic).select(*names, "properties.n")
    assert by_files.orderBy("queueId", "queueOffset").collect() == by_broker.collect()
    assert by_files.count() == 150


@pytest.mark.parametrize("pushed", [False, True])
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("topic = 'Bills'", range(0, COUNT, 5)),
        ("topic = 'Orders' and queueId in (0, 1) and queueOffset < 2", [1, 3, 4, 6]),
        ("tags = 'odd' and queueId = 2", range(5, COUNT, 6)),
        ("storeTimestamp > current_timestamp() + interval 1 hour", []),
        ("storeTimestamp < current_timestamp() + interval 1 hour", range(COUNT)),
        ("topic = 'Nobody' or physicalOffset = 0", [0]),
        ("brokerName = 'elsewhere'", []),
    ],
)
def test_filters_find_the_same_pushed_down_or_not(
    spark: Any, store: Store, made: Path, pushed: bool, condition: str, expected: Any
) -> None:
    with push_down(spark, pushed):
        for scan in ("queue", "log"):
            frame = store(made, scan=scan, pushDown=pushed)
            assert numbers(frame.where(condition)) == list(expected)


@pytest.mark.newer_spark
def test_filters_that_are_pushed_down_leave_less_to_read(
    spark: Any, store: Store, made: Path
) -> None:
    with push_down(spark, True):
        frame = store(made, pushDown=True, maxRecordsPerPartition=10)
        assert frame.where("topic = 'Bills' and queueId = 1").rdd.getNumPartitions() == 2
        edge = places(made)[100]

        def narrowed(condition: str) -> Any:
            frame = store(made, scan="log", pushDown=True, maxBytesPerPartition=1000)
            return frame.where(condition)

        assert narrowed(f"physicalOffset >= {edge}").rdd.getNumPartitions() > 10
        assert narrowed(f"physicalOffset = {edge}").rdd.getNumPartitions() == 1
        assert numbers(narrowed(f"physicalOffset = {edge}")) == [100]


def test_the_path_may_be_given_to_load(spark: Any, made: Path) -> None:
    assert numbers(spark.read.format("rocketmq.store").load(str(made))) == list(range(COUNT))


def test_only_the_columns_requested_are_made(store: Store, made: Path) -> None:
    frame = store(made, schema="file string, queueOffset bigint, body binary")
    assert frame.columns == ["file", "queueOffset", "body"]
    assert numbers(frame) == list(range(COUNT))


def test_damage_fails_a_query_or_is_seen_in_its_result(store: Store, made: Path) -> None:
    whole = places(made)
    overwrite(made, whole[7] + 88, b"\xff")
    overwrite(made, whole[9] + 4, b"\0\0\0\0")
    with pytest.raises(Exception, match="set onDecodeError to null or raw to get such messages"):
        store(made).count()
    frame = store(made, scan="log", onDecodeError="raw")
    assert frame.count() == COUNT
    bad = frame.where("not crcOk").orderBy("physicalOffset").collect()
    assert [row["physicalOffset"] for row in bad] == [whole[7], whole[9]]
    assert [row["topic"] is None for row in bad] == [False, True]


def test_an_empty_store_gives_no_rows(store: Store, tmp_path: Path) -> None:
    assert store(made_store(tmp_path / "store", 0)).count() == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pathh": "x"}, "did you mean 'path'"),
        ({"path": "/nowhere/store"}, "there is no store at /nowhere/store"),
        ({"topic": "Ordres"}, "did you mean 'Orders'"),
        ({"nameServer": "localhost:9876"}, "a store is read without a broker"),
    ],
)
def test_errors_are_reported_before_a_task_runs(
    store: Store, made: Path, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        store(made, **options).count()


def test_a_store_cannot_be_written(spark: Any) -> None:
    with pytest.raises(Exception, match="to write to topics use format"):
        spark.range(1).write.format("rocketmq.store").option("path", "x").mode("append").save()
