"""What FastStream publishes: commands and the responses of handlers, with RocketMQ's options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self, TypedDict, Unpack

from faststream.response import PublishCommand, PublishType, Response
from faststream.response.response import BatchPublishCommand

from client.message import Message
from client.positions import Duration
from pocketmq.faststream.message import CORRELATION_ID, REPLY_TO, Received
from remoting.protocol.queue import MessageQueue


class MessageOptions(TypedDict, total=False):
    """Attributes of a message besides its headers; see ``client.Message``."""

    tag: str | None
    keys: Iterable[str]
    sharding_key: str | None
    queue: MessageQueue | None
    delay_level: int
    delay: Duration | None
    deliver_at: datetime | None


class PocketResponse(Response):
    """What a handler returns to publish with headers and options.

    Args:
        options: override those of the publisher.
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> PocketPublishCommand:
        """Return what the handler's publishers publish."""
        return PocketPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            options=self.options,
            _publish_type=PublishType.PUBLISH,
        )


class PocketPublishCommand(BatchPublishCommand):
    """A message, or a batch of them, to publish.

    Attributes:
        options: of each message.
        timeout: seconds for the send, of a request for its reply too; None: the client's own.
        request: the message that this one answers; None: it goes to the topic ``destination``.
    """

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str = "",
        reply_to: str = "",
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
        timeout: Duration | None = None,
        options: MessageOptions | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            _publish_type=_publish_type,
            reply_to=reply_to,
            destination=topic,
            correlation_id=correlation_id,
            headers=headers,
        )
        self.timeout = timeout
        self.options: MessageOptions = options or {}
        self.request: Received | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Return a command of any response; a batch's body may be a sequence of bodies."""
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        ours = cmd if isinstance(cmd, PocketPublishCommand) else None
        return cls(
            body,
            *bodies,
            topic=cmd.destination,
            reply_to=cmd.reply_to,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            timeout=ours.timeout if ours is not None else None,
            options=ours.options if ours is not None else None,
            _publish_type=cmd.publish_type,
        )

    def message(self, body: bytes, properties: Mapping[str, str]) -> Message[bytes]:
        """Return a message to send, with the headers that can be properties.

        A property is a text that isn't empty, so other headers are sent as their text, and empty
        ones not at all.
        """
        own = {name: str(value) for name, value in self.headers.items() if value is not None}
        ids = {CORRELATION_ID: self.correlation_id or "", REPLY_TO: self.reply_to}
        every = {**ids, **own, **properties}
        return Message(
            self.destination,
            body,
            properties={name: value for name, value in every.items() if value},
            **self.options,
        )
