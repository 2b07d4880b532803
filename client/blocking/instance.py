"""``client.Instance`` for threads."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from client import instance as waiting
from client.blocking.admin import Admin
from client.blocking.consumer import PullConsumer
from client.blocking.producer import Producer
from client.blocking.push import PushConsumer
from client.blocking.thread import LoopThread, ThreadOwner
from client.config import Addresses, ClientArguments, ConsumerArguments, ProducerArguments
from client.consumer.options import Handler, PushArguments, Subscribe
from client.producer.producer import DEFAULT_GROUP
from client.serde import Serde

T = TypeVar("T")
V = TypeVar("V")


class Instance(ThreadOwner, Generic[T]):
    """See ``client.Instance``: one thread, one set of connections, many parts."""

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
        inner: Any = waiting.Instance(nameservers, serde=serde, **options)
        self._inner: waiting.Instance[T] = inner
        self._thread: LoopThread | None = None
        self._owns_thread = True

    @property
    def _part(self) -> waiting.Instance[T]:
        return self._inner

    @property
    def client_id(self) -> str:
        """How brokers know this client; empty before the start."""
        return self._inner.client_id

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what was made from it, then its connections."""
        self._close(self._inner.close())

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
        thread = self._loop()
        make: Any = self._inner.producer
        return Producer._of(thread.call(lambda: make(group=group, serde=serde, **options)), thread)

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
        thread = self._loop()
        make: Any = self._inner.pull_consumer
        return PullConsumer._of(
            thread.call(lambda: make(group=group, serde=serde, **options)), thread
        )

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
        """A push consumer that shares this instance; it begins with ``start`` or ``with``."""
        thread = self._loop()
        make: Any = self._inner.push_consumer
        inner = thread.call(
            lambda: make(group=group, subscribe=subscribe, handler=handler, serde=serde, **options)
        )
        return PushConsumer._of(inner, thread)

    def admin(self) -> Admin:
        """An admin that shares this instance."""
        thread = self._loop()
        return Admin._of(thread.call(self._inner.admin), thread)
