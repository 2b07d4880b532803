"""Supervised tasks, whose failures are always reported, and the event loop of a process.

A ``Supervisor`` belongs to one component. Each of its tasks returns, is cancelled by ``close()``,
or fails. A failure is reported to the owner at once, by the callback and by the future ``failed``,
which a server can await together with its stop signal.

The event loop is uvloop's if it is installed (a third faster with one request at a time), else
asyncio's. uvloop is imported on use, so a process without a loop does not load it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from remoting.runtime.log import Log

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_AT_ONCE: Final = 32
"""Requests in flight: fast for thousands of topics, without overloading a broker."""

_log = Log("remoting")


class Supervisor:
    """The background tasks of one component; not thread-safe: use it on the loop's thread."""

    def __init__(
        self, name: str, *, on_failure: Callable[[str, BaseException], None] | None = None
    ) -> None:
        self.name = name
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._failed: asyncio.Future[None] | None = None
        self._first_failure: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called, which cancels the tasks."""
        return self._closed

    @property
    def failed(self) -> asyncio.Future[None]:
        """A future that fails with the first failure of any task; else it never completes."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
            if self._first_failure is not None:
                self._fail(self._failed, self._first_failure)
        return self._failed

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        *,
        on_done: Callable[[asyncio.Task[T]], None] | None = None,
    ) -> asyncio.Task[T]:
        """Start ``work`` as a supervised task.

        ``on_done`` is called with the finished task and must handle its failure, which is then not
        reported to the owner. It must not raise.

        Raises:
            RuntimeError: the supervisor is closed; ``work`` is closed too.
        """
        if self._closed:
            work.close()
            raise RuntimeError(f"{self.name} is closed and starts no {name}")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}: {name}")
        self._tasks.add(task)
        if on_done is None:
            task.add_done_callback(self._ended)
        else:
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(on_done)
        return task

    async def join(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for all tasks to end. False: some still run."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        return not self._tasks

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended. May be called twice."""
        self._closed = True
        current = asyncio.current_task()
        while others := self._tasks - {current}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            return
        _log.error("task failed", task=task.get_name(), exc_info=failure)
        if self._first_failure is None:
            self._first_failure = failure
            if self._failed is not None:
                self._fail(self._failed, failure)
        if self._on_failure is not None:
            try:
                self._on_failure(task.get_name(), failure)
            except Exception:  # noqa: BLE001 - an owner's fault must not break the loop
                _log.exception("failure callback failed", supervisor=self.name)

    @staticmethod
    def _fail(future: asyncio.Future[None], failure: BaseException) -> None:
        if not future.done():
            future.set_exception(failure)
            # Retrieve the exception, or asyncio warns when a future that was never awaited is
            # collected. The failure has been logged already.
            future.exception()


async def wait_at_most(seconds: float | None, event: asyncio.Event) -> None:
    """Wait until an event is set, at most for some seconds; None: without limit."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def gather_limited(
    items: Iterable[T], ask: Callable[[T], Awaitable[R]], *, limit: int = REQUESTS_AT_ONCE
) -> list[R]:
    """Call ``ask`` for all items, at most ``limit`` at a time; return the results in order."""
    places = asyncio.Semaphore(limit)

    async def one(item: T) -> R:
        async with places:
            return await ask(item)

    return await asyncio.gather(*(one(item) for item in items))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, uvloop's if it can be imported."""
    try:
        import uvloop  # noqa: PLC0415 - optional, and only needed by a process that runs a loop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` as ``asyncio.run`` does, on a loop of ``new_event_loop``; return its result."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def stop_signal(*, once: bool = True) -> asyncio.Event:
    """Return an event of the running loop that is set by SIGINT and SIGTERM.

    Args:
        once: restore the default handling after the first signal, so that a second one ends the
            process.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def set_stop() -> None:
        stop.set()
        for number in signals if once else ():
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, set_stop)
    return stop
