"""``client.PushConsumer`` for threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from client.blocking.thread import LoopThread, ThreadOwner
from client.config import Addresses
from client.consumer import push as waiting
from client.consumer.options import Handler, PushArguments, Subscribe, Tags
from client.consumer.received import ReceivedMessage
from client.consumer.threads import SIGNALS, is_free
from client.events import ConsumptionPaused
from client.lifecycle import LifecycleState
from client.limits import CLOSE_TIMEOUT
from client.positions import Duration, seconds
from client.serde import Serde
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")


class PushConsumer(ThreadOwner, Generic[T]):
    """See ``client.PushConsumer``: every method is the same and blocks.

    A handler that is a plain function runs in threads of its own, so it may block. Iterated over,
    ``for message in consumer: with message: ...`` takes messages from any number of threads.
    """

    @overload
    def __init__(
        self: PushConsumer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[bytes] | None = None,
        serde: None = None,
        **options: Unpack[PushArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[T] | None = None,
        serde: Serde[T],
        **options: Unpack[PushArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str,
        subscribe: Subscribe,
        handler: Handler[Any] | None = None,
        serde: Serde[Any] | None = None,
        **options: Unpack[PushArguments],
    ) -> None:
        make: Any = waiting.PushConsumer
        inner = make(
            nameservers, group=group, subscribe=subscribe, handler=handler, serde=serde, **options
        )
        self._inner: waiting.PushConsumer[T] = inner
        self._thread: LoopThread | None = None
        self._owns_thread = True

    @classmethod
    def _of(cls, inner: waiting.PushConsumer[T], thread: LoopThread) -> PushConsumer[T]:
        consumer: PushConsumer[T] = cls.__new__(cls)
        consumer._inner = inner
        consumer._thread = thread
        consumer._owns_thread = False
        return consumer

    @property
    def _part(self) -> waiting.PushConsumer[T]:
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

    def run(self) -> None:
        """Serve until ``stop``, SIGTERM, SIGINT or a failure.

        A signal that the application handles is left to it. A second one acts as without this.
        """
        thread = self._loop()
        with _on_stop_signal(lambda: thread.call_soon(self._inner._ask_to_stop)):
            try:
                self._run(self._inner.run())
            except KeyboardInterrupt:
                # The second: the first was taken as a request to stop, which takes too long.
                thread.call_soon(self._inner._give_up)
                raise

    def stop(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Stop fetching, let handlers finish, commit, give queues back, leave the group.

        Called by a handler it only begins, for it would wait for itself.
        """
        thread = self._thread
        if thread is not None and not thread.stopped and self._inner._within_handler:
            thread.call_soon(self._inner._begin_to_stop, seconds(timeout))
        else:
            self._close(self._inner.stop(timeout))

    def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """The same as ``stop``."""
        self.stop(timeout)

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues it owns at the moment, sorted; its group's retry queues are among them."""
        return self._loop().call(lambda: self._inner.assigned)

    def subscribe(self, topic: str, tags: str | Tags = "*") -> None:
        """Consume a topic too, or other messages of it."""
        self._loop().call(self._inner.subscribe, topic, tags)

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer."""
        self._loop().call(self._inner.unsubscribe, topic)

    def suspend(self) -> None:
        """Fetch nothing and start no handler until ``resume``."""
        self._loop().call(self._inner.suspend)

    @property
    def paused(self) -> ConsumptionPaused | None:
        """Why the circuit breaker has paused it, until ``resume``; None: it hasn't."""
        return self._loop().call(lambda: self._inner.paused)

    def resume(self) -> None:
        """Go on after ``suspend``, or after the circuit breaker has paused it."""
        self._loop().call(self._inner.resume)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage[T]:
        if self._inner._life.state is LifecycleState.CLOSED and self._inner._life.failure is None:
            raise StopIteration
        try:
            return self._run(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


@contextmanager
def _on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first signal that nobody handles, if this thread may do so."""
    replaced: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while replaced:
            signal.signal(*replaced.popitem())

    def signalled(_: int, __: FrameType | None) -> None:
        restore()
        stop()

    if threading.current_thread() is threading.main_thread():
        for number in filter(is_free, SIGNALS):
            replaced[number] = signal.signal(number, signalled)
    try:
        yield
    finally:
        restore()
