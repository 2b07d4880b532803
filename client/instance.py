"""An instance: one set of connections, routes and heartbeats, shared by many producers and
consumers (cf. MQClientInstance).

A producer or consumer that is made by itself has an instance of its own. Everything belongs to the
event loop in which the instance was started, and to the process: use after a fork raises.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload

from client.admin import Admin, shared_admin
from client.config import (
    Addresses,
    ClientArguments,
    ConsumerArguments,
    ProducerArguments,
    check_arguments,
)
from client.consumer.options import Handler, PushArguments, Subscribe
from client.consumer.pull import PullConsumer, shared_pull_consumer
from client.consumer.push import PushConsumer, shared_push_consumer
from client.context import ClientContext
from client.producer.producer import DEFAULT_GROUP, Producer, shared_producer
from client.serde import Serde, raw

T = TypeVar("T")
V = TypeVar("V")


class Instance(Generic[T]):
    """What producers, consumers and admins of one process share.

    Args:
        nameservers: ``host:port;host:port``; without it the environment's NAMESRV_ADDR.
        serde: the one of all producers and consumers made from it that don't name their own.
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
        self._context = ClientContext(nameservers, options)
        self._life = self._context.life
        self._serde = cast("Serde[T]", serde or raw)

    @property
    def client_id(self) -> str:
        """How brokers know this client; empty before the start."""
        return self._context.client_id

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Get ready. Nothing is connected before it is needed."""
        await self._context.start()

    async def close(self) -> None:
        """Close what was made from it, then its connections. May be called twice."""
        await self._context.close()

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
        """A producer that shares this instance; it is ready at once and closes with it."""
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
        """A pull consumer that shares this instance; it is ready at once and closes with it."""
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
        """A push consumer that shares this instance; it begins with ``start`` or ``async with``."""
        return shared_push_consumer(
            self._context, group, subscribe, handler, serde or self._serde, options
        )

    def admin(self) -> Admin:
        """An admin that shares this instance."""
        return shared_admin(self._context)
