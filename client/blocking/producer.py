"""``client.Producer`` for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from client.blocking.thread import LoopThread, ThreadOwner
from client.config import Addresses, ProducerArguments
from client.errors import SendError
from client.limits import CLOSE_TIMEOUT
from client.message import Message, Receipt
from client.positions import Duration
from client.producer import producer as waiting
from client.producer.producer import DEFAULT_GROUP
from client.serde import Serde
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")


class Producer(ThreadOwner, Generic[T]):
    """See ``client.Producer``: every method is the same and blocks."""

    @overload
    def __init__(
        self: Producer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str = DEFAULT_GROUP,
        serde: None = None,
        **options: Unpack[ProducerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str = DEFAULT_GROUP,
        serde: Serde[T],
        **options: Unpack[ProducerArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str = DEFAULT_GROUP,
        serde: Serde[Any] | None = None,
        **options: Unpack[ProducerArguments],
    ) -> None:
        inner: Any = waiting.Producer(nameservers, group=group, serde=serde, **options)
        self._inner: waiting.Producer[T] = inner
        self._thread: LoopThread | None = None
        self._owns_thread = True

    @classmethod
    def _of(cls, inner: waiting.Producer[T], thread: LoopThread) -> Producer[T]:
        producer: Producer[T] = cls.__new__(cls)
        producer._inner = inner
        producer._thread = thread
        producer._owns_thread = False
        return producer

    @property
    def _part(self) -> waiting.Producer[T]:
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
        self.close()

    def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Send what was accepted, then leave. What isn't acknowledged in time fails."""
        self._close(self._inner.close(timeout))

    @overload
    def send(self, message: Message[T], /, *, timeout: Duration | None = None) -> Receipt: ...

    @overload
    def send(
        self,
        topic: str,
        body: T,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> Receipt: ...

    def send(
        self,
        topic: Any,
        body: Any = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> Receipt:
        """See ``client.Producer.send``."""
        return self._run(
            self._inner.send(
                topic,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                sharding_key=sharding_key,
                queue=queue,
                delay_level=delay_level,
                timeout=timeout,
            )
        )

    @overload
    def send_nowait(
        self, message: Message[T], /, *, timeout: Duration | None = None
    ) -> Future[Receipt]: ...

    @overload
    def send_nowait(
        self,
        topic: str,
        body: T,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> Future[Receipt]: ...

    def send_nowait(
        self,
        topic: Any,
        body: Any = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> Future[Receipt]:
        """See ``client.Producer.send_nowait``."""
        thread = self._loop()
        accepted = thread.call(
            self._inner.send_nowait,
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties,
            sharding_key=sharding_key,
            queue=queue,
            delay_level=delay_level,
            timeout=timeout,
        )
        outcome: Future[Receipt] = Future()
        thread.call_soon(accepted.add_done_callback, lambda done: _chain(done, outcome))
        return outcome

    @overload
    def send_oneway(self, message: Message[T], /, *, timeout: Duration | None = None) -> None: ...

    @overload
    def send_oneway(
        self,
        topic: str,
        body: T,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> None: ...

    def send_oneway(
        self,
        topic: Any,
        body: Any = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> None:
        """See ``client.Producer.send_oneway``."""
        self._run(
            self._inner.send_oneway(
                topic,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                sharding_key=sharding_key,
                queue=queue,
                delay_level=delay_level,
                timeout=timeout,
            )
        )

    def send_batch(
        self, messages: Iterable[Message[T]], *, timeout: Duration | None = None
    ) -> list[Receipt]:
        """See ``client.Producer.send_batch``."""
        return self._run(self._inner.send_batch(messages, timeout=timeout))

    def send_many(
        self, messages: Iterable[Message[T]], *, timeout: Duration | None = None
    ) -> list[Receipt | SendError]:
        """See ``client.Producer.send_many``; ``messages`` is iterated in the client's thread."""
        return self._run(self._inner.send_many(messages, timeout=timeout))

    def flush(self) -> None:
        """Wait until every message accepted before is acknowledged or has failed."""
        self._run(self._inner.flush())


def _chain(source: asyncio.Future[Receipt], target: Future[Receipt]) -> None:
    """Pass an outcome on to another thread."""
    if target.cancelled() or not target.set_running_or_notify_cancel():
        return
    if source.cancelled():
        target.set_exception(asyncio.CancelledError())
        return
    failure = source.exception()
    if failure is not None:
        target.set_exception(failure)
    else:
        target.set_result(source.result())
