"""Parsing positions in queues: ``startingOffsets``, ``endingTimestamp`` and the like.

Offsets have the syntax of Spark's Kafka source, with the broker between topic and queue:
``{"t":{"broker-a":{"0":23,"1":-2}}}``. The broker can be left out if only one has the topic:
``{"t":{"0":23}}``. -2 is the earliest, -1 the latest offset. ``{"t":-2}`` is the position in all
queues of a topic.

An instant is a number of milliseconds since 1970, an ISO 8601 string (UTC unless it has an offset),
``now``, or a duration before now: ``-1h``, ``-90s``, ``-2d``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from remoting.protocol.queue import MessageQueue
from spark_connector.options import MAX_MS, parse_duration_ms


class Edge(Enum):
    """The named positions."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time: ``ms`` since 1970, or, when ``relative``, since the query's start."""

    ms: int
    relative: bool = False

    def at(self, now_ms: int) -> int:
        """Return the milliseconds since 1970, given the current time."""
        return max(0, self.ms + now_ms if self.relative else self.ms)


ALL_QUEUES: Final = -1
"""Stands for the id of each queue of a topic."""

Position: TypeAlias = Edge | Instant | int
"""A named position, the first message stored at or after an instant, or an offset."""


class QueueBounds(NamedTuple):
    """The bounds of a queue: its messages have the offsets ``[minimum, maximum)``.

    ``stored_ms`` is when the last one was stored, in ms since 1970; 0 if there is none.
    """

    minimum: int
    maximum: int
    stored_ms: int = 0


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions in queues, as given by the user.

    Attributes:
        option: the name of the option, for errors.
        every: the position in every queue; None if ``each`` is used.
        each: topic -> broker name (None: the only broker with the queue) -> queue id -> position.
    """

    option: str
    every: Position | None = None
    each: Mapping[str, Mapping[str | None, Mapping[int, Position]]] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> Position | None:
        """Return the position in a queue, or None if the user gave positions of other queues."""
        if self.every is not None:
            return self.every
        brokers = self.each.get(queue.topic, {})
        named = brokers.get(queue.broker_name, {}).get(queue.queue_id)
        if named is not None:
            return named
        of_any = brokers.get(None, {})
        return of_any.get(queue.queue_id, of_any.get(ALL_QUEUES))


# --- parsing

EARLIEST: Final = -2
LATEST: Final = -1
MAX_JSON_BYTES: Final = 4 * 1024 * 1024
"""The longest JSON of an option; the offsets of a thousand queues take about 40 KiB."""
_SHAPE: Final = """write JSON such as {"topic":{"broker-a":{"0":23}}}"""

Queues = dict[str, dict[str | None, dict[int, Position]]]


def offsets(option: str, *edges: Edge) -> Callable[[str], Positions]:
    """Return a parser of offsets: the name of an edge, or JSON with an offset per queue."""
    words = {edge.value: edge for edge in edges}

    def parse(text: str) -> Positions:
        word = text.strip().lower()
        if word in words:
            return Positions(option, words[word])
        if not word.startswith("{"):
            raise ValueError(f"write {', '.join(words)}, or JSON with offsets; {_SHAPE}")
        return Positions(option, None, _queues(text, partial(_offset, edges)))

    return parse


def timestamp(option: str) -> Callable[[str], Positions]:
    """Return a parser of one instant for all queues."""
    return lambda text: Positions(option, parse_instant(text))


def timestamps(option: str) -> Callable[[str], Positions]:
    """Return a parser of JSON with an instant per queue."""
    return lambda text: Positions(option, None, _queues(text, parse_instant))


def load_object(text: str) -> dict[str, Any]:
    """Parse a JSON object that is not empty and has no repeated keys. Raises ValueError."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES} bytes")
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError(_SHAPE) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error}); {_SHAPE}") from None
    if not isinstance(found, dict) or not found:
        raise ValueError(_SHAPE)
    return found


def queue_id(text: str) -> int:
    """Parse a queue id. Raises ValueError."""
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{text!r} is not a queue id; {_SHAPE}")
    return int(text)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("it has a key twice")
    return mapping


def _queues(text: str, value: Callable[[object], Position]) -> Queues:
    found: Queues = {}
    for topic, brokers in load_object(text).items():
        if not isinstance(brokers, dict):
            position = value(brokers)
            if isinstance(position, int):
                raise ValueError(f"topic {topic} can't have one offset for all queues; {_SHAPE}")  # noqa: TRY004 - of input
            found[topic] = {None: {ALL_QUEUES: position}}
        elif not brokers:
            raise ValueError(f"topic {topic} has no queues; {_SHAPE}")
        elif any(isinstance(queues, dict) for queues in brokers.values()):
            found[topic] = {broker: _of_broker(it, value) for broker, it in brokers.items()}
        else:
            found[topic] = {None: _of_broker(brokers, value)}
    return found


def _of_broker(queues: object, value: Callable[[object], Position]) -> dict[int, Position]:
    if not isinstance(queues, dict):
        raise ValueError(_SHAPE)  # noqa: TRY004 - it is the text's fault
    return {queue_id(number): value(position) for number, position in queues.items()}


def _offset(edges: tuple[Edge, ...], number: object) -> Position:
    if type(number) is not int or not EARLIEST <= number <= 2**62:
        raise ValueError(f"{number!r} is not an offset: write 0 or more, or -1 for the latest")
    if number == LATEST:
        return Edge.LATEST
    if number == EARLIEST:
        if Edge.EARLIEST not in edges:
            raise ValueError("-2 (earliest) can't be an end")
        return Edge.EARLIEST
    return number


def parse_instant(text: object) -> Instant:
    """Parse an instant, text or an integer; see the module's docstring. Raises ValueError."""
    if type(text) is int:
        return _epoch(text)
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not an instant")  # noqa: TRY004 - of input
    text = text.strip()
    if text.isdecimal():
        return _epoch(int(text))
    if text.lower() == "now":
        return Instant(0, relative=True)
    if text.startswith("-"):
        return Instant(-parse_duration_ms(text[1:]), relative=True)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "write milliseconds since 1970, ISO-8601 such as '2026-01-31T08:00:00+01:00', or a "
            "duration before now such as '-1h'"
        ) from None
    return Instant(
        int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    )


def _epoch(ms: int) -> Instant:
    if not 0 <= ms <= MAX_MS:
        raise ValueError("milliseconds since 1970 can't be negative, nor that large")
    return Instant(ms)
