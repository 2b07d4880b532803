"""Places in queues as one writes them on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import click

import client

PLACE_METAVAR: Final = "PLACE"
PLACE_HELP: Final = (
    "begin or earliest, end or latest, an offset, a time (2026-01-31T12:00) or how long ago "
    "(-1h, -30m)."
)

_ENDS: Final = {
    "begin": client.BEGIN,
    "earliest": client.BEGIN,
    "end": client.END,
    "latest": client.END,
}
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Where = int | client.Place | datetime


def parse_place(_: click.Context, __: click.Parameter, text: str | None) -> Where | None:
    """An option's callback; a time without a zone is this machine's."""
    if text is None:
        return None
    if text in _ENDS:
        return _ENDS[text]
    if text.isdecimal():
        return int(text)
    if ago := re.fullmatch(r"-(\d+(?:\.\d+)?)([smhd])", text):
        return datetime.now(UTC) - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not begin, end, an offset, a time such as 2026-01-31T12:00 or -1h"
        ) from None
    return instant.astimezone(UTC)


def choose_queues(
    queues: Sequence[client.MessageQueue], wanted: Sequence[str], topic: str
) -> list[client.MessageQueue]:
    """The queues named by ``ID`` or ``BROKER/ID``; all for no names.

    Raises:
        UsageError: there is none of such a name.
    """
    if not wanted:
        return list(queues)
    chosen = []
    for text in wanted:
        broker, _, number = text.rpartition("/")
        found = [q for q in queues if str(q.queue_id) == number and broker in {"", q.broker_name}]
        if not found:
            raise client.UsageError(
                f"there is no queue {text!r}", topic=topic, hint="see `pocketmq topic status`"
            )
        chosen += found
    return list(dict.fromkeys(chosen))


def parse_queue(_: click.Context, __: click.Parameter, text: str) -> client.MessageQueue:
    """An argument's callback: ``TOPIC/BROKER/ID``, as tables and logs write queues."""
    topic, _slash, rest = text.partition("/")
    broker, _slash, number = rest.rpartition("/")
    if not topic or not broker or not number.isdecimal():
        raise click.BadParameter(f"{text!r} is not TOPIC/BROKER/QUEUE, e.g. orders/broker-a/3")
    return client.MessageQueue(topic, broker, int(number))
