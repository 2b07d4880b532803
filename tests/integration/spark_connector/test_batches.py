"""The batch reader against our broker: positions, filters, splits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from client import MessageQueue
from client.blocking import Admin, Producer
from pocketmq.testing import StandaloneServer
from spark_connector.errors import BrokerError, DataLossError, OptionError, UnknownTopicError
from spark_connector.source.batch import INDEX_MARGIN_MS, PushDownReader
from spark_connector.source.search import KeyMatches, MessageSearch
from tests.integration.spark_connector.querying import Row, batch_reader, numbers, rows, send

_topics = itertools.count()


@pytest.fixture(scope="module")
def topic(admin: Admin, producer: Producer) -> str:
    """Messages 0 to 99 in four queues, and 100 to 199 stored later."""
    admin.create_topic("Batch", queues=4)
    send(admin, producer, "Batch", range(100))
    sent_at = datetime.now(UTC)
    while datetime.now(UTC) - sent_at < timedelta(milliseconds=5):
        pass
    send(admin, producer, "Batch", range(100, 200))
    return "Batch"


@pytest.fixture
def reader(server: StandaloneServer, topic: str) -> Callable[..., PushDownReader]:
    return lambda **given: batch_reader(server.nameserver, **{"topic": topic, **given})


@pytest.fixture
def all_rows(reader: Any) -> list[Row]:
    return rows(reader())


@pytest.fixture
def second_half(all_rows: list[Row]) -> datetime:
    """Return the store time of the first later message."""
    return min(row["storeTimestamp"] for row in all_rows if int(row["body"]) >= 100)


def test_a_topic_is_read_whole(all_rows: list[Row]):
    assert numbers(all_rows) == list(range(200))
    assert {row["queueId"] for row in all_rows} == {0, 1, 2, 3}
    row = next(row for row in all_rows if row["body"] == b"6")
    assert (row["topic"], row["queueOffset"], row["keys"]) == ("Batch", 1, "k6")
    assert (row["tags"], row["reconsumeTimes"]) == ("even", 0)
    assert ("KEYS", "k6") in row["properties"]


def test_a_batch_may_begin_at_the_end(reader: Any):
    assert reader(startingOffsets="latest").partitions() == []


def test_offsets_bound_a_batch(reader: Any, admin: Admin, topic: str):
    broker = admin.queues(topic)[0].broker_name
    starting = json.dumps({topic: {"0": 10, "1": -2, "2": -1, "3": 49}})
    ending = json.dumps({topic: {broker: {"0": 12, "1": 1, "2": -1, "3": 50}}})
    found = rows(reader(startingOffsets=starting, endingOffsets=ending))
    assert sorted((row["queueId"], row["queueOffset"]) for row in found) == [
        (0, 10),
        (0, 11),
        (1, 0),
        (3, 49),
    ]


def test_times_bound_a_batch_exactly(reader: Any, second_half: datetime):
    at = second_half.isoformat()
    assert numbers(rows(reader(startingTimestamp=at))) == list(range(100, 200))
    assert numbers(rows(reader(endingTimestamp=at))) == list(range(100))
    assert numbers(rows(reader(startingTimestamp="-1h"))) == list(range(200))
    assert rows(reader(startingTimestamp="now", endingOffsets="latest")) == []
    ms = int(second_half.timestamp() * 1000)
    each = json.dumps({"Batch": {str(number): ms for number in range(4)}})
    assert numbers(rows(reader(startingOffsetsByTimestamp=each))) == list(range(100, 200))
    assert numbers(rows(reader(endingOffsetsByTimestamp=each))) == list(range(100))


def test_a_time_without_messages_may_be_an_error(reader: Any):
    strict = reader(startingTimestamp="now", startingOffsetsByTimestampStrategy="error")
    with pytest.raises(OptionError, match=r"holds no message stored at or after"):
        strict.partitions()


def test_a_batch_that_ends_before_it_begins_is_an_error(reader: Any, second_half: datetime):
    wrong = reader(startingTimestamp=second_half.isoformat(), endingTimestamp=1000)
    with pytest.raises(OptionError, match=r"startingTimestamp is offset 25, behind endingTimesta"):
        wrong.partitions()


def test_offsets_beyond_either_end_are_errors_or_skipped(reader: Any):
    beyond = json.dumps({"Batch": {"0": 51, "1": 0, "2": 0, "3": 0}})
    with pytest.raises(DataLossError, match=r"offset 51 of queue Batch/.*/0, which holds \[0, 50"):
        reader(startingOffsets=beyond).partitions()
    assert len(rows(reader(startingOffsets=beyond, failOnDataLoss="false"))) == 150
    with pytest.raises(DataLossError, match=r"endingOffsets asks for offset 51"):
        reader(endingOffsets=beyond).partitions()


@pytest.mark.parametrize("options", [{}, {"minPartitions": 33}, {"maxRecordsPerPartition": 7}])
def test_splits_read_the_same(reader: Any, options: dict[str, int]):
    split = reader(**options)
    parts = split.partitions()
    assert len(parts) >= options.get("minPartitions", 4)
    assert numbers(rows(split, parts)) == list(range(200))


def test_tags_filter_a_batch(reader: Any):
    assert numbers(rows(reader(filterTags="odd"))) == list(range(1, 200, 2))


def test_an_expression_about_properties_filters_a_batch(reader: Any):
    found = rows(reader(filterSql="TAGS = 'odd' AND KEYS NOT IN ('k1', 'k3')"))
    assert numbers(found) == list(range(5, 200, 2))
    found, returned = where(
        reader(filterSql="KEYS = 'k7' OR KEYS = 'k8'"), EqualTo(("tags",), "odd")
    )
    assert len(returned) == 1
    # The filter on tags is left to Spark.
    assert numbers(found) == [7, 8]


def test_a_wrong_expression_is_an_error_before_anything_is_read(reader: Any):
    with pytest.raises(BrokerError, match=r"left value\(3\) must less than"):
        reader(filterSql="a BETWEEN 3 AND 1").partitions()


def test_an_unknown_topic_is_an_error(server: StandaloneServer, topic: str):
    with pytest.raises(UnknownTopicError, match=r"no topic 'Batsch'; did you mean 'Batch'"):
        batch_reader(server.nameserver, topic="Batsch").partitions()


def test_all_topics_of_a_list_are_read(server: StandaloneServer, admin: Admin, topic: str):
    admin.create_topic("Empty", queues=2)
    assert len(rows(batch_reader(server.nameserver, topic=f"Empty,{topic}"))) == 200
    assert len(rows(batch_reader(server.nameserver, subscribePattern="B.t.h|Empty"))) == 200


# --- filters


def where(reader: PushDownReader, *filters: Filter) -> tuple[list[Row], list[Filter]]:
    returned = list(reader.pushFilters(list(filters)))
    return rows(reader), returned


def scanned(found: list[Row]) -> int:
    return len(found)


def test_filters_on_queues_and_offsets_leave_just_what_they_want(reader: Any):
    filters = (
        In(("queueId",), [1, 2, 9]),
        EqualTo(("topic",), "Batch"),
        GreaterThanOrEqual(("queueOffset",), 10),
        GreaterThan(("queueOffset",), 10),
        LessThanOrEqual(("queueOffset",), 14),
        LessThan(("queueOffset",), 14),
    )
    found, returned = where(reader(), *filters)
    assert returned == list(filters)  # for Spark to apply again
    assert sorted((row["queueId"], row["queueOffset"]) for row in found) == [
        (queue, offset) for queue in (1, 2) for offset in (11, 12, 13)
    ]


def test_filters_that_contradict_each_other_leave_nothing(reader: Any):
    for filters in (
        [EqualTo(("topic",), "Batch"), EqualTo(("topic",), "Other")],
        [EqualTo(("brokerName",), "nobody")],
        [GreaterThan(("queueOffset",), 5), LessThan(("queueOffset",), 3)],
        [EqualTo(("tags",), "odd"), EqualTo(("tags",), "even")],
        [In(("queueOffset",), [])],
    ):
        pushing = reader()
        pushing.pushFilters(filters)
        assert pushing.partitions() == []


def test_filters_on_times_narrow_the_read_and_are_applied_again_by_spark(
    reader: Any, second_half: datetime
):
    for filters, expected in (
        ([GreaterThanOrEqual(("storeTimestamp",), second_half)], range(100, 200)),
        ([LessThan(("storeTimestamp",), second_half)], range(100)),
    ):
        found, returned = where(reader(), *filters)
        assert returned == filters
        exact = [
            row
            for row in found
            if (row["storeTimestamp"] >= second_half) is (expected.start == 100)
        ]
        assert numbers(exact) == list(expected)
        assert scanned(found) < 200


def test_filters_on_tags_narrow_the_read_and_are_applied_again_by_spark(reader: Any):
    found, returned = where(reader(), In(("tags",), ["odd", "none"]))
    assert len(returned) == 1
    assert numbers(found) == list(range(1, 200, 2))
    found, _ = where(reader(filterTags="odd || even"), EqualTo(("tags",), "even"))
    assert numbers(found) == list(range(0, 200, 2))


def indexed(found: list[Row], keys: set[str], until: datetime) -> type[MessageSearch]:
    """A broker's key index, simulated with rows, of all messages stored before a time."""
    until_ms = int(until.timestamp() * 1000)

    class Indexed(MessageSearch):
        def by_key(self, topic: str, key: str) -> dict[str, KeyMatches | None]:
            hits = [
                (MessageQueue(topic, row["brokerName"], row["queueId"]), row["queueOffset"])
                for row in found
                if key in {row["keys"], row["messageId"]} and row["keys"] in keys
            ]
            matches = KeyMatches(hits, until_ms + INDEX_MARGIN_MS) if hits else None
            return {found[0]["brokerName"]: matches}

    return Indexed


def test_an_indexed_key_is_one_small_task(reader: Any, all_rows: list[Row]):
    newer = max(row["storeTimestamp"] for row in all_rows) + timedelta(milliseconds=1)
    index = indexed(all_rows, {"k77", "k78", "k81"}, newer)
    pushing = reader(search=index)
    filters = [In(("keys",), ["k77", "k78", "k81"]), LessThan(("queueId",), 3)]
    returned = pushing.pushFilters(filters)
    (task,) = pushing.partitions()
    assert numbers(rows(pushing, [task])) == [77, 78, 81]
    assert list(returned) == filters
    message_id = next(row["messageId"] for row in all_rows if row["body"] == b"81")
    by_id = reader(search=index)
    assert numbers(where(by_id, EqualTo(("messageId",), message_id))[0]) == [81]


def test_the_part_not_indexed_yet_is_read(reader: Any, all_rows: list[Row], second_half: datetime):
    old = [row for row in all_rows if row["storeTimestamp"] < second_half]
    stale = reader(search=indexed(old, {"k7"}, second_half))
    found, _ = where(stale, EqualTo(("keys",), "k7"))
    assert numbers(found) == [7, *range(100, 200)]


def test_a_key_in_no_index_is_searched_everywhere(reader: Any):
    found, returned = where(reader(), EqualTo(("keys",), "k7"))
    assert len(returned) == 1
    assert scanned(found) == 200


def test_other_filters_are_left_to_spark(reader: Any):
    filters = [
        Not(EqualTo(("queueId",), 1)),
        EqualTo(("body",), b"5"),
        EqualTo(("properties", "n"), "5"),
        StringStartsWith(("keys",), "k"),
        EqualTo(("tags",), ""),
        EqualTo(("tags",), "a || b"),
        EqualTo(("tags",), "*"),
        EqualTo(("keys",), " "),
        IsNotNull(("keys",)),
        GreaterThan(("storeTimestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - on purpose
    ]
    found, returned = where(reader(), *filters)
    assert returned == filters
    assert scanned(found) == 200


def test_filters_of_kafkas_columns_are_understood(server: StandaloneServer, topic: str):
    pushing = batch_reader(server.nameserver, topic=topic, kafkaNames="true")
    returned = pushing.pushFilters([EqualTo(("partition",), 2), LessThan(("offset",), 3)])
    assert len(list(returned)) == 2
    assert numbers(rows(pushing)) == [2, 6, 10]
    other = batch_reader(server.nameserver, topic=topic, kafkaNames="true")
    assert len(where(other, EqualTo(("queueId",), 2))[0]) == 200
