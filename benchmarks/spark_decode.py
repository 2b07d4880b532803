"""Measure the decoding of records to Arrow batches, on one core and without Spark.

    python -m benchmarks.spark_decode [--tries 5] [--rows 2000] [--json decode.json]

The input is a pull answer's body in the format of the commit log: bodies of random bytes whose
lengths vary by a fifth, and four properties, two of which differ between messages. It is decoded
repeatedly to batches of all columns, including the search for the starts of the records; the best
try counts. The bars apply to wall-clock time; the CPU time shows how much of it other processes
took. An additional row shows the fallback decoder, which decodes record by record.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import machine
from remoting.protocol.message import properties
from remoting.protocol.message.record import encode_record, host_bytes
from spark_connector.decode import fallback
from spark_connector.decode.decoder import Decoder
from spark_connector.decode.layout import walk
from spark_connector.decode.model import DecodeSettings, Selection, Starts
from spark_connector.schema import COLUMNS, KAFKA_COLUMNS, STORE_COLUMNS, Column

BODY_BYTES: Final = (100, 1024)
BARS: Final = {100: 2_000_000, 1024: 1_500_000}
"""The bars in records per second with all columns, by body size in bytes."""

RECORDS: Final = {100: 16_000, 1024: 4_000}
SECONDS_PER_TRY: Final = 0.5
PLAIN_RECORDS: Final = 500

LANES: Final[dict[str, tuple[Column, ...]]] = {
    "all columns": tuple(COLUMNS.values()),
    "names of Kafka": tuple(KAFKA_COLUMNS.values()),
    "all of a store": tuple(STORE_COLUMNS.values()),
    "no properties": tuple(
        column
        for name, column in COLUMNS.items()
        if name not in {"keys", "tags", "messageId", "properties"}
    ),
    "body only": (COLUMNS["body"],),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best of several tries.

    Attributes:
        lane: the columns, and how they are decoded.
        body_bytes: the average body size.
        record_bytes: the average record size.
        rate: records per second of wall-clock time.
        cpu_ns: CPU time per record in nanoseconds.
    """

    lane: str
    body_bytes: int
    record_bytes: float
    rate: float
    cpu_ns: float


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


def best(work: Callable[[], None], records: int, tries: int) -> tuple[float, float]:
    """Return records per second and CPU nanoseconds per record, each from its best try."""
    seconds, cpu = float("inf"), float("inf")
    for _ in range(tries):
        rounds = 0
        begun, begun_cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < SECONDS_PER_TRY:
            work()
            rounds += 1
        seconds = min(seconds, (time.perf_counter() - begun) / (rounds * records))
        cpu = min(cpu, (time.process_time() - begun_cpu) / (rounds * records))
    return 1 / seconds, cpu * 1e9


def measure(body_bytes: int, *, rows: int, tries: int) -> Iterator[Outcome]:
    """Measure all lanes with one body size."""
    number = RECORDS[body_bytes]
    buffer = answer(body_bytes, number)
    starts = walk(buffer)
    assert starts is not None, "records back to back can be walked"
    size = len(buffer) / number
    for lane, columns in LANES.items():
        yield Outcome(lane, body_bytes, size, *_figures(columns, buffer, number, None, rows, tries))
        if lane.startswith("all"):
            figures = _figures(columns, buffer, number, starts, rows, tries)
            yield Outcome(f"{lane}, starts known", body_bytes, size, *figures)
    settings = DecodeSettings(LANES["all columns"], "broker-a")
    few = starts[:PLAIN_RECORDS]
    figures = best(
        lambda: _discard(fallback.decode(buffer, few, settings, Selection())), len(few), tries
    )
    yield Outcome("all columns, one by one", body_bytes, size, *figures)


def rates(rounds: int, *, rows: int = 2_000) -> dict[int, list[float]]:
    """Return records per second with all columns in each round, by body size in bytes."""
    buffers = {size: answer(size, RECORDS[size]) for size in BODY_BYTES}
    found: dict[int, list[float]] = {size: [] for size in BODY_BYTES}
    for _ in range(rounds):
        for size, buffer in buffers.items():
            columns = LANES["all columns"]
            found[size].append(_figures(columns, buffer, RECORDS[size], None, rows, 1)[0])
    return found


def _figures(
    columns: tuple[Column, ...],
    buffer: bytes,
    number: int,
    starts: Starts | None,
    rows: int,
    tries: int,
) -> tuple[float, float]:
    decoder = Decoder(DecodeSettings(columns, "broker-a"))

    def decode() -> None:
        for batch in decoder.batches(buffer, starts=starts, max_rows=rows):
            _discard(batch)

    return best(decode, number, tries)


def _discard(_: object) -> None:
    """Drop a batch."""


def main() -> None:
    """Measure and print, with a verdict for each bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000, help="of a batch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outcomes = []
    print(f"numpy {np.__version__}, batches of {options.rows}, best of {options.tries}")
    for body_bytes in BODY_BYTES:
        for outcome in measure(body_bytes, rows=options.rows, tries=options.tries):
            outcomes.append(outcome)
            print(_line(outcome))
    if options.json:
        told = {"machine": machine.facts(), "outcomes": [asdict(each) for each in outcomes]}
        options.json.write_text(json.dumps(told, indent=2) + "\n")


def _line(outcome: Outcome) -> str:
    verdict = ""
    if outcome.lane == "all columns":
        bar = BARS[outcome.body_bytes]
        verdict = f"  bar {bar / 1e6} M: {'met' if outcome.rate >= bar else 'missed'}"
    megabytes = outcome.rate * outcome.record_bytes / 1e6
    return (
        f"{outcome.body_bytes:5d} B  {outcome.lane:30s} {outcome.rate / 1e6:6.2f} M records/s "
        f"{megabytes:7.0f} MB/s {outcome.cpu_ns:8.0f} ns CPU/record{verdict}"
    )


if __name__ == "__main__":
    main()
