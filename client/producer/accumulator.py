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

from client.limits import SPREAD_MESSAGES
from client.producer.batch import Batch
from client.producer.burst import Burst, BurstBatch
from client.producer.outgoing import Outgoing
from remoting.protocol.queue import MessageQueue


class Lane:
    """The messages of one key that wait: single ones, and bursts of plain ones."""

    __slots__ = ("count", "in_flight", "key", "since", "size", "spread", "waiting")

    def __init__(self, key: str | MessageQueue) -> None:
        self.key = key
        self.waiting: deque[Outgoing | Burst] = deque()
        self.count = 0
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

    def add(self, item: Outgoing | Burst, now: float, *, spread: int = 1) -> bool:
        """Queue what room was reserved for; True when a full batch is ready.

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
        lane.count += item.count
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
                    max(SPREAD_MESSAGES, -(-lane.count // lane.spread)),
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
        self.release(batch.count, batch.size)
        if lane.waiting:
            return lane.ordered
        if not lane.in_flight:
            self._lanes.pop(lane.key, None)
        return False

    def expire(self, now: float) -> list[Outgoing | Burst]:
        """Take out, for good, what waited behind another batch until its deadline."""
        expired: list[Outgoing | Burst] = []
        for lane in list(self._busy.values()):
            waiting = lane.waiting
            while waiting and waiting[0].deadline <= now:
                item = waiting.popleft()
                lane.count -= item.count
                lane.size -= item.size
                self.release(item.count, item.size)
                expired.append(item)
            if not waiting:
                del self._busy[lane.key]
                if not lane.in_flight:
                    del self._lanes[lane.key]
        return expired

    def _ripe(self, lane: Lane, now: float) -> bool:
        return now >= lane.since + self._linger or self._full(lane)

    def _full(self, lane: Lane) -> bool:
        return lane.count >= self._max_batch_messages or lane.size >= self._max_batch_bytes

    def _cut(self, lane: Lane, most: int) -> Batch:
        first = lane.waiting.popleft()
        batch = (
            self._cut_burst(lane, first, most)
            if isinstance(first, Burst)
            else self._cut_singles(lane, first, most)
        )
        lane.count -= batch.count
        lane.size -= batch.size
        lane.in_flight += 1
        return batch

    def _cut_singles(self, lane: Lane, first: Outgoing, most: int) -> Batch:
        waiting = lane.waiting
        items = [first]
        size = first.size
        while waiting and (first.group is not None or not first.alone):
            item = waiting[0]
            if isinstance(item, Burst) or item.group is not first.group:
                break
            if item.epoch != first.epoch:
                break
            size += item.size
            if first.group is None and (
                item.alone or len(items) >= most or size > self._max_batch_bytes
            ):
                break
            items.append(item)
            waiting.popleft()
        return Batch(lane, items)

    def _cut_burst(self, lane: Lane, first: Burst, most: int) -> Batch:
        waiting = lane.waiting
        fitting = max(1, first.fitting(most, self._max_batch_bytes))
        if fitting < first.count:
            waiting.appendleft(first)
            return BurstBatch(lane, first.split(fitting))
        while waiting:
            burst = waiting[0]
            if not isinstance(burst, Burst) or burst.epoch != first.epoch:
                break
            fitting = burst.fitting(most - first.count, self._max_batch_bytes - first.size)
            if fitting < burst.count:
                if fitting:
                    first.join(burst.split(fitting))
                break
            first.join(burst)
            waiting.popleft()
        return BurstBatch(lane, first)
