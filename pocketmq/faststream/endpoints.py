"""Subscribers and publishers of topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, Unpack, cast

from faststream._internal.configs import BrokerConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.logger import DefaultLoggerStorage, LoggerState, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.exceptions import SetupError
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

import pocketmq
from client.consumer.options import Model, Wanted
from client.positions import Duration, StartFrom
from pocketmq import Orderly, PushConsumer, Receipt
from pocketmq.faststream import message as received
from pocketmq.faststream.message import PocketMessage, Received
from pocketmq.faststream.publishing import (
    PocketProducer,
    PocketPublishCommand,
    PublishOptions,
    connected,
)
from remoting.protocol.message.properties import CORRELATION_ID

DEFAULT_QUEUES = 8
"""Queues of a topic that a start creates, by broker; RocketMQ's own default."""


class SubscriberOptions(TypedDict, total=False):
    """How a subscriber consumes; see ``client.consumer.options.PushOptions``."""

    concurrency: int
    batch_size: int
    order: Orderly | None
    model: Model
    consume_timeout: Duration
    max_retries: int
    max_span: int
    start_from: StartFrom


class SharedOptions(TypedDict, total=False):
    """Options of a broker or a router for its subscribers and publishers; see FastStream."""

    dependencies: Sequence[Any]
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    ack_policy: AckPolicy


def shared(options: SharedOptions) -> dict[str, Any]:
    """Return them by the names of ``BrokerConfig``."""
    return {
        name if name == "ack_policy" else f"broker_{name}": value for name, value in options.items()
    }


@dataclass(kw_only=True)
class PocketBrokerConfig(BrokerConfig):
    """The configuration of a broker or router.

    Attributes:
        app: what the default groups begin with.
        declare: create the topics that don't exist when their subscribers and publishers start.
        queues: the number of queues of such a topic, by broker.
        instance: the connections; None: the broker isn't connected.
    """

    producer: PocketProducer = field(default_factory=PocketProducer)
    app: str = "faststream"
    declare: bool = True
    queues: int = DEFAULT_QUEUES
    instance: pocketmq.Instance[bytes] | None = None

    async def declare_topic(self, topic: str) -> None:
        """Create a topic, unless it exists or topics aren't declared.

        Raises:
            AccessDenied: the account may not create topics.
            Unavailable: no name server or broker could be asked.
        """
        if not self.declare:
            return
        admin = connected(self.instance).admin()
        try:
            await admin.topic_route(topic)
        except pocketmq.TopicNotFound:
            await admin.create_topic(topic, queues=self.queues)


@dataclass(kw_only=True)
class TopicArguments(SubscriberUsecaseConfig):
    """The arguments of a subscriber or a publisher, and what the AsyncAPI document says of it."""

    _outer_config: PocketBrokerConfig
    topic: str
    title_: str | None
    description_: str | None
    include_in_schema: bool
    schema_: Any = None
    group: str | None = None
    tags: Wanted = "*"
    batch: bool = False
    consuming: SubscriberOptions = field(default_factory=SubscriberOptions)
    publishing: PublishOptions = field(default_factory=PublishOptions)

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's policy, or that of its router or broker; by default failures retry."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


def logger_state(logger: Any, log_level: int, context: Any) -> LoggerState:
    """Return the logger of a broker; ``EMPTY``: FastStream's own, None: none."""
    if logger is EMPTY:
        columns = "%(group)s | %(topic)s | %(message_id)s"
        text = f"%(asctime)s %(levelname)-8s - {columns} - %(message)s"
        names = {"topic": "", "group": ""}
        logger = get_broker_logger("pocketmq", names, 10, text, context, log_level)
    return make_logger_state(logger, log_level, cast(Any, DefaultLoggerStorage))


def _settle(messages: Received | list[Received], policy: AckPolicy, reason: str = "") -> None:
    """Settle what FastStream has left without an outcome: no parser could read it."""
    for message in messages if isinstance(messages, list) else (messages,):
        if message.settled:
            continue
        if policy is AckPolicy.REJECT_ON_ERROR:
            message.dead_letter(reason)
        elif policy in {AckPolicy.ACK, AckPolicy.ACK_FIRST}:
            message.ack()
        else:
            message.retry_later(reason=reason)


class TopicPart:
    """What subscribers, publishers and their descriptions have in common."""

    config: TopicArguments
    _outer_config: Any

    @property
    def topic(self) -> str:
        """The topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    def _channel(self, kind: type[Any], name: str, description: str | None, payload: Any) -> Any:
        """Return a channel of the AsyncAPI document."""
        operation = Operation(Message(title=f"{name}:Message", payload=payload), None)
        # FastStream 0.7.5 doesn't have the last field, the address.
        return kind(*(description, operation, None, self.topic)[: len(fields(kind))])


class TopicSubscriberSpecification(TopicPart, SubscriberSpecification[Any, Any]):
    """A subscriber in the AsyncAPI document."""

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
        return {self.name: self._channel(SubscriberSpec, self.name, self.description, payload)}


class TopicSubscriber(TopicPart, SubscriberUsecase[Any]):
    """Consumes a topic as a member of a group, with a ``client.PushConsumer``."""

    def __init__(self, config: TopicArguments) -> None:
        order = config.consuming.get("order")
        if order is not None and not order.auto_commit:
            raise SetupError("Orderly(auto_commit=False) doesn't work here: use an AckPolicy")
        config.parser = received.parse_batch if config.batch else received.parse_message
        config.decoder = received.decode_batch if config.batch else received.decode_one
        calls = CallsCollection[Any]()
        specification = TopicSubscriberSpecification(config._outer_config, config, calls)
        super().__init__(config, specification, calls)
        self.config = config
        self._consumer: PushConsumer[bytes] | None = None
        # Not ``running``, which a test broker sets before the start.
        self._joined = False

    @property
    def group(self) -> str:
        """The consumer group; by default one for the application and the topic."""
        return self.config.group or f"{self._outer_config.app}-{self.topic}"

    async def start(self) -> None:
        """Declare the topic and join the group; errors as ``client.PushConsumer.start``."""
        if self._joined and self.running:
            return  # its broker is started again, for subscribers that were added
        client = connected(self._outer_config.instance)
        await super().start()
        await self._outer_config.declare_topic(self.topic)
        self._consumer = client.push_consumer(
            group=self.group,
            subscribe={self.topic: self.config.tags},
            handler=self._handle if self.calls else None,
            **self.config.consuming,
        )
        # Before the consumer starts: it may call the handler at once.
        self._post_start()
        self._joined = True
        try:
            await self._consumer.start()
        except BaseException:
            self._joined = False
            raise

    async def stop(self) -> None:
        """Leave the group, after running handlers have ended or ``graceful_timeout`` is over."""
        if self._consumer is not None:
            # First: a stopped consumer starts no handler, so none finds this one not running.
            await self._consumer.stop(self._outer_config.graceful_timeout or 0.0)
        self._joined = False
        await super().stop()

    async def _handle(self, messages: Received | list[Received]) -> None:
        """Consume a message or a batch, and settle it."""
        policy = self.ack_policy if self.running else AckPolicy.MANUAL
        await self.consume(messages)
        _settle(messages, policy)

    async def get_one(self, *, timeout: float = 5.0) -> PocketMessage | None:
        """Return the next message of a subscriber without handlers; None: none came in time.

        It is also None if the subscriber stops. Call its ``ack``, ``nack`` or ``reject``.

        Args:
            timeout: seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                return await anext(aiter(self))
        except (TimeoutError, StopAsyncIteration):
            return None

    async def __aiter__(self) -> AsyncIterator[PocketMessage]:
        assert not self.calls, "only a subscriber without handlers gives messages one by one"
        assert self._consumer is not None, "start the subscriber first"
        context = self._outer_config.fd_config.context
        parser, decoder = self._get_parser_and_decoder()
        async for each in self._consumer:
            middlewares = (make(each, context=context) for make in self._broker_middlewares)
            parsing = process_msg(each, middlewares=middlewares, parser=parser, decoder=decoder)
            try:
                message = cast(PocketMessage, await parsing)
            except Exception as error:
                _settle(each, self.ack_policy, repr(error))
                raise
            if self.ack_policy is AckPolicy.ACK_FIRST:
                await message.ack()
            yield message

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[ReplyPublisher]:
        return (ReplyPublisher(self._outer_config, message),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what the log says besides the text."""
        return {**super().get_log_context(message), "topic": self.topic, "group": self.group}


def check_groups(subscribers: Iterable[TopicSubscriber]) -> None:
    """Raise SetupError if two subscribers of one broker share a group's messages."""
    groups = set[str]()
    for each in subscribers:
        if each.config.consuming.get("model") == "broadcasting":
            continue
        if each.group in groups:
            raise SetupError(
                f"two subscribers have the group {each.group}: RocketMQ lets a client join a group"
                " once, so give one of them another group=, or let one handle all its messages"
            )
        groups.add(each.group)


class ReplyPublisher(FakePublisher):
    """Publishes a handler's result to whoever asked for it."""

    def __init__(self, config: PocketBrokerConfig, message: StreamMessage[Any]) -> None:
        super().__init__(producer=config.producer)
        self._config = config
        self._reply_to = message.reply_to
        raw = message.raw_message
        self._request = raw if CORRELATION_ID in raw.properties else None

    def patch_command(self, cmd: PublishCommand) -> PocketPublishCommand:
        """Address a result: to the requester, or to the topic of ``reply_to``."""
        command = PocketPublishCommand.from_cmd(super().patch_command(cmd))
        command.request, command.destination = self._request, self._reply_to
        return command

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> Any:
        try:
            return await super()._publish(cmd, _extra_middlewares=_extra_middlewares)
        except pocketmq.RemoteError as error:
            if self._request is None:
                raise
            # The requester is gone: to handle its request again wouldn't help.
            self._config.logger.log(f"nobody waits for the reply: {error}")


class TopicPublisherSpecification(TopicPart, PublisherSpecification[Any, Any]):
    """A publisher in the AsyncAPI document."""

    @property
    def name(self) -> str:
        """The key of its channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return its channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        description = self.config.description_
        return {self.name: self._channel(PublisherSpec, self.name, description, payload)}


class TopicPublisher(TopicPart, PublisherUsecase):
    """Publishes to a topic."""

    def __init__(self, config: TopicArguments) -> None:
        specification = TopicPublisherSpecification(config._outer_config, config)
        super().__init__(cast(Any, config), specification)
        self.config = config

    async def start(self) -> None:
        """Declare the topic, unless each message is published to a topic of its own."""
        await super().start()
        if self.topic:
            await self._outer_config.declare_topic(self.topic)

    async def publish(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> Receipt | list[Receipt]:
        """Publish a message, or with ``batch=True`` a sequence of them; see ``PocketBroker``."""
        bodies = message if self.config.batch else (message,)
        command = self._command(PublishType.PUBLISH, bodies, topic, options)
        return cast(Receipt | list[Receipt], await self._send(command, ()))

    async def request(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> PocketMessage:
        """Publish a message and return its reply; see ``PocketBroker.request``."""
        command = self._command(PublishType.REQUEST, (message,), topic, options)
        producer = self._outer_config.producer
        return cast(PocketMessage, await self._basic_request(command, producer=producer))

    def _command(
        self, kind: PublishType, bodies: Sequence[Any], topic: str, options: PublishOptions
    ) -> PocketPublishCommand:
        own = self.config.publishing
        headers = {**(own.get("headers") or {}), **(options.get("headers") or {})}
        every: PublishOptions = {**own, **options, "headers": headers}
        return command_of(self._outer_config, kind, bodies, topic or self.topic, every)

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> Any:
        command = PocketPublishCommand.from_cmd(cmd, batch=self.config.batch)
        if self.config.batch and not command.batch_bodies:
            return []
        # What the handler has set takes precedence.
        mine = self._command(PublishType.PUBLISH, (None,), command.destination, {})
        command.destination = mine.destination
        command.reply_to = command.reply_to or mine.reply_to
        command.timeout = mine.timeout if command.timeout is None else command.timeout
        command.add_headers(mine.headers, override=False)
        command.options = {**mine.options, **command.options}
        return await self._send(command, _extra_middlewares)

    async def _send(self, command: PocketPublishCommand, middlewares: Iterable[Any]) -> Any:
        send = self._basic_publish_batch if self.config.batch else self._basic_publish
        producer = self._outer_config.producer
        return await send(command, producer=producer, _extra_middlewares=middlewares)


def command_of(
    config: Any,
    kind: PublishType,
    bodies: Sequence[Any],
    topic: str,
    options: PublishOptions,
) -> PocketPublishCommand:
    """Return a command; it gets a correlation id."""
    options = {**options, "correlation_id": options.get("correlation_id") or config.id_generator()}
    return PocketPublishCommand(
        *(bodies or (None,)), _publish_type=kind, destination=topic, **options
    )
