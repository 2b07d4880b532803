"""Subscribers and publishers of topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.configs import (
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from client.consumer.options import Wanted
from client.consumer.push import PushConsumer
from client.errors import RemoteError
from client.message import Receipt
from client.positions import Duration
from pocketmq.faststream.commands import MessageOptions, PocketPublishCommand
from pocketmq.faststream.config import PocketBrokerConfig, SubscriberOptions
from pocketmq.faststream.message import (
    PocketMessage,
    Received,
    decode_batch,
    decode_one,
    parse_batch,
    parse_message,
)
from remoting.protocol.message.properties import CORRELATION_ID

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.types import PublisherMiddleware


@dataclass(kw_only=True)
class TopicSubscriberConfig(SubscriberUsecaseConfig):
    """The arguments of a subscriber; without a policy a message that fails is retried."""

    _outer_config: PocketBrokerConfig
    topic: str
    group: str | None
    tags: Wanted
    options: SubscriberOptions

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's policy, or that of its router or broker."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class TopicSubscriberDescription(SubscriberSpecificationConfig):
    """What the AsyncAPI document says of a subscriber."""

    topic: str


class TopicSubscriberSpecification(
    SubscriberSpecification[PocketBrokerConfig, TopicSubscriberDescription]
):
    """A subscriber in the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The topic."""
        return [self.topic]

    @property
    def name(self) -> str:
        """The key of its channel."""
        return self.config.title_ or f"{self.topic}:{self.call_name}"

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return its channel."""
        payload = resolve_payloads(self.get_payloads())
        return {self.name: _channel(SubscriberSpec, self, self.description, payload)}


class TopicSubscriber(SubscriberUsecase[Any]):
    """Consumes a topic as a member of a group, with a ``client.PushConsumer``."""

    _outer_config: PocketBrokerConfig

    def __init__(
        self,
        config: TopicSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        order = config.options.get("order")
        if order is not None and not order.auto_commit:
            raise SetupError("Orderly(auto_commit=False) doesn't work here: use an AckPolicy")
        self.is_batch = config.options.get("batch_size", 1) > 1
        config.parser = parse_batch if self.is_batch else parse_message
        config.decoder = decode_batch if self.is_batch else decode_one
        super().__init__(config, specification, calls)
        self._topic = config.topic
        self._group = config.group
        self.tags = config.tags
        self._options = config.options
        self._consumer: PushConsumer[bytes] | None = None

    @property
    def topic(self) -> str:
        """The topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def group(self) -> str:
        """The consumer group; by default one for the application and the topic."""
        return self._group or f"{self._outer_config.app}-{self.topic}"

    async def start(self) -> None:
        """Declare the topic and join the group; errors as ``client.PushConsumer.start``."""
        client = self._outer_config.client
        await super().start()
        await self._outer_config.declare_topic(self.topic)
        self._consumer = client.push_consumer(
            group=self.group,
            subscribe={self.topic: self.tags},
            handler=self._handle if self.calls else None,
            **self._options,
        )
        # Before the consumer starts: it may call the handler at once.
        self._post_start()
        await self._consumer.start()

    async def stop(self) -> None:
        """Leave the group, after running handlers have ended or ``graceful_timeout`` is over."""
        if self._consumer is not None:
            # First: a stopped consumer starts no handler, so none finds this one not running.
            await self._consumer.stop(self._outer_config.graceful_timeout or 0.0)
        await super().stop()

    async def _handle(self, received: Received | list[Received]) -> None:
        """Consume a message or a batch, and settle what FastStream has left without an outcome."""
        was_running = self.running
        await self.consume(received)
        for message in received if isinstance(received, list) else (received,):
            if message.settled:
                continue
            if not was_running or self.ack_policy in _RETRIED:
                message.retry_later()
            elif self.ack_policy is AckPolicy.REJECT_ON_ERROR:
                message.dead_letter("it could not be parsed")
            else:
                message.ack()

    async def get_one(self, *, timeout: float = 5.0) -> PocketMessage | None:
        """Return the next message of a subscriber without handlers; None: none came in time.

        Call its ``ack``, ``nack`` or ``reject``.

        Args:
            timeout: seconds.
        """
        assert not self.calls, "get_one is for subscribers without handlers"
        try:
            async with asyncio.timeout(timeout):
                return await anext(aiter(self))
        except TimeoutError:
            return None

    async def __aiter__(self) -> AsyncIterator[PocketMessage]:
        assert not self.calls, "iteration is for subscribers without handlers"
        assert self._consumer is not None, "start the subscriber first"
        context = self._outer_config.fd_config.context
        parser, decoder = self._get_parser_and_decoder()
        async for received in self._consumer:
            message = await process_msg(
                msg=received,
                middlewares=(each(received, context=context) for each in self._broker_middlewares),
                parser=parser,
                decoder=decoder,
            )
            assert isinstance(message, PocketMessage)
            if self.ack_policy is AckPolicy.ACK_FIRST:
                await message.ack()
            yield message

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config, message),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what the log says besides the text."""
        return {**super().get_log_context(message), "topic": self.topic, "group": self.group}


_RETRIED = (AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL)


class ReplyPublisher(FakePublisher):
    """Publishes a handler's result to whoever asked for it."""

    def __init__(self, config: PocketBrokerConfig, message: StreamMessage[Any]) -> None:
        super().__init__(producer=config.producer)
        self._config = config
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> PocketPublishCommand:
        """Address a result: to the requester, or to the topic of ``reply_to``."""
        command = PocketPublishCommand.from_cmd(super().patch_command(cmd))
        if CORRELATION_ID in self._message.raw_message.properties:
            command.request = self._message.raw_message
        else:
            command.destination = self._message.reply_to
        return command

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> Any:
        try:
            return await super()._publish(cmd, _extra_middlewares=_extra_middlewares)
        except RemoteError as error:
            if CORRELATION_ID not in self._message.raw_message.properties:
                raise
            # The requester is gone: to handle its request again wouldn't help.
            self._config.logger.log(f"nobody waits for the reply: {error}")


@dataclass(kw_only=True)
class TopicPublisherConfig(PublisherUsecaseConfig):
    """The arguments of a publisher."""

    _outer_config: PocketBrokerConfig
    topic: str
    headers: dict[str, Any]
    reply_to: str
    batch: bool
    options: MessageOptions


@dataclass(kw_only=True)
class TopicPublisherDescription(PublisherSpecificationConfig):
    """What the AsyncAPI document says of a publisher."""

    topic: str


class TopicPublisherSpecification(
    PublisherSpecification[PocketBrokerConfig, TopicPublisherDescription]
):
    """A publisher in the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The key of its channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return its channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {self.name: _channel(PublisherSpec, self, self.config.description_, payload)}


class TopicPublisher(PublisherUsecase):
    """Publishes to a topic."""

    _outer_config: PocketBrokerConfig

    def __init__(
        self, config: TopicPublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.headers = config.headers
        self.reply_to = config.reply_to
        self.batch = config.batch
        self.options = config.options

    @property
    def topic(self) -> str:
        """The topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def start(self) -> None:
        """Declare the topic, unless each message is published to a topic of its own."""
        await super().start()
        if self.topic:
            await self._outer_config.declare_topic(self.topic)

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: Duration | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt | list[Receipt]:
        """Publish a message, or with ``batch=True`` a sequence of them; see ``PocketBroker``."""
        command = self._command(
            PublishType.PUBLISH, message, topic, headers, correlation_id, reply_to, timeout, options
        )
        receipts: Receipt | list[Receipt] = await self._send(command, ())
        return receipts

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration | None = 3.0,
        **options: Unpack[MessageOptions],
    ) -> PocketMessage:
        """Publish a message and return its reply; see ``PocketBroker.request``."""
        command = self._command(
            PublishType.REQUEST, message, topic, headers, correlation_id, "", timeout, options
        )
        reply = await self._basic_request(command, producer=self._outer_config.producer)
        assert isinstance(reply, PocketMessage)
        return reply

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> Any:
        command = PocketPublishCommand.from_cmd(cmd, batch=self.batch)
        command.destination = command.destination or self.topic
        command.reply_to = command.reply_to or self.reply_to
        command.add_headers(self.headers, override=False)
        command.options = {**self.options, **command.options}
        return await self._send(command, _extra_middlewares)

    def _command(
        self,
        kind: PublishType,
        message: Any,
        topic: str,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        reply_to: str,
        timeout: Duration | None,
        options: MessageOptions,
    ) -> PocketPublishCommand:
        is_batch = self.batch and kind is PublishType.PUBLISH
        return PocketPublishCommand(
            *(message if is_batch else (message,)),
            topic=topic or self.topic,
            headers={**self.headers, **(headers or {})},
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or ("" if kind is PublishType.REQUEST else self.reply_to),
            timeout=timeout,
            options={**self.options, **options},
            _publish_type=kind,
        )

    async def _send(
        self, command: PocketPublishCommand, middlewares: Iterable[PublisherMiddleware]
    ) -> Any:
        send = self._basic_publish_batch if self.batch else self._basic_publish
        return await send(
            command, producer=self._outer_config.producer, _extra_middlewares=middlewares
        )


def _channel(
    kind: type[Any],
    specification: TopicSubscriberSpecification | TopicPublisherSpecification,
    description: str | None,
    payload: dict[str, Any],
) -> Any:
    """Return a channel; FastStream 0.7.8 has requires its address, 0.7.5 doesn't know it."""
    address = {"address": specification.topic} if "address" in _names(kind) else {}
    message = Message(title=f"{specification.name}:Message", payload=payload)
    return kind(
        description=description,
        operation=Operation(message=message, bindings=None),
        bindings=None,
        **address,
    )


def _names(kind: type[Any]) -> set[str]:
    return {each.name for each in fields(kind)}
