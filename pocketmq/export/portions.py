"""What is exported: which messages, and the portions in which a source gives them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

import client
from remoting.protocol.errors import BodyError
from remoting.protocol.message.tags import TagExpression

PORTION: Final = 1000
"""Messages of a portion at most."""

Message = client.ReceivedMessage[bytes]
Where = int | client.Place | datetime


class ExportError(Exception):
    """An export can't be made or finished; the text is one sentence that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages are wanted.

    Attributes:
        topic: where they are stored.
        queues: ``ID`` or ``BROKER/ID``; none for all.
        begin: in each queue the first one.
        end: in each queue the first one that is not wanted any more.
        tags: one of these tags.
        key: one of the message's keys, or its id.
    """

    topic: str
    queues: tuple[str, ...] = ()
    begin: Where = client.BEGIN
    end: Where = client.END
    tags: TagExpression
    key: str | None = None

    def wants(self, message: Message) -> bool:
        """Whether a message of a wanted place is one of them."""
        if not self.tags.is_all and not self.tags.matches(message.tags):
            return False
        return self.key is None or self.key in {*message.keys, message.id, message.offset_id}


class Portion(NamedTuple):
    """Some messages of one queue, in their order.

    Attributes:
        messages: those that are wanted.
        passed: how many numbers of the queue are done with them.
        damage: of messages that can't be read, in sentences.
        file: of the log, that they were read from; None when nobody knows.
    """

    messages: list[Message]
    passed: int
    damage: list[str]
    file: str | None = None


def fault_of(message: Message) -> str | None:
    """Why a message can't be given out as it was sent; None for a sound one."""
    if not message.check_crc():
        return _sentence(message, "the CRC of its body is not the one stored with it")
    try:
        _ = message.body
    except (BodyError, client.UnreadableMessage) as error:
        return _sentence(message, str(error))
    return None


def _sentence(message: Message, reason: str) -> str:
    return f"message {message.offset} of {message.queue} is left out: {reason}"
