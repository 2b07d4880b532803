"""Running servers until they are told to stop.

A server process prints one line when it is ready and nothing else on stdout. It stops cleanly on
SIGTERM and SIGINT, and, when asked, as soon as its standard input closes: so a test's servers go
with the test, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

import click

from remoting import loop
from remoting.protocol.accelerated import json_dumps


class Part(Protocol):
    """A server that can be started and stopped."""

    async def start(self) -> None:
        """Begin to serve; raises a sentence when it can't."""

    async def stop(self) -> None:
        """Stop cleanly."""


@dataclass(kw_only=True)
class Serving:
    """What runs in this process, and how it reports.

    Attributes:
        parts: Servers in the order of their start; they stop in the opposite one.
        ready: Addresses for the ready line, asked when all parts run.
        after_start: Things to run beside the servers (the metrics endpoint, the loop monitor);
            each gives back what ends it.
        as_json: The ready line as JSON.
        until_stdin_closes: Stop when standard input ends.
    """

    parts: Sequence[Part]
    ready: Callable[[], dict[str, str]]
    failed: Callable[[], Sequence[asyncio.Future[None]]] = tuple
    after_start: Sequence[Callable[[], Awaitable[Callable[[], Awaitable[None]]]]] = field(
        default_factory=list
    )
    as_json: bool = False
    until_stdin_closes: bool = False

    def run(self) -> None:
        """Serve until told to stop.

        Raises:
            click.ClickException: A server could not start, or died; its message is the reason.
        """
        loop.run(self._serve())

    async def _serve(self) -> None:
        stop = asyncio.Event()
        running = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(number, stop.set)
        if self.until_stdin_closes:
            running.add_reader(sys.stdin.fileno(), _when_closed, stop)
        async with AsyncExitStack() as stack:
            for part in self.parts:
                await part.start()
                stack.push_async_callback(part.stop)
            for begin in self.after_start:
                stack.push_async_callback(await begin())
            self._announce()
            await self._until_stopped(stop)

    async def _until_stopped(self, stop: asyncio.Event) -> None:
        """Wait for the signal, or for the death of a part, whose error is raised."""
        stopped = asyncio.ensure_future(stop.wait())
        failures = list(self.failed())
        try:
            await asyncio.wait([stopped, *failures], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        for failure in failures:
            if failure.done() and not failure.cancelled():
                failure.result()

    def _announce(self) -> None:
        addresses = self.ready()
        if self.as_json:
            line = json_dumps({"event": "ready", **addresses, "pid": os.getpid()}).decode()
        else:
            line = "ready: " + ", ".join(f"{name} {at}" for name, at in addresses.items())
        click.echo(line)
        sys.stdout.flush()


def _when_closed(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()
