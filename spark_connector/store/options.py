"""The options of ``rocketmq.store`` as one checked value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from pyspark.sql.datasource import Filter

from remoting.protocol.message.tags import SUBSCRIBE_ALL, TagExpression
from spark_connector.errors import OptionError
from spark_connector.options import (
    OnDecodeError,
    Option,
    OptionReader,
    boolean,
    byte_count,
    integer,
    option,
    options_of,
    tags,
    text,
    topics,
    word_of,
)
from spark_connector.source.pushdown import Pushed, push

FORMAT: Final = "rocketmq.store"
MAX_PARTITIONS: Final = 10_000
"""Tasks that may be asked for at least."""


class ScanMode(StrEnum):
    """What is read: what the queues have, or the log from end to end."""

    QUEUE = "queue"
    LOG = "log"


_NO_OFFSETS: Final = (
    "a store is read whole: filter by queueOffset or storeTimestamp in the query, which narrows"
    " what is read when spark.sql.python.filterPushdown.enabled is true"
)
_NO_BROKER: Final = 'a store is read without a broker: give path, or use format("rocketmq")'

_REFUSALS: Final = {
    "nameServer": _NO_BROKER,
    "namesrvAddr": _NO_BROKER,
    "consumerGroup": _NO_BROKER,
    "startingOffsets": _NO_OFFSETS,
    "endingOffsets": _NO_OFFSETS,
    "startingTimestamp": _NO_OFFSETS,
    "endingTimestamp": _NO_OFFSETS,
}


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

    path: str = option("path", text, "", "storePathRootDir")
    commit_log_path: str | None = option("commitLogPath", text, None, "storePathCommitLog")
    topics: tuple[str, ...] | None = option("topic", topics, None, "topics", "subscribe")
    broker_name: str = option("brokerName", text, "")
    scan: ScanMode = option("scan", word_of(ScanMode), ScanMode.QUEUE)
    verify_crc: bool = option("verifyCrc", boolean, False)
    decompress: bool = option("decompress", boolean, True)
    on_decode_error: OnDecodeError = option(
        "onDecodeError", word_of(OnDecodeError), OnDecodeError.FAIL
    )
    tags: str = option("filterTags", tags, SUBSCRIBE_ALL, "subExpression")
    min_partitions: int = option("minPartitions", integer(1, MAX_PARTITIONS), 1)
    max_records: int = option("maxRecordsPerPartition", integer(1), 250_000)
    max_bytes: int = option("maxBytesPerPartition", byte_count, 64 * 1024 * 1024)

    @property
    def tag_expression(self) -> TagExpression | None:
        """Which tags are wanted; None for all."""
        parsed = TagExpression.parse(self.tags)
        return None if parsed.is_all else parsed


STORE_OPTIONS: Final[tuple[Option[Any], ...]] = tuple(options_of(StoreOptions).values())


def store_options(given: Mapping[str, str]) -> StoreOptions:
    """The options of a query. Raises OptionError."""
    reader = OptionReader(given, STORE_OPTIONS, "reader", refusals=_REFUSALS, format_name=FORMAT)
    options = reader.read(StoreOptions)
    if not options.path:
        raise OptionError(
            f"the option path of format {FORMAT} is missing",
            "give the store's directory, the one that has commitlog and consumequeue in it",
        )
    path = options.path.removeprefix("file://")
    return replace(options, path=path, broker_name=options.broker_name or path)


def narrowed(options: StoreOptions, filters: Iterable[Filter]) -> tuple[StoreOptions, Pushed]:
    """Options, and what filters leave; nothing is left out that satisfies all filters."""
    pushed, _ = push(filters, kafka=False)
    tags = pushed.expression(options.tags)
    brokers = pushed.places.get("brokerName", frozenset({options.broker_name}))
    if tags is None or options.broker_name not in brokers:
        return options, Pushed({"topic": frozenset()}, high=0)
    options = replace(options, tags=tags)
    topics = pushed.places.get("topic")
    if topics is not None and options.topics is not None:
        topics = pushed.places["topic"] = topics & frozenset(options.topics)
    if topics is not None and options.scan is ScanMode.LOG:
        options = replace(options, topics=tuple(sorted(topics)))
    return options, pushed
