"""The adapter that makes any handler a coroutine function, and stopping on SIGTERM and SIGINT.

A plain function runs in a thread. The threads are daemon threads: a handler that never returns must
not keep the process from exiting, as the threads of ``concurrent.futures`` would. A thread is
started when a call finds no idle one, up to the consumer's concurrency, and is then reused.

A signal handler of the application is not replaced: the application then decides when to stop. A
second signal has its default effect: SIGTERM ends the process, SIGINT raises KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, cast

from client.consumer.options import PushOptions
from client.interceptors import around_handler

AsyncHandler = Callable[[Any], Coroutine[Any, Any, object]]

Work = tuple[Callable[[], object], "asyncio.Future[object]"]


class HandlerThreads:
    """A pool of daemon threads for plain functions; created and used on the event loop's thread.

    Args:
        name: prefix of the thread names.
        most: maximum number of threads; further calls wait for an idle one.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._threads = 0
        self._free = 0
        self._idents: set[int] = set()
        self._loop = asyncio.get_running_loop()

    def call(self, function: Callable[[Any], object], argument: Any) -> asyncio.Future[object]:
        """Call ``function`` in a thread. The future gets its result or exception."""
        future: asyncio.Future[object] = self._loop.create_future()
        if self._free <= 0 and self._threads < self._most:
            self._threads += 1
            name = f"{self._name}-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        else:
            self._free -= 1
        context = contextvars.copy_context()
        self._work.put((partial(context.run, function, argument), future))
        return future

    @property
    def inside(self) -> bool:
        """Whether the current thread is one of the pool's."""
        return threading.get_ident() in self._idents

    def close(self) -> None:
        """Let the threads end, busy ones after their call; doesn't wait for that."""
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        self._idents.add(threading.get_ident())
        while (work := self._work.get()) is not None:
            function, future = work
            result: object = None
            failure: BaseException | None = None
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - passed to the caller
                failure = error
            try:
                self._loop.call_soon_threadsafe(self._done, future, result, failure)
            except RuntimeError:
                return  # the loop is closed, so the caller no longer exists

    def _done(
        self, future: asyncio.Future[object], result: object, failure: BaseException | None
    ) -> None:
        self._free += 1
        if future.cancelled():
            return
        if failure is None:
            future.set_result(result)
        elif isinstance(failure, StopIteration):
            future.set_exception(RuntimeError("the handler raised StopIteration"))
        else:
            future.set_exception(failure)


class MessageHandler:
    """The application's handler, with its interceptors.

    Attributes:
        call: coroutine function that calls the handler; a plain function runs in a thread.
        cancels: whether a call can be cancelled; False for a thread.
    """

    def __init__(self, handler: Callable[..., object], options: PushOptions, group: str) -> None:
        self.cancels = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - tests whether __call__ is async
        )
        self._handler = handler
        self._threads: HandlerThreads | None = None
        if not self.cancels:
            self._threads = HandlerThreads(f"{group}-handler", options.concurrency)
        call: Any = handler if self.cancels else self._call_in_thread
        self.call = cast(
            AsyncHandler,
            around_handler(call, options.interceptors, batches=options.batch_size > 1),
        )

    async def _call_in_thread(self, argument: Any) -> object:
        assert self._threads is not None
        result = await self._threads.call(self._handler, argument)
        return await result if inspect.isawaitable(result) else result

    @property
    def inside(self) -> bool:
        """Whether the caller runs in one of the handler's threads."""
        return self._threads is not None and self._threads.inside

    def close(self) -> None:
        """Let the handler's threads end, busy ones after their call."""
        if self._threads is not None:
            self._threads.close()


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Listening(NamedTuple):
    stops: list[Callable[[], None]]
    replaced: dict[signal.Signals, Any]


_listening: dict[asyncio.AbstractEventLoop, _Listening] = {}


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on the event loop at SIGTERM or SIGINT, unless the application handles them.

    Has no effect outside the main thread. With several consumers on one loop, the callback of each
    is called.
    """
    loop = asyncio.get_running_loop()
    here = _listening.get(loop)
    if here is None:
        here = _listening[loop] = _Listening([], _install(loop))
    here.stops.append(stop)
    try:
        yield
    finally:
        here.stops.remove(stop)
        if not here.stops:
            del _listening[loop]
            for number, before in here.replaced.items():
                loop.remove_signal_handler(number)
                signal.signal(number, before)


def is_free(number: signal.Signals) -> bool:
    """Return whether a signal has its default handler, or for SIGINT that of ``asyncio.run``."""
    handler = signal.getsignal(number)
    if handler is signal.SIG_DFL or handler is signal.default_int_handler:
        return True
    method = getattr(handler, "func", None)
    return isinstance(getattr(method, "__self__", None), asyncio.Runner)


def _install(loop: asyncio.AbstractEventLoop) -> dict[signal.Signals, Any]:
    replaced = {}
    for number in filter(is_free, SIGNALS):
        before = signal.getsignal(number)
        try:
            loop.add_signal_handler(number, _signalled, loop)
        except (NotImplementedError, RuntimeError, ValueError):
            break  # not the main thread, or not supported by the platform's event loop
        replaced[number] = before
    return replaced


def _signalled(loop: asyncio.AbstractEventLoop) -> None:
    here = _listening.get(loop)
    if here is None:
        return  # the last consumer has just stopped listening
    for number in here.replaced:
        # Don't restore the previous handler yet: that of asyncio.run would only cancel the main
        # task, which may be waiting for the stop.
        loop.remove_signal_handler(number)
    for stop in list(here.stops):
        stop()
