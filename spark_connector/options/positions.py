"""``startingOffsets``, ``endingTimestamp`` and their kin: texts to positions.

Offsets are named as Kafka's source names them, with the broker between topic and queue:
``{"t":{"broker-a":{"0":23,"1":-2}}}``, or without it where one broker has the topic:
``{"t":{"0":23}}``. -2 is the earliest, -1 the latest offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from spark_connector.options.parse import parse_instant
from spark_connector.planning.positions import Edge, Position, Positions

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
