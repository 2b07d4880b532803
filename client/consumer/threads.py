"""Threads for handlers that are plain functions.

They are daemons: a handler that never returns must not keep the process from ending, as the
threads of ``concurrent.futures`` would. A thread is started when a call finds none free, up to the
consumer's concurrency, and waits for the next call then.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

Work = tuple[Callable[[], object], "asyncio.Future[object]"]


class HandlerThreads:
    """Runs plain functions beside the loop; made and used on the loop's thread.

    Args:
        name: of the threads, for debuggers and logs.
        most: how many there are at most; further calls wait for one.
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
        """Call ``function`` in a thread; the future has what it returns or raises."""
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
        """Whether this runs in one of them."""
        return threading.get_ident() in self._idents

    def close(self) -> None:
        """Let the threads end; those that are busy do after their call."""
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
            except BaseException as error:  # noqa: BLE001 - it belongs to who called
                failure = error
            try:
                self._loop.call_soon_threadsafe(self._done, future, result, failure)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

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
