"""A message as an application writes it, and what a broker's acknowledgement says about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Generic, NamedTuple, TypeVar

from remoting.protocol.queue import MessageQueue, QueueOffset

T = TypeVar("T")


@dataclass(slots=True)
class Message(Generic[T]):
    """A message to send.

    Attributes:
        topic: where to.
        body: bytes, or with a producer that has a serde any value it can write.
        tag: what consumers may choose by.
        keys: business keys the message can be looked up by; none holds a blank.
        properties: the application's own names and values.
        sharding_key: messages of one key go to one queue, in order.
        queue: the very queue to use; not together with ``sharding_key``.
        delay_level: 1 is the broker's first delay level (1 s), 0 no delay.
        flag: an int32 of the application's own.
        wait: False: the acknowledgement needn't wait for the broker's disk.
    """

    topic: str
    body: T
    tag: str | None = None
    keys: Iterable[str] = ()
    properties: Mapping[str, str] | None = None
    sharding_key: str | None = None
    queue: MessageQueue | None = None
    delay_level: int = field(default=0, kw_only=True)
    flag: int = field(default=0, kw_only=True)
    wait: bool = field(default=True, kw_only=True)


class SendStatus(IntEnum):
    """How durably a message is stored; the values are the response codes (cf. SendStatus)."""

    OK = 0
    """As durably as the broker is configured."""
    FLUSH_DISK_TIMEOUT = 10
    """In memory; the disk didn't confirm in time."""
    SLAVE_NOT_AVAILABLE = 11
    """At the master alone; there is no slave."""
    FLUSH_SLAVE_TIMEOUT = 12
    """At the master; no slave confirmed in time."""

    def __str__(self) -> str:
        return self.name

    __format__ = Enum.__format__


class Receipt(NamedTuple):
    """A stored message: where it is and what it is called.

    Attributes:
        status: how durably it is stored.
        queue: the queue it went to.
        offset: its number in that queue.
        id: the id the client gave it (``UNIQ_KEY``); the consumer's ``message.id``.
        offset_id: the broker's id for it: address and physical offset.
    """

    status: SendStatus
    queue: MessageQueue
    offset: QueueOffset
    id: str
    offset_id: str
