"""Measure the decoding of records to Arrow batches, on one core and without Spark.

The input is a pull answer's body in the format of the commit log: bodies of random bytes whose
lengths vary by a fifth, and four properties, two of which differ between messages. It is decoded
repeatedly to batches of all columns, including the search for the starts of the records.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Final

from benchmarks.spark.results import Plan, Result, rates
from remoting.protocol.message import properties
from remoting.protocol.message.record import encode_record, host_bytes
from spark_connector.decode.decoder import Decoder
from spark_connector.decode.model import DecodeSettings
from spark_connector.schema import COLUMNS

BARS: Final = {
    "decoder, 100 B, all columns": 2_000_000,
    "decoder, 1024 B, all columns": 1_500_000,
}

RECORDS: Final = {100: 16_000, 1024: 4_000}
SECONDS_PER_ROUND: Final = 0.5
BATCH_ROWS: Final = 2_000


def answer(body_bytes: int, number: int) -> bytes:
    """Return ``number`` adjacent records, the body of a pull answer."""
    chance = random.Random(7)
    return b"".join(
        encode_record(
            topic="order-topic",
            body=chance.randbytes(int(body_bytes * chance.uniform(0.8, 1.2))),
            properties=properties.encode(
                {
                    "UNIQ_KEY": f"{(position * 7919) << 40:032X}",
                    "KEYS": f"order-{position}",
                    "TAGS": "ABCDE"[position % 5],
                    "WAIT": "true",
                },
                trailing=True,
            ),
            born_host=host_bytes("10.0.0.1", 40_000 + position % 3),
            store_host=host_bytes("10.0.0.2", 10_911),
            queue_id=3,
            queue_offset=position,
            physical_offset=position * 300,
            born_timestamp_ms=1_700_000_000_000 + position,
            store_timestamp_ms=1_700_000_000_001 + position,
        )
        for position in range(number)
    )


def measure(plan: Plan) -> list[Result]:
    """Measure records per second with all columns."""
    decoder = Decoder(DecodeSettings(tuple(COLUMNS.values()), "broker-a"))

    def decoded(buffer: bytes) -> dict[str, float]:
        rows, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < SECONDS_PER_ROUND:
            rows += sum(batch.rows for batch in decoder.batches(buffer, max_rows=BATCH_ROWS))
        return {"all columns": rows / seconds}

    cases = {
        f"decoder, {size} B": partial(decoded, answer(size, number))
        for size, number in RECORDS.items()
    }
    return rates(plan.rounds, cases, BARS, "records/s")
