"""Instants and durations as users write them in options.

An instant is milliseconds since 1970, an ISO-8601 text (without an offset: UTC), ``now``, or
relative to now: ``-1h``, ``-90s``, ``-2d``. A duration is a number of milliseconds or a number with
a unit, as Spark writes its own (cf. JavaUtils.timeStringAs).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from spark_connector.planning.positions import Instant

_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "sec": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_MAX_MS: Final = 2**62


def parse_duration_ms(text: str) -> int:
    """Milliseconds of ``250``, ``30s``, ``15m``. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip().lower())
    unit = match and _UNIT_MS.get(match[2] or "ms")
    if not match or not unit:
        raise ValueError("write milliseconds, or a number with ms, s, m, h or d, e.g. '30s'")
    value = float(match[1]) * unit
    if value > _MAX_MS:
        raise ValueError("that is longer than anything lasts")
    return int(value)


def parse_instant(text: str | int) -> Instant:
    """See the module's text. Raises ValueError."""
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
    if not 0 <= ms <= _MAX_MS:
        raise ValueError("milliseconds since 1970 can't be negative, nor that large")
    return Instant(ms)
