"""``client.PullConsumer`` for threads."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from client.blocking.thread import Blocking, LoopThread, ThreadOwner
from client.config import Addresses, ConsumerArguments
from client.consumer import pull as waiting
from client.consumer.received import ReceivedMessage
from client.lifecycle import LifecycleState
from client.limits import CLOSE_TIMEOUT
from client.positions import Duration, queues_of
from client.serde import Serde
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")


class PullConsumer(ThreadOwner, Generic[T]):
    """See ``client.PullConsumer``: every method is the same and blocks.

    Iterating is convenient, ``get_many`` is much faster: each call changes threads once.
    """

    @overload
    def __init__(
        self: PullConsumer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str,
        serde: None = None,
        **options: Unpack[ConsumerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        serde: Serde[T],
        **options: Unpack[ConsumerArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        serde: Serde[Any] | None = None,
        **options: Unpack[ConsumerArguments],
    ) -> None:
        inner: Any = waiting.PullConsumer(nameservers, group=group, serde=serde, **options)
        self._inner: waiting.PullConsumer[T] = inner
        self._thread: LoopThread | None = None
        self._owns_thread = True

    @classmethod
    def _of(cls, inner: waiting.PullConsumer[T], thread: LoopThread) -> PullConsumer[T]:
        consumer: PullConsumer[T] = cls.__new__(cls)
        consumer._inner = inner
        consumer._thread = thread
        consumer._owns_thread = False
        return consumer

    @property
    def _part(self) -> waiting.PullConsumer[T]:
        return self._inner

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(self._inner.__aexit__(exc_type, exc, traceback))

    def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Stop reading, commit if ``auto_commit``, leave the group."""
        self._close(self._inner.close(timeout))

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues it reads, sorted."""
        return self._loop().call(lambda: self._inner.assigned)

    def assign(self, queues: Iterable[MessageQueue], *, tags: str = "*") -> None:
        """Read these queues from now on, and no others; see ``client.PullConsumer.assign``."""
        self._loop().call(self._inner.assign, self._queues(queues), tags=tags)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out nothing of these queues until ``resume``."""
        self._loop().call(self._inner.pause, self._queues(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with paused queues."""
        self._loop().call(self._inner.resume, self._queues(queues))

    def _queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Iterate in the caller's thread."""
        return queues_of(queues, self._inner.group)

    def get_many(
        self, max_messages: int, *, timeout: Duration | None = None
    ) -> list[ReceivedMessage[T]]:
        """See ``client.PullConsumer.get_many``."""
        return self._run(self._inner.get_many(max_messages, timeout=timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage[T]:
        if self._inner._life.state is LifecycleState.CLOSED:
            raise StopIteration
        try:
            return self._run(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    queues = Blocking(waiting.PullConsumer.queues)
    subscribe = Blocking(waiting.PullConsumer.subscribe)
    unsubscribe = Blocking(waiting.PullConsumer.unsubscribe)
    seek = Blocking(waiting.PullConsumer.seek)
    position = Blocking(waiting.PullConsumer.position)
    committed = Blocking(waiting.PullConsumer.committed)
    commit = Blocking(waiting.PullConsumer.commit)
