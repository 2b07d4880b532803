"""Frames as Spark would pass them, and other inputs of encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from remoting.protocol.queue import MessageQueue
from spark_connector.sink.encoder import Parcel, Recipe
from spark_connector.sink.placing import deciding_columns
from spark_connector.sink.unique_keys import ColumnKeys, PositionKeys

TYPES: dict[str, Any] = {
    "body": pa.binary(),
    "topic": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "shardingKey": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "delayLevel": pa.int32(),
    "deliverTimestamp": pa.timestamp("us", tz="UTC"),
    "flag": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
    "uniqKey": pa.string(),
}

POSITIONS = PositionKeys("query/7", 3)

TOPICS = ("flights", "delays", "%RETRY%archivists")


def queues_of(topic: str) -> Sequence[MessageQueue]:
    """Four queues at each of two brokers."""
    return [MessageQueue(topic, f"broker-{name}", index) for name in "ab" for index in range(4)]


def frame(**columns: Sequence[object]) -> Any:
    """A record batch of these columns."""
    return pa.record_batch(
        {name: pa.array(values, type=TYPES[name]) for name, values in columns.items()}
    )


def recipe(
    batch: Any, *, topic: str | None = "flights", partitioner: str | None = None, **more: Any
) -> Recipe:
    """Return the options of an encoder."""
    names = batch.schema.names
    keys = ColumnKeys(POSITIONS) if "uniqKey" in names else POSITIONS
    return Recipe(
        {name: name for name in names},
        topic,
        deciding_columns(partitioner, names),
        keys,
        **more,
    )


def lanes(parcels: Sequence[Parcel]) -> dict[object, list[Parcel]]:
    """Parcels by destination, in their order: the order between destinations is free."""
    found: dict[object, list[Parcel]] = {}
    for parcel in parcels:
        place = (parcel.topic, parcel.queue, parcel.properties is None)
        found.setdefault(place, []).append(parcel._replace(body=bytes(parcel.body)))
    return found


_words = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=8)
_names = st.one_of(
    _words.filter(bool), st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "CLUSTER", "TIMER_OUT_MS"])
)
_filled = st.text(st.characters(codec="utf-8", exclude_characters="\x02"), min_size=1, max_size=8)
_maps = st.one_of(st.none(), st.dictionaries(_names, st.one_of(st.none(), _filled), max_size=4))
_instants = st.datetimes(
    datetime(1990, 1, 1),  # noqa: DTZ001 - the zone comes with the strategy
    datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)

_CELLS: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(TOPICS),
    "keys": st.one_of(st.none(), _words),
    "tags": st.one_of(st.none(), _words),
    "shardingKey": st.one_of(st.none(), _words),
    "delayLevel": st.one_of(st.none(), st.integers(0, 2)),
    "deliverTimestamp": st.one_of(st.none(), _instants),
    "flag": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    "properties": _maps,
    "uniqKey": st.one_of(st.none(), _words, st.just("0A" * 16), st.just("F0" * 28)),
}


@st.composite
def frames(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """Batches of any columns whose rows can all be sent; some are slices of larger ones."""
    names = draw(st.lists(st.sampled_from(sorted(_CELLS)), unique=True))
    cells = {"body": st.binary(min_size=1, max_size=40), **{name: _CELLS[name] for name in names}}
    if draw(st.booleans()):
        cells["queueId"] = st.one_of(st.none(), st.integers(0, 3))
        cells["brokerName"] = st.sampled_from(["broker-a", "broker-b"])
        cells.pop("shardingKey", None)
    rows = draw(st.lists(st.fixed_dictionaries(cells), min_size=1, max_size=40))
    columns = {
        name: [
            list(row[name].items()) if isinstance(row[name], dict) else row[name] for row in rows
        ]
        for name in cells
    }
    batch = frame(**columns)
    start = draw(st.integers(0, len(rows) - 1))
    return batch.slice(start, draw(st.integers(0, len(rows) - start)))
