"""A range of a queue, read from a broker in memory."""

from __future__ import annotations

import random
from typing import Any, cast

from spark_connector.decode.decoder import Decoder
from spark_connector.source.pull import RangeReader
from spark_connector.source.ranges import RangePartition
from tests.unit.spark_connector.source.broker import Clock, FakeBroker, FakeDecoder, options


def reader(
    broker: FakeBroker, part: RangePartition, clock: Clock | None = None, **others: Any
) -> RangeReader:
    clock = clock or Clock()
    return RangeReader(
        part,
        options(**others),
        cast("Decoder", FakeDecoder()),
        lease=broker.lease,
        clock=clock,
        sleep=clock.sleep,
        choose=random.Random(1),
    )


def offsets(reading: RangeReader) -> list[int]:
    found = []
    for batch in reading.batches():
        for offset, body in batch:
            assert body == b"%d" % offset
            found.append(offset)
    return found
