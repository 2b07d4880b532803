"""What one write task does: rows in, messages out, counts back. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from remoting.blocking import BlockingConnection
from spark_connector.connections import lease as lease_of_process
from spark_connector.errors import OptionError
from spark_connector.sink.columns import choose
from spark_connector.sink.dispatcher import Counts, ParcelDispatcher
from spark_connector.sink.encoder import Encoder, Recipe
from spark_connector.sink.options import SinkOptions, UniqKey
from spark_connector.sink.placing import deciding_columns
from spark_connector.sink.routes import Lease, WriteRoutes
from spark_connector.sink.unique_keys import ColumnKeys, PositionKeys, UniqueKeys, random_keys


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """A write as the driver has checked it; goes to the tasks.

    Attributes:
        options: what was asked for.
        chosen: the frame's columns, see ``encode.columns.choose``.
        deciding: those that decide the queue.
        uniq_key: what unique keys are made of.
    """

    options: SinkOptions
    chosen: Mapping[str, str]
    deciding: tuple[str, ...]
    uniq_key: UniqKey

    @classmethod
    def of(cls, options: SinkOptions, fields: list[tuple[str, str]]) -> SinkPlan:
        """The plan for a frame.

        Args:
            fields: name and Spark's ``simpleString`` of the type of each column.

        Raises:
            OptionError: frame and options don't fit together.
        """
        chosen = choose(fields)
        if options.topic is None and "topic" not in chosen:
            raise OptionError(
                "a write needs a topic for its rows", "give the option topic, or a column topic"
            )
        partitioner = options.partitioner.value if options.partitioner else None
        deciding = deciding_columns(partitioner, tuple(chosen))
        return cls(options, chosen, tuple(deciding), _uniq_key(options, chosen))

    def unique_keys(self, run: str, partition: int) -> UniqueKeys:
        """Where a task's unique keys come from."""
        if self.uniq_key is UniqKey.RANDOM:
            return random_keys
        by_position = PositionKeys(run, partition)
        return ColumnKeys(by_position) if self.uniq_key is UniqKey.COLUMN else by_position


def _uniq_key(options: SinkOptions, chosen: Mapping[str, str]) -> UniqKey:
    there = "uniqKey" in chosen
    wanted = options.uniq_key or (UniqKey.COLUMN if there else UniqKey.POSITION)
    if wanted is UniqKey.COLUMN and not there:
        raise OptionError("uniqKey=column needs the column uniqKey", "add it to the frame")
    if wanted is not UniqKey.COLUMN and there:
        raise OptionError(
            f"uniqKey={wanted} does not use the column uniqKey",
            "drop the column, or write uniqKey=column",
        )
    return wanted


def write_rows(
    plan: SinkPlan,
    batches: Iterator[Any],
    run: str,
    partition: int,
    *,
    lease: Lease | None = None,
) -> tuple[int, Counts]:
    """Send all rows of a task; returns how many there were, and the counts.

    Args:
        batches: Arrow record batches.
        run: what is written, see ``PositionKeys``.
        partition: the task's partition.
        lease: connections; the process's own by default.

    Raises:
        ConnectorError: some could not be sent. Those before may have been.
    """
    options = plan.options
    take = lease or partial(_lease, options.connection.connection_idle)
    routes = WriteRoutes(options.connection, take, options.default_queues)
    recipe = Recipe(
        plan.chosen,
        options.topic,
        plan.deciding,
        plan.unique_keys(run, partition),
        options.delay_level,
        options.max_batch_bytes,
    )
    encoder = Encoder(recipe, routes.queues)
    dispatcher = ParcelDispatcher(options, routes, take)
    try:
        for batch in batches:
            for parcel in encoder.encode(batch):
                dispatcher.send(parcel)
        dispatcher.flush()
    except BaseException as failure:
        dispatcher.close(failure)
        raise
    dispatcher.close()
    return encoder.rows, dispatcher.counts


def _lease(idle_timeout: float, address: str) -> AbstractContextManager[BlockingConnection]:
    return lease_of_process(address, idle_timeout=idle_timeout)
