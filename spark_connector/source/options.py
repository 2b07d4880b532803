"""The options of the source, for batch and streaming queries.

Contradictory options are rejected here, before any request is sent. Option names of Spark's Kafka
source and of the old RocketMQ connector are accepted as aliases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from remoting.protocol.message.tags import SUBSCRIBE_ALL, SqlExpression, TagExpression
from remoting.protocol.names import validate_topic
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import OptionError
from spark_connector.options import (
    CREDENTIALS_OPTIONS,
    REFUSALS,
    TLS_OPTIONS,
    ConnectionOptions,
    OnDecodeError,
    Option,
    OptionReader,
    boolean,
    byte_count,
    choice,
    duration,
    group,
    integer,
    option,
    options_of,
    tags,
    text,
    topics,
    wait,
    word_of,
)
from spark_connector.source.positions import (
    Edge,
    Positions,
    load_object,
    offsets,
    timestamp,
    timestamps,
)

Assigned = dict[str, dict[str, tuple[int, ...]]]
"""Topic -> broker name -> queue ids."""

MAX_SPLIT: Final = 10_000
"""The largest value of ``minPartitions``."""


class OnDataLoss(StrEnum):
    """What happens when messages that a query has to read were deleted."""

    FAIL = "fail"
    SKIP = "skip"
    """Continue after the lost messages, and log a warning."""
    EARLIEST = "earliest"
    """Like ``skip``, but continue at the start of a recreated topic instead of at its end."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The queues a query reads: all of some topics, all of matching topics, or assigned ones.

    Attributes:
        topics: the topics; with ``assigned`` those of its queues.
        pattern: matches whole topic names.
        assigned: the queues by topic and broker.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: Assigned | None = None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern.pattern!r}"
        return f"topic {', '.join(self.topics)}"

    def includes(self, queue: MessageQueue) -> bool:
        """Return whether the query reads a queue."""
        if self.pattern is not None:
            return self.pattern.fullmatch(queue.topic) is not None
        if self.assigned is not None:
            return queue.queue_id in self.assigned.get(queue.topic, {}).get(queue.broker_name, ())
        return queue.topic in self.topics


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one micro-batch.

    Attributes:
        max_offsets: the most offsets, or None.
        min_offsets: fewer offsets than this don't start a batch before ``max_delay``.
        max_delay: the longest delay caused by ``min_offsets``, in seconds.
        max_bytes: the approximate most bytes, or None.
    """

    max_offsets: int | None = option("maxOffsetsPerTrigger", integer(1), None)
    min_offsets: int = option("minOffsetsPerTrigger", integer(1), 1)
    max_delay: float = option("maxTriggerDelay", duration, 900.0)
    max_bytes: int | None = option("maxBytesPerTrigger", byte_count, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a range is read; times in seconds.

    Attributes:
        group: the consumer group named in pulls, which commit nothing.
        connection: how brokers are reached.
        filter_tags: a tag expression, ``*`` for all messages.
        filter_sql: an SQL92 expression in its place; empty for none.
        pull_batch_size: the most messages requested with one pull.
        pull_pipeline: the most pulls in flight on one connection.
        read_timeout: how long reading a range may make no progress, over all attempts.
        on_data_loss: what happens when offsets of the range were deleted.
        on_decode_error, verify_crc, decompress: see ``decode.model.DecodeSettings``.
    """

    group: str
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    filter_tags: str = SUBSCRIBE_ALL
    filter_sql: str = ""
    pull_batch_size: int = option("pullBatchSize", integer(1, 1024), 1024)
    pull_pipeline: int = option("pullPipeline", integer(1, 64), 4)
    read_timeout: float = option("readTimeoutMs", wait, 120.0, "kafkaConsumer.pollTimeoutMs")
    on_data_loss: OnDataLoss = option("onDataLoss", word_of(OnDataLoss), OnDataLoss.FAIL)
    on_decode_error: OnDecodeError = option(
        "onDecodeError", word_of(OnDecodeError), OnDecodeError.FAIL
    )
    verify_crc: bool = option("verifyCrc", boolean, False)
    decompress: bool = option("decompress", boolean, True)

    @property
    def tags(self) -> TagExpression:
        """The parsed expression."""
        if self.filter_sql:
            return SqlExpression.of(self.filter_sql)
        return TagExpression.parse(self.filter_tags)


_NO_COMMIT: Final[Mapping[str, Edge | None]] = {
    "earliest": Edge.EARLIEST,
    "latest": Edge.LATEST,
    "error": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of a query.

    Attributes:
        connection: how name servers and brokers are reached.
        subscription: the queues to read.
        starting, ending: the positions given by the user; None for the default, which is that of
            the reader.
        read: how executors read.
        limits: the limits of a micro-batch.
        group: the consumer group named in pulls and commits.
        commit: whether a streaming query commits its offsets to the group.
        on_no_commit: the position in a queue without a committed offset; None raises an error.
        fail_without_match: whether a starting timestamp after the last message is an error.
        min_partitions, max_partitions, max_records_per_partition: how ranges are split into
            tasks; small ones share a task rather than to exceed ``max_partitions``.
        include_properties, kafka_names: choose the default columns.
        poll_interval: the shortest time between two requests for the ends of the queues, in
            seconds.
        push_down: whether a batch query's filters narrow what is read; see ``pushdown``.
    """

    connection: ConnectionOptions
    subscription: Subscription
    starting: Positions | None
    ending: Positions | None
    read: ReadOptions
    limits: Limits
    group: str
    commit: bool = option("commitOffsets", choice({"none": False, "broker": True}), False)
    on_no_commit: Edge | None = option("onNoCommit", choice(_NO_COMMIT), _NO_COMMIT["earliest"])
    fail_without_match: bool = option(
        "startingOffsetsByTimestampStrategy", choice({"latest": False, "error": True}), False
    )
    min_partitions: int = option("minPartitions", integer(1, MAX_SPLIT), 1)
    max_partitions: int = option("maxPartitions", integer(1, MAX_SPLIT), 100)
    max_records_per_partition: int = option("maxRecordsPerPartition", integer(1), 250_000)
    include_properties: bool = option("includeProperties", boolean, True, "includeHeaders")
    kafka_names: bool = option("kafkaNames", boolean, False)
    poll_interval: float = option("offsetPollIntervalMs", wait, 0.1)
    push_down: bool = option("pushDown", boolean, False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse the options of a query.

        Raises:
            OptionError: an option is unknown, unsupported or invalid, or contradicts another.
        """
        reader = OptionReader(given, SOURCE_OPTIONS, "source", refusals=REFUSALS)
        connection = ConnectionOptions.of(reader)
        name = reader.get("consumerGroup") or reader.get("groupIdPrefix")
        starting: Positions | None = reader.one_of(
            "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"
        )
        if starting is not None and starting.every is Edge.COMMITTED:
            _need_group(reader, "startingOffsets=committed")
        filter_tags, filter_sql = _filters(reader)
        return reader.read(
            cls,
            connection=connection,
            subscription=_subscription(reader),
            starting=starting,
            ending=reader.one_of("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
            read=reader.read(
                ReadOptions,
                group=name,
                connection=connection,
                filter_tags=filter_tags,
                filter_sql=filter_sql,
                on_data_loss=_on_data_loss(reader),
            ),
            limits=_limits(reader),
            group=name,
            commit=_commit(reader),
        )


def _subscription(reader: OptionReader) -> Subscription:
    found = reader.one_of("topic", "subscribePattern", "assign")
    if found is None:
        raise OptionError(
            "the source of format rocketmq needs topics to read",
            "give topic=..., subscribePattern=... or assign=...",
        )
    if reader.given("assign"):
        return Subscription(tuple(found), None, found)
    return Subscription(reader.get("topic"), reader.get("subscribePattern"))


def _limits(reader: OptionReader) -> Limits:
    limits = reader.read(Limits)
    most, least = limits.max_offsets, limits.min_offsets
    if most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger={least} and maxOffsetsPerTrigger={most} contradict each other",
            "make the first the smaller one",
        )
    return limits


def _filters(reader: OptionReader) -> tuple[str, str]:
    """Return ``filter_tags`` and ``filter_sql``, from their own names or the old connector's."""
    if reader.get("subExpressionType") == SqlExpression.kind:
        tags: str = reader.get("filterTags")
        sql: str = reader.one_of("filterSql", "subExpression") or ""
    else:
        tags = reader.one_of("filterTags", "subExpression") or SUBSCRIBE_ALL
        sql = reader.get("filterSql")
    if sql and reader.given("filterTags"):
        raise OptionError(
            "filterTags and filterSql are both given",
            "use one of them; TAGS is a property that filterSql can compare",
        )
    return tags, sql


def _on_data_loss(reader: OptionReader) -> OnDataLoss:
    chosen: OnDataLoss = reader.get("onDataLoss")
    if not reader.given("failOnDataLoss"):
        return chosen
    fails = reader.get("failOnDataLoss")
    if not reader.given("onDataLoss"):
        return OnDataLoss.FAIL if fails else OnDataLoss.SKIP
    if fails is not (chosen is OnDataLoss.FAIL):
        raise OptionError(
            f"failOnDataLoss={str(fails).lower()} and onDataLoss={chosen} contradict each other",
            "give onDataLoss alone",
        )
    return chosen


def _commit(reader: OptionReader) -> bool:
    if not reader.given("commitOffsets"):
        return reader.given("consumerGroup")
    commits: bool = reader.get("commitOffsets")
    if commits:
        _need_group(reader, "commitOffsets=broker")
    return commits


def _need_group(reader: OptionReader, what: str) -> None:
    if not reader.given("consumerGroup") and not reader.given("groupIdPrefix"):
        raise OptionError(f"{what} needs a consumer group", "give consumerGroup=...")


# --- options without a field of their own: several of them determine one field


def pattern(value: str) -> re.Pattern[str]:
    """Compile a Python regular expression. Raises ValueError."""
    try:
        return re.compile(text(value))
    except re.error as error:
        raise ValueError(f"it is not a Python regular expression: {error}") from None


def assignment(value: str) -> Assigned:
    """Parse JSON such as ``{"topic":{"broker-a":[0,1]}}``. Raises ValueError."""
    assigned: Assigned = {}
    for topic, brokers in load_object(value).items():
        validate_topic(topic)
        if not isinstance(brokers, dict) or not brokers:
            raise ValueError('write JSON such as {"topic":{"broker-a":[0,1]}}')
        assigned[topic] = {}
        for broker, ids in brokers.items():
            if not isinstance(ids, list) or not ids:
                raise ValueError('write queue ids in a list: {"topic":{"broker-a":[0,1]}}')
            if any(type(number) is not int or number < 0 for number in ids):
                raise ValueError(f"{ids} are not queue ids")
            assigned[topic][broker] = tuple(sorted(set(ids)))
    return assigned


SOURCE_OPTIONS: Final[tuple[Option[Any], ...]] = (
    *options_of(ConnectionOptions).values(),
    *CREDENTIALS_OPTIONS,
    *TLS_OPTIONS,
    *options_of(ReadOptions).values(),
    *options_of(Limits).values(),
    *options_of(SourceOptions).values(),
    Option("topic", topics, (), ("subscribe", "topics")),
    Option("subscribePattern", pattern, None),
    Option("assign", assignment, {}),
    Option("startingOffsets", offsets("startingOffsets", *Edge), None),
    Option("startingTimestamp", timestamp("startingTimestamp"), None),
    Option("startingOffsetsByTimestamp", timestamps("startingOffsetsByTimestamp"), None),
    Option("endingOffsets", offsets("endingOffsets", Edge.LATEST), None),
    Option("endingTimestamp", timestamp("endingTimestamp"), None),
    Option("endingOffsetsByTimestamp", timestamps("endingOffsetsByTimestamp"), None),
    Option("failOnDataLoss", boolean, True),
    Option("consumerGroup", group, "", ("group", "kafka.group.id")),
    Option("groupIdPrefix", group, "spark-rocketmq"),
    Option("filterTags", tags, SUBSCRIBE_ALL),
    Option("subExpression", tags, ""),
    Option(
        "subExpressionType",
        choice({kind: kind for kind in (TagExpression.kind, SqlExpression.kind)}),
        TagExpression.kind,
    ),
    Option("filterSql", text, ""),
)
