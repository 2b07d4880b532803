"""Checking names that users give."""

from __future__ import annotations

from collections.abc import Iterable

from client.errors import UsageError
from remoting.protocol.names import (
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    validate_group,
    validate_topic,
)
from remoting.protocol.queue import MessageQueue


def check_group(group: str) -> None:
    """Raises UsageError when this can't be a group of an application."""
    try:
        validate_group(group)
    except ValueError as error:
        raise UsageError(str(error), group=group[:100]) from None
    if group in {DEFAULT_PRODUCER_GROUP, DEFAULT_CONSUMER_GROUP}:
        raise UsageError("this group is reserved", group=group, hint="use a name of your own")


def queues_of(given: Iterable[object], group: str) -> list[MessageQueue]:
    """What was given as queues. Raises UsageError for a topic's name, or anything else."""
    wrong: list[object] = [given]
    if not isinstance(given, str | bytes | MessageQueue):
        items = list(given)
        found = [item for item in items if isinstance(item, MessageQueue)]
        if len(found) == len(items):
            return found
        wrong = [item for item in items if not isinstance(item, MessageQueue)]
    raise UsageError(
        f"queues are wanted, not {wrong[0]!r}",
        group=group,
        hint="assign(await consumer.queues(topic)), or await subscribe(topic)",
    )


def check_topic_name(topic: str) -> None:
    """Raises UsageError when this can't be a topic's name."""
    try:
        validate_topic(topic)
    except ValueError as error:
        raise UsageError(str(error), topic=topic[:100]) from None
