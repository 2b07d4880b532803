"""The options of the sink."""

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
    CREDENTIALS_OPTIONS,
    MAX_RETRIES,
    REFUSALS,
    TLS_OPTIONS,
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
"""The largest value of ``delayLevel``; Apache's brokers have 18 levels by default."""


class SendMode(StrEnum):
    """Whether sends are acknowledged."""

    SYNC = "sync"
    ONEWAY = "oneway"
    """Brokers don't answer: fast, but lost messages are not noticed."""


class UniqKey(StrEnum):
    """How unique keys are created; see ``unique_keys``."""

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
    """The options of a write; times in seconds.

    Attributes:
        connection: how name servers and brokers are reached.
        topic: the topic of all rows, or None to use the column ``topic``.
        send_mode: whether sends are acknowledged.
        max_batch_bytes: the largest batch; a larger message is sent on its own.
        retries: attempts after the first one, not counting those that a busy broker refuses.
        producer_group: the producer group named in sends.
        uniq_key: how unique keys are created; by default by column if there is a column
            ``uniqKey``, else by position.
        partitioner: how queues are chosen; by default by column if there is a column ``queueId``,
            else by hash if there is a column ``shardingKey``, else round robin.
        send_timeout: the time for all attempts of one request.
        delay_level: the delay level of rows without a value in ``delayLevel``; 0 for no delay.
        default_queues: the number of queues of a topic that is created by a send.
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
    *CREDENTIALS_OPTIONS,
    *TLS_OPTIONS,
    *options_of(SinkOptions).values(),
)
"""All options of the sink."""


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write, as passed by Spark.

    Raises:
        OptionError: an option is unknown, unsupported or invalid, or contradicts another.
    """
    reader = OptionReader(given, SINK_OPTIONS, "sink", refusals=REFUSALS)
    options = reader.read(SinkOptions, connection=ConnectionOptions.of(reader))
    if options.send_timeout < options.connection.request_timeout:
        raise OptionError(
            f"sendTimeoutMs, {options.send_timeout * 1000:g}, is below requestTimeoutMs",
            "it is the time for all attempts together: raise it",
        )
    return options
