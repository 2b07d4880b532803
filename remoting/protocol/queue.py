"""The queue of a topic at a broker, and the two kinds of offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A byte position in the commit log."""

QueueOffset = NewType("QueueOffset", int)
"""A message's number within its queue, from 0."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic at one broker.

    Queues sort by topic, broker name and queue id, as every member of a consumer group must sort
    them to come to the same allocation (cf. MessageQueue.compareTo).
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """The queue as logs and errors name it: ``topic/broker/id``."""
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"
