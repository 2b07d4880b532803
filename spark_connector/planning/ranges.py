"""What one task reads, and how: the two values the driver hands to the executors.

Both are plain data, so that they can be pickled, compared and made up by tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remoting.protocol.message.tags import SUBSCRIBE_ALL, TagExpression
from remoting.protocol.queue import MessageQueue


class OnDataLoss(StrEnum):
    """What happens when messages that a query wants are gone."""

    FAIL = "fail"
    SKIP = "skip"
    """Go on behind what is lost, and say so."""
    EARLIEST = "earliest"
    """As ``skip``; of a topic made anew, go on from its beginning, not from its end."""


class OnDecodeError(StrEnum):
    """What happens with a message that can't be understood."""

    FAIL = "fail"
    NULL = "null"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class RangePartition:
    """The messages ``[start, end)`` of one queue.

    Attributes:
        topic, broker_name, queue_id: the queue.
        start, end: queue offsets; the end is excluded.
        addresses: where its broker serves it, ``host:port``, the master first.
    """

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    addresses: tuple[str, ...]

    @property
    def queue(self) -> MessageQueue:
        """The queue as errors and logs name it."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def offsets(self) -> int:
        """How many offsets it has: the most messages it can give."""
        return self.end - self.start


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
    pull_batch_size: int = 1024
    pull_pipeline: int = 4
    request_timeout: float = 10.0
    read_timeout: float = 120.0
    connection_idle: float = 300.0
    filter_tags: str = SUBSCRIBE_ALL
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    on_decode_error: OnDecodeError = OnDecodeError.FAIL
    verify_crc: bool = False
    decompress: bool = True

    @property
    def tags(self) -> TagExpression:
        """The tags wanted."""
        return TagExpression.parse(self.filter_tags)
