"""SIGTERM as a request to stop, for as long as somebody wants it.

A handler of the application's own is left alone: then the application says when to stop.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_wanted: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}


@contextmanager
def on_terminate(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on the loop at SIGTERM, if this thread may handle signals and nobody else does.

    Of several all are called.
    """
    loop = asyncio.get_running_loop()
    listeners = _wanted.get(loop)
    if listeners is None and not _install(loop):
        yield
        return
    listeners = _wanted.setdefault(loop, [])
    listeners.append(stop)
    try:
        yield
    finally:
        listeners.remove(stop)
        if not listeners:
            del _wanted[loop]
            loop.remove_signal_handler(signal.SIGTERM)


def _install(loop: asyncio.AbstractEventLoop) -> bool:
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    try:
        loop.add_signal_handler(signal.SIGTERM, _terminate, loop)
    except (NotImplementedError, RuntimeError, ValueError):
        return False  # not the main thread, or a system without it
    return True


def _terminate(loop: asyncio.AbstractEventLoop) -> None:
    for stop in list(_wanted.get(loop, ())):
        stop()
