"""Which queue a message goes to.

Messages without a key go round robin from a random start, past brokers that the fault table says
to leave alone and, on a retry, past the broker that just failed. A sharding key always gives the
same queue as long as the topic has the same queues (cf. SelectMessageQueueByHash).
"""

from __future__ import annotations

from collections.abc import Sequence

from client.producer.fault_tolerance import FaultTable
from remoting.protocol.message.tags import java_hash
from remoting.protocol.queue import MessageQueue

INDEX_MASK = 0x7FFF_FFFF


def by_sharding_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a key: abs(Java's hash rem n), where rem takes the sign of the hash."""
    return queues[abs(java_hash(key)) % len(queues)]


class RoundRobin:
    """The turn of one topic."""

    __slots__ = ("_index",)

    def __init__(self, start: int) -> None:
        self._index = start & INDEX_MASK

    def next(
        self,
        queues: Sequence[MessageQueue],
        faults: FaultTable,
        now: float,
        avoid: str | None = None,
    ) -> MessageQueue:
        """The next queue; ``avoid`` is a broker that has just failed.

        The best queue there is: one of an available other broker, else of any other broker, else
        the next in turn. ``queues`` can't be empty.
        """
        count = len(queues)
        second: MessageQueue | None = None
        start = self._index
        for step in range(count):
            queue = queues[(start + step) % count]
            if queue.broker_name == avoid:
                continue
            if faults.available(queue.broker_name, now):
                self._index = (start + step + 1) & INDEX_MASK
                return queue
            second = second or queue
        self._index = (start + 1) & INDEX_MASK
        return second or queues[start % count]
