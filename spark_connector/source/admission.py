"""How far the next micro-batch goes: limits, minimum and delay, bytes, and a fixed target.

A state machine without I/O: facts about the queues and the time come in, the batch's end comes out.
Spark knows one limit at a time, so all of ours are applied here.

Without ``maxOffsetsPerTrigger`` a batch takes at most a million messages until the query has once
come to the end of its queues: the first batch on a long backlog must not fill memory. A limit in
bytes becomes one in messages, by the average size of some messages of every broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from remoting.protocol.queue import MessageQueue
from spark_connector.errors import DataLossError
from spark_connector.source.offsets import Offsets
from spark_connector.source.options import Limits, OnDataLoss
from spark_connector.source.positions import QueueFacts
from spark_connector.source.ranges import share

CATCH_UP_OFFSETS: Final = 1_000_000
"""Messages of one batch at most while a query without a limit works off its backlog."""

UNLIMITED: Final = 2**62

UNSEEN_BYTES: Final = 1024
"""The size of a message while none could be sampled."""

MeanSize = Callable[[MessageQueue, int], float | None]
"""The average stored size, in bytes, of some messages from an offset on; None: unknown."""


def begin(queue: MessageQueue, start: int | None, facts: QueueFacts, policy: OnDataLoss) -> int:
    """Where reading of a queue goes on: ``start``, or what there is instead.

    Args:
        start: the offset in the checkpoint; None for a queue that wasn't there: its earliest.

    Raises:
        DataLossError: ``start`` isn't there any more, and the policy is to fail.
    """
    if start is None:
        return facts.minimum
    if facts.minimum <= start <= facts.maximum:
        return start
    if policy is OnDataLoss.FAIL:
        raise _loss(queue, start, facts)
    if start < facts.minimum:
        return facts.minimum
    return facts.minimum if policy is OnDataLoss.EARLIEST else facts.maximum


def _loss(queue: MessageQueue, start: int, facts: QueueFacts) -> DataLossError:
    if start > facts.maximum:
        return DataLossError(
            f"queue {queue} ends at offset {facts.maximum}, before the {start} that was read "
            "already: the topic was deleted and made anew, or its broker lost its last messages",
            "begin with a new checkpoint; or set onDataLoss=skip to go on with new messages, or "
            "onDataLoss=earliest to read the queue from its beginning",
        )
    return DataLossError(
        f"queue {queue} lost offsets [{start}, {facts.minimum}): it holds "
        f"[{facts.minimum}, {facts.maximum})",
        "its broker deleted them before they were read: keep messages longer (fileReservedTime, "
        "hours), or set onDataLoss=skip to go on with what is there",
    )


@dataclass(slots=True)
class Admission:
    """The limits of one query, with what they have to remember.

    Attributes:
        limits: the user's.
        policy: what happens when offsets are gone.
        started: when the query began, or last had a batch; seconds of a monotonic clock.
        target: with the trigger AvailableNow: where the query ends.
        caught_up: it has once come to the end of all queues.
        lost: offsets that were passed over because they are gone.
    """

    limits: Limits
    policy: OnDataLoss
    started: float
    target: Offsets | None = None
    caught_up: bool = False
    lost: int = 0

    @property
    def max_rows(self) -> int:
        """The limit to tell Spark."""
        return self.limits.max_offsets or UNLIMITED

    def end(
        self,
        start: Offsets,
        facts: Mapping[MessageQueue, QueueFacts],
        now: float,
        *,
        mean_size: MeanSize = lambda *_: None,
        take_all: bool = False,
    ) -> Offsets:
        """Where the next batch ends; ``start`` itself when there is none yet.

        Args:
            start: the end of the batch before.
            facts: of all queues that can be reached; the others stay where they are.
            now: seconds of the clock that ``started`` is of.
            mean_size: samples a queue; called once for each broker if there is a limit in bytes.
            take_all: leave the limits aside (trigger Once).

        Raises:
            DataLossError: see ``begin``.
        """
        begins, ends = self._window(start, facts)
        queues = [queue for queue in ends if ends[queue] > begins[queue]]
        available = [ends[queue] - begins[queue] for queue in queues]
        total = sum(available)
        if not take_all:
            if self._waits(total, now):
                return dict(start)
            limit = self._limit()
            if self.limits.max_bytes is not None and total:
                mean = _mean_size(dict(zip(queues, available, strict=True)), begins, mean_size)
                limit = min(limit, max(1, int(self.limits.max_bytes / mean)))
            if total > limit:
                taken = share(available, limit)
                ends |= {
                    queue: begins[queue] + count for queue, count in zip(queues, taken, strict=True)
                }
            else:
                self.caught_up = True
        after = {**start, **ends}
        if after != start:
            self.started = now
            self.lost += sum(
                max(0, begins[queue] - offset) for queue, offset in start.items() if queue in begins
            )
        return after

    def _window(
        self, start: Offsets, facts: Mapping[MessageQueue, QueueFacts]
    ) -> tuple[Offsets, Offsets]:
        """Where each queue goes on, and its end as far as the query may go."""
        begins: Offsets = {}
        ends: Offsets = {}
        for queue, ends_of in facts.items():
            last = ends_of.maximum
            if self.target is not None:
                if queue not in self.target:
                    continue
                last = min(last, self.target[queue])
            begins[queue] = begin(queue, start.get(queue), ends_of, self.policy)
            # A target from before a topic was made anew must not hold the query in the past.
            ends[queue] = max(last, begins[queue])
        return begins, ends

    def _waits(self, total: int, now: float) -> bool:
        """Whether there is too little for a batch. A query with a target would wait for ever."""
        return (
            self.target is None
            and 0 < total < self.limits.min_offsets
            and now - self.started < self.limits.max_delay
        )

    def _limit(self) -> int:
        limit = self.limits.max_offsets
        if limit is None:
            has_other = self.limits.max_bytes is not None
            limit = UNLIMITED if self.caught_up or has_other else CATCH_UP_OFFSETS
        return limit


def _mean_size(
    available: Mapping[MessageQueue, int], begins: Offsets, mean_size: MeanSize
) -> float:
    """The average stored size of the next messages, in bytes, at least 1.

    Each broker's queue with the most to read is sampled, and weighs as much as that broker has to
    read. A broker that can't be sampled has the average of the others.
    """
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in available:
        brokers.setdefault(queue.broker_name, []).append(queue)
    messages = size = 0.0
    for queues in brokers.values():
        largest = max(queues, key=available.__getitem__)
        mean = mean_size(largest, begins[largest])
        if mean is not None:
            count = sum(available[queue] for queue in queues)
            messages += count
            size += count * mean
    return max(1.0, size / messages) if messages else UNSEEN_BYTES
