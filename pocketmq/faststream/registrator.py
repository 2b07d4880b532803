"""Registering subscribers and publishers, at a broker or at a router."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.middlewares import AckPolicy

from client.consumer.options import Wanted
from pocketmq.faststream.commands import MessageOptions
from pocketmq.faststream.config import PocketBrokerConfig, SubscriberOptions
from pocketmq.faststream.endpoints import (
    TopicPublisher,
    TopicPublisherConfig,
    TopicPublisherDescription,
    TopicPublisherSpecification,
    TopicSubscriber,
    TopicSubscriberConfig,
    TopicSubscriberDescription,
    TopicSubscriberSpecification,
)

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable

BATCH_SIZE = 32
"""As many messages as RocketMQ's consumers pull at once (cf. pullBatchSize)."""

PocketRoute = SubscriberRoute
"""A handler with the arguments of its subscriber, for ``PocketRouter(handlers=...)``."""

PocketPublisher = ArgsContainer
"""The arguments of a publisher, for ``PocketRoute(publishers=...)``."""


class PocketRegistrator(Registrator[Any, PocketBrokerConfig]):
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
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Unpack[SubscriberOptions],
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
        config = cast(PocketBrokerConfig, self.config)
        calls = CallsCollection[Any]()
        subscriber = TopicSubscriber(
            TopicSubscriberConfig(
                _outer_config=config,
                _ack_policy=ack_policy,
                no_reply=no_reply,
                topic=topic,
                group=group,
                tags=tags,
                options=options,
            ),
            TopicSubscriberSpecification(
                config,
                TopicSubscriberDescription(
                    title_=title,
                    description_=description,
                    include_in_schema=include_in_schema,
                    topic=topic,
                ),
                calls,
            ),
            calls,
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
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        **options: Unpack[MessageOptions],
    ) -> TopicPublisher:
        """Return a publisher, also as a decorator of handlers, whose results it publishes.

        Args:
            headers: of each message, unless the handler sets them.
            reply_to: the topic for the results of the messages' handlers.
            batch: publish sequences of messages, each as one batch.
            persistent: see FastStream.
            title, description, schema, include_in_schema: of the AsyncAPI document.
            options: of each message, see ``client.Message``.
        """
        config = cast(PocketBrokerConfig, self.config)
        publisher = TopicPublisher(
            TopicPublisherConfig(
                _outer_config=config,
                topic=topic,
                headers=headers or {},
                reply_to=reply_to,
                batch=batch,
                options=options,
            ),
            TopicPublisherSpecification(
                config,
                TopicPublisherDescription(
                    title_=title,
                    description_=description,
                    schema_=schema,
                    include_in_schema=include_in_schema,
                    topic=topic,
                ),
            ),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: Registrator[Any, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Include a router.

        Raises:
            TypeError: it is another broker's.
        """
        if not isinstance(router, PocketRegistrator):
            raise TypeError(f"include a PocketRouter, not a {type(router).__name__}")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


class PocketRouter(PocketRegistrator, BrokerRouter[Any, PocketBrokerConfig]):
    """Subscribers and publishers to include in a broker or another router.

    Args:
        prefix: what their topics begin with.
        handlers: handlers with their arguments.
        dependencies, middlewares, routers, parser, decoder: see FastStream.
        ack_policy: of its subscribers.
        include_in_schema: False: leave them out of the AsyncAPI document.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[SubscriberRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[PocketRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=PocketBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
        )
