"""The classes of ``client.blocking``, generated from the asyncio classes.

``twin_of`` gives a class a blocking method for each public method of its asyncio twin, with the
same signature and docstring. ``scripts/stubs.py`` writes their types to ``__init__.pyi``.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from types import FrameType, TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from client import admin, instance
from client.blocking.thread import LoopThread
from client.consumer import pull, push
from client.consumer.handler import SIGNALS, is_free
from client.lifecycle import Lifecycle, LifecycleState
from client.message import Receipt, TransactionState
from client.network.context import is_inside
from client.producer import producer, transactions

B = TypeVar("B", bound="BlockingPart")
T = TypeVar("T")


class BlockingPart:
    """Base of all blocking objects: holds the asyncio object and the thread that runs it.

    An object created without an instance has its own thread from ``start`` to ``close``; one
    created from an instance uses the instance's thread.
    """

    _KIND: ClassVar[str]
    _inner: Any

    @classmethod
    def _of(cls, inner: Any, thread: LoopThread | None) -> Self:
        part = cls.__new__(cls)
        part._set_up(inner, thread)
        return part

    def _set_up(self, inner: Any, thread: LoopThread | None) -> None:
        self._inner = inner
        self._thread = thread
        self._owns_thread = thread is None
        # Reentrant: a signal handler may close what its thread is closing already.
        self._starting, self._closing = threading.RLock(), threading.RLock()
        self._life = Lifecycle(self._KIND)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(partial(self._inner.__aexit__, exc_type, exc, traceback))

    def start(self) -> None:
        """Start the thread, if the object owns one, and the asyncio object."""
        self._life.check_process()
        # One at a time: a start that fails stops the thread.
        with self._starting:
            if self._thread is None:
                self._thread = LoopThread("pocketmq-client")
            try:
                self._thread.run(self._inner.start())
            except BaseException:
                self._stop_thread()
                raise

    def _loop(self) -> LoopThread:
        """Return the thread. Raises UsageError before ``start``, after ``close`` and in a fork."""
        self._life.check_process()
        if self._thread is None:
            self._life.check()
        assert self._thread is not None
        return self._thread

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a plain method on the loop's thread.

        Arguments that are iterators are read here: their code runs in the caller's thread.
        """
        thread = self._loop()
        result = thread.call(method, self._inner, *_read(args), **kwargs)
        twin = _TWINS.get(type(result))
        return result if twin is None else twin._of(result, thread)

    def _run(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine method on the loop and return its result; iterators as in ``_call``."""
        thread = self._loop()
        return thread.run(method(self._inner, *_read(args), **kwargs))

    def _close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        thread = self._thread
        if thread is None or thread.stopped or self._life.forked:
            return
        if thread.inside or is_inside(self._inner):
            thread.spawn(work())  # the end would wait for the handler or callback that calls this
            return
        with self._closing:
            if self._thread is None or thread.stopped:
                return
            try:
                thread.run(work())
            finally:
                self._life.state = LifecycleState.CLOSED
                self._stop_thread()

    def _stop_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None and self._owns_thread:
            thread.stop()


class BlockingIterator(BlockingPart):
    """A consumer that can be iterated over with ``for``."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        thread = self._thread
        closed = self._life.state is LifecycleState.CLOSED if thread is None else thread.stopped
        if closed and not self._life.forked:
            raise StopIteration
        try:
            return self._run(type(self._inner).__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


_TWINS: dict[type, type[BlockingPart]] = {}


def twin_of(kind: type, name: str) -> Callable[[type[B]], type[B]]:
    """Return a decorator that makes a class the blocking twin of ``kind``; errors call it ``name``.

    The class gets the public methods and properties of ``kind`` that it doesn't define itself.
    """

    def make(twin: type[B]) -> type[B]:
        _TWINS[kind] = twin
        twin._KIND = name
        for attribute in dir(kind):
            if attribute == "__init__" or not (attribute[0] == "_" or hasattr(twin, attribute)):
                setattr(twin, attribute, _blocking(inspect.getattr_static(kind, attribute), kind))
        return twin

    return make


def _read(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)


def _blocking(member: Any, kind: type) -> Any:
    """Return the blocking form of a method or property."""
    if isinstance(member, property):
        assert member.fget is not None
        getter = member.fget
        return property(wraps(getter)(lambda self: self._call(getter)))

    def make(self: BlockingPart, *args: Any, **kwargs: Any) -> None:
        self._set_up(kind(*args, **kwargs), None)

    def close(self: BlockingPart, *args: Any, **kwargs: Any) -> None:
        self._close(partial(member, self._inner, *args, **kwargs))

    def run(self: BlockingPart, *args: Any, **kwargs: Any) -> Any:
        return self._run(member, *args, **kwargs)

    def call(self: BlockingPart, *args: Any, **kwargs: Any) -> Any:
        return self._call(member, *args, **kwargs)

    otherwise = run if inspect.iscoroutinefunction(member) else call
    special = {"__init__": make, "close": close, "stop": close}
    return wraps(member)(special.get(member.__name__, otherwise))


@twin_of(producer.Producer, "producer")
class Producer(BlockingPart, Generic[T]):
    """See ``client.Producer``: every method is the same and blocks."""

    @wraps(producer.Producer.send_nowait)
    def send_nowait(self, *args: Any, **kwargs: Any) -> Future[Receipt]:
        thread = self._loop()
        accepted = thread.call(self._inner.send_nowait, *args, **kwargs)
        outcome: Future[Receipt] = Future()
        thread.call_soon(accepted.add_done_callback, lambda done: _chain(done, outcome))
        return outcome


@twin_of(transactions.Transaction, "transaction")
class Transaction(BlockingPart, Generic[T]):
    """See ``client.Transaction``: every method is the same and blocks."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(type(self._inner).__aexit__, exc_type, exc, traceback)

    @property
    def receipt(self) -> Receipt | None:
        """Where the half message is stored; None before that."""
        return self._inner.receipt  # type: ignore[no-any-return]

    @property
    def state(self) -> TransactionState | None:
        """What was decided; None while it is open."""
        return self._inner.state  # type: ignore[no-any-return]

    @property
    def confirmed(self) -> bool:
        """Whether the broker has confirmed that."""
        return self._inner.confirmed  # type: ignore[no-any-return]


def _chain(source: asyncio.Future[Receipt], target: Future[Receipt]) -> None:
    """Copy the outcome of a future of the loop to a future of another thread."""
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


@twin_of(pull.PullConsumer, "consumer")
class PullConsumer(BlockingIterator, Generic[T]):
    """See ``client.PullConsumer``: every method is the same and blocks.

    ``get_many`` is much faster than iterating, because it switches threads once per batch instead
    of once per message.
    """


@twin_of(push.PushConsumer, "consumer")
class PushConsumer(BlockingIterator, Generic[T]):
    """See ``client.PushConsumer``: every method is the same and blocks.

    A handler that is a plain function runs in worker threads, so it may block. Without a handler,
    several threads may take messages with ``for message in consumer: with message: ...``.
    """

    @wraps(push.PushConsumer.run)
    def run(self) -> None:
        thread = self._loop()
        with _on_stop_signal(lambda: thread.spawn(self._inner.stop())):
            try:
                self._run(push.PushConsumer.run)
            except KeyboardInterrupt:
                # The second Ctrl-C: the first started an orderly stop, which takes too long.
                thread.call_soon(push.give_up, self._inner)
                raise


@contextmanager
def _on_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at the first stop signal, if this is the main thread.

    Only signals without a handler of the application are caught, and only once: the next signal has
    its previous effect.
    """
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


@twin_of(admin.Admin, "admin")
class Admin(BlockingPart):
    """See ``client.Admin``: every method is the same and blocks."""


@twin_of(instance.Instance, "instance")
class Instance(BlockingPart, Generic[T]):
    """See ``client.Instance``: its producers, consumers and admins share one thread."""

    @property
    def client_id(self) -> str:
        """The id under which brokers register this client; empty before the start."""
        return self._inner.client_id  # type: ignore[no-any-return]
