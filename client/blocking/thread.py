"""An event loop in its own thread, and calls to it from other threads.

Interrupting the caller (Ctrl-C) cancels the call on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from client.errors import UsageError
from remoting.runtime.tasks import new_event_loop

P = ParamSpec("P")
R = TypeVar("R")

SIGNAL_PERIOD = 1.0
"""Seconds between wake-ups of a waiting thread, so that Python runs the handler of a signal that
arrived just before the wait began."""

STOP_TIMEOUT = 5.0
"""Seconds to wait for the loop's thread to end."""


class LoopThread:
    """An event loop running in a daemon thread until ``stop``."""

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # The runner cancels what still runs, such as a stop whose caller was interrupted, and waits
        # for it: closing the loop under a coroutine would leave its connections open.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._stopping.wait())

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop and return its result."""
        try:
            self._check()
            future = self.spawn(work)
        except BaseException:
            work.close()
            raise
        return self._await(future)

    def spawn(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Start a coroutine on the loop and return at once."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function on the loop's thread and return its result."""
        self._check()
        future: Future[R] = Future()

        def work() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                future.set_exception(error)

        self._loop.call_soon_threadsafe(work)
        return self._await(future)

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Schedule a call of a function on the loop's thread and return at once."""
        self._loop.call_soon_threadsafe(function, *args)

    @property
    def stopped(self) -> bool:
        """Whether the loop has been closed."""
        return self._loop.is_closed()

    @property
    def inside(self) -> bool:
        """Whether the caller runs in the loop's thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Cancel what runs on the loop, stop it, and wait for its thread to end."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
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
        if self.inside:
            raise UsageError(
                "a blocking call inside the client's own thread would wait for itself",
                hint="leave callbacks quickly and call from another thread",
            )
