"""What a broker's acknowledgement says about a message."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from remoting.protocol.queue import MessageQueue, QueueOffset


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
