"""The flights of the demo, and checks that all of them arrived in order.

Flights are compared without keeping them. Each destination has a chain of checksums: the CRC of a
row starts from that of the previous row, so equal chains mean the same rows in the same order. In
addition the checksums of all rows are added up regardless of order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from examples.spark import send_flights
from remoting.protocol.accelerated import crc32

COUNT: Final = 336_776
"""Number of flights in the file."""

_CARRIER, _TAIL_NUMBER, _DESTINATION = 9, 11, 13
"""Columns of a row."""


class DemoFailed(Exception):
    """The result is not as expected."""


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
        None if tail == b"NA" else tail.decode(),
        parts[_DESTINATION].decode(),
    )


def flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights in the order of the file, or the first ``limit``. Raises NoFlights."""
    return map(flight_of, send_flights.rows(limit))


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
