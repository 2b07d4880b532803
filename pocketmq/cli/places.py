"""Places in queues as one writes them on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

import client
from client.positions import Position, position_of

PLACE_METAVAR: Final = "PLACE"
PLACE_HELP: Final = (
    "begin or earliest, end or latest, an offset, a time (2026-01-31T12:00) or how long ago "
    "(-1h, -30m)."
)


def parse_place(_: click.Context, __: click.Parameter, text: str | None) -> Position | None:
    """An option's callback; a time without a zone is this machine's."""
    if text is None:
        return None
    try:
        return position_of(text)
    except client.UsageError as error:
        raise click.BadParameter(str(error)) from None


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
