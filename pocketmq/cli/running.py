"""Running a client command: the loop, the signals, and errors as one sentence."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

import click

from client.errors import PocketMQError
from pocketmq.sources import SourceError
from remoting import tasks as loop
from remoting.log import ROOT as LOGGERS

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_AT_ONCE: Final = 32
"""A list of thousands of topics asks quickly, without flooding a broker."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; an expected error is shown without a traceback, exit code 1."""
    quiet()
    try:
        return loop.run(main)
    except (PocketMQError, SourceError) as problem:
        raise click.ClickException(str(problem)) from problem
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            raise
        raise click.ClickException(_os_text(problem)) from problem


async def at_once(
    items: Iterable[T], ask: Callable[[T], Awaitable[R]], *, limit: int = REQUESTS_AT_ONCE
) -> list[R]:
    """Ask about each item, some of them at the same time; the answers in the items' order."""
    places = asyncio.Semaphore(limit)

    async def one(item: T) -> R:
        async with places:
            return await ask(item)

    return await asyncio.gather(*(one(item) for item in items))


def quiet() -> None:
    """Keep the client's warnings out of the output: a command says itself what went wrong."""
    logging.getLogger(LOGGERS).setLevel(logging.ERROR)


def stop_signal() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set, once; the second one ends the process as usual."""
    stop = asyncio.Event()
    running = asyncio.get_running_loop()

    def first() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            running.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, first)
    return stop


def _os_text(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    return f"{where}{problem.strerror or problem}"
