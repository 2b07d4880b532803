"""Filters that Spark offers, and what they leave of a store to be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from spark_connector.source.pushdown import push
from spark_connector.store.options import Scan, StoreOptions
from spark_connector.store.planning import Bounds

_NOTHING = Bounds(topics=frozenset(), positions=(0, 0))


def narrowed(options: StoreOptions, filters: Iterable[Filter]) -> tuple[StoreOptions, Bounds]:
    """Options and bounds under which nothing is left out that satisfies all filters."""
    filters = list(filters)
    pushed, _ = push(filters, kafka=False)
    tags = pushed.expression(options.tags)
    brokers = pushed.places.get("brokerName")
    if tags is None or (brokers is not None and options.broker_name not in brokers):
        return options, _NOTHING
    topics = pushed.places.get("topic")
    if topics is not None and options.topics is not None:
        topics &= frozenset(options.topics)
    bounds = Bounds(
        topics=topics,
        queue_ids=pushed.places.get("queueId"),
        offsets=(pushed.first, None if pushed.last is None else pushed.last + 1),
        stored_ms=(pushed.since_ms, pushed.until_ms),
        positions=_positions(filters),
    )
    options = replace(options, tags=tags)
    if topics is not None and options.scan is Scan.LOG:
        options = replace(options, topics=tuple(sorted(topics)))
    return options, bounds


def _positions(filters: Iterable[Filter]) -> tuple[int | None, int | None]:
    """The span of physical offsets that filters leave."""
    low, high = 0, None
    for one in filters:
        value = getattr(one, "value", None)
        if getattr(one, "attribute", None) != ("physicalOffset",) or type(value) is not int:
            continue
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            low = max(low, value + isinstance(one, GreaterThan))
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            end = value + (not isinstance(one, LessThan))
            high = end if high is None else min(high, end)
    return low, high
