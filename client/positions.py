"""Checking names and texts, and parsing positions in queues and durations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, TypeAlias

from client.errors import UsageError
from remoting.protocol.names import (
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    validate_group,
    validate_topic,
)
from remoting.protocol.queue import MessageQueue


class Place(Enum):
    """The two ends of a queue."""

    BEGIN = "begin"
    """The oldest message that is not deleted."""
    END = "end"
    """After the newest message: only later messages."""


BEGIN: Final = Place.BEGIN
END: Final = Place.END
FIRST: Final = Place.BEGIN
"""``start_from``: a group without a committed offset starts at the oldest message."""
LAST: Final = Place.END
"""``start_from``: a group without a committed offset starts after the newest message."""

Position: TypeAlias = int | Place | datetime
"""A position in a queue: an offset, an end, or the first message stored at or after a time."""

StartFrom: TypeAlias = Position | str
"""A position, or its text: see ``position_of``."""

_ENDS: Final = {
    "begin": Place.BEGIN,
    "earliest": Place.BEGIN,
    "first": Place.BEGIN,
    "end": Place.END,
    "latest": Place.END,
    "last": Place.END,
}
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Duration: TypeAlias = float | timedelta
"""Seconds, or a ``timedelta``."""


def seconds(duration: Duration, name: str = "timeout") -> float:
    """Return a duration in seconds. Raises UsageError if it is negative or not a number."""
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif type(duration) in {int, float}:
        value = float(duration)
    else:
        raise UsageError(f"{name} has to be seconds or a timedelta, not {duration!r}")
    if not value >= 0:
        raise UsageError(f"{name} can't be {value}", hint="give zero or more seconds")
    return value


def position_of(text: str) -> Position:
    """Parse a position, as on the command line.

    ``begin``, ``earliest`` or ``first``; ``end``, ``latest`` or ``last``; an offset; a time such as
    ``2026-01-31T12:00``, in the local time zone unless it names one; or a time ago, such as
    ``-1h``.

    Raises:
        UsageError: ``text`` is not a position.
    """
    if text.lower() in _ENDS:
        return _ENDS[text.lower()]
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        if ago := re.fullmatch(r"-(\d+(?:\.\d+)?)([smhd])", text):
            return datetime.now(UTC) - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is not begin, end, an offset, a time such as 2026-01-31T12:00 or -1h"
        ) from None


def milliseconds(instant: datetime) -> int:
    """Return milliseconds since 1970. Raises UsageError for all but datetimes with a time zone."""
    if not isinstance(instant, datetime):
        raise UsageError(
            f"a time has to be a datetime, not {instant!r}",
            hint="datetime.fromtimestamp(seconds, UTC) makes one",
        )
    if instant.tzinfo is None:
        raise UsageError(
            f"{instant.isoformat()} has no time zone", hint="add one, e.g. tzinfo=datetime.UTC"
        )
    return int(instant.timestamp() * 1000)


def instant(timestamp_ms: int) -> datetime | None:
    """Return the UTC datetime of milliseconds since 1970; None outside of the years 1 to 9999.

    A client can send any number as its time.
    """
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def known_instant(timestamp_ms: int) -> datetime | None:
    """Return ``instant`` of a time in a broker's answer; None if it is 0 or less: there is none."""
    return instant(timestamp_ms) if timestamp_ms > 0 else None


def utf8_size(text: str, what: str, *, topic: str | None = None, group: str | None = None) -> int:
    """Return the bytes of a text in UTF-8. Raises UsageError if it has no such form."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} {text[error.start : error.end]!r}, which is not UTF-8",
            topic=topic,
            group=group,
            hint="encode it another way; Python decodes file names and arguments that are not "
            "UTF-8 to such characters",
        ) from None


def check_group(group: str) -> None:
    """Raise UsageError if this can't be the group of an application."""
    try:
        validate_group(group)
    except ValueError as error:
        raise UsageError(str(error), group=group[:100]) from None
    if group in {DEFAULT_PRODUCER_GROUP, DEFAULT_CONSUMER_GROUP}:
        raise UsageError("this group is reserved", group=group, hint="use a name of your own")


def queues_of(given: Iterable[object], group: str) -> list[MessageQueue]:
    """Return ``given`` as a list of queues. Raises UsageError if anything else is in it."""
    wrong: list[object] = [given]
    if not isinstance(given, str | bytes | MessageQueue):
        items = list(given)
        queues = [item for item in items if isinstance(item, MessageQueue)]
        if len(queues) == len(items):
            return queues
        wrong = [item for item in items if not isinstance(item, MessageQueue)]
    raise UsageError(
        f"expected queues, not {wrong[0]!r}",
        group=group,
        hint="assign(await consumer.queues(topic)), or await subscribe(topic)",
    )


def check_topic_name(topic: str) -> None:
    """Raise UsageError if this can't be a topic's name."""
    try:
        validate_topic(topic)
    except ValueError as error:
        raise UsageError(str(error), topic=topic[:100]) from None
