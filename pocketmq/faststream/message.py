"""A received message as FastStream sees it, and how it is read from RocketMQ's.

A header is a property. The properties below are FastStream's; all other properties that aren't
RocketMQ's own are the application's headers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from faststream.message import StreamMessage, decode_message

from client.consumer.received import ReceivedMessage
from client.message import Reply
from client.positions import Duration
from client.producer.columns import RESERVED
from remoting.protocol.message.properties import REPLY_TO_CLIENT

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"

EMPTY_BODY: Final = "faststream-empty"
"""Marks an empty body, in whose place ``EMPTY`` is sent: RocketMQ refuses it."""

EMPTY: Final = b"\0"

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
        raw = self.raw_message
        if isinstance(raw, list):
            return raw
        return [raw] if isinstance(raw, ReceivedMessage) else []

    async def ack(self) -> None:
        """Mark the message, or all of the batch, as done."""
        if self.committed is None:
            for message in self.received:
                if not message.settled:
                    message.ack()
        await super().ack()

    async def nack(self, delay: Duration | None = None) -> None:
        """Have it delivered again, and dead-lettered after the subscriber's ``max_retries``.

        Args:
            delay: seconds, see ``client.ReceivedMessage.retry_later``; None: growing delays.
        """
        if self.committed is None:
            for message in self.received:
                if not message.settled:
                    message.retry_later(delay)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Send it to the group's dead letters.

        Args:
            reason: for the dead letter; by default the exception that is being handled.
        """
        if self.committed is None:
            error = sys.exception()
            reason = reason or ("" if error is None else repr(error))
            for message in self.received:
                if not message.settled:
                    message.dead_letter(reason)
        await super().reject()


async def parse_message(message: Received | Reply[bytes]) -> PocketMessage:
    """Read one message. Raises UnreadableMessage if its body can't be decompressed."""
    properties = message.properties
    return PocketMessage(
        message,
        _body(message, properties),
        headers=_headers(properties),
        reply_to=properties.get(REPLY_TO) or properties.get(REPLY_TO_CLIENT, ""),
        content_type=properties.get(CONTENT_TYPE),
        correlation_id=properties.get(CORRELATION_ID),
        message_id=message.id,
    )


async def parse_batch(messages: list[Received]) -> PocketMessage:
    """Read a batch; its headers and ids are those of the first message, and nobody is replied."""
    batch = [message.properties for message in messages]
    headers = [_headers(properties) for properties in batch]
    return PocketMessage(
        messages,
        [_body(message, own) for message, own in zip(messages, batch, strict=True)],
        headers=headers[0],
        batch_headers=headers,
        content_type=batch[0].get(CONTENT_TYPE),
        correlation_id=batch[0].get(CORRELATION_ID),
        message_id=messages[0].id,
    )


async def decode_one(message: StreamMessage[Any]) -> Any:
    """Decode a body by its content type."""
    return decode_message(message)


# FastStream tells the decoder of batches by this name.
async def decode_batch(message: StreamMessage[Any]) -> list[Any]:
    """Decode each body of a batch by its own content type."""
    return [decode_message(await parse_message(each)) for each in message.raw_message]


def _body(message: Received | Reply[bytes], properties: Mapping[str, str]) -> bytes:
    return b"" if EMPTY_BODY in properties else message.body


def _headers(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED and name != EMPTY_BODY
    }
