"""A message to send, and the receipt of a stored message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, IntEnum
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from remoting.protocol.queue import MessageQueue, QueueOffset

T = TypeVar("T")


@dataclass(slots=True)
class Message(Generic[T]):
    """A message to send.

    Attributes:
        topic: the topic to send to.
        body: bytes, or any value that the producer's serde can encode.
        tag: for selection by consumers.
        keys: business keys for finding the message; a key can't contain a blank.
        properties: application-defined names and values.
        sharding_key: messages with the same key go to the same queue, in order.
        queue: the queue to send to; not together with ``sharding_key``.
        delay_level: 1 is the broker's first delay level (1 s by default), 0 no delay.
        delay: deliver the message so much later: seconds or a ``timedelta``.
        deliver_at: deliver the message at this time, which has a time zone; at once if it is past.
        flag: an application-defined int32.
        wait: False: acknowledge the message without waiting for the broker's flush to disk.
    """

    topic: str
    body: T
    tag: str | None = None
    keys: Iterable[str] = ()
    properties: Mapping[str, str] | None = None
    sharding_key: str | None = None
    queue: MessageQueue | None = None
    delay_level: int = field(default=0, kw_only=True)
    delay: float | timedelta | None = field(default=None, kw_only=True)
    deliver_at: datetime | None = field(default=None, kw_only=True)
    flag: int = field(default=0, kw_only=True)
    wait: bool = field(default=True, kw_only=True)


class SendStatus(IntEnum):
    """How durably a message is stored; values are response codes (cf. SendStatus)."""

    OK = 0
    """As durably as the broker is configured."""
    FLUSH_DISK_TIMEOUT = 10
    """In memory; the flush to disk did not finish in time."""
    SLAVE_NOT_AVAILABLE = 11
    """On the master only; no slave is connected."""
    FLUSH_SLAVE_TIMEOUT = 12
    """On the master; no slave acknowledged in time."""

    def __str__(self) -> str:
        return self.name

    __format__ = Enum.__format__


class Receipt(NamedTuple):
    """Position and ids of a stored message.

    Attributes:
        status: how durably it is stored.
        queue: the queue it is stored in.
        offset: its offset in that queue.
        id: the id assigned by the client (``UNIQ_KEY``); the consumer's ``message.id``.
        offset_id: the id assigned by the broker: its address and the physical offset.
        recall_handle: for ``Producer.recall``, if the message waits for its time of delivery.
    """

    status: SendStatus
    queue: MessageQueue
    offset: QueueOffset
    id: str
    offset_id: str
    recall_handle: str | None = None


@dataclass(slots=True, kw_only=True)
class Reply(Generic[T]):
    """What a consumer answers to a request.

    Attributes:
        body: bytes, or with a producer that has a serde the value it reads.
        properties: the reply's own names and values.
        id: the reply's unique id.
        sent_ms: when it was sent, by the replying client's clock.
    """

    body: T
    properties: Mapping[str, str]
    id: str
    sent_ms: int


class TransactionState(IntEnum):
    """What a checker returns; the values are those of END_TRANSACTION."""

    UNKNOWN = 0
    """Not decided yet: the broker asks again later."""
    COMMIT = 8
    """Consumers get the message."""
    ROLLBACK = 12
    """Nobody gets it."""


@dataclass(slots=True, kw_only=True)
class OpenTransaction(Generic[T]):
    """What a checker decides about.

    Attributes:
        id: the message's unique id, ``Transaction.id`` of the producer that sent it.
        message: as it was sent.
        checks: how often producers have been asked about it, this time included.
        sent_ms: when it was sent, by its producer's clock.
        offset_id: the half message's id assigned by the broker, as in ``Receipt``.
    """

    id: str
    message: Message[T]
    checks: int
    sent_ms: int
    offset_id: str


Checker: TypeAlias = Callable[
    [OpenTransaction[Any]], TransactionState | Awaitable[TransactionState]
]
"""Decides about a transaction that its producer has not ended. A plain function runs in a thread
and may block. One that raises, or takes longer than a minute, has not decided."""
