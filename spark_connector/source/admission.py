"""Admission control: computes where the next micro-batch ends. No I/O.

The inputs are the bounds of the queues and the time, the output is the end of the batch. Spark
supports one limit at a time, so all limits of the options are applied here.

Without ``maxOffsetsPerTrigger`` a batch has at most a million messages until the query has reached
the end of its queues once: the first batch on a long backlog must not exhaust memory. A limit in
bytes is converted to one in messages, by the average size of a sample from each broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from remoting.protocol.queue import MessageQueue
from spark_connector.errors import DataLossError
from spark_connector.source.offsets import Offsets
from spark_connector.source.options import Limits, OnDataLoss
from spark_connector.source.positions import QueueBounds
from spark_connector.source.ranges import share

CATCH_UP_OFFSETS: Final = 1_000_000
"""The most messages of one batch while a query without a limit works off its backlog."""

UNLIMITED: Final = 2**62

UNSEEN_BYTES: Final = 1024
"""The assumed size of a message if none could be sampled, in bytes."""

MeanSize = Callable[[MessageQueue, int], float | None]
"""Returns the average stored size, in bytes, of some messages from an offset on, or None."""


def begin(queue: MessageQueue, start: int | None, bounds: QueueBounds, policy: OnDataLoss) -> int:
    """Return the offset at which reading of a queue continues.

    Args:
        queue: the queue, for errors.
        start: the offset in the checkpoint; None for a new queue, which is read from its start.
        bounds: the bounds of the queue.
        policy: what happens if ``start`` is outside these.

    Raises:
        DataLossError: ``start`` is outside the bounds, and the policy is to fail.
    """
    if start is None:
        return bounds.minimum
    if bounds.minimum <= start <= bounds.maximum:
        return start
    if policy is OnDataLoss.FAIL:
        raise _loss(queue, start, bounds)
    if start < bounds.minimum:
        return bounds.minimum
    return bounds.minimum if policy is OnDataLoss.EARLIEST else bounds.maximum


_RECREATED: Final = (
    "begin with a new checkpoint; or set onDataLoss=skip to go on with new messages, or "
    "onDataLoss=earliest to read the queue from its beginning"
)


def begin_anew(queue: MessageQueue, bounds: QueueBounds, policy: OnDataLoss) -> int:
    """Return the offset at which reading of a recreated topic's queue begins.

    Raises:
        DataLossError: the policy is to fail.
    """
    if policy is OnDataLoss.FAIL:
        raise DataLossError(
            f"queue {queue} has other messages than those that were read: the topic was deleted "
            "and recreated",
            _RECREATED,
        )
    return bounds.minimum if policy is OnDataLoss.EARLIEST else bounds.maximum


def _loss(queue: MessageQueue, start: int, bounds: QueueBounds) -> DataLossError:
    if start > bounds.maximum:
        return DataLossError(
            f"queue {queue} ends at offset {bounds.maximum}, before the {start} that was read "
            "already: the topic was deleted and recreated, or its broker lost its last messages",
            _RECREATED,
        )
    return DataLossError(
        f"queue {queue} lost offsets [{start}, {bounds.minimum}): it holds "
        f"[{bounds.minimum}, {bounds.maximum})",
        "its broker deleted them before they were read: keep messages longer (fileReservedTime, "
        "hours), or set onDataLoss=skip to go on with what is there",
    )


@dataclass(slots=True)
class Admission:
    """The admission control of one query.

    Attributes:
        limits: the limits given by the user.
        policy: what happens when offsets were deleted.
        started: when the query began, or last had a batch; seconds of a monotonic clock.
        target: where the query ends, with the trigger AvailableNow; otherwise None.
        caught_up: whether the query has reached the end of all queues once.
        lost: the number of offsets skipped because their messages were deleted.
    """

    limits: Limits
    policy: OnDataLoss
    started: float
    target: Offsets | None = None
    caught_up: bool = False
    lost: int = 0

    @property
    def max_rows(self) -> int:
        """The limit of rows as reported to Spark."""
        return self.limits.max_offsets or UNLIMITED

    def end(
        self,
        start: Offsets,
        bounds: Mapping[MessageQueue, QueueBounds],
        now: float,
        *,
        mean_size: MeanSize = lambda *_: None,
        take_all: bool = False,
    ) -> Offsets:
        """Return where the next batch ends; ``start`` if there is no batch yet.

        Args:
            start: the end of the previous batch.
            bounds: the bounds of all reachable queues; the other queues keep their offsets.
            now: the current time, on the clock of ``started``.
            mean_size: samples a queue; called once per broker if there is a limit in bytes.
            take_all: ignore the limits (trigger Once).

        Raises:
            DataLossError: see ``begin``.
        """
        begins, ends = self._window(start, bounds)
        queues = [queue for queue in ends if ends[queue] > begins[queue]]
        available = [ends[queue] - begins[queue] for queue in queues]
        total = sum(available)
        if not take_all:
            if self._waits(total, now):
                return dict(start)
            limit = self.limits.max_offsets
            if limit is None:
                bounded = self.caught_up or self.limits.max_bytes is not None
                limit = UNLIMITED if bounded else CATCH_UP_OFFSETS
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
        self, start: Offsets, bounds: Mapping[MessageQueue, QueueBounds]
    ) -> tuple[Offsets, Offsets]:
        """Return the start of each queue, and its end, which is at most the target's."""
        begins: Offsets = {}
        ends: Offsets = {}
        for queue, ends_of in bounds.items():
            last = ends_of.maximum
            if self.target is not None:
                if queue not in self.target:
                    continue
                last = min(last, self.target[queue])
            begins[queue] = begin(queue, start.get(queue), ends_of, self.policy)
            # The target may be from before the topic was recreated, and below the start.
            ends[queue] = max(last, begins[queue])
        return begins, ends

    def _waits(self, total: int, now: float) -> bool:
        """Return whether to wait for more messages; never with a target, as none may come."""
        return (
            self.target is None
            and 0 < total < self.limits.min_offsets
            and now - self.started < self.limits.max_delay
        )


def _mean_size(
    available: Mapping[MessageQueue, int], begins: Offsets, mean_size: MeanSize
) -> float:
    """Return the average stored size of the next messages, in bytes, at least 1.

    On each broker the queue with the most available messages is sampled, and weighted by the
    number of messages available on the broker. Brokers that can't be sampled are left out.

    Args:
        available: the number of available messages per queue.
        begins: the next offset of each queue.
        mean_size: samples a queue.
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
