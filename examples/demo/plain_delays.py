"""Computes the expected results of the Spark pipeline in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from examples.spark.send_flights import Record

LATE = timedelta(days=7)
"""The same as ``delays.LATE``."""

LATE_MINUTES = 15


class Place(NamedTuple):
    """The key of a result."""

    day: date
    origin: str
    carrier: str


class Figures(NamedTuple):
    """Flights, departed flights, late flights, and the total delay in minutes."""

    flights: int
    departed: int
    late: int
    minutes: int


def counted(flights: Iterable[Record]) -> dict[Place, Figures]:
    """Return the results of all complete days: those at least a week before the last flight."""
    found: dict[Place, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    latest = datetime.min.replace(tzinfo=UTC)
    for flight in flights:
        scheduled = datetime.fromisoformat(str(flight["scheduled"]))
        latest = max(latest, scheduled)
        place = Place(scheduled.date(), str(flight["origin"]), str(flight["carrier"]))
        figures = found[place]
        figures[0] += 1
        delay = flight["delay"]
        if isinstance(delay, int):
            figures[1] += 1
            figures[2] += delay >= LATE_MINUTES
            figures[3] += delay
    until = (latest - LATE).date() if found else date.min
    return {place: Figures(*figures) for place, figures in found.items() if place.day < until}
