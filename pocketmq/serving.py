"""Running servers until they are told to stop.

A server process prints one line when it is ready and nothing else on stdout. It stops cleanly on
SIGTERM and SIGINT, and, when asked, as soon as its standard input closes: so a test's servers go
with the test, however it ends. A start that is under way then is given up.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import click

from remoting import tasks as loop
from remoting.protocol.accelerated import json_dumps

COLLECT_EVERY: Final = 10_000
"""New objects after which the youngest are looked through for circles of garbage, instead of
Python's 700: what a request makes goes without any such look."""


class Part(Protocol):
    """Something that serves between its start and its stop."""

    async def start(self) -> None:
        """Begin to serve; raises a sentence when it can't."""

    async def stop(self) -> None:
        """Stop cleanly; also after a failed start."""

    def ready(self) -> Mapping[str, str]:
        """What the ready line says of it: names and addresses."""

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Futures that end with an error when a task of it dies."""


class Failed(Exception):
    """A part of a running server died; the cause is chained."""


@dataclass(kw_only=True)
class Serving:
    """What runs in this process, and how it reports.

    Attributes:
        parts: Started in this order, stopped in the opposite one.
        as_json: The ready line as JSON.
        until_stdin_closes: Stop when standard input ends.
        echo: Where the ready line goes.
    """

    parts: Sequence[Part]
    as_json: bool = False
    until_stdin_closes: bool = False
    echo: Callable[[str], object] = click.echo

    def run(self) -> None:
        """Serve until told to stop.

        Raises:
            Failed: A part died while it served.
        """
        loop.run(self._serve())

    async def _serve(self) -> None:
        stop = asyncio.Event()
        running = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(number, stop.set)
        if self.until_stdin_closes:
            running.add_reader(sys.stdin.fileno(), _at_end_of_stdin, stop)
        async with AsyncExitStack() as stack:
            for part in self.parts:
                stack.push_async_callback(part.stop)
                if not await _started(part, stop):
                    return
            stack.enter_context(_spared_collector())
            self._announce()
            await self._until_stopped(stop)

    async def _until_stopped(self, stop: asyncio.Event) -> None:
        """Wait for the signal, or for the death of a part, which is raised."""
        stopped = asyncio.ensure_future(stop.wait())
        failures = [failure for part in self.parts for failure in part.failures()]
        try:
            ends: list[asyncio.Future[Any]] = [stopped, *failures]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        for failure in failures:
            if failure.done() and not failure.cancelled() and (cause := failure.exception()):
                msg = f"stopped after an unexpected error: {type(cause).__name__}: {cause}"
                raise Failed(msg) from cause

    def _announce(self) -> None:
        facts = {name: value for part in self.parts for name, value in part.ready().items()}
        if self.as_json:
            self.echo(json_dumps({"event": "ready", **facts, "pid": os.getpid()}).decode())
        else:
            self.echo("ready: " + ", ".join(f"{name} {at}" for name, at in facts.items()))


async def _started(part: Part, stop: asyncio.Event) -> bool:
    """Start a part; False when there was a signal to stop before it had started.

    What takes long, such as looking through a store, is given up then. Raises what the start does.
    """
    starting = asyncio.ensure_future(part.start())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    return not stop.is_set()


@contextmanager
def _spared_collector() -> Iterator[None]:
    """What a server has when it is ready stays: the garbage collector need not go over it again.

    With ten thousand queues those are 82,000 objects, which take 12 ms.
    """
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _at_end_of_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()
