"""Rows written as a Spark task writes them, and the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from client import FIRST, ReceivedMessage
from client.blocking import PullConsumer
from spark_connector.sink.dispatcher import Counts
from spark_connector.sink.options import sink_options
from spark_connector.sink.writer import SinkPlan, write_rows

TYPES: dict[str, tuple[Any, str]] = {
    "properties": (pa.map_(pa.string(), pa.string()), "map<string,string>"),
    "queueId": (pa.int32(), "int"),
    "delayLevel": (pa.int32(), "int"),
    "flag": (pa.int32(), "int"),
    "deliverTimestamp": (pa.timestamp("us", tz="UTC"), "timestamp"),
}
"""Arrow and Spark types of columns that are not strings."""


def batch(count: int, first: int = 0, **columns: Sequence[object]) -> Any:
    """Return rows whose bodies are their numbers."""
    arrays = {"body": pa.array([b"%d" % number for number in range(first, first + count)])}
    for name, values in columns.items():
        arrays[name] = pa.array(values, type=TYPES.get(name, (pa.string(), ""))[0])
    return pa.record_batch(arrays)


def plan(nameserver: str, topic: str, names: Iterable[str], **options: str) -> SinkPlan:
    """Plan a write of a frame with these columns."""
    given = {"nameServer": nameserver, "topic": topic, **options}
    fields = [(name, TYPES.get(name, (None, "string"))[1]) for name in names]
    return SinkPlan.of(sink_options(given), fields)


def write(nameserver: str, topic: str, *batches: Any, run: str = "run", **options: str) -> Counts:
    """Write batches as one task does."""
    made = plan(nameserver, topic, batches[0].schema.names, **options)
    rows, counts = write_rows(made, iter(batches), run, 0)
    assert rows == sum(each.num_rows for each in batches)
    return counts


def received(
    nameserver: str, topic: str, count: int, *, group: str = "readers", **options: Any
) -> list[ReceivedMessage[bytes]]:
    """Return all messages of a topic in queue order, after waiting for their number."""
    found: list[ReceivedMessage[bytes]] = []
    with PullConsumer(nameserver, group=group, start_from=FIRST, **options) as consumer:
        consumer.assign(consumer.queues(topic))
        while len(found) < count:
            got = consumer.get_many(1000, timeout=10)
            assert got, f"{len(found)} of {count} messages came"
            found += got
        return found + consumer.get_many(1000, timeout=0.2)
