"""Resolves the positions given by the user to an offset in each queue.

Instants and committed offsets need requests to brokers, which ``OffsetLookup`` sends; the bounds of
the queues are passed in. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from remoting.protocol.queue import MessageQueue
from spark_connector.errors import DataLossError, OptionError
from spark_connector.source.options import OnDataLoss, SourceOptions
from spark_connector.source.positions import (
    ALL_QUEUES,
    Edge,
    Instant,
    Position,
    Positions,
    QueueBounds,
)


class OffsetLookup(Protocol):
    """Looks up offsets on brokers."""

    def at_or_after(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the queue's end."""

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the query's consumer group, or None."""


_NAMED: Final = 5
"""The most queues named by an error."""


def resolve(
    positions: Positions,
    bounds: Mapping[MessageQueue, QueueBounds],
    lookup: OffsetLookup,
    options: SourceOptions,
    now_ms: int,
) -> dict[MessageQueue, int]:
    """Return the offset in each queue.

    Args:
        positions: the positions given by the user.
        bounds: the bounds of the queues.
        lookup: looks up offsets on brokers.
        options: determine what happens if a position doesn't exist.
        now_ms: the time that relative instants refer to, in ms since 1970.

    Raises:
        OptionError: the option misses queues or names others, or a position doesn't exist.
        DataLossError: an offset is outside the queue (with ``OnDataLoss.FAIL``).
    """
    _check_names(positions, bounds)
    resolver = _Resolver(positions.option, lookup, options, now_ms)
    offsets = {}
    for queue, ends in bounds.items():
        position = positions.of(queue)
        assert position is not None
        offsets[queue] = resolver.resolve(position, queue, ends)
    return offsets


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Resolves positions of one option; see ``resolve`` for the attributes."""

    option: str
    lookup: OffsetLookup
    options: SourceOptions
    now_ms: int

    def resolve(self, position: Position, queue: MessageQueue, ends: QueueBounds) -> int:
        if isinstance(position, Instant):
            return self._of_instant(position.at(self.now_ms), queue, ends)
        if position is Edge.COMMITTED:
            committed = self.lookup.committed(queue)
            if committed is not None:
                return self._within(committed, queue, ends)
            if self.options.on_no_commit is None:
                raise OptionError(
                    f"the consumer group has committed nothing in queue {queue}",
                    "set onNoCommit to earliest or latest, or let the group commit first",
                )
            position = self.options.on_no_commit
        if isinstance(position, Edge):
            return ends.minimum if position is Edge.EARLIEST else ends.maximum
        return self._within(position, queue, ends)

    def _of_instant(self, timestamp_ms: int, queue: MessageQueue, ends: QueueBounds) -> int:
        if ends.minimum < ends.maximum:
            offset = self.lookup.at_or_after(queue, timestamp_ms)
            if offset < ends.maximum:
                return max(offset, ends.minimum)
        if self.options.fail_without_match:
            raise OptionError(
                f"queue {queue} holds no message stored at or after {timestamp_ms} ms "
                f"({self.option})",
                "set startingOffsetsByTimestampStrategy=latest to begin at such a queue's end",
            )
        return ends.maximum

    def _within(self, offset: int, queue: MessageQueue, ends: QueueBounds) -> int:
        if ends.minimum <= offset <= ends.maximum:
            return offset
        on_data_loss = self.options.read.on_data_loss
        if on_data_loss is OnDataLoss.FAIL:
            raise DataLossError(
                f"{self.option} asks for offset {offset} of queue {queue}, which holds "
                f"[{ends.minimum}, {ends.maximum})",
                "correct the offset, or set onDataLoss=skip to take the nearest there is",
            )
        if offset > ends.maximum and on_data_loss is OnDataLoss.EARLIEST:
            return ends.minimum
        return min(max(offset, ends.minimum), ends.maximum)


def _check_names(positions: Positions, bounds: Mapping[MessageQueue, QueueBounds]) -> None:
    """Raise OptionError unless the option names all queues, no others, and each unambiguously."""
    if positions.every is not None:
        return
    missing = [str(queue) for queue in bounds if positions.of(queue) is None]
    if missing:
        raise OptionError(
            f"{positions.option} has no position for {_some(missing)}",
            'name every queue: -2 is its earliest, -1 its latest offset, e.g. {"t":{"broker-a":'
            '{"0":-2}}}',
        )
    for topic, brokers in positions.each.items():
        for broker, queues in brokers.items():
            _check_named(positions.option, topic, broker, queues, bounds)


def _check_named(
    option: str,
    topic: str,
    broker: str | None,
    queues: Mapping[int, Position],
    bounds: Mapping[MessageQueue, QueueBounds],
) -> None:
    for queue_id in queues:
        holders = [
            queue
            for queue in bounds
            if queue.topic == topic
            and queue_id in {queue.queue_id, ALL_QUEUES}
            and broker in {None, queue.broker_name}
        ]
        if not holders:
            name = f"{topic}/{broker or '*'}/{'*' if queue_id == ALL_QUEUES else queue_id}"
            raise OptionError(
                f"{option} names queue {name}, which the query doesn't read",
                f"there are {_some([str(queue) for queue in bounds]) or 'none'}",
            )
        if broker is None and queue_id != ALL_QUEUES and len(holders) > 1:
            raise OptionError(
                f"{option} names queue {queue_id} of topic {topic} without its broker",
                f"several have it: name one, e.g. {holders[0].broker_name}",
            )


def _some(names: list[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
