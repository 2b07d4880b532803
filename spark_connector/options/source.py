"""The options of the source, batch and streaming, as one checked value.

Contradictions are found here, before anything is asked of a broker. ``SOURCE_OPTIONS`` has every
option with its default; names of Kafka's source and of the old RocketMQ connector are aliases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from remoting.protocol.message.tags import SUBSCRIBE_ALL, TagExpression
from remoting.protocol.names import validate_group, validate_topic
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import OptionError
from spark_connector.options.common import COMMON, REFUSALS, ConnectionOptions, connection_options
from spark_connector.options.common import wait_ms as wait
from spark_connector.options.parse import (
    Option,
    OptionReader,
    boolean,
    byte_count,
    choice,
    integer,
    names,
    parse_duration_ms,
    text,
)
from spark_connector.options.positions import load_object, offsets, timestamp, timestamps
from spark_connector.planning.positions import Edge, Positions
from spark_connector.planning.ranges import OnDataLoss, OnDecodeError, ReadOptions

Assigned = dict[str, dict[str, tuple[int, ...]]]
"""Topic -> broker name -> queue ids."""

MAX_SPLIT: Final = 10_000
"""Tasks one batch is split into at least, at most."""


def _topics(value: str) -> tuple[str, ...]:
    found = names(value)
    for name in found:
        validate_topic(name)
    return found


def _pattern(value: str) -> re.Pattern[str]:
    try:
        return re.compile(text(value))
    except re.error as error:
        raise ValueError(f"it is no regular expression of Python: {error}") from None


def _assign(value: str) -> Assigned:
    found: Assigned = {}
    for topic, brokers in load_object(value).items():
        validate_topic(topic)
        if not isinstance(brokers, dict) or not brokers:
            raise ValueError('write JSON such as {"topic":{"broker-a":[0,1]}}')
        found[topic] = {broker: _queue_ids(ids) for broker, ids in brokers.items()}
    return found


def _queue_ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids:
        raise ValueError('write queue ids in a list: {"topic":{"broker-a":[0,1]}}')
    if any(type(number) is not int or number < 0 for number in ids):
        raise ValueError(f"{ids} are no queue ids")
    return tuple(sorted(set(ids)))


def _group(value: str) -> str:
    validate_group(value.strip())
    return value.strip()


def _tags(value: str) -> str:
    return TagExpression.parse(value.strip()).text


def _duration(value: str) -> int:
    return parse_duration_ms(value)


_STARTS: Final = (Edge.EARLIEST, Edge.LATEST, Edge.COMMITTED)

TOPIC: Final[Option[tuple[str, ...]]] = Option("topic", _topics, (), ("subscribe", "topics"))
PATTERN: Final[Option[re.Pattern[str] | None]] = Option("subscribePattern", _pattern, None)
ASSIGN: Final[Option[Assigned]] = Option("assign", _assign, {})
START_OFFSETS: Final[Option[Positions | None]] = Option(
    "startingOffsets", offsets("startingOffsets", *_STARTS), None
)
START_TIME: Final[Option[Positions | None]] = Option(
    "startingTimestamp", timestamp("startingTimestamp"), None
)
START_TIMES: Final[Option[Positions | None]] = Option(
    "startingOffsetsByTimestamp", timestamps("startingOffsetsByTimestamp"), None
)
END_OFFSETS: Final[Option[Positions | None]] = Option(
    "endingOffsets", offsets("endingOffsets", Edge.LATEST), None
)
END_TIME: Final[Option[Positions | None]] = Option(
    "endingTimestamp", timestamp("endingTimestamp"), None
)
END_TIMES: Final[Option[Positions | None]] = Option(
    "endingOffsetsByTimestamp", timestamps("endingOffsetsByTimestamp"), None
)
NO_MATCH: Final = Option(
    "startingOffsetsByTimestampStrategy", choice(str, "latest", "error"), "latest"
)
ON_NO_COMMIT: Final = Option("onNoCommit", choice(str, "earliest", "latest", "error"), "earliest")
FAIL_ON_LOSS: Final = Option("failOnDataLoss", boolean, True)
ON_LOSS: Final = Option("onDataLoss", choice(OnDataLoss, *OnDataLoss), OnDataLoss.FAIL)
MAX_OFFSETS: Final[Option[int | None]] = Option("maxOffsetsPerTrigger", integer(1), None)
MIN_OFFSETS: Final = Option("minOffsetsPerTrigger", integer(1), 1)
MAX_DELAY: Final = Option("maxTriggerDelay", _duration, 900_000)
MAX_BYTES: Final[Option[int | None]] = Option("maxBytesPerTrigger", byte_count, None)
MIN_PARTITIONS: Final = Option("minPartitions", integer(1, MAX_SPLIT), 1)
MAX_RECORDS: Final = Option("maxRecordsPerPartition", integer(1), 250_000)
PROPERTIES: Final = Option("includeProperties", boolean, True, ("includeHeaders",))
KAFKA_NAMES: Final = Option("kafkaNames", boolean, False)
GROUP: Final[Option[str]] = Option("consumerGroup", _group, "", ("group", "kafka.group.id"))
GROUP_PREFIX: Final = Option("groupIdPrefix", _group, "spark-rocketmq")
COMMIT: Final = Option("commitOffsets", choice(str, "none", "broker"), "none")
READ_TIMEOUT: Final = Option("readTimeoutMs", wait, 120_000, ("kafkaConsumer.pollTimeoutMs",))
TAGS: Final = Option("filterTags", _tags, SUBSCRIBE_ALL)
EXPRESSION: Final = Option("subExpression", text, "")
EXPRESSION_TYPE: Final = Option("subExpressionType", choice(str, "TAG", "SQL92"), "TAG")
PULL_BATCH: Final = Option("pullBatchSize", integer(1, 1024), 1024)
PIPELINE: Final = Option("pullPipeline", integer(1, 64), 4)
POLL_INTERVAL: Final = Option("offsetPollIntervalMs", wait, 100)
VERIFY_CRC: Final = Option("verifyCrc", boolean, False)
DECOMPRESS: Final = Option("decompress", boolean, True)
ON_DECODE_ERROR: Final = Option(
    "onDecodeError", choice(OnDecodeError, *OnDecodeError), OnDecodeError.FAIL
)
FILTER_SQL: Final = Option("filterSql", text, "")

SOURCE_OPTIONS: Final[tuple[Option[Any], ...]] = (
    *COMMON,
    *(TOPIC, PATTERN, ASSIGN),
    *(START_OFFSETS, START_TIME, START_TIMES, NO_MATCH, ON_NO_COMMIT),
    *(END_OFFSETS, END_TIME, END_TIMES),
    *(FAIL_ON_LOSS, ON_LOSS, ON_DECODE_ERROR, VERIFY_CRC, DECOMPRESS),
    *(MAX_OFFSETS, MIN_OFFSETS, MAX_DELAY, MAX_BYTES, MIN_PARTITIONS, MAX_RECORDS),
    *(PROPERTIES, KAFKA_NAMES, GROUP, GROUP_PREFIX, COMMIT),
    *(READ_TIMEOUT, TAGS, FILTER_SQL, EXPRESSION, EXPRESSION_TYPE),
    *(PULL_BATCH, PIPELINE, POLL_INTERVAL),
)


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

    max_offsets: int | None = None
    min_offsets: int = 1
    max_delay: float = 900.0
    max_bytes: int | None = None


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
    on_no_commit: Edge | None
    fail_without_match: bool
    read: ReadOptions
    limits: Limits
    min_partitions: int
    max_records_per_partition: int
    include_properties: bool
    kafka_names: bool
    group: str
    commit: bool
    poll_interval: float

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read the options of a query.

        Raises:
            OptionError: one is unknown, refused, no value of its kind, or contradicts another.
        """
        reader = OptionReader(given, SOURCE_OPTIONS, REFUSALS, "source")
        group = reader.get(GROUP) or reader.get(GROUP_PREFIX)
        starting = _one_of(reader, START_OFFSETS, START_TIME, START_TIMES)
        no_commit = reader.get(ON_NO_COMMIT)
        if starting is not None and starting.every is Edge.COMMITTED:
            _need_group(reader, "startingOffsets=committed")
        return cls(
            connection=connection_options(reader),
            subscription=_subscription(reader),
            starting=starting,
            ending=_one_of(reader, END_OFFSETS, END_TIME, END_TIMES),
            on_no_commit=None if no_commit == "error" else Edge(no_commit),
            fail_without_match=reader.get(NO_MATCH) == "error",
            read=_read_options(reader, group),
            limits=_limits(reader),
            min_partitions=reader.get(MIN_PARTITIONS),
            max_records_per_partition=reader.get(MAX_RECORDS),
            include_properties=reader.get(PROPERTIES),
            kafka_names=reader.get(KAFKA_NAMES),
            group=group,
            commit=_commit(reader),
            poll_interval=reader.get(POLL_INTERVAL) / 1000,
        )


def _one_of(reader: OptionReader, *options: Option[Positions | None]) -> Positions | None:
    reader.at_most_one(*options)
    found = [reader.get(option) for option in options if reader.given(option)]
    return found[0] if found else None


def _subscription(reader: OptionReader) -> Subscription:
    reader.at_most_one(TOPIC, PATTERN, ASSIGN)
    if not any(reader.given(option) for option in (TOPIC, PATTERN, ASSIGN)):
        raise OptionError(
            "format rocketmq was not told what to read",
            "give topic=..., subscribePattern=... or assign=...",
        )
    assigned = reader.get(ASSIGN)
    if assigned:
        return Subscription(tuple(assigned), None, assigned)
    return Subscription(reader.get(TOPIC), reader.get(PATTERN))


def _limits(reader: OptionReader) -> Limits:
    most, least = reader.get(MAX_OFFSETS), reader.get(MIN_OFFSETS)
    if most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger={least} and maxOffsetsPerTrigger={most} contradict each other",
            "make the first the smaller one",
        )
    return Limits(most, least, reader.get(MAX_DELAY) / 1000, reader.get(MAX_BYTES))


def _read_options(reader: OptionReader, group: str) -> ReadOptions:
    return ReadOptions(
        group=group,
        pull_batch_size=reader.get(PULL_BATCH),
        pull_pipeline=reader.get(PIPELINE),
        request_timeout=connection_options(reader).request_timeout,
        read_timeout=reader.get(READ_TIMEOUT) / 1000,
        connection_idle=connection_options(reader).connection_idle,
        filter_tags=_filter(reader),
        on_data_loss=_on_data_loss(reader),
        on_decode_error=reader.get(ON_DECODE_ERROR),
        verify_crc=reader.get(VERIFY_CRC),
        decompress=reader.get(DECOMPRESS),
    )


def _filter(reader: OptionReader) -> str:
    expression_type: Literal["TAG", "SQL92"] | str = reader.get(EXPRESSION_TYPE)
    if reader.given(FILTER_SQL) or expression_type == "SQL92":
        raise OptionError(
            "filterSql is not served yet: brokers of this version filter by tags alone",
            'use filterTags="A || B", or filter the DataFrame by its properties column',
        )
    reader.at_most_one(TAGS, EXPRESSION)
    if not reader.given(EXPRESSION):
        return reader.get(TAGS)
    return reader.get(Option(EXPRESSION.name, _tags, SUBSCRIBE_ALL))


def _on_data_loss(reader: OptionReader) -> OnDataLoss:
    chosen = reader.get(ON_LOSS)
    if not reader.given(FAIL_ON_LOSS):
        return chosen
    fails = reader.get(FAIL_ON_LOSS)
    if reader.given(ON_LOSS) and fails is not (chosen is OnDataLoss.FAIL):
        raise OptionError(
            f"failOnDataLoss={str(fails).lower()} and onDataLoss={chosen} contradict each other",
            "give onDataLoss alone",
        )
    if reader.given(ON_LOSS):
        return chosen
    return OnDataLoss.FAIL if fails else OnDataLoss.SKIP


def _commit(reader: OptionReader) -> bool:
    if not reader.given(COMMIT):
        return reader.given(GROUP)
    commits = reader.get(COMMIT) == "broker"
    if commits:
        _need_group(reader, "commitOffsets=broker")
    return commits


def _need_group(reader: OptionReader, what: str) -> None:
    if not reader.given(GROUP):
        raise OptionError(f"{what} needs a consumer group", "give consumerGroup=...")
