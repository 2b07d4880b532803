"""A received message as FastStream sees it, and how it is read from RocketMQ's.

A header is a property. The properties below are FastStream's; all other properties that aren't
RocketMQ's own are the application's headers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from faststream.exceptions import HandlerException
from faststream.message import StreamMessage, decode_message

from client.positions import Duration
from client.producer.columns import RESERVED
from pocketmq import ReceivedMessage, Reply
from remoting.protocol.message.properties import REPLY_TO_CLIENT

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"

EMPTY_BODY: Final = "faststream-empty"
"""Marks an empty body, in whose place ``EMPTY`` is sent: RocketMQ refuses it."""

EMPTY: Final = b"\0"

_NO_HEADERS: Final = RESERVED | {EMPTY_BODY}

Received: TypeAlias = ReceivedMessage[bytes]
Raw: TypeAlias = "Received | list[Received] | Reply[bytes]"


class PocketMessage(StreamMessage[Any]):
    """A message, a batch, or the reply to a request.

    Attributes:
        raw_message: a ``client.ReceivedMessage``, a list of them, or a ``client.Reply``.
    """

    raw_message: Raw

    @property
    def received(self) -> list[Received]:
        """The messages to settle; none for a reply."""
        return [each for each in parts_of(self) if isinstance(each, ReceivedMessage)]

    def _settle(self, settle: Callable[[Received], None]) -> None:
        for message in self.received if self.committed is None else ():
            if not message.settled:
                settle(message)

    async def ack(self) -> None:
        """Mark the message, or all of the batch, as done."""
        self._settle(ReceivedMessage.ack)
        await super().ack()

    async def nack(self, delay: Duration | None = None, reason: str = "") -> None:
        """Have it delivered again, and dead-lettered after the subscriber's ``max_retries``.

        Args:
            delay: seconds, see ``client.ReceivedMessage.retry_later``; None: growing delays.
            reason: for the log; by default the exception that is being handled.
        """
        why = reason or _handled()
        self._settle(lambda message: message.retry_later(delay, why))
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Send it to the group's dead letters.

        Args:
            reason: for the dead letter; by default the exception that is being handled.
        """
        why = reason or _handled()
        self._settle(lambda message: message.dead_letter(why))
        await super().reject()


def _handled() -> str:
    error = sys.exception()
    return "" if error is None or isinstance(error, HandlerException) else repr(error)


async def parse_message(message: Received | Reply[bytes]) -> PocketMessage:
    """Read one message. Raises UnreadableMessage if its body can't be decompressed."""
    properties = message.properties
    return PocketMessage(
        message,
        b"" if EMPTY_BODY in properties else message.body,
        headers={name: value for name, value in properties.items() if name not in _NO_HEADERS},
        reply_to=properties.get(REPLY_TO) or properties.get(REPLY_TO_CLIENT, ""),
        content_type=properties.get(CONTENT_TYPE),
        correlation_id=properties.get(CORRELATION_ID),
        message_id=message.id,
    )


async def parse_batch(messages: list[Received]) -> PocketMessage:
    """Read a batch; its headers and ids are those of the first message, and nobody is replied."""
    parsed = [await parse_message(message) for message in messages]
    return PocketMessage(
        messages,
        [message.body for message in parsed],
        headers=parsed[0].headers,
        batch_headers=[message.headers for message in parsed],
        content_type=parsed[0].content_type,
        correlation_id=parsed[0].correlation_id,
        message_id=parsed[0].message_id,
    )


async def decode_one(message: StreamMessage[Any]) -> Any:
    """Decode a body by its content type."""
    return decode_message(message)


# FastStream tells the decoder of batches by this name.
async def decode_batch(message: StreamMessage[Any]) -> list[Any]:
    """Decode each body of a batch by its own content type."""
    return [decode_message(await parse_message(each)) for each in message.raw_message]


def parts_of(message: StreamMessage[Any]) -> list[Received | Reply[bytes]]:
    """Return the messages of a batch, or the only one."""
    raw = message.raw_message
    return raw if isinstance(raw, list) else [raw]


def size_of(message: StreamMessage[Any]) -> int:
    """Return the bytes of the body, or of all of a batch."""
    return sum(map(len, message.body)) if isinstance(message.body, list) else len(message.body)
