"""What a write was asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from client.limits import DEFAULT_TOPIC_QUEUES
from spark_connector.encode.limits import BATCH_BYTES


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
        name_servers: ``host:port`` of each.
        topic: of all rows; None: the column ``topic`` says.
        send_mode: whether sends are acknowledged.
        max_batch_bytes: of one request; a larger message leaves alone.
        retries: attempts after the first; what a busy broker refuses counts as none.
        producer_group: the group that sends name.
        uniq_key: None: by the column ``uniqKey`` if there is one, else by position.
        partitioner: None: by the column ``queueId`` if there is one, else by hash if there is a
            column ``shardingKey``, else round robin.
        request_timeout: of one request.
        send_timeout: of one request with all its attempts.
        delay_level: of rows whose column ``delayLevel`` does not say; 0: no delay.
        connection_idle: connections that were not used so long are closed.
        default_queues: queues asked for when a send creates its topic.
    """

    name_servers: tuple[str, ...]
    topic: str | None = None
    send_mode: SendMode = SendMode.SYNC
    max_batch_bytes: int = BATCH_BYTES
    retries: int = 3
    producer_group: str = "spark-rocketmq"
    uniq_key: UniqKey | None = None
    partitioner: Partitioner | None = None
    request_timeout: float = 10.0
    send_timeout: float = 120.0
    delay_level: int = 0
    connection_idle: float = 300.0
    default_queues: int = DEFAULT_TOPIC_QUEUES
