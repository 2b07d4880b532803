"""What FastStream publishes: commands, the responses of handlers, and the producer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack, cast

from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState
from faststream.response import PublishCommand, PublishType, Response
from faststream.response.response import BatchPublishCommand

from client.errors import RequestTimeout
from client.producer.producer import SendArguments
from pocketmq import Message, Producer, Receipt, Reply
from pocketmq.faststream import message as received

T = TypeVar("T")


class PublishOptions(SendArguments, total=False):
    """How to publish: attributes of the message as ``client.Message`` has them, and FastStream's.

    Attributes:
        headers: properties of the message, sent as texts; empty ones aren't sent.
        correlation_id: by default a new one.
        reply_to: the topic for what the message's handler returns.
    """

    headers: dict[str, Any] | None
    correlation_id: str | None
    reply_to: str


class PocketResponse(Response):
    """What a handler returns to publish with headers and options of its own."""

    def __init__(self, body: Any, **options: Unpack[PublishOptions]) -> None:
        headers, correlation_id = options.get("headers"), options.get("correlation_id")
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> PocketPublishCommand:
        """Return what the handler's publishers publish."""
        ids: PublishOptions = {"headers": self.headers, "correlation_id": self.correlation_id}
        options: PublishOptions = {**self.options, **ids}
        return PocketPublishCommand(self.body, _publish_type=PublishType.PUBLISH, **options)


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
        _publish_type: PublishType,
        destination: str = "",
        **options: Unpack[PublishOptions],
    ) -> None:
        super().__init__(
            body,
            *bodies,
            _publish_type=_publish_type,
            destination=destination,
            headers=options.pop("headers", None),
            correlation_id=options.pop("correlation_id", None),
            reply_to=options.pop("reply_to", ""),
        )
        self.timeout = options.pop("timeout", None)
        self.options: SendArguments = options
        self.request: received.Received | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> PocketPublishCommand:
        """Return a command of any response; a batch's body may be a sequence of bodies."""
        if not isinstance(cmd, PocketPublishCommand):
            options: PublishOptions = {"headers": cmd.headers, "correlation_id": cmd.correlation_id}
            cmd = cls(cmd.body, _publish_type=cmd.publish_type, **options)
        if batch:
            cmd.body, cmd.extra_bodies = cls._parse_bodies(cmd.body, batch=True)
        return cmd

    def message(self, body: bytes, content_type: str | None) -> Message[bytes]:
        """Return a message to send; its headers become properties, which can't be empty."""
        headers = {name: str(value) for name, value in self.headers.items() if value is not None}
        every = {
            received.CORRELATION_ID: self.correlation_id,
            received.REPLY_TO: self.reply_to,
            **headers,
            received.CONTENT_TYPE: content_type,
            received.EMPTY_BODY: "" if body else "true",
        }
        own = {name: value for name, value in every.items() if value}
        own |= self.options.get("properties") or {}
        options: SendArguments = {**self.options, "properties": own}
        return Message(self.destination, body or received.EMPTY, **cast(Any, options))


def connected(part: T | None) -> T:
    """Return a part of the client. Raises IncorrectState if there is none."""
    if part is None:
        raise IncorrectState("the broker isn't connected: await broker.connect() first")
    return part


class PocketProducer(ProducerProto[PocketPublishCommand]):
    """Encodes bodies and sends them with a ``client.Producer`` while it is connected."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        self._parser = ParserComposition(parser, received.parse_message)
        self._decoder = ParserComposition(decoder, received.decode_one)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: Any = None
        self._client: Producer[bytes] | None = None

    def connect(
        self, client: Producer[bytes] | None, di: FastDependsConfig, codec: CodecProto | None
    ) -> None:
        """Use an open producer of the client; None: it is closed."""
        self._client = client
        self._serializer = di._serializer
        self.codec = codec or self.codec

    async def publish(self, cmd: PocketPublishCommand) -> Receipt | None:
        """Send a message, or answer a request; see ``client.Producer.send`` for the errors.

        Returns:
            Where the message is stored; None for an answer, which isn't.
        """
        [message] = await self._encode(cmd, [cmd.body])
        if cmd.request is None:
            return await connected(self._client).send(message, timeout=cmd.timeout)
        await connected(self._client).reply(
            cmd.request, message.body, properties=message.properties
        )
        return None

    async def publish_batch(self, cmd: PocketPublishCommand) -> list[Receipt]:
        """Send messages as one request; see ``client.Producer.send_batch`` for the errors."""
        messages = await self._encode(cmd, cmd.batch_bodies, batch=True)
        return await connected(self._client).send_batch(messages, timeout=cmd.timeout)

    async def request(self, cmd: PocketPublishCommand) -> Reply[bytes]:
        """Send a message and wait for its reply; see ``client.Producer.request`` for other errors.

        Raises:
            TimeoutError: no reply came in time.
        """
        [message] = await self._encode(cmd, [cmd.body])
        try:
            return await connected(self._client).request(message, timeout=cmd.timeout)
        except RequestTimeout as error:
            raise TimeoutError(str(error)) from error

    async def _encode(
        self, cmd: PocketPublishCommand, bodies: Sequence[Any], *, batch: bool = False
    ) -> list[Message[bytes]]:
        if batch and isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self._serializer)
        else:
            encoded = [await self.codec.encode(body, self._serializer) for body in bodies]
        return [cmd.message(*each) for each in encoded]
