"""Chooses the topic and queue of each row.

A row's destination depends on a few values that repeat (topic, queue id, broker, key), so each
distinct combination of them is resolved once per batch. ``hashKeys`` maps a key to the same queue
as RocketMQ's clients do (cf. SelectMessageQueueByHash).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from client.network.routes import by_sharding_key
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import ConnectorError, OptionError
from spark_connector.sink.columns import Rows, unsendable

BY_HASH: Final = ("shardingKey", "keys")
"""Columns with the key by which a row's queue is chosen; the first one that is not empty counts."""

BY_COLUMN: Final = ("queueId", "brokerName")
"""Columns that name a row's queue."""


class Destination(NamedTuple):
    """The destination of rows: a queue, or, with None, any queue of the topic."""

    topic: str
    queue: MessageQueue | None


class Placing:
    """Chooses the destinations of one write.

    Args:
        topic: the topic of all rows, or None to use the column ``topic``.
        queues_of: returns the writable queues of a topic, in order.
        columns: the columns that determine the queue: ``BY_HASH``, ``BY_COLUMN`` or none.
    """

    def __init__(
        self,
        topic: str | None,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        columns: Sequence[str],
    ) -> None:
        self._topic = topic
        self._queues_of = queues_of
        self._columns = columns

    def place(self, rows: Rows) -> tuple[Sequence[Destination], NDArray[np.int64]]:
        """Return the distinct destinations of rows, and the index of each row's destination.

        Raises:
            ConnectorError: a row has no topic, or names a queue that its topic doesn't have.
        """
        columns = [self._topics(rows), *(rows.get(name) for name in self._deciding(rows))]
        indexes: dict[Destination, int] = {}
        combinations, of_row = _combinations(columns, rows.count)
        if len(columns[1:]) == 0 and len(combinations) == 1:
            destination = self._destination(combinations[0], rows)
            return [destination], of_row
        numbers = np.fromiter(
            (
                indexes.setdefault(self._destination(values, rows), len(indexes))
                for values in combinations
            ),
            dtype=np.int64,
            count=len(combinations),
        )
        return list(indexes), numbers[of_row]

    def _topics(self, rows: Rows) -> Any:
        if self._topic is not None:
            return None
        topics = rows.get("topic")
        present = rows.present("topic")
        if present is None or not pc.all(present).as_py():
            at = 0 if present is None else present.to_pylist().index(False)
            why, hint = (
                "its topic is null or empty",
                "fill the column topic, or give the option topic",
            )
            raise unsendable(rows.first + at, why, hint)
        return topics

    def _deciding(self, rows: Rows) -> list[str]:
        return [name for name in self._columns if rows.get(name) is not None]

    def _destination(self, values: tuple[Any, ...], rows: Rows) -> Destination:
        topic = self._topic if self._topic is not None else values[0].decode("utf-8", "replace")
        if not self._columns:
            return Destination(topic, None)
        if self._columns == BY_COLUMN:
            named = dict(zip(self._deciding(rows), values[1:], strict=True))
            return Destination(topic, self._named(topic, **named))
        key = next((value for value in values[1:] if value), None)
        if key is None:
            return Destination(topic, None)
        queue = by_sharding_key(self._queues_of(topic), key.decode("utf-8", "replace"))
        return Destination(topic, queue)

    def _named(
        self,
        topic: str,
        queueId: int | None = None,  # noqa: N803 - the columns' names
        brokerName: bytes | None = None,  # noqa: N803
    ) -> MessageQueue | None:
        if queueId is None:
            return None
        queues = self._queues_of(topic)
        broker = brokerName.decode("utf-8", "replace") if brokerName else None
        candidates = [
            queue
            for queue in queues
            if queue.queue_id == queueId and broker in (None, queue.broker_name)
        ]
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            brokers = ", ".join(queue.broker_name for queue in candidates)
            raise ConnectorError(
                f"topic {topic} has a queue {queueId} at each of the brokers {brokers}",
                "add the column brokerName",
            )
        at = f" at broker {broker}" if broker else ""
        there = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues[:20])
        raise ConnectorError(
            f"topic {topic} has no queue {queueId}{at} to write to; it has {there or 'none'}",
            "correct the column queueId, or widen the topic",
        )


def _combinations(
    columns: Sequence[Any], count: int
) -> tuple[list[tuple[Any, ...]], NDArray[np.int64]]:
    """Return the distinct combinations of values in columns, and the index of each row's one.

    Args:
        columns: Arrow arrays; None for a column that is missing.
        count: the number of rows.
    """
    codes = np.zeros(count, dtype=np.int64)
    combinations: list[tuple[Any, ...]] = [()]
    for column in columns:
        if column is None:
            combinations = [(*values, None) for values in combinations]
            continue
        encoded = column.dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        codes = codes * len(values) + encoded.indices.to_numpy()
        different, codes = np.unique(codes, return_inverse=True)
        combinations = [
            (*combinations[code // len(values)], values[code % len(values)])
            for code in different.tolist()
        ]
    return combinations, codes


def deciding_columns(partitioner: str | None, names: Sequence[str]) -> Sequence[str]:
    """Return the columns that determine the queue.

    Args:
        partitioner: the value of the option ``partitioner``, or None.
        names: the columns of the data frame.

    Raises:
        OptionError: the option needs a missing column, or doesn't use an existing one.
    """
    by_column, by_hash = "queueId" in names, "shardingKey" in names
    if partitioner is None:
        partitioner = "column" if by_column else "hashKeys" if by_hash else "roundRobin"
    if partitioner == "column" and not by_column:
        raise OptionError("partitioner=column needs the column queueId", "add it to the frame")
    if partitioner == "hashKeys" and not (by_hash or "keys" in names):
        raise OptionError(
            "partitioner=hashKeys needs the column shardingKey or keys", "add one to the frame"
        )
    if partitioner != "column" and (by_column or "brokerName" in names):
        column = "queueId" if by_column else "brokerName"
        raise OptionError(
            f"partitioner={partitioner} does not use the column {column}",
            "drop the column, or write partitioner=column",
        )
    if partitioner == "roundRobin" and by_hash:
        raise OptionError(
            "partitioner=roundRobin does not use the column shardingKey",
            "drop the column, or write partitioner=hashKeys",
        )
    return {"column": BY_COLUMN, "hashKeys": BY_HASH}.get(partitioner, ())
