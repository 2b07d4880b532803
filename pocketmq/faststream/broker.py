"""FastStream's broker for RocketMQ's protocol, and its routers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Unpack, cast

from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.parser import CodecProto
from faststream._internal.types import CustomCallable
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec

from client.config import NAME_SERVER_VARIABLE, Addresses, ClientArguments, ProducerArguments
from client.consumer.options import Wanted
from pocketmq import Instance, PocketMQError, Receipt
from pocketmq.faststream import endpoints
from pocketmq.faststream.endpoints import (
    TopicPublisher,
    TopicSubscriber,
    check_groups,
    command_of,
)
from pocketmq.faststream.message import PocketMessage
from pocketmq.faststream.publishing import PocketProducer, PublishOptions

BATCH_SIZE: Final = 32
"""As many messages as RocketMQ's consumers pull at once (cf. pullBatchSize)."""

PocketRoute = SubscriberRoute
"""A handler with the arguments of its subscriber, for ``PocketRouter(handlers=...)``."""

PocketPublisher = ArgsContainer
"""The arguments of a publisher, for ``PocketRoute(publishers=...)``."""


class PocketRegistrator(Registrator[Any, endpoints.PocketBrokerConfig]):
    """What a broker and a router have in common."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: Wanted = "*",
        batch: bool = False,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Unpack[endpoints.SubscriberOptions],
    ) -> TopicSubscriber:
        """Subscribe a handler to a topic.

        Args:
            group: the consumer group; by default a group for the broker's ``app`` and this topic.
                All members of a group subscribe to the same.
            tags: which messages: ``"paid || refunded"``, ``Tags`` or ``Sql``.
            batch: pass lists of messages to the handler, of up to ``batch_size``, which is 32 if it
                isn't given.
            ack_policy: what happens to a message whose handler or middleware raises; by default
                ``NACK_ON_ERROR``: it is retried, and dead-lettered after ``max_retries``.
            no_reply: don't answer requests, nor publish to ``reply_to``.
            dependencies, parser, decoder, codec, persistent: see FastStream.
            title, description, include_in_schema: of the AsyncAPI document.
            options: see ``client.consumer.options.PushOptions``.

        Raises:
            SetupError: the options contradict each other.
        """
        if batch:
            options.setdefault("batch_size", BATCH_SIZE)
        subscriber = TopicSubscriber(
            endpoints.TopicArguments(
                _outer_config=cast(endpoints.PocketBrokerConfig, self.config),
                _ack_policy=ack_policy,
                no_reply=no_reply,
                topic=topic,
                group=group,
                tags=tags,
                batch=options.get("batch_size", 1) > 1,
                consuming=options,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            )
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        **options: Unpack[PublishOptions],
    ) -> TopicPublisher:
        """Return a publisher, also as a decorator of handlers, whose results it publishes.

        Args:
            batch: publish sequences of messages, each as one batch.
            persistent: see FastStream.
            title, description, schema, include_in_schema: of the AsyncAPI document.
            options: of each message, unless its handler sets them.
        """
        publisher = TopicPublisher(
            endpoints.TopicArguments(
                _outer_config=cast(endpoints.PocketBrokerConfig, self.config),
                topic=topic,
                batch=batch,
                publishing=options,
                title_=title,
                description_=description,
                schema_=schema,
                include_in_schema=include_in_schema,
            )
        )
        super().publisher(publisher, persistent=persistent)
        return publisher


class PocketRouter(PocketRegistrator, BrokerRouter[Any, endpoints.PocketBrokerConfig]):
    """Subscribers and publishers to include in a broker or another router.

    Args:
        prefix: what their topics begin with.
        handlers: handlers with their arguments.
        routers: routers to include.
        include_in_schema: False: leave them out of the AsyncAPI document.
        options: see FastStream.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[SubscriberRoute] = (),
        *,
        routers: Iterable[PocketRegistrator] = (),
        include_in_schema: bool | None = None,
        **options: Unpack[endpoints.SharedOptions],
    ) -> None:
        config = endpoints.PocketBrokerConfig(
            prefix=prefix, include_in_schema=include_in_schema, **endpoints.shared(options)
        )
        super().__init__(handlers=handlers, routers=routers, config=config)


class PocketBroker(PocketRegistrator, BrokerUsecase[Any, Instance[bytes], Any]):
    """FastStream's broker for PocketMQ and Apache RocketMQ.

    Args:
        nameservers: ``host:port;host:port``; default: the environment variable NAMESRV_ADDR.
        app: what the default groups begin with; give each application its own.
        client: options such as ``credentials`` and ``tls``; see ``client.config.ClientOptions``.
        producer: options of its producer; see ``client.config.ProducerOptions``.
        declare: create topics that don't exist when the broker starts.
        queues: queues of such a topic, by RocketMQ broker.
        graceful_timeout: seconds for which running handlers may continue at a stop.
        routers: routers to include.
        specification_url, protocol, protocol_version, description, tags: of the AsyncAPI document.
        id_generator, logger, log_level, apply_types, serializer, provider, context, options: see
            FastStream.
    """

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        app: str = "faststream",
        client: ClientArguments | None = None,
        producer: ProducerArguments | None = None,
        declare: bool = True,
        queues: int = endpoints.DEFAULT_QUEUES,
        graceful_timeout: float | None = 15.0,
        routers: Iterable[PocketRegistrator] = (),
        id_generator: Callable[[], str] = gen_cor_id,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
        specification_url: str | Iterable[str] | None = None,
        protocol: str = "rocketmq",
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
        **options: Unpack[endpoints.SharedOptions],
    ) -> None:
        self._nameservers = nameservers
        self._client_options: ClientArguments = client or {}
        self._producer_options: ProducerArguments = producer or {}
        context = context or ContextRepo()
        injected: Any = {"use_fastdepends": apply_types, "serializer": serializer}
        injected |= {"context": context, **({"provider": provider} if provider else {})}
        given = specification_url or nameservers or os.environ.get(NAME_SERVER_VARIABLE, "")
        urls = given.split(";") if isinstance(given, str) else list(given)
        super().__init__(
            routers=routers,
            config=endpoints.PocketBrokerConfig(
                producer=PocketProducer(options.get("parser"), options.get("decoder")),
                app=app,
                declare=declare,
                queues=queues,
                graceful_timeout=graceful_timeout,
                id_generator=id_generator,
                logger=endpoints.logger_state(logger, log_level, context),
                fd_config=FastDependsConfig(**injected),
                extra_context={"broker": self},
                **endpoints.shared(options),
            ),
            specification=BrokerSpec(urls, protocol, protocol_version, description, tags, None),
        )

    def _use(self, instance: Instance[bytes] | None) -> None:
        config = self.config.broker_config
        config.instance = instance
        client = None if instance is None else instance.producer(**self._producer_options)
        config.producer.connect(client, config.fd_config, config.broker_codec)

    async def _connect(self) -> Instance[bytes]:
        instance = Instance(self._nameservers, **self._client_options)
        await instance.start()
        self._use(instance)
        return instance

    async def start(self) -> None:
        """Connect, declare the topics, and start the subscribers and publishers.

        Raises:
            SetupError: two subscribers have one group.
            UsageError: no name server is given, or an option is wrong.
            Unavailable: no name server or broker can be reached.
        """
        check_groups(cast(Iterable[TopicSubscriber], self.subscribers))
        await self.connect()
        # First: a subscriber's handler publishes as soon as it runs.
        for publisher in self.publishers:
            await publisher.start()
        await super().start()

    async def stop(self, *error: Any, **named: Any) -> None:
        """Stop the subscribers, send what is accepted, and close the connections."""
        try:
            await super().stop(*error, **named)
        finally:
            if self._connection is not None:
                await self._connection.close()
            self._connection = None
            self._use(None)

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether a name server answers within ``timeout`` seconds, 5 by default."""
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(timeout or 5.0):
                await self._connection.admin().brokers()
        except (PocketMQError, TimeoutError):
            return False
        return True

    async def publish(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> Receipt:
        """Publish a message and wait for its acknowledgement.

        Args:
            message: bytes, text, or anything that can be JSON.

        Returns:
            Where it is stored.

        Raises:
            UsageError: the message is invalid.
            SendError: it was not acknowledged.
        """
        command = command_of(self.config, PublishType.PUBLISH, (message,), topic, options)
        return cast(Receipt, await self._basic_publish(command, producer=self._producer))

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str = "", **options: Unpack[PublishOptions]
    ) -> list[Receipt]:
        """Publish messages as one request: either all are stored, or none; else see ``publish``."""
        command = command_of(self.config, PublishType.PUBLISH, messages, topic, options)
        return cast(
            list[Receipt], await self._basic_publish_batch(command, producer=self._producer)
        )

    async def request(  # type: ignore[override]
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> PocketMessage:
        """Publish a message and wait for what its handler returns, 3 seconds without a timeout.

        Raises:
            TimeoutError: no reply came in time; the message may still be handled.
            UsageError, SendError: as ``publish``.
        """
        command = command_of(self.config, PublishType.REQUEST, (message,), topic, options)
        return cast(PocketMessage, await self._basic_request(command, producer=self._producer))
