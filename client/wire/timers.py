"""Whether a broker delivers messages at a given time.

A broker without timers ignores the property and delivers such a message at once. So senders ask it
first: RocketMQ 5 reports its version, and PocketMQ serves RECALL_MESSAGE.
"""

from __future__ import annotations

from typing import Final

from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import RecallMessageRequestHeader

LAST_VERSION_WITHOUT_TIMERS: Final = 411
"""V4_9_9 in RocketMQ's list of versions; those of 5.x are higher (cf. MQVersion)."""


def timer_probe(topic: str, group: str | None = None) -> RecallMessageRequestHeader:
    """Return the header of a RECALL_MESSAGE without a handle, which changes nothing."""
    return RecallMessageRequestHeader(producer_group=group, topic=topic, recall_handle="")


def has_timers(answer: Command) -> bool:
    """Return whether the broker that answered a ``timer_probe``, with any code, has timers."""
    return (
        answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        or answer.version > LAST_VERSION_WITHOUT_TIMERS
    )
