"""What a write was asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from client.limits import DEFAULT_TOPIC_QUEUES
from remoting.protocol.names import validate_topic
from spark_connector.errors import OptionError
from spark_connector.limits import SINK_BATCH_BYTES, SINK_MAX_BATCH_BYTES, SINK_MIN_BATCH_BYTES
from spark_connector.options import (
    MAX_RETRIES,
    REFUSALS,
    ConnectionOptions,
    Option,
    OptionReader,
    byte_count,
    group,
    integer,
    option,
    options_of,
    text,
    wait,
    word_of,
)

MAX_DELAY_LEVEL: Final = 64
"""Levels a broker can have; Apache's have 18 by default."""


class SendMode(StrEnum):
    """Whether sends are acknowledged."""

    SYNC = "sync"
    ONEWAY = "oneway"
    """Nobody answers: fast, and what gets lost stays lost."""


class UniqKey(StrEnum):
    """What a message's unique key is made of."""

    POSITION = "position"
    COLUMN = "column"
    RANDOM = "random"


class Partitioner(StrEnum):
    """How a row's queue is chosen."""

    ROUND_ROBIN = "roundRobin"
    HASH_KEYS = "hashKeys"
    COLUMN = "column"


def _topic(value: str) -> str:
    validate_topic(text(value))
    return value.strip()


def _batch_bytes(value: str) -> int:
    count = byte_count(value)
    if not SINK_MIN_BATCH_BYTES <= count <= SINK_MAX_BATCH_BYTES:
        raise ValueError(f"write {SINK_MIN_BATCH_BYTES} to {SINK_MAX_BATCH_BYTES} bytes")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """A write's options, times in seconds.

    Attributes:
        connection: how name servers and brokers are reached.
        topic: of all rows; None: the column ``topic`` says.
        send_mode: whether sends are acknowledged.
        max_batch_bytes: of one request; a larger message leaves alone.
        retries: attempts after the first; what a busy broker refuses counts as none.
        producer_group: the group that sends name.
        uniq_key: None: by the column ``uniqKey`` if there is one, else by position.
        partitioner: None: by the column ``queueId`` if there is one, else by hash if there is a
            column ``shardingKey``, else round robin.
        send_timeout: of one request with all its attempts.
        delay_level: of rows whose column ``delayLevel`` does not say; 0: no delay.
        default_queues: queues asked for when a send creates its topic.
    """

    connection: ConnectionOptions
    topic: str | None = option("topic", _topic, None)
    send_mode: SendMode = option("sendMode", word_of(SendMode), SendMode.SYNC)
    max_batch_bytes: int = option("maxBatchBytes", _batch_bytes, SINK_BATCH_BYTES)
    retries: int = option("retries", integer(0, MAX_RETRIES), 3)
    producer_group: str = option("producerGroup", group, "spark-rocketmq", "group")
    uniq_key: UniqKey | None = option("uniqKey", word_of(UniqKey), None)
    partitioner: Partitioner | None = option("partitioner", word_of(Partitioner), None)
    send_timeout: float = option("sendTimeoutMs", wait, 120.0)
    delay_level: int = option("delayLevel", integer(0, MAX_DELAY_LEVEL), 0)
    default_queues: int = DEFAULT_TOPIC_QUEUES


SINK_OPTIONS: Final[tuple[Option[Any], ...]] = (
    *options_of(ConnectionOptions).values(),
    *options_of(SinkOptions).values(),
)
"""All that a sink knows."""


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write, as Spark hands them over.

    Raises:
        OptionError: one is unknown, refused or can't have its value.
    """
    reader = OptionReader(given, SINK_OPTIONS, "sink", refusals=REFUSALS)
    options = reader.read(SinkOptions, connection=ConnectionOptions.of(reader))
    if options.send_timeout < options.connection.request_timeout:
        raise OptionError(
            f"sendTimeoutMs, {options.send_timeout * 1000:g}, is below requestTimeoutMs",
            "it is the time for all attempts together: raise it",
        )
    return options
