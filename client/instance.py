"""An instance: one set of connections, routes and heartbeats for many producers and consumers.

It is RocketMQ's MQClientInstance. A producer or consumer created without one has its own.
Everything belongs to the event loop in which the instance was started, and to its process: using it
after a fork raises.
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

from client.admin import Admin, shared_admin
from client.config import (
    Addresses,
    ClientArguments,
    ConsumerArguments,
    ProducerArguments,
    check_arguments,
    check_serde,
)
from client.consumer.options import Handler, PushArguments, Subscribe
from client.consumer.pull import PullConsumer, shared_pull_consumer
from client.consumer.push import PushConsumer, shared_push_consumer
from client.network.context import ClientContext
from client.producer.producer import DEFAULT_GROUP, Producer, shared_producer
from client.serde import Serde, raw

T = TypeVar("T")
V = TypeVar("V")


class Instance(Generic[T]):
    """The connections, routes and heartbeats that producers, consumers and admins share.

    Args:
        nameservers: ``host:port;host:port``; by default the environment variable NAMESRV_ADDR.
        serde: the default for producers and consumers created from this instance.
        options: see ``client.config.ClientOptions``.

    Raises:
        UsageError: an argument is wrong, or no name server is given.
    """

    @overload
    def __init__(
        self: Instance[bytes],
        nameservers: Addresses | None = None,
        *,
        serde: None = None,
        **options: Unpack[ClientArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        serde: Serde[T],
        **options: Unpack[ClientArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        serde: Serde[Any] | None = None,
        **options: Unpack[ClientArguments],
    ) -> None:
        check_arguments("Instance", options, ClientArguments)
        self._serde = cast("Serde[T]", serde or raw)
        check_serde(self._serde)
        self._context = ClientContext(nameservers, options)
        self._life = self._context.life

    @property
    def client_id(self) -> str:
        """The id under which brokers register this client; empty before the start."""
        return self._context.client_id

    # Lifecycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the background tasks. Connections are opened when they are needed."""
        await self._context.start()

    async def close(self) -> None:
        """Close the producers, consumers and admins created from it, then its connections.

        May be called twice. Called from a handler it only starts the close and returns, because it
        would wait for itself.
        """
        await self._context.close()

    def _inside(self) -> bool:
        return self._context.inside

    # Parts

    @overload
    def producer(
        self, *, group: str = ..., serde: None = None, **options: Unpack[ProducerArguments]
    ) -> Producer[T]: ...

    @overload
    def producer(
        self, *, group: str = ..., serde: Serde[V], **options: Unpack[ProducerArguments]
    ) -> Producer[V]: ...

    def producer(
        self,
        *,
        group: str = DEFAULT_GROUP,
        serde: Serde[Any] | None = None,
        **options: Unpack[ProducerArguments],
    ) -> Producer[Any]:
        """Return a started producer that shares this instance and is closed with it."""
        return shared_producer(self._context, group, serde or self._serde, options)

    @overload
    def pull_consumer(
        self, *, group: str, serde: None = None, **options: Unpack[ConsumerArguments]
    ) -> PullConsumer[T]: ...

    @overload
    def pull_consumer(
        self, *, group: str, serde: Serde[V], **options: Unpack[ConsumerArguments]
    ) -> PullConsumer[V]: ...

    def pull_consumer(
        self, *, group: str, serde: Serde[Any] | None = None, **options: Unpack[ConsumerArguments]
    ) -> PullConsumer[Any]:
        """Return a started pull consumer that shares this instance and is closed with it."""
        return shared_pull_consumer(self._context, group, serde or self._serde, options)

    @overload
    def push_consumer(
        self,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[T] | None = None,
        serde: None = None,
        **options: Unpack[PushArguments],
    ) -> PushConsumer[T]: ...

    @overload
    def push_consumer(
        self,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[V] | None = None,
        serde: Serde[V],
        **options: Unpack[PushArguments],
    ) -> PushConsumer[V]: ...

    def push_consumer(
        self,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[Any] | None = None,
        serde: Serde[Any] | None = None,
        **options: Unpack[PushArguments],
    ) -> PushConsumer[Any]:
        """Return a push consumer that shares this instance; start it with ``async with``."""
        return shared_push_consumer(
            self._context, group, subscribe, handler, serde or self._serde, options
        )

    def admin(self) -> Admin:
        """Return an admin that shares this instance."""
        return shared_admin(self._context)
