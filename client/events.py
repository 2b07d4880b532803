"""What a consumer tells its ``on_event`` callback besides logging it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from remoting.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class OffsetMoved:
    """The wanted offset is not in the queue (deleted, or past its end): reading goes on at ``new``.

    Attributes:
        queue: where.
        wanted: the offset that was asked for.
        new: the offset the broker gave instead.
    """

    queue: MessageQueue
    wanted: int
    new: int


@dataclass(frozen=True, slots=True)
class QueueWaiting:
    """A queue can't be read at the moment; it is tried again until it can.

    Attributes:
        queue: which.
        error: why.
    """

    queue: MessageQueue
    error: Exception


@dataclass(frozen=True, slots=True)
class QueueResumed:
    """A queue that was waiting is read again."""

    queue: MessageQueue


Event: TypeAlias = OffsetMoved | QueueWaiting | QueueResumed
EventHandler: TypeAlias = Callable[[Event], None]
