"""Filters that Spark offers to a batch read, and what they leave to be read.

Spark offers comparisons of columns with constants, all of which have to hold. Those on topic,
broker and queue drop whole queues and those on offsets cut ranges: both exactly, so Spark need not
apply them again. Times, tags, keys and message ids only narrow what is asked of the brokers, and go
back to Spark: a store time counts milliseconds, an index finds keys by their hash.

Spark refuses a reader that takes filters while ``spark.sql.python.filterPushdown.enabled`` is off,
and does not pass that setting on. ``offered`` looks for Spark's planner among its callers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue

PLANNER: Final = "data_source_pushdown_filters.py"
"""The file of Spark's planner that offers filters (``pyspark/sql/worker``)."""

MAX_KEYS: Final = 16
"""Keys looked up in indexes; for more, everything is read."""

_KAFKA: Final = {"partition": "queueId", "offset": "queueOffset", "timestamp": "storeTimestamp"}
_PLACES: Final = frozenset({"topic", "brokerName", "queueId"})
_NEVER_NULL: Final = _PLACES | {"queueOffset", "storeTimestamp"}


def offered(frame: FrameType | None = None) -> bool:
    """Whether the caller, or a caller of it, is the planner that offers filters."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2] == PLANNER:
            return True
        frame = frame.f_back
    return False


@dataclass(slots=True)
class Pushed:
    """What filters leave; None: everything.

    Attributes:
        places: column -> the values that are wanted.
        first, end: the queue offsets wanted; ``end`` is excluded.
        since_ms: nothing stored earlier is wanted.
        until_ms: nor what was stored at or after this time.
        tags: the tags wanted.
        keys: a message is wanted only if it has one of these keys or ids.
        low, high: the physical offsets wanted, of a store; ``high`` is excluded.
    """

    places: dict[str, frozenset[Any]] = field(default_factory=dict)
    first: int = 0
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    low: int = 0
    high: int | None = None

    def wants(self, queue: MessageQueue) -> bool:
        """Whether anything of a queue is wanted."""
        columns = {
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
        }
        return all(columns[name] in wanted for name, wanted in self.places.items())

    def cut(self, start: int, end: int) -> tuple[int, int]:
        """What is wanted of a range."""
        start = max(start, self.first)
        return start, max(start, end if self.end is None else min(end, self.end))

    def expression(self, text: str) -> str | None:
        """The tag expression of option and filters together; None: no tag satisfies both."""
        if self.tags is None:
            return text
        option = TagExpression.parse(text)
        wanted = self.tags if option.is_all else self.tags & option.tags
        return " || ".join(sorted(wanted)) if wanted else None


def push(filters: Iterable[Filter], *, kafka: bool) -> tuple[Pushed, list[Filter]]:
    """Take filters over.

    Args:
        filters: as Spark offers them; all have to hold.
        kafka: columns have the names of Kafka's source.

    Returns:
        What they leave, and those that Spark has to apply to the rows.
    """
    pushed = Pushed()
    returned = []
    for one in filters:
        column = _column(one, kafka)
        if column is None or not _take(pushed, column, one):
            returned.append(one)
    return pushed, returned


def _column(one: Filter, kafka: bool) -> str | None:
    """The column in our own names; None for one that filters can't be taken of."""
    attribute = getattr(one, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return None
    name: str = attribute[0]
    if not kafka:
        return name
    return _KAFKA.get(name) or (name if name == "topic" else None)


def _take(pushed: Pushed, column: str, one: Filter) -> bool:
    """Apply a filter; whether it is exact and Spark need not apply it."""
    if isinstance(one, IsNotNull):
        return column in _NEVER_NULL
    values = _values(one)
    if column in _PLACES:
        if values is not None:
            pushed.places[column] = values & pushed.places.get(column, values)
        return values is not None
    if column in {"queueOffset", "physicalOffset"}:
        span = _span(one, values)
        if span is None:
            return False
        if column == "physicalOffset":
            pushed.low, pushed.high = max(pushed.low, span[0]), _narrower(pushed.high, span[1])
        else:
            pushed.first, pushed.end = max(pushed.first, span[0]), _narrower(pushed.end, span[1])
        # Of several values only the span is read: the rows between are Spark's to drop.
        return values is None or len(values) <= 1
    if column == "storeTimestamp":
        _take_time(pushed, one, values)
    elif column == "tags" and values is not None:
        plain = all(
            isinstance(tag, str) and TagExpression.parse(tag).tags == {tag} for tag in values
        )
        if values and "" not in values and plain:
            pushed.tags = values if pushed.tags is None else pushed.tags & values
    elif column in {"keys", "messageId"} and values is not None:
        # A column of keys has them with spaces between; any of them finds the message.
        firsts = {first for value in values if (first := str(value).strip(" ").partition(" ")[0])}
        if pushed.keys is None and firsts and len(firsts) == len(values) <= MAX_KEYS:
            pushed.keys = frozenset(firsts)
    return False


def _values(one: Filter) -> frozenset[Any] | None:
    """The values that an equality allows; None for another filter."""
    if isinstance(one, EqualTo | EqualNullSafe):
        return None if one.value is None else frozenset({one.value})
    if isinstance(one, In):
        return frozenset(value for value in one.value if value is not None)
    return None


def _span(one: Filter, values: frozenset[Any] | None) -> tuple[int, int | None] | None:
    """The least number that a filter allows and the first one above; None for another filter."""
    if values is not None:
        return min(values, default=1), max(values, default=0) + 1
    bound = getattr(one, "value", None)
    if type(bound) is not int:
        return None
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return bound + isinstance(one, GreaterThan), None
    if isinstance(one, LessThan | LessThanOrEqual):
        return 0, bound + isinstance(one, LessThanOrEqual)
    return None


def _narrower(end: int | None, other: int | None) -> int | None:
    return other if end is None else end if other is None else min(end, other)


def _take_time(pushed: Pushed, one: Filter, values: frozenset[Any] | None) -> None:
    moments = list(values) if values is not None else [getattr(one, "value", None)]
    milliseconds = [_milliseconds(moment) for moment in moments]
    known = [value for value in milliseconds if value is not None]
    if not known or len(known) < len(milliseconds):
        return
    if values is not None or isinstance(one, GreaterThan | GreaterThanOrEqual):
        since = min(known)
        pushed.since_ms = since if pushed.since_ms is None else max(pushed.since_ms, since)
    if values is not None or isinstance(one, LessThan | LessThanOrEqual):
        # Microseconds were cut off, so the whole millisecond may be wanted.
        until = max(known) + 1
        pushed.until_ms = _narrower(pushed.until_ms, until)


def _milliseconds(moment: object) -> int | None:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000)
