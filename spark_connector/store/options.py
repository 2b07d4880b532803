"""The options of the format ``rocketmq.store``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

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
from spark_connector.spark import Filter

FORMAT: Final = "rocketmq.store"
MAX_PARTITIONS: Final = 10_000
"""The largest value of ``minPartitions``."""


class ScanMode(StrEnum):
    """What is read: the messages of the consume queues, or every record of the commit log."""

    QUEUE = "queue"
    LOG = "log"


_NO_OFFSETS: Final = (
    "a store is read whole: filter by queueOffset or storeTimestamp in the query, which narrows"
    " what is read with the option pushDown"
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
    """All options of a query; can be pickled.

    Attributes:
        path: the store directory (``storePathRootDir``).
        commit_log_path: the directory of the commit log, if it is elsewhere; several are separated
            by commas.
        topics: the topics to read; None for all, including system topics.
        broker_name: the value of the column ``brokerName``; by default the path.
        scan: ``queue`` reads the messages of the consume queues, like a consumer; ``log`` reads
            every record of the commit log, including half messages and records without an entry
            in a consume queue.
        verify_crc, decompress, on_decode_error: see ``decode.model.DecodeSettings``.
        tags: a tag expression, ``*`` for all messages.
        min_partitions: the least number of tasks, if there are as many messages.
        max_records: the most messages of a task, in a scan of queues.
        max_bytes: the approximate bytes of the commit log per task, in a scan of the log.
        push_down: see ``source.pushdown``.
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
    push_down: bool = option("pushDown", boolean, False)

    @property
    def tag_expression(self) -> TagExpression | None:
        """The parsed tag expression; None for all messages."""
        parsed = TagExpression.parse(self.tags)
        return None if parsed.is_all else parsed


STORE_OPTIONS: Final[tuple[Option[Any], ...]] = tuple(options_of(StoreOptions).values())


def store_options(given: Mapping[str, str]) -> StoreOptions:
    """Parse the options of a query. Raises OptionError."""
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
    """Narrow options by filters, without losing any message that satisfies all of them.

    Returns:
        The options, and what remains to be read under the filters.
    """
    pushed = push(filters, kafka=False)
    tags = pushed.expression(options.tags)
    brokers = pushed.queue_values.get("brokerName", frozenset({options.broker_name}))
    if tags is None or options.broker_name not in brokers:
        return options, Pushed({"topic": frozenset()}, high=0)
    options = replace(options, tags=tags)
    topics = pushed.queue_values.get("topic")
    if topics is not None and options.topics is not None:
        topics = pushed.queue_values["topic"] = topics & frozenset(options.topics)
    if topics is not None and options.scan is ScanMode.LOG:
        options = replace(options, topics=tuple(sorted(topics)))
    return options, pushed
