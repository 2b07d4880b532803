"""Sends what FastStream publishes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from client.errors import RequestTimeout
from client.message import Message, Receipt, Reply
from client.producer.producer import Producer
from pocketmq.faststream.commands import PocketPublishCommand
from pocketmq.faststream.message import (
    CONTENT_TYPE,
    EMPTY,
    EMPTY_BODY,
    decode_one,
    parse_message,
)

Custom: TypeAlias = Any
"""A parser or decoder of the application, see FastStream's ``CustomCallable``; None: there is none.
"""


class PocketProducer(ProducerProto[PocketPublishCommand]):
    """Encodes bodies and sends them with a ``client.Producer`` while it is connected."""

    def __init__(self, parser: Custom = None, decoder: Custom = None) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode_one)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: Any = None
        self._client: Producer[bytes] | None = None

    def connect(
        self, client: Producer[bytes], di: FastDependsConfig, codec: CodecProto | None = None
    ) -> None:
        """Use an open producer of the client, and the serializer that FastDepends has."""
        self._client = client
        self._serializer = di._serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        """Forget the producer, which its instance closes."""
        self._client = None

    @property
    def client(self) -> Producer[bytes]:
        """The client's producer. Raises IncorrectState without a connection."""
        if self._client is None:
            raise IncorrectState("the broker isn't connected: await broker.connect() first")
        return self._client

    async def publish(self, cmd: PocketPublishCommand) -> Receipt | None:
        """Send a message, or answer a request; see ``client.Producer.send`` for the errors.

        Returns:
            Where the message is stored; None for an answer, which isn't.
        """
        [message] = await self._encode(cmd, [cmd.body])
        if cmd.request is None:
            return await self.client.send(message, timeout=cmd.timeout)
        await self.client.reply(cmd.request, message.body, properties=message.properties)
        return None

    async def publish_batch(self, cmd: PocketPublishCommand) -> list[Receipt]:
        """Send messages as one request; see ``client.Producer.send_batch`` for the errors."""
        messages = await self._encode(cmd, cmd.batch_bodies, batch=True)
        return await self.client.send_batch(messages, timeout=cmd.timeout)

    async def request(self, cmd: PocketPublishCommand) -> Reply[bytes]:
        """Send a message and wait for its reply; see ``client.Producer.request`` for other errors.

        Raises:
            TimeoutError: no reply came in time.
        """
        [message] = await self._encode(cmd, [cmd.body])
        try:
            return await self.client.request(message, timeout=cmd.timeout)
        except RequestTimeout as error:
            raise TimeoutError(str(error)) from error

    async def _encode(
        self, cmd: PocketPublishCommand, bodies: Sequence[Any], *, batch: bool = False
    ) -> list[Message[bytes]]:
        if batch and isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self._serializer)
        else:
            encoded = [await self.codec.encode(body, self._serializer) for body in bodies]
        messages = []
        for data, content_type in encoded:
            properties = {} if content_type is None else {CONTENT_TYPE: content_type}
            if not data:
                properties[EMPTY_BODY] = "true"
            messages.append(cmd.message(data or EMPTY, properties))
        return messages
