"""The options of the source, batch and streaming, as one checked value.

Contradictions are found here, before anything is asked of a broker. Names of Kafka's source and of
the old RocketMQ connector are other names of the same options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from remoting.protocol.message.tags import SUBSCRIBE_ALL, TagExpression
from remoting.protocol.names import validate_topic
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import OptionError
from spark_connector.options import (
    REFUSALS,
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
"""Tasks one batch is split into at least, at most."""


class OnDataLoss(StrEnum):
    """What happens when messages that a query wants are gone."""

    FAIL = "fail"
    SKIP = "skip"
    """Go on behind what is lost, and say so."""
    EARLIEST = "earliest"
    """As ``skip``; of a topic made anew, go on from its beginning, not from its end."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which queues a query reads: those of ``topics``, of a pattern's topics, or ``assigned``."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: Assigned | None = None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern.pattern!r}"
        return f"topic {', '.join(self.topics)}"

    def includes(self, queue: MessageQueue) -> bool:
        """Whether a queue is one of them."""
        if self.pattern is not None:
            return self.pattern.fullmatch(queue.topic) is not None
        if self.assigned is not None:
            return queue.queue_id in self.assigned.get(queue.topic, {}).get(queue.broker_name, ())
        return queue.topic in self.topics


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch takes; None: no such limit."""

    max_offsets: int | None = option("maxOffsetsPerTrigger", integer(1), None)
    min_offsets: int = option("minOffsetsPerTrigger", integer(1), 1)
    max_delay: float = option("maxTriggerDelay", duration, 900.0)
    max_bytes: int | None = option("maxBytesPerTrigger", byte_count, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a range is read, times in seconds.

    Attributes:
        group: the consumer group that pulls name; nothing is committed by them.
        pull_batch_size: messages asked for with one pull.
        pull_pipeline: pulls in flight on one connection.
        request_timeout: of one pull.
        read_timeout: how long one range may get no answer, over all its attempts.
        connection_idle: connections that were not used so long are closed.
        filter_tags: a tag expression, ``*`` for all.
        on_data_loss: when offsets of the range are gone.
        on_decode_error, verify_crc, decompress: see ``decode.Decoder``.
    """

    group: str
    request_timeout: float = 10.0
    connection_idle: float = 300.0
    filter_tags: str = SUBSCRIBE_ALL
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
        """The tags wanted."""
        return TagExpression.parse(self.filter_tags)


_NO_COMMIT: Final[Mapping[str, Edge | None]] = {
    "earliest": Edge.EARLIEST,
    "latest": Edge.LATEST,
    "error": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query reads and how.

    Attributes:
        connection: how name servers and brokers are reached.
        subscription: the queues.
        starting, ending: the user's positions; None: the default of the kind of query.
        on_no_commit: the position when a group has committed nothing; None: an error.
        fail_without_match: a starting instant behind the last message is an error.
        read: what the executors need to know.
        limits: of a micro-batch.
        min_partitions, max_records_per_partition: how ranges are split into tasks.
        include_properties, kafka_names: which columns there are by default.
        group: named by pulls and commits.
        commit: whether the group's offsets are committed.
        poll_interval: the least age of what the stream knows of the queues, in seconds.
    """

    connection: ConnectionOptions
    subscription: Subscription
    starting: Positions | None
    ending: Positions | None
    read: ReadOptions
    limits: Limits
    group: str
    commit: bool = option("commitOffsets", choice({"none": False, "broker": True}), False)
    on_no_commit: Edge | None = option(
        "onNoCommit",
        choice(_NO_COMMIT),
        _NO_COMMIT["earliest"],
    )
    fail_without_match: bool = option(
        "startingOffsetsByTimestampStrategy", choice({"latest": False, "error": True}), False
    )
    min_partitions: int = option("minPartitions", integer(1, MAX_SPLIT), 1)
    max_records_per_partition: int = option("maxRecordsPerPartition", integer(1), 250_000)
    include_properties: bool = option("includeProperties", boolean, True, "includeHeaders")
    kafka_names: bool = option("kafkaNames", boolean, False)
    poll_interval: float = option("offsetPollIntervalMs", wait, 0.1)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read the options of a query.

        Raises:
            OptionError: one is unknown, refused, no value of its kind, or contradicts another.
        """
        reader = OptionReader(given, SOURCE_OPTIONS, "source", refusals=REFUSALS)
        connection = ConnectionOptions.of(reader)
        name = reader.get("consumerGroup") or reader.get("groupIdPrefix")
        return reader.read(
            cls,
            connection=connection,
            subscription=_subscription(reader),
            starting=_starting(reader),
            ending=reader.one_of("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
            read=reader.read(
                ReadOptions,
                group=name,
                request_timeout=connection.request_timeout,
                connection_idle=connection.connection_idle,
                filter_tags=_filter(reader),
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
            "format rocketmq was not told what to read",
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


def _filter(reader: OptionReader) -> str:
    if reader.given("filterSql") or reader.get("subExpressionType") == "SQL92":
        raise OptionError(
            "filterSql is not served yet: brokers of this version filter by tags alone",
            'use filterTags="A || B", or filter the DataFrame by its properties column',
        )
    return reader.one_of("filterTags", "subExpression") or SUBSCRIBE_ALL


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


def _starting(reader: OptionReader) -> Positions | None:
    found: Positions | None = reader.one_of(
        "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"
    )
    if found is not None and found.every is Edge.COMMITTED:
        _need_group(reader, "startingOffsets=committed")
    return found


def _commit(reader: OptionReader) -> bool:
    if not reader.given("commitOffsets"):
        return reader.given("consumerGroup")
    commits: bool = reader.get("commitOffsets")
    if commits:
        _need_group(reader, "commitOffsets=broker")
    return commits


def _need_group(reader: OptionReader, what: str) -> None:
    if not reader.given("consumerGroup"):
        raise OptionError(f"{what} needs a consumer group", "give consumerGroup=...")


# --- options that are not fields: several of them make one value


def pattern(value: str) -> re.Pattern[str]:
    """A regular expression of Python. Raises ValueError."""
    try:
        return re.compile(text(value))
    except re.error as error:
        raise ValueError(f"it is no regular expression of Python: {error}") from None


def assignment(value: str) -> Assigned:
    """JSON with the queue ids of each topic and broker. Raises ValueError."""
    found: Assigned = {}
    for topic, brokers in load_object(value).items():
        validate_topic(topic)
        if not isinstance(brokers, dict) or not brokers:
            raise ValueError('write JSON such as {"topic":{"broker-a":[0,1]}}')
        found[topic] = {}
        for broker, ids in brokers.items():
            if not isinstance(ids, list) or not ids:
                raise ValueError('write queue ids in a list: {"topic":{"broker-a":[0,1]}}')
            if any(type(number) is not int or number < 0 for number in ids):
                raise ValueError(f"{ids} are no queue ids")
            found[topic][broker] = tuple(sorted(set(ids)))
    return found


SOURCE_OPTIONS: Final[tuple[Option[Any], ...]] = (
    *options_of(ConnectionOptions).values(),
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
    Option("subExpressionType", choice({"TAG": "TAG", "SQL92": "SQL92"}), "TAG"),
    Option("filterSql", text, ""),
)
