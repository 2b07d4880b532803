"""Ranges read from a broker, and their messages."""

from __future__ import annotations

from typing import Any

from spark_connector.decode.decoder import Decoder
from spark_connector.decode.model import DecodeSettings
from spark_connector.schema import COLUMNS
from spark_connector.source.options import ReadOptions
from spark_connector.source.pull import RangeReader
from spark_connector.source.ranges import RangePartition

BROKER = "broker-a"


def range_reader(
    address: str,
    topic: str,
    start: int,
    end: int,
    *,
    queue_id: int = 0,
    names: tuple[str, ...] = ("queueOffset", "body"),
    **options: Any,
) -> RangeReader:
    """Return a reader of a range with the given columns, or all."""
    columns = tuple(COLUMNS[name] for name in names or COLUMNS)
    part = RangePartition(topic, BROKER, queue_id, start, end, (address,))
    decoder = Decoder(DecodeSettings(columns, BROKER))
    return RangeReader(part, ReadOptions(group="spark", **options), decoder)


def rows(reader: RangeReader) -> list[dict[str, Any]]:
    return [row for batch in reader.batches() for row in batch.to_pylist()]
