"""Which queue a message goes to, and which brokers to avoid for a while.

Messages without a key go round robin from a random start, past brokers that the fault table avoids
and, on a retry, past the broker that just failed. A sharding key always gives the same queue as
long as the topic has the same queues (cf. SelectMessageQueueByHash).

A slow answer makes a broker unavailable for the time that ``PENALTIES`` gives for its latency; a
failed send counts as an answer of 30 s. A later quick answer or heartbeat makes it available again
(cf. LatencyFaultTolerance, MQFaultStrategy). Pure: the time is a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from remoting.protocol.message.tags import java_hash
from remoting.protocol.queue import MessageQueue

INDEX_MASK = 0x7FFF_FFFF


PENALTIES: Final = (
    (15.0, 600.0),
    (3.0, 180.0),
    (2.0, 120.0),
    (1.0, 60.0),
    (0.55, 30.0),
)
"""(latency from, seconds to leave the broker alone), the highest first that applies."""

ISOLATION_LATENCY: Final = 30.0
"""What a failed send counts as (cf. MQFaultStrategy.updateFaultItem, isolation)."""


class FaultTable:
    """Until when each broker is left alone. Bounded by the brokers of the routes."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def answered(self, broker: str, latency: float, now: float) -> None:
        """Note how many seconds ``broker`` took for an answer."""
        if latency < PENALTIES[-1][0]:
            if self._until:
                self._until.pop(broker, None)
            return
        for least, penalty in PENALTIES:
            if latency >= least:
                self._until[broker] = now + penalty
                return

    def failed(self, broker: str, now: float) -> None:
        """Note that a send to ``broker`` failed without an answer."""
        self.answered(broker, ISOLATION_LATENCY, now)

    def restored(self, broker: str) -> None:
        """``broker`` is known to be well again (it answered a heartbeat)."""
        self._until.pop(broker, None)

    def available(self, broker: str, now: float) -> bool:
        """Whether ``broker`` need not be avoided."""
        if not self._until:
            return True
        until = self._until.get(broker)
        return until is None or now >= until


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
