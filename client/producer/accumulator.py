"""Which messages leave together, and when. A state machine without a loop, clock or socket.

Messages wait in lanes. A *free* lane (its key is the topic) may have any number of batches in
flight, and each may go to any queue; a burst is spread over the topic's queues. An *ordered* lane
(its key is a queue: chosen, or by sharding key) has one batch in flight, so that what is sent
again can never overtake or be overtaken. Within a lane messages leave in the order they came.

A lane is ripe when its oldest message has waited ``linger`` seconds or a full batch is there; with
``linger`` 0 it is ripe at once, and the owner calls ``take`` once per turn of the loop.

Bounded by messages and bytes from ``reserve`` until ``finished``: ``has_room`` tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from client.limits import SPREAD_MESSAGES
from client.producer.outgoing import Outgoing
from remoting.protocol.queue import MessageQueue


class Batch:
    """Messages that leave as one request; ``queue`` is None when any will do."""

    __slots__ = ("items", "lane", "queue", "size")

    def __init__(self, lane: Lane, items: list[Outgoing]) -> None:
        self.lane = lane
        self.queue = lane.key if isinstance(lane.key, MessageQueue) else None
        self.items: Final[Sequence[Outgoing]] = items
        self.size = sum([item.size for item in items])


class Lane:
    """The messages of one key that wait."""

    __slots__ = ("in_flight", "key", "since", "size", "spread", "waiting")

    def __init__(self, key: str | MessageQueue) -> None:
        self.key = key
        self.waiting: deque[Outgoing] = deque()
        self.size = 0
        self.since = 0.0
        self.in_flight = 0
        self.spread = 1

    @property
    def ordered(self) -> bool:
        """Whether at most one batch may be in flight."""
        return isinstance(self.key, MessageQueue)


class Accumulator:
    """The lanes of one producer.

    Args:
        linger: seconds a message may wait for company.
        max_batch_messages, max_batch_bytes: bounds of one automatic batch.
        max_messages, max_bytes: bounds of all that was reserved and has not finished.
    """

    def __init__(
        self,
        *,
        linger: float,
        max_batch_messages: int,
        max_batch_bytes: int,
        max_messages: int,
        max_bytes: int,
    ) -> None:
        self._linger = linger
        self._max_batch_messages = max_batch_messages
        self._max_batch_bytes = max_batch_bytes
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._lanes: dict[str | MessageQueue, Lane] = {}
        self._busy: dict[str | MessageQueue, Lane] = {}
        self.messages = 0
        self.bytes = 0

    @property
    def waiting(self) -> bool:
        """Whether any message has not left yet."""
        return bool(self._busy)

    def has_room(self, messages: int, size: int) -> bool:
        """Whether so much may be added. When nothing is in flight, always."""
        return not self.messages or (
            self.messages + messages <= self._max_messages and self.bytes + size <= self._max_bytes
        )

    def reserve(self, messages: int, size: int) -> None:
        """Take room for what is going to be added."""
        self.messages += messages
        self.bytes += size

    def release(self, messages: int, size: int) -> None:
        """Give back room that was reserved."""
        self.messages -= messages
        self.bytes -= size

    def add(self, item: Outgoing, now: float, *, spread: int = 1) -> bool:
        """Queue a message, for which room was reserved; True when a full batch is ready.

        Args:
            item: its ``lane`` says where.
            now: monotonic seconds.
            spread: over how many queues a burst in this (free) lane goes.
        """
        lane = self._busy.get(item.lane)
        if lane is None:
            lane = self._lanes.get(item.lane)
            if lane is None:
                lane = self._lanes[item.lane] = Lane(item.lane)
            self._busy[item.lane] = lane
            lane.since = now
        lane.spread = spread
        lane.waiting.append(item)
        lane.size += item.size
        return self._full(lane) and not (lane.in_flight and lane.ordered)

    def take(self, now: float, *, everything: bool = False) -> list[Batch]:
        """All batches that may leave now; ``everything`` doesn't wait for linger."""
        batches: list[Batch] = []
        for lane in list(self._busy.values()):
            if lane.ordered:
                if not lane.in_flight and (everything or self._ripe(lane, now)):
                    batches.append(self._cut(lane, self._max_batch_messages))
            elif everything or self._ripe(lane, now):
                most = min(
                    self._max_batch_messages,
                    max(SPREAD_MESSAGES, -(-len(lane.waiting) // lane.spread)),
                )
                while lane.waiting:
                    batches.append(self._cut(lane, most))
            if not lane.waiting:
                del self._busy[lane.key]
        return batches

    def next_take(self) -> float | None:
        """When to ``expire`` and ``take`` again if nothing else happens before; None: never."""
        times = [
            lane.waiting[0].deadline
            if lane.ordered and lane.in_flight
            else lane.since + self._linger
            for lane in self._busy.values()
        ]
        return min(times, default=None)

    def finished(self, batch: Batch) -> bool:
        """A batch was acknowledged or given up; True when its lane has more that had to wait."""
        lane = batch.lane
        lane.in_flight -= 1
        self.release(len(batch.items), batch.size)
        if lane.waiting:
            return lane.ordered
        if not lane.in_flight:
            self._lanes.pop(lane.key, None)
        return False

    def expire(self, now: float) -> list[Outgoing]:
        """Take out, for good, what waited behind another batch until its deadline."""
        expired: list[Outgoing] = []
        for lane in list(self._busy.values()):
            waiting = lane.waiting
            while waiting and waiting[0].deadline <= now:
                item = waiting.popleft()
                lane.size -= item.size
                self.release(1, item.size)
                expired.append(item)
            if not waiting:
                del self._busy[lane.key]
                if not lane.in_flight:
                    del self._lanes[lane.key]
        return expired

    def _ripe(self, lane: Lane, now: float) -> bool:
        return now >= lane.since + self._linger or self._full(lane)

    def _full(self, lane: Lane) -> bool:
        return len(lane.waiting) >= self._max_batch_messages or lane.size >= self._max_batch_bytes

    def _cut(self, lane: Lane, most: int) -> Batch:
        waiting = lane.waiting
        first = waiting.popleft()
        items = [first]
        if first.group is not None:
            while waiting and waiting[0].group is first.group:
                items.append(waiting.popleft())
        elif not first.alone:
            size = first.size
            while waiting and len(items) < most:
                item = waiting[0]
                size += item.size
                if item.alone or item.group is not None or size > self._max_batch_bytes:
                    break
                items.append(waiting.popleft())
        batch = Batch(lane, items)
        lane.size -= batch.size
        lane.in_flight += 1
        return batch
