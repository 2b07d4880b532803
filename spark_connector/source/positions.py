"""Positions in queues as the user writes them: ``startingOffsets``, ``endingTimestamp`` ...

Offsets are named as Kafka's source names them, with the broker between topic and queue:
``{"t":{"broker-a":{"0":23,"1":-2}}}``, or without it where one broker has the topic:
``{"t":{"0":23}}``. -2 is the earliest, -1 the latest offset.

An instant is milliseconds since 1970, an ISO-8601 text (without an offset: UTC), ``now``, or
relative to now: ``-1h``, ``-90s``, ``-2d``.
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
    """Positions that are known by name."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment: ``ms`` since 1970, or since now when ``relative``."""

    ms: int
    relative: bool = False

    def at(self, now_ms: int) -> int:
        """Milliseconds since 1970, given the time."""
        return max(0, self.ms + now_ms if self.relative else self.ms)


Position: TypeAlias = Edge | Instant | int
"""An end of the queue, the first message stored at or after an instant, or an offset."""


class QueueFacts(NamedTuple):
    """What a queue holds: the offsets ``[minimum, maximum)``."""

    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Positions:
    """What the user asked for.

    Attributes:
        option: the name of the option it came from, for errors.
        every: the position in every queue; None when each is named.
        each: topic -> broker name (None: whichever has the queue) -> queue id -> position.
    """

    option: str
    every: Position | None = None
    each: Mapping[str, Mapping[str | None, Mapping[int, Position]]] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> Position | None:
        """The position in one queue; None: the user named queues, and not this one."""
        if self.every is not None:
            return self.every
        brokers = self.each.get(queue.topic, {})
        named = brokers.get(queue.broker_name, {}).get(queue.queue_id)
        return named if named is not None else brokers.get(None, {}).get(queue.queue_id)


# --- parsing

EARLIEST: Final = -2
LATEST: Final = -1
MAX_JSON_BYTES: Final = 4 * 1024 * 1024
"""An option that names offsets; a thousand queues take some 40 KiB."""
_SHAPE: Final = """write JSON such as {"topic":{"broker-a":{"0":23}}}"""

Queues = dict[str, dict[str | None, dict[int, Position]]]


def offsets(option: str, *edges: Edge) -> Callable[[str], Positions]:
    """A parser for an edge's name or JSON with offsets."""
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
    """A parser for one instant."""
    return lambda text: Positions(option, parse_instant(text))


def timestamps(option: str) -> Callable[[str], Positions]:
    """A parser for JSON with an instant for each queue."""
    return lambda text: Positions(option, None, _queues(text, _instant))


def load_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises ValueError."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES} bytes")
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError(_SHAPE) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error}); {_SHAPE}") from None
    if not isinstance(found, dict) or not found:
        raise ValueError(_SHAPE)
    return found


def queue_id(text: str) -> int:
    """The number of a queue. Raises ValueError."""
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{text!r} is no queue id; {_SHAPE}")
    return int(text)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it names something twice")
    return found


def _queues(text: str, value: Callable[[object], Position]) -> Queues:
    found: Queues = {}
    for topic, brokers in load_object(text).items():
        if not isinstance(brokers, dict) or not brokers:
            raise ValueError(f"topic {topic} has no queues; {_SHAPE}")
        if any(isinstance(queues, dict) for queues in brokers.values()):
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
        raise ValueError(f"{number!r} is no offset: write 0 or more, or -1 for the latest")
    if number == LATEST:
        return Edge.LATEST
    if number == EARLIEST:
        if Edge.EARLIEST not in edges:
            raise ValueError("-2 (earliest) can't be an end")
        return Edge.EARLIEST
    return number


def _instant(text: object) -> Position:
    if type(text) is int or isinstance(text, str):
        return parse_instant(text)
    raise ValueError(f"{text!r} is no instant")


def parse_instant(text: str | int) -> Instant:
    """The instant that a text or a number means. Raises ValueError."""
    if isinstance(text, int):
        return _epoch(text)
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
