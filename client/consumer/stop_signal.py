"""SIGTERM and SIGINT as requests to stop, for as long as somebody wants them.

A handler of the application's own is left alone: then the application says when to stop. A second
signal does what it does by itself, at once: SIGTERM ends the process, SIGINT raises
KeyboardInterrupt.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Listening(NamedTuple):
    stops: list[Callable[[], None]]
    replaced: dict[signal.Signals, Any]


_listening: dict[asyncio.AbstractEventLoop, _Listening] = {}


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on the loop at each signal that nobody handles, if this thread may do so.

    Of several all are called.
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
    """Whether a signal does what it does by itself, or what ``asyncio.run`` does at SIGINT."""
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
            break  # not the main thread, or a system without it
        replaced[number] = before
    return replaced


def _signalled(loop: asyncio.AbstractEventLoop) -> None:
    here = _listening.get(loop)
    if here is None:
        return  # it came as the last one stopped listening
    for number in here.replaced:
        # Not what it did before: asyncio.run only cancels its task, which may wait for handlers.
        loop.remove_signal_handler(number)
    for stop in list(here.stops):
        stop()
