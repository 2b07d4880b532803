"""Encodes rows to parcels: the content of one send request each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, zip_longest
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from client.errors import UsageError
from client.producer.columns import check_topic
from remoting.protocol.message.properties import DELAY
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue
from spark_connector.arrow import lengths_of, mask_of, offsets_of
from spark_connector.errors import ConnectorError
from spark_connector.limits import SINK_BATCH_BYTES, SINK_MAX_BATCH_ROWS, SLICE_BYTES, SPREAD_ROWS
from spark_connector.sink.columns import Rows, unsendable
from spark_connector.sink.elements import elements, property_parts
from spark_connector.sink.placing import Destination, Placing
from spark_connector.sink.unique_keys import UniqueKeys


class Parcel(NamedTuple):
    """Messages that are sent in one request.

    Attributes:
        topic: the topic.
        queue: the queue, to which parcels are sent in order; None for any queue of the topic.
        body: the body of the request: an encoded batch, or that of a single message.
        messages: the number of messages.
        first_row: the number of its first row within the task, for errors.
        properties: the properties of a single message; None for a batch.
        flag: the flag of a single message.
        deliver_ms: the delivery time of a single message in ms since 1970; None without a timer.
    """

    topic: str
    queue: MessageQueue | None
    body: bytes | memoryview
    messages: int
    first_row: int
    properties: str | None = None
    flag: int = 0
    deliver_ms: int | None = None


TIMER: Final = "TIMER_DELIVER_MS"
"""The property with the delivery time in ms since 1970; supported by brokers from 5.0 on."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the rows of a write are encoded to parcels.

    Attributes:
        chosen: the column names, as returned by ``columns.choose``.
        topic: the topic of all rows, or None to use the column ``topic``.
        deciding: the columns that determine the queue, see ``placing``.
        unique_keys: creates unique keys.
        delay_level: the delay level of rows without a value for it; 0 for none.
        max_batch_bytes: the largest batch; a larger message is sent on its own.
    """

    chosen: Mapping[str, str]
    topic: str | None
    deciding: Sequence[str]
    unique_keys: UniqueKeys
    delay_level: int = 0
    max_batch_bytes: int = SINK_BATCH_BYTES


class Encoder:
    """Encodes the rows of one task.

    Args:
        recipe: how to encode.
        queues_of: returns the writable queues of a topic, in order.
        slice_bytes: bytes of bodies and properties that are encoded at a time.

    Attributes:
        rows: the number of rows encoded so far.
    """

    def __init__(
        self,
        recipe: Recipe,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        *,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self._recipe = recipe
        self._slice_bytes = slice_bytes
        self._queues_of = queues_of
        self._placing = Placing(recipe.topic, queues_of, recipe.deciding)
        self.rows = 0

    def encode(self, batch: Any) -> Iterator[Parcel]:
        """Yield the parcels of a record batch.

        Raises:
            ConnectorError: a row can't be encoded; parcels of earlier slices were yielded before.
        """
        everything = Rows.of(batch, self._recipe.chosen, self.rows)
        self.rows += batch.num_rows
        for rows in _slices(everything, self._slice_bytes):
            yield from self._parcels(rows)

    def _parcels(self, rows: Rows) -> Iterator[Parcel]:
        destinations, of_row = self._placing.place(rows)
        for destination in destinations:
            check_destination(destination.topic)
        column = rows.get("uniqKey")
        unique_keys = self._recipe.unique_keys(rows.first, column, rows.count)
        encoded = elements(rows, unique_keys)
        alone = self._alone(rows, destinations, of_row)
        batched = np.flatnonzero(~alone) if alone.any() else None
        batched_of_row = of_row if batched is None else of_row[batched]
        if len(destinations) > 1:
            order = np.argsort(batched_of_row, kind="stable")
            batched_of_row = batched_of_row[order]
            batched = order if batched is None else batched[order]
        if batched is not None:
            encoded = encoded.take(pa.array(batched))
        yield from self._batches(rows, destinations, batched_of_row, batched, encoded)
        for row in np.flatnonzero(alone).tolist():
            destination = destinations[of_row[row]]
            yield self._single(rows.slice(row, 1), unique_keys.slice(row, 1), destination)

    # batches

    def _batches(
        self,
        rows: Rows,
        destinations: Sequence[Destination],
        of_row: NDArray[np.int64],
        batched: NDArray[np.int64] | None,
        encoded: Any,
    ) -> Iterator[Parcel]:
        if not len(encoded):
            return
        offsets = offsets_of(encoded)
        data = memoryview(encoded.buffers()[2])
        bounds = [0, *(np.flatnonzero(np.diff(of_row)) + 1).tolist(), len(of_row)]
        lanes = []
        for start, end in pairwise(bounds):
            destination = destinations[of_row[start]]
            limit = SINK_MAX_BATCH_ROWS
            if destination.queue is None:
                limit = row_limit(end - start, len(self._queues_of(destination.topic)))
            cuts = cut(offsets, start, end, self._recipe.max_batch_bytes, limit)
            lanes.append(
                [
                    Parcel(
                        destination.topic,
                        destination.queue,
                        data[offsets[first] : offsets[last]],
                        last - first,
                        rows.first + (first if batched is None else int(batched[first])),
                    )
                    for first, last in cuts
                ]
            )
        for parcel in chain.from_iterable(zip_longest(*lanes)):
            if parcel is not None:
                yield parcel

    # single messages

    def _alone(
        self, rows: Rows, destinations: Sequence[Destination], of_row: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        alone = np.zeros(rows.count, dtype=np.bool_)
        retries = [destination.topic.startswith(RETRY_PREFIX) for destination in destinations]
        if any(retries):
            alone |= np.array(retries)[of_row]
        levels = rows.get("delayLevel")
        if levels is not None:
            filled = pc.fill_null(levels, self._recipe.delay_level)
            alone |= filled.to_numpy() != 0
        elif self._recipe.delay_level:
            alone |= True
        instants = rows.get("deliverTimestamp")
        if instants is not None:
            alone |= mask_of(instants.is_valid())
        return alone

    def _single(self, row: Rows, unique_key: Any, destination: Destination) -> Parcel:
        parts = property_parts(row, unique_key)
        text = b"".join(
            part if isinstance(part, bytes) else part[0].as_py() for part in parts
        ).decode("utf-8", "replace")
        instant = row.get("deliverTimestamp")
        is_timed = instant is not None and instant[0].is_valid
        level = value_of(row, "delayLevel", 0 if is_timed else self._recipe.delay_level)
        if level < 0:
            why = f"its delay level is {level}"
            raise unsendable(row.first, why, "use 1 to 18, or 0 for no delay")
        deliver_ms = None
        if level:
            text += f"\x02{DELAY}\x01{level}"
        elif is_timed:
            deliver_ms = instant[0].value
            text += f"\x02{TIMER}\x01{deliver_ms}"
        return Parcel(
            destination.topic,
            destination.queue,
            row.get("body")[0].as_py(),
            1,
            row.first,
            text,
            value_of(row, "flag", 0),
            deliver_ms,
        )


def value_of(row: Rows, name: str, otherwise: int) -> int:
    """Return the integer in a column of a single row, or ``otherwise`` if there is none."""
    column = row.get(name)
    value = None if column is None else column[0].as_py()
    return otherwise if value is None else int(value)


def row_limit(count: int, queues: int) -> int:
    """Return the most rows of one batch for rows that may go to any of some queues."""
    parts = max(1, min(queues, count // SPREAD_ROWS))
    return min(SINK_MAX_BATCH_ROWS, -(-count // parts))


def cut(
    offsets: NDArray[np.int32], start: int, end: int, max_bytes: int, max_rows: int
) -> list[tuple[int, int]]:
    """Divide elements into batches of at least one element.

    Args:
        offsets: the offsets of the elements in their buffer, in bytes.
        start, end: the range of elements, the end excluded.
        max_bytes: the largest batch in bytes, unless a single element is larger.
        max_rows: the most elements of a batch.

    Returns:
        The range of elements of each batch, the end excluded.
    """
    cuts = []
    while start < end:
        fitting = int(np.searchsorted(offsets, int(offsets[start]) + max_bytes, side="right")) - 1
        stop = min(max(fitting, start + 1), start + max_rows, end)
        cuts.append((start, stop))
        start = stop
    return cuts


def _slices(rows: Rows, slice_bytes: int) -> Iterator[Rows]:
    """Yield the rows in slices of at most ``slice_bytes`` or one row, to bound memory."""
    if rows.count == 0:
        return
    sizes = np.zeros(rows.count, dtype=np.int64)
    for column in rows.columns.values():
        if column.type == pa.binary():
            sizes += lengths_of(column)
        elif pa.types.is_map(column.type):
            sizes += column.nbytes // rows.count
    ends = np.cumsum(sizes)
    start = 0
    while start < rows.count:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + slice_bytes, side="right"))
        stop = min(max(stop, start + 1), rows.count)
        yield rows.slice(start, stop - start)
        start = stop


@lru_cache(maxsize=1024)
def check_destination(topic: str) -> None:
    """Raise ConnectorError if rows must not be written to a topic."""
    try:
        check_topic(topic)
    except UsageError as error:
        raise ConnectorError(
            f"rows can't be written to the topic {topic[:200]!r}: {error.message}",
            error.hint or "correct the option or column topic",
        ) from None
