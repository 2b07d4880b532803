"""The Spark source's planning at a real Apache RocketMQ: batches, streams, keys."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, LessThan

from client.blocking import Admin, Producer
from remoting.blocking import BlockingConnection
from spark_connector import connections
from spark_connector.errors import BrokerError, UnknownTopicError
from tests.integration.spark_connector.querying import (
    Query,
    batch_reader,
    numbers,
    rows,
    send,
    stream_reader,
)
from tests.interop.apache import Apache, mqadmin
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

_topics = itertools.count()


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def there(version: str, shared_apache: Callable[[str], Apache]) -> Iterator[Apache]:
    yield shared_apache(version)
    connections.close_unused()


@pytest.fixture(scope="module")
def admin(there: Apache) -> Iterator[Admin]:
    with Admin(there.nameserver) as made:
        yield made


@pytest.fixture(scope="module")
def producer(there: Apache) -> Iterator[Producer]:
    with Producer(there.nameserver, group="tests") as made:
        yield made


@pytest.fixture
def topic(admin: Admin, producer: Producer) -> str:
    """200 messages in four queues."""
    name = f"Source{next(_topics)}"
    admin.create_topic(name, queues=4)
    send(admin, producer, name, range(200))
    shown(admin, name, 200)
    return name


def shown(admin: Admin, topic: str, count: int) -> None:
    """Wait until messages are visible, shortly after their acknowledgement."""
    wait_until(
        lambda: sum(at.max_offset for at in admin.topic_stats(topic).values()) >= count,
        "the messages don't show",
    )


@pytest.fixture
def running(there: Apache) -> Iterator[Any]:
    made: list[Query] = []

    def make(topic: str, **given: object) -> Query:
        given = {"topic": topic, "startingOffsets": "earliest"} | given
        made.append(Query(stream_reader(there.nameserver, **given)))
        return made[-1]

    yield make
    for one in made:
        one.reader.stop()


def test_a_topic_is_read_between_offsets_and_times(
    there: Apache, admin: Admin, producer: Producer, topic: str
):
    assert numbers(rows(batch_reader(there.nameserver, topic=topic))) == list(range(200))
    time.sleep(0.01)
    between = datetime.now(UTC).isoformat(timespec="milliseconds")
    time.sleep(0.01)
    send(admin, producer, topic, range(200, 240))
    shown(admin, topic, 240)
    later = rows(batch_reader(there.nameserver, topic=topic, startingTimestamp=between))
    assert numbers(later) == list(range(200, 240))
    earlier = rows(batch_reader(there.nameserver, topic=topic, endingTimestamp=between))
    assert numbers(earlier) == list(range(200))
    split = batch_reader(there.nameserver, topic=topic, maxRecordsPerPartition=7)
    assert numbers(rows(split)) == list(range(240))


def test_filters_narrow_what_is_read(there: Apache, topic: str):
    reader = batch_reader(there.nameserver, topic=topic)
    reader.pushFilters([EqualTo(("queueId",), 1), LessThan(("queueOffset",), 3)])
    assert numbers(rows(reader)) == [1, 5, 9]
    reader = batch_reader(there.nameserver, topic=topic, filterTags="odd")
    assert numbers(rows(reader)) == list(range(1, 200, 2))
    reader = batch_reader(there.nameserver, topic=topic, filterSql="TAGS = 'odd' AND KEYS <> 'k7'")
    assert numbers(rows(reader)) == [number for number in range(1, 200, 2) if number != 7]
    with pytest.raises(BrokerError, match="must less than"):
        batch_reader(there.nameserver, topic=topic, filterSql="a BETWEEN 3 AND 1").partitions()


def test_a_message_is_found_by_key_and_id_in_the_brokers_index(there: Apache, topic: str):
    found = next(
        row for row in rows(batch_reader(there.nameserver, topic=topic)) if row["body"] == b"77"
    )
    for filter_ in (EqualTo(("keys",), "k77"), EqualTo(("messageId",), found["messageId"])):
        reader = batch_reader(there.nameserver, topic=topic)
        reader.pushFilters([filter_])
        assert 77 in numbers(rows(reader))
    reader = batch_reader(there.nameserver, topic=topic)
    reader.pushFilters([EqualTo(("keys",), "nobody")])
    assert len(rows(reader)) == 200


def test_with_an_index_only_matching_messages_are_read(
    there: Apache, admin: Admin, producer: Producer, topic: str
):
    time.sleep(1.5)  # what is younger than a second is read, not looked up
    send(admin, producer, topic, range(1000, 1004))
    shown(admin, topic, 204)
    reader = batch_reader(there.nameserver, topic=topic)
    reader.pushFilters([EqualTo(("keys",), "k77")])
    deadline = time.monotonic() + 20
    while len(rows(reader)) > 5 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert numbers(rows(reader)) == [77, 1000, 1001, 1002, 1003]


def test_a_stream_reads_each_message_once_and_its_lag_ends_at_0(
    there: Apache,
    version: str,
    tmp_path: Path,
    admin: Admin,
    topic: str,
    running: Any,
    caplog: pytest.LogCaptureFixture,
):
    group = f"G{topic}"
    query = running(topic, consumerGroup=group, maxOffsetsPerTrigger=90)
    assert [len(batch) for batch in query.available_now()] == [90, 90, 20]
    assert numbers(query.found) == list(range(200))
    assert admin.lag(group).total == 0
    table = mqadmin(version, tmp_path, there.nameserver, "consumerProgress", "-g", group)
    assert "Diff Total: 0" in table
    assert "a commit failed" not in caplog.text


def test_a_limit_in_bytes_is_estimated_from_samples(topic: str, running: Any):
    query = running(topic, maxBytesPerTrigger=10_000)
    sizes = [len(batch) for batch in query.available_now()]
    assert numbers(query.found) == list(range(200))
    # A message takes some 200 bytes.
    assert 30 < max(sizes) < 70


def test_a_group_that_committed_nothing_is_distinguished_from_one_at_0(
    admin: Admin, topic: str, running: Any
):
    for on_no_commit, expected in (("latest", 0), ("earliest", 200)):
        query = running(
            topic,
            startingOffsets="committed",
            consumerGroup=f"None{topic}",
            commitOffsets="none",
            onNoCommit=on_no_commit,
        )
        assert len(query.step()) == expected
    admin.create_group(f"Zero{topic}")
    admin.commit(f"Zero{topic}", dict.fromkeys(admin.queues(topic), 0))
    query = running(
        topic, startingOffsets="committed", consumerGroup=f"Zero{topic}", onNoCommit="latest"
    )
    assert len(query.step()) == 200


def test_an_idle_query_polls_rarely_and_sees_new_messages_at_once(
    admin: Admin, producer: Producer, topic: str, running: Any, monkeypatch: pytest.MonkeyPatch
):
    query = running(topic)
    query.step()
    for _ in range(4):
        assert query.step() == []
    sent: list[int] = []
    submit = BlockingConnection.submit

    def counted(self: BlockingConnection, command: Any, **given: Any) -> int:
        sent.append(command.code)
        return submit(self, command, **given)

    monkeypatch.setattr(BlockingConnection, "submit", counted)
    for _ in range(12):
        assert query.step() == []
    assert len(sent) <= 4
    send(admin, producer, topic, range(200, 204))
    query.until(lambda: len(query.found) >= 204)
    assert numbers(query.found) == list(range(204))


def test_an_unknown_topic_is_an_error_with_the_nearest_name(there: Apache, topic: str):
    with pytest.raises(UnknownTopicError, match=f"no topic '{topic}x'; did you mean 'Source"):
        batch_reader(there.nameserver, topic=f"{topic}x").partitions()
