"""Delay levels: how long each is, and which one a message asks for.

``messageDelayLevel`` is a text such as ``1s 5s 10s``: level 1 is the first, a second long. The
messages of a level wait in the queue ``level - 1`` of SCHEDULE_TOPIC_XXXX
(cf. ScheduleMessageService).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from broker.limits import MAX_DELAY_LEVELS, MAX_DELAY_MS
from remoting.protocol.message import properties

DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's 18 levels."""

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"([0-9]{1,9})([smhd])")
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,10}")
_DELAY: Final = properties.DELAY.encode()


def delay_levels(text: str) -> str:
    """Check the value of ``messageDelayLevel``; for the configuration.

    Raises:
        ValueError: it is none; the text is the end of a sentence.
    """
    parse_levels(text)
    return text


def parse_levels(text: str) -> tuple[int, ...]:
    """How long the levels are, in ms, from level 1 on.

    Raises:
        ValueError: ``text`` doesn't list levels; the text is the end of a sentence.
    """
    found = [_LEVEL.fullmatch(word) for word in text.split()]
    levels = [int(match[1]) * _UNITS_MS[match[2]] for match in found if match is not None]
    if not 0 < len(levels) == len(found) <= MAX_DELAY_LEVELS:
        raise ValueError(
            f"must be 1 to {MAX_DELAY_LEVELS} delays with a blank in between, each a number and "
            f"one of s m h d, such as 1s 30s 5m"
        )
    if not 0 < min(levels) <= max(levels) <= MAX_DELAY_MS:
        raise ValueError(f"must have delays of 1s to {MAX_DELAY_MS // _UNITS_MS['d']}d")
    return tuple(levels)


def level_of(text: bytes) -> int:
    """The delay level that a message's properties ask for; 0 or less: none.

    Raises:
        ValueError: what is said there is no number.
    """
    value = properties.find(text, _DELAY)
    if value is None:
        return 0
    if _NUMBER.fullmatch(value) is None:
        raise ValueError(
            f"the property DELAY is {value[:20]!r}, not the number of a delay level: send 1 for "
            "the shortest, or leave it out"
        )
    return int(value)


def level_for(wait_ms: int, levels_ms: Sequence[int]) -> int:
    """The shortest level that is at least this long; the longest one if none is.

    Args:
        wait_ms: how long a message has to wait.
        levels_ms: how long the levels are, from level 1 on.
    """
    levels = range(1, len(levels_ms) + 1)
    enough = [level for level in levels if levels_ms[level - 1] >= wait_ms]
    if enough:
        return min(enough, key=lambda level: levels_ms[level - 1])
    return max(levels, key=lambda level: levels_ms[level - 1])
