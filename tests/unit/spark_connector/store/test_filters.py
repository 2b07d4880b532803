"""Filters narrow what is read, and never lose a matching row."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from spark_connector.source.pushdown import Pushed
from spark_connector.store.options import ScanMode, StoreOptions, narrowed

OPTIONS = StoreOptions(path="/store", broker_name="broker-a")


def bounds_of(*filters: Filter) -> Pushed:
    return narrowed(OPTIONS, filters)[1]


def test_without_filters_everything_is_read() -> None:
    assert narrowed(OPTIONS, []) == (OPTIONS, Pushed())
    assert bounds_of(StringContains(("keys",), "k")) == bounds_of()


def test_queues_and_offsets_become_bounds() -> None:
    found = bounds_of(
        EqualTo(("topic",), "A"),
        In(("queueId",), (1, 2)),
        GreaterThan(("queueOffset",), 4),
        LessThanOrEqual(("queueOffset",), 9),
        EqualTo(("brokerName",), "broker-a"),
    )
    assert found.queue_values["topic"] == frozenset({"A"})
    assert found.queue_values["queueId"] == frozenset({1, 2})
    assert (found.first, found.end) == (5, 10)


def test_times_become_bounds_in_milliseconds() -> None:
    found = bounds_of(
        GreaterThanOrEqual(("storeTimestamp",), datetime(2024, 1, 1, tzinfo=UTC)),
        LessThan(("storeTimestamp",), datetime(2024, 1, 2, tzinfo=UTC)),
    )
    assert (found.since_ms, found.until_ms) == (1_704_067_200_000, 1_704_153_600_001)


@pytest.mark.parametrize(
    ("filters", "span"),
    [
        ([EqualTo(("physicalOffset",), 7)], (7, 8)),
        ([GreaterThan(("physicalOffset",), 7)], (8, None)),
        ([GreaterThanOrEqual(("physicalOffset",), 7)], (7, None)),
        ([LessThan(("physicalOffset",), 7), LessThan(("physicalOffset",), 9)], (0, 7)),
        ([LessThanOrEqual(("physicalOffset",), 7)], (0, 8)),
    ],
)
def test_physical_offsets_become_a_range(
    filters: list[Filter], span: tuple[int, int | None]
) -> None:
    found = bounds_of(*filters)
    assert (found.low, found.high) == span


def test_tags_are_read_alone() -> None:
    assert narrowed(OPTIONS, [EqualTo(("tags",), "x")])[0].tags == "x"


def test_a_contradictory_filter_reads_nothing() -> None:
    nothing = Pushed({"topic": frozenset()}, high=0)
    assert bounds_of(EqualTo(("brokerName",), "broker-b")) == nothing
    assert bounds_of(EqualTo(("tags",), "x"), EqualTo(("tags",), "y")) == nothing


def test_a_scan_of_the_log_compares_topics_in_the_records() -> None:
    options = StoreOptions(path="/store", topics=("A", "B"), scan=ScanMode.LOG)
    found, bounds = narrowed(options, [In(("topic",), ("B", "C"))])
    assert found.topics == ("B",)
    assert bounds.queue_values["topic"] == frozenset({"B"})
