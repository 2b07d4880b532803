"""The message queue, and the two kinds of offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A byte position in the commit log."""

QueueOffset = NewType("QueueOffset", int)
"""A message's position within its queue, counted from 0."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic at one broker.

    Queues are ordered by topic, broker name and queue id. All members of a consumer group must use
    this order to compute the same allocation (cf. MessageQueue.compareTo).
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return ``topic/broker/id``, the form used in logs and errors."""
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"
