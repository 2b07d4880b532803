"""The options of ``rocketmq.store`` as one checked value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from remoting.protocol.message.tags import SUBSCRIBE_ALL, TagExpression
from remoting.protocol.names import validate_topic
from spark_connector.errors import OptionError
from spark_connector.options.parse import (
    Option,
    OptionReader,
    Refusals,
    boolean,
    byte_count,
    choice,
    integer,
    names,
    text,
)
from spark_connector.planning.ranges import OnDecodeError
from spark_connector.source.pushdown import push

FORMAT: Final = "rocketmq.store"
MAX_PARTITIONS: Final = 10_000
"""Tasks that may be asked for at least."""


class ScanMode(StrEnum):
    """What is read: what the queues have, or the log from end to end."""

    QUEUE = "queue"
    LOG = "log"


def _topics(value: str) -> tuple[str, ...]:
    found = names(value)
    for name in found:
        validate_topic(name)
    return found


def _tags(value: str) -> str:
    return TagExpression.parse(value.strip()).text


PATH: Final[Option[str | None]] = Option("path", text, None, ("storePathRootDir",))
COMMIT_LOG_PATH: Final[Option[str | None]] = Option(
    "commitLogPath", text, None, ("storePathCommitLog",)
)
TOPIC: Final[Option[tuple[str, ...] | None]] = Option(
    "topic", _topics, None, ("topics", "subscribe")
)
BROKER_NAME: Final[Option[str | None]] = Option("brokerName", text, None)
SCAN: Final = Option("scan", choice(ScanMode, "queue", "log"), ScanMode.QUEUE)
VERIFY_CRC: Final = Option("verifyCrc", boolean, default=False)
DECOMPRESS: Final = Option("decompress", boolean, default=True)
ON_DECODE_ERROR: Final = Option(
    "onDecodeError", choice(OnDecodeError, "fail", "null", "raw"), OnDecodeError.FAIL
)
FILTER_TAGS: Final = Option("filterTags", _tags, SUBSCRIBE_ALL, ("subExpression",))
MIN_PARTITIONS: Final = Option("minPartitions", integer(1, MAX_PARTITIONS), 1)
MAX_RECORDS: Final = Option("maxRecordsPerPartition", integer(1), 250_000)
MAX_BYTES: Final = Option("maxBytesPerPartition", byte_count, 64 * 1024 * 1024)

STORE_OPTIONS: Final[tuple[Option[Any], ...]] = (
    PATH,
    COMMIT_LOG_PATH,
    TOPIC,
    BROKER_NAME,
    SCAN,
    VERIFY_CRC,
    DECOMPRESS,
    ON_DECODE_ERROR,
    FILTER_TAGS,
    MIN_PARTITIONS,
    MAX_RECORDS,
    MAX_BYTES,
)

_NO_OFFSETS: Final = (
    "a store is read whole: filter by queueOffset or storeTimestamp in the query, which narrows"
    " what is read when spark.sql.python.filterPushdown.enabled is true"
)
_NO_BROKER: Final = 'a store is read without a broker: give path, or use format("rocketmq")'

_REFUSALS: Final = Refusals(
    hints={
        "nameServer": _NO_BROKER,
        "namesrvAddr": _NO_BROKER,
        "consumerGroup": _NO_BROKER,
        "startingOffsets": _NO_OFFSETS,
        "endingOffsets": _NO_OFFSETS,
        "startingTimestamp": _NO_OFFSETS,
        "endingTimestamp": _NO_OFFSETS,
    },
    ignored=frozenset({"__partition_columns"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What to read and how; can be pickled.

    Attributes:
        path: the store's directory (``storePathRootDir``).
        commit_log_path: of the commit log, if it lies elsewhere; several between commas.
        topics: the topics wanted; None for all, the broker's own included.
        broker_name: value of the column ``brokerName``; the path unless given.
        scan: ``queue`` reads what the queues have, as a consumer would see it; ``log`` reads every
            record of the log, half messages and those that lost their queue included.
        verify_crc, decompress, on_decode_error: as for ``Decoder``.
        tags: only messages with one of these tags.
        min_partitions: tasks at least, if there are so many messages.
        max_records: messages of a task at most, in a scan of queues.
        max_bytes: bytes of the log for a task, about, in a scan of the log.
    """

    path: str
    commit_log_path: str | None = None
    topics: tuple[str, ...] | None = None
    broker_name: str = ""
    scan: ScanMode = ScanMode.QUEUE
    verify_crc: bool = False
    decompress: bool = True
    on_decode_error: OnDecodeError = OnDecodeError.FAIL
    tags: str = SUBSCRIBE_ALL
    min_partitions: int = 1
    max_records: int = 250_000
    max_bytes: int = 64 * 1024 * 1024

    @property
    def tag_expression(self) -> TagExpression | None:
        """Which tags are wanted; None for all."""
        parsed = TagExpression.parse(self.tags)
        return None if parsed.is_all else parsed


def store_options(given: Mapping[str, str]) -> StoreOptions:
    """The options of a query. Raises OptionError."""
    reader = OptionReader(given, STORE_OPTIONS, _REFUSALS, "reader", format_name=FORMAT)
    path = reader.get(PATH)
    if path is None:
        raise OptionError(
            f"the option path of format {FORMAT} is missing",
            "give the store's directory, the one that has commitlog and consumequeue in it",
        )
    path = path.removeprefix("file://")
    return StoreOptions(
        path=path,
        commit_log_path=reader.get(COMMIT_LOG_PATH),
        topics=reader.get(TOPIC),
        broker_name=reader.get(BROKER_NAME) or path,
        scan=reader.get(SCAN),
        verify_crc=reader.get(VERIFY_CRC),
        decompress=reader.get(DECOMPRESS),
        on_decode_error=reader.get(ON_DECODE_ERROR),
        tags=reader.get(FILTER_TAGS),
        min_partitions=reader.get(MIN_PARTITIONS),
        max_records=reader.get(MAX_RECORDS),
        max_bytes=reader.get(MAX_BYTES),
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the filters of a query leave to be read; None for no bound. Ends are excluded."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    offsets: tuple[int | None, int | None] = (None, None)
    stored_ms: tuple[int | None, int | None] = (None, None)
    positions: tuple[int | None, int | None] = (None, None)


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
    if topics is not None and options.scan is ScanMode.LOG:
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
