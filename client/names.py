"""Checking names that users give."""

from __future__ import annotations

from client.errors import UsageError
from remoting.protocol.names import (
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    validate_group,
    validate_topic,
)


def check_group(group: str) -> None:
    """Raises UsageError when this can't be a group of an application."""
    try:
        validate_group(group)
    except ValueError as error:
        raise UsageError(str(error), group=group[:100]) from None
    if group in {DEFAULT_PRODUCER_GROUP, DEFAULT_CONSUMER_GROUP}:
        raise UsageError("this group is reserved", group=group, hint="use a name of your own")


def check_topic_name(topic: str) -> None:
    """Raises UsageError when this can't be a topic's name."""
    try:
        validate_topic(topic)
    except ValueError as error:
        raise UsageError(str(error), topic=topic[:100]) from None
