"""What a write was asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from client.limits import DEFAULT_TOPIC_QUEUES
from remoting.protocol import names
from spark_connector.errors import OptionError
from spark_connector.limits import SINK_BATCH_BYTES, SINK_MAX_BATCH_BYTES, SINK_MIN_BATCH_BYTES
from spark_connector.options.common import (
    COMMON,
    MAX_RETRIES,
    REFUSALS,
    ConnectionOptions,
    connection_options,
    wait_ms,
)
from spark_connector.options.parse import (
    Option,
    OptionReader,
    byte_count,
    choice,
    integer,
    text,
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
    topic: str | None = None
    send_mode: SendMode = SendMode.SYNC
    max_batch_bytes: int = SINK_BATCH_BYTES
    retries: int = 3
    producer_group: str = "spark-rocketmq"
    uniq_key: UniqKey | None = None
    partitioner: Partitioner | None = None
    send_timeout: float = 120.0
    delay_level: int = 0
    default_queues: int = DEFAULT_TOPIC_QUEUES


def _producer_group(value: str) -> str:
    names.validate_group(value.strip())
    return value.strip()


def _topic(value: str) -> str:
    names.validate_topic(text(value))
    return value.strip()


def _batch_bytes(value: str) -> int:
    count = byte_count(value)
    if not SINK_MIN_BATCH_BYTES <= count <= SINK_MAX_BATCH_BYTES:
        raise ValueError(f"write {SINK_MIN_BATCH_BYTES} to {SINK_MAX_BATCH_BYTES} bytes")
    return count


TOPIC: Final = Option("topic", _topic, None)
SEND_MODE: Final = Option("sendMode", choice(SendMode, *SendMode), SendMode.SYNC)
BATCH: Final = Option("maxBatchBytes", _batch_bytes, SINK_BATCH_BYTES)
RETRIES: Final = Option("retries", integer(0, MAX_RETRIES), 3)
PRODUCER_GROUP: Final = Option("producerGroup", _producer_group, "spark-rocketmq", ("group",))
UNIQ_KEY: Final = Option("uniqKey", choice(UniqKey, *UniqKey), None)
PARTITIONER: Final = Option("partitioner", choice(Partitioner, *Partitioner), None)
SEND_TIMEOUT: Final = Option("sendTimeoutMs", wait_ms, 120_000)
DELAY_LEVEL: Final = Option("delayLevel", integer(0, MAX_DELAY_LEVEL), 0)

SINK_OPTIONS: Final = (
    *COMMON,
    TOPIC,
    SEND_MODE,
    BATCH,
    RETRIES,
    PRODUCER_GROUP,
    UNIQ_KEY,
    PARTITIONER,
    SEND_TIMEOUT,
    DELAY_LEVEL,
)
"""All that a sink knows."""


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write, as Spark hands them over.

    Raises:
        OptionError: one is unknown, refused or can't have its value.
    """
    reader = OptionReader(given, SINK_OPTIONS, REFUSALS, "sink")
    options = SinkOptions(
        connection=connection_options(reader),
        topic=reader.get(TOPIC),
        send_mode=reader.get(SEND_MODE),
        max_batch_bytes=reader.get(BATCH),
        retries=reader.get(RETRIES),
        producer_group=reader.get(PRODUCER_GROUP),
        uniq_key=reader.get(UNIQ_KEY),
        partitioner=reader.get(PARTITIONER),
        send_timeout=reader.get(SEND_TIMEOUT) / 1000,
        delay_level=reader.get(DELAY_LEVEL),
    )
    if options.send_timeout < options.connection.request_timeout:
        raise OptionError(
            f"sendTimeoutMs, {options.send_timeout * 1000:g}, is below requestTimeoutMs",
            "it is the time for all attempts together: raise it",
        )
    return options
