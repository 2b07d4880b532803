"""A private loop in a thread, and calling coroutine methods on it.

``Blocking`` makes a blocking method of a coroutine method, with the same signature. Interrupting
the caller (Ctrl-C) cancels what runs on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from client.errors import UsageError
from remoting.tasks import new_event_loop

P = ParamSpec("P")
R = TypeVar("R")

SIGNAL_PERIOD = 1.0
"""A signal that comes just before a thread begins to wait doesn't wake it: it looks so often."""

STOP_TIMEOUT = 5.0
"""Seconds for the loop's thread to end."""


class LoopThread:
    """An event loop running in a daemon thread until ``stop``."""

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop and return its result."""
        try:
            self._check()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        return self._await(future)

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a plain function on the loop's thread and return its result."""
        self._check()
        future: Future[R] = Future()

        def work() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)

        self._loop.call_soon_threadsafe(work)
        return self._await(future)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a plain function on the loop's thread, some time."""
        self._loop.call_soon_threadsafe(function, *args)

    @property
    def stopped(self) -> bool:
        """Whether it has ended."""
        return self._loop.is_closed()

    def stop(self) -> None:
        """End the loop and its thread."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT)

    @staticmethod
    def _await(future: Future[R]) -> R:
        try:
            while True:
                try:
                    return future.result(SIGNAL_PERIOD)
                except TimeoutError:
                    if future.done():
                        return future.result()
        except BaseException:
            future.cancel()
            raise

    def _check(self) -> None:
        if self._loop.is_closed():
            raise UsageError("the client is closed", hint="make a new one")
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a blocking call inside the client's own thread would wait for itself",
                hint="leave callbacks quickly and call from another thread",
            )


class BlockingPart(Protocol):
    """What ``Blocking`` needs of the object it is a method of."""

    def _run(self, work: Coroutine[Any, Any, R]) -> R: ...

    @property
    def _part(self) -> Any: ...


class Blocking(Generic[P, R]):
    """A method that runs a coroutine method of the object within, with the same arguments."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        update_wrapper(self, method)

    @overload
    def __get__(self, instance: None, owner: type) -> Blocking[P, R]: ...

    @overload
    def __get__(self, instance: BlockingPart, owner: type) -> Callable[P, R]: ...

    def __get__(
        self, instance: BlockingPart | None, owner: type
    ) -> Blocking[P, R] | Callable[P, R]:
        if instance is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return self(instance, *args, **kwargs)

        return update_wrapper(call, self._method)

    def __call__(self, instance: BlockingPart, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return instance._run(self._method(instance._part, *args, **kwargs))


class ThreadOwner:
    """What all blocking objects share: the thread, and with-blocks.

    An object made by itself has a thread from ``start`` to ``close``; one made from an instance
    uses the instance's.
    """

    _thread: LoopThread | None
    _owns_thread: bool

    @property
    def _part(self) -> Any:
        raise TypeError

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._loop(work).run(work)

    def _loop(self, work: Coroutine[Any, Any, Any] | None = None) -> LoopThread:
        """The thread. Raises UsageError before ``start``, after ``close`` and in a fork."""
        try:
            self._part._life.check()
        except UsageError:
            if work is not None:
                work.close()
            raise
        assert self._thread is not None
        return self._thread

    def start(self) -> None:
        """Get ready."""
        self._part._life.check_process()
        if self._thread is None:
            self._thread = LoopThread("pocketmq-client")
        try:
            self._thread.run(self._part.start())
        except BaseException:
            self._stop_thread()
            raise

    def _close(self, work: Coroutine[Any, Any, None]) -> None:
        thread = self._thread
        if thread is None or thread.stopped or self._part._life.forked:
            work.close()
            return
        try:
            thread.run(work)
        finally:
            self._stop_thread()

    def _stop_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None and self._owns_thread:
            thread.stop()
