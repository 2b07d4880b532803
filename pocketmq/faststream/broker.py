"""FastStream's broker for RocketMQ's protocol."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec

from client.config import NAME_SERVER_VARIABLE, Addresses, ClientArguments, ProducerArguments
from client.errors import PocketMQError
from client.instance import Instance
from client.message import Receipt
from client.positions import Duration
from pocketmq.faststream.commands import MessageOptions, PocketPublishCommand
from pocketmq.faststream.config import (
    DEFAULT_APP,
    DEFAULT_QUEUES,
    PocketBrokerConfig,
    logger_state,
)
from pocketmq.faststream.message import PocketMessage
from pocketmq.faststream.producer import PocketProducer
from pocketmq.faststream.registrator import PocketRegistrator
from remoting.security.credentials import CredentialsSource
from remoting.security.tls import TlsOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.specification.schema.extra import Tag, TagDict

PING_TIMEOUT = 5.0


class PocketBroker(PocketRegistrator, BrokerUsecase[Any, Instance[bytes], PocketBrokerConfig]):
    """FastStream's broker for PocketMQ and Apache RocketMQ.

    Args:
        nameservers: ``host:port;host:port``; default: the environment variable NAMESRV_ADDR.
        app: what the default groups begin with; give each application its own.
        credentials: signs the requests; see ``client.config.ClientOptions``.
        tls: connect with TLS; see ``client.config.ClientOptions``.
        client, producer: further options, see ``client.config``.
        declare: create topics that don't exist when the broker starts.
        queues: queues of such a topic, by RocketMQ broker.
        graceful_timeout: seconds for which running handlers may continue at a stop.
        ack_policy: of the subscribers that have none.
        decoder, parser, codec, dependencies, middlewares, routers, id_generator, logger, log_level,
            apply_types, serializer, provider, context: see FastStream.
        specification_url, protocol, protocol_version, description, tags: of the AsyncAPI document.
    """

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        app: str = DEFAULT_APP,
        credentials: CredentialsSource | None = None,
        tls: TlsOption = None,
        client: ClientArguments | None = None,
        producer: ProducerArguments | None = None,
        declare: bool = True,
        queues: int = DEFAULT_QUEUES,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[PocketRegistrator] = (),
        id_generator: Callable[[], str] = gen_cor_id,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        specification_url: str | Iterable[str] | None = None,
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
    ) -> None:
        self._nameservers = nameservers
        self._client_options: ClientArguments = {**(client or {})}
        if credentials is not None:
            self._client_options["credentials"] = credentials
        if tls is not None:
            self._client_options["tls"] = tls
        self._producer_options: ProducerArguments = producer or {}
        super().__init__(
            routers=routers,
            config=PocketBrokerConfig(
                producer=PocketProducer(parser, decoder),
                app=app,
                declare=declare,
                queues=queues,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                id_generator=id_generator,
                logger=logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=_urls(specification_url or nameservers),
                protocol=protocol or "rocketmq",
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=None,
            ),
        )

    async def _connect(self) -> Instance[bytes]:
        instance = Instance(self._nameservers, **self._client_options)
        await instance.start()
        config = self.config.broker_config
        config.instance = instance
        config.producer.connect(
            instance.producer(**self._producer_options), config.fd_config, config.broker_codec
        )
        return instance

    async def start(self) -> None:
        """Connect, declare the topics, and start the subscribers and publishers.

        Raises:
            UsageError: no name server is given, or an option is wrong.
            Unavailable: no name server or broker can be reached.
        """
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, send what is accepted, and close the connections."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            if self._connection is not None:
                await self._connection.close()
            self._connection = None
            config = self.config.broker_config
            config.instance = None
            config.producer.disconnect()

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether a name server answers.

        Args:
            timeout: seconds; 5 without it.
        """
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(timeout or PING_TIMEOUT):
                await self._connection.admin().brokers()
        except (PocketMQError, TimeoutError):
            return False
        return True

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
    ) -> Receipt:
        """Publish a message and wait for its acknowledgement.

        Args:
            message: bytes, text, or anything that can be JSON.
            headers: properties of the message; an empty one isn't sent.
            correlation_id: by default a new one.
            reply_to: the topic for what the message's handler returns.
            timeout: seconds; see ``client.Producer.send``.
            options: see ``client.Message``.

        Returns:
            Where it is stored.

        Raises:
            UsageError: the message is invalid.
            SendError: it was not acknowledged.
        """
        command = self._command(
            (message,), topic, headers, correlation_id, reply_to, timeout, options
        )
        receipt: Receipt = await self._basic_publish(command, producer=self._producer)
        return receipt

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: Duration | None = None,
        **options: Unpack[MessageOptions],
    ) -> list[Receipt]:
        """Publish messages as one request: either all are stored, or none; else see ``publish``."""
        command = self._command(
            messages, topic, headers, correlation_id, reply_to, timeout, options
        )
        receipts: list[Receipt] = await self._basic_publish_batch(command, producer=self._producer)
        return receipts

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration | None = None,
        **options: Unpack[MessageOptions],
    ) -> PocketMessage:
        """Publish a message and wait for what its handler returns.

        Args:
            timeout: seconds for both; 3 without it.

        Raises:
            TimeoutError: no reply came in time; the message may still be handled.
            UsageError, SendError: as ``publish``.
        """
        command = self._command(
            (message,),
            topic,
            headers,
            correlation_id,
            "",
            timeout,
            options,
            kind=PublishType.REQUEST,
        )
        reply: PocketMessage = await self._basic_request(command, producer=self._producer)
        return reply

    def _command(
        self,
        bodies: Sequence[Any],
        topic: str,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        reply_to: str,
        timeout: Duration | None,
        options: MessageOptions,
        kind: PublishType = PublishType.PUBLISH,
    ) -> PocketPublishCommand:
        return PocketPublishCommand(
            *(bodies or (None,)),
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            timeout=timeout,
            options=options,
            _publish_type=kind,
        )


def _urls(given: str | Iterable[str] | None) -> list[str]:
    """Return the servers of the AsyncAPI document."""
    given = given or os.environ.get(NAME_SERVER_VARIABLE, "")
    return given.split(";") if isinstance(given, str) else list(given)
