"""Filter push-down for batch queries: what remains to be read under Spark's filters.

Spark offers comparisons of columns with constants, all of which have to hold. Filters on topic,
broker and queue drop whole queues and filters on offsets cut ranges; those on times, tags, keys and
message ids narrow what is requested from the brokers. Spark applies all of them again: some are not
exact, as a store time has milliseconds, and an index finds keys by their hash.

Spark keeps what a reader plans under filters in the frame: another query on the same frame, or
another part of the same query, reads what remained for the first one. So a frame has to ask for
push-down with an option, for one query that reads it once.

Spark rejects a reader that takes filters while ``spark.sql.python.filterPushdown.enabled`` is off,
and does not pass that setting to the reader. So ``offered`` searches the call stack for Spark's
planner.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from spark_connector.spark import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

PLANNER: Final = "data_source_pushdown_filters.py"
"""The file of Spark's planner that offers filters, in ``pyspark/sql/worker``."""

MAX_KEYS: Final = 16
"""The most keys looked up in indexes; with more, all messages are read."""

_KAFKA: Final = {"partition": "queueId", "offset": "queueOffset", "timestamp": "storeTimestamp"}
_QUEUE_COLUMNS: Final = frozenset({"topic", "brokerName", "queueId"})


def offered(frame: FrameType | None = None) -> bool:
    """Return whether Spark's planner, which offers filters, is in the call stack.

    Args:
        frame: the frame to start at; by default the caller's.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2] == PLANNER:
            return True
        frame = frame.f_back
    return False


@dataclass(slots=True)
class Pushed:
    """What remains to be read under filters; None in a field means no restriction.

    Attributes:
        queue_values: the allowed values of topic, broker and queue id, by column.
        first, end: the range of queue offsets, ``end`` excluded.
        since_ms, until_ms: the range of store times in ms since 1970, ``until_ms`` excluded.
        tags: the allowed tags.
        keys: keys or message ids, one of which a message must have.
        low, high: the range of physical offsets in a store, ``high`` excluded.
    """

    queue_values: dict[str, frozenset[Any]] = field(default_factory=dict)
    first: int = 0
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    low: int = 0
    high: int | None = None

    def wants(self, queue: MessageQueue) -> bool:
        """Return whether the filters on topic, broker and queue id allow a queue."""
        columns = {
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
        }
        return all(columns[name] in wanted for name, wanted in self.queue_values.items())

    def cut(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of a range of queue offsets that the filters allow."""
        start = max(start, self.first)
        return start, max(start, end if self.end is None else min(end, self.end))

    def expression(self, text: str) -> str | None:
        """Return a tag expression for both option and filters, or None if no tag satisfies both.

        Args:
            text: the tag expression of the option.
        """
        if self.tags is None:
            return text
        option = TagExpression.parse(text)
        wanted = self.tags if option.is_all else self.tags & option.tags
        return " || ".join(sorted(wanted)) if wanted else None


def push(filters: Iterable[Filter], *, kafka: bool) -> Pushed:
    """Return what remains to be read under filters.

    Args:
        filters: the filters offered by Spark; all have to hold.
        kafka: whether columns have the names of the Kafka source.
    """
    pushed = Pushed()
    for offer in filters:
        column = _column(offer, kafka)
        if column is not None:
            _take(pushed, column, offer)
    return pushed


def _column(one: Filter, kafka: bool) -> str | None:
    """Return the RocketMQ name of a filter's column, or None if its filters aren't supported."""
    attribute = getattr(one, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return None
    name: str = attribute[0]
    if not kafka:
        return name
    return _KAFKA.get(name) or (name if name == "topic" else None)


def _take(pushed: Pushed, column: str, one: Filter) -> None:
    """Apply a filter to ``pushed``."""
    values = _values(one)
    if column in _QUEUE_COLUMNS and values is not None:
        pushed.queue_values[column] = values & pushed.queue_values.get(column, values)
    elif column in {"queueOffset", "physicalOffset"}:
        # Of several values it is the whole span.
        span = _span(one, values)
        if span is None:
            return
        if column == "physicalOffset":
            pushed.low, pushed.high = max(pushed.low, span[0]), _narrower(pushed.high, span[1])
        else:
            pushed.first, pushed.end = max(pushed.first, span[0]), _narrower(pushed.end, span[1])
    elif column == "storeTimestamp":
        _take_time(pushed, one, values)
    elif column == "tags" and values is not None:
        plain = all(
            isinstance(tag, str) and TagExpression.parse(tag).tags == {tag} for tag in values
        )
        if values and "" not in values and plain:
            pushed.tags = values if pushed.tags is None else pushed.tags & values
    elif column in {"keys", "messageId"} and values is not None:
        # The column holds keys separated by spaces; looking up one of them finds the message.
        firsts = {first for value in values if (first := str(value).strip(" ").partition(" ")[0])}
        if pushed.keys is None and firsts and len(firsts) == len(values) <= MAX_KEYS:
            pushed.keys = frozenset(firsts)


def _values(one: Filter) -> frozenset[Any] | None:
    """Return the values allowed by an equality or a list, or None for another filter."""
    if isinstance(one, EqualTo | EqualNullSafe):
        return None if one.value is None else frozenset({one.value})
    if isinstance(one, In):
        return frozenset(value for value in one.value if value is not None)
    return None


def _span(one: Filter, values: frozenset[Any] | None) -> tuple[int, int | None] | None:
    """Return the range of integers that a filter allows, end excluded; None if unsupported."""
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
        # Microseconds were cut off, so the whole millisecond has to be read.
        until = max(known) + 1
        pushed.until_ms = _narrower(pushed.until_ms, until)


def _milliseconds(moment: object) -> int | None:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000)
