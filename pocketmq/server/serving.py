"""Running the servers of a process, name server and broker, until they are stopped.

A server's code is imported when the server is created: a name server doesn't load a broker's code.

A server process prints one line to stdout when it is ready and nothing else. It stops cleanly on
SIGTERM and SIGINT and, with an option, when its standard input closes, so that the servers of a
test end with the test in any case. A signal during the start cancels it. SIGHUP stops nothing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from remoting.protocol.accelerated import json_dumps
from remoting.runtime import tasks as loop
from remoting.runtime.log import Log
from remoting.runtime.process_limits import ConnectionRoom

if TYPE_CHECKING:
    from broker.app import Broker
    from broker.config import BrokerConfig
    from nameserver.app import NameServer
    from nameserver.config import NameServerConfig


COLLECT_EVERY: Final = 10_000
"""New objects that trigger a garbage collection of the youngest generation, instead of Python's
700: the objects of a request are freed by reference counting."""


_log = Log("serving")


class ServerPart(Protocol):
    """A server that can be started and stopped."""

    async def start(self) -> None:
        """Start to serve. Raises an error whose text says why it can't."""

    async def stop(self) -> None:
        """Stop cleanly; also after a failed start."""

    def ready(self) -> Mapping[str, str]:
        """Return names and addresses for the ready line."""

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Return futures that get an exception when a task of the part fails."""


class Failed(Exception):
    """A part failed while it served; the cause is chained."""


@dataclass(kw_only=True)
class ServerRunner:
    """Runs the parts of this process.

    Attributes:
        parts: started in this order, stopped in reverse order.
        as_json: print the ready line as JSON.
        until_end_of: file descriptor; stop when it reaches its end. None: don't watch any.
        echo: prints the ready line.
    """

    parts: Sequence[ServerPart]
    as_json: bool = False
    until_end_of: int | None = None
    echo: Callable[[str], object] = click.echo

    def run(self) -> None:
        """Serve until a signal, or the end of ``until_end_of``.

        Raises:
            Failed: a part failed while it served.
        """
        loop.run(self._serve())

    async def _serve(self) -> None:
        # A program that rotates logs sends it; an audit log notices by itself that its file moved.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)
        # A second signal must not interrupt a clean stop.
        stop = loop.stop_signal(once=False)
        if self.until_end_of is not None:
            asyncio.get_running_loop().add_reader(
                self.until_end_of, _stop_at_end, self.until_end_of, stop
            )
        async with AsyncExitStack() as stack:
            for part in self.parts:
                stack.push_async_callback(part.stop)
                if not await _started(part, stop):
                    return
            stack.enter_context(_frozen_heap())
            self._announce()
            await self._until_stopped(stop)

    async def _until_stopped(self, stop: asyncio.Event) -> None:
        """Wait for a signal, or for the failure of a part, which is raised."""
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
            line = json_dumps({"event": "ready", **facts, "pid": os.getpid()}).decode()
        else:
            line = "ready: " + ", ".join(f"{name} {at}" for name, at in facts.items())
        try:
            self.echo(line)
        except OSError as problem:
            _log.warning(
                "the server is ready, but stdout can't be written", reason=problem.strerror
            )


async def _started(part: ServerPart, stop: asyncio.Event) -> bool:
    """Start a part; return False if a signal arrived first.

    A long start, such as the recovery of a store, is then cancelled. Raises what the start raises.
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
def _frozen_heap() -> Iterator[None]:
    """Exempt the objects that exist when a server is ready from garbage collection.

    They live as long as the server. With ten thousand queues they are 82,000 objects, and a
    collection of them takes 12 ms.
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


def _stop_at_end(descriptor: int, stop: asyncio.Event) -> None:
    if not os.read(descriptor, 4096):
        asyncio.get_running_loop().remove_reader(descriptor)
        stop.set()


class NameServerPart:
    """A name server.

    Args:
        config: its settings.
        room: limits the connections of this process together with a broker.
    """

    def __init__(self, config: NameServerConfig, room: ConnectionRoom | None = None) -> None:
        from nameserver.app import NameServer  # noqa: PLC0415 - see above

        self.server: NameServer = NameServer(config, room=room)

    async def start(self) -> None:
        """Start to serve."""
        await self.server.start()

    async def stop(self) -> None:
        """Stop cleanly."""
        await self.server.stop()

    def ready(self) -> Mapping[str, str]:
        """Return its address."""
        return {"nameserver": self.server.address}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Return a future that gets an exception when a task of the server fails."""
        return [self.server.failed]


class BrokerPart:
    """A broker.

    Args:
        config: its settings.
        room: limits the connections of this process together with a name server.
        name_server: the name server in this process to register with. It starts before the broker,
            so its address is then known. A new store gets the default name, because this is the
            only broker.
        given: clock and files of ``Broker``, from tests.
    """

    def __init__(
        self,
        config: BrokerConfig,
        room: ConnectionRoom | None = None,
        *,
        name_server: NameServerPart | None = None,
        **given: Any,
    ) -> None:
        from broker.app import Broker  # noqa: PLC0415 - see above

        self._create: Callable[[BrokerConfig], Broker] = lambda config: Broker(
            config, room=room, **given
        )
        self._config = config
        self._name_server = name_server
        self._server: Broker | None = None

    @property
    def server(self) -> Broker:
        """The broker; exists from the start on."""
        assert self._server is not None
        return self._server

    async def start(self) -> None:
        """Open the store and start to serve."""
        config = self._config
        if self._name_server is not None:
            from broker.config import DEFAULT_NAME  # noqa: PLC0415 - see above

            config = replace(
                config,
                namesrv_addr=(self._name_server.server.address,),
                # It is this process, at an address that is in no certificate: 0.0.0.0, say.
                check_name_server_host=False,
                name_of_new_store=DEFAULT_NAME,
            )
        self._server = self._create(config)
        await self._server.start()

    async def stop(self) -> None:
        """Stop cleanly."""
        if self._server is not None:
            await self._server.stop()

    def ready(self) -> Mapping[str, str]:
        """Return its address, and whether it uses the compiled core."""
        from broker import fast_path  # noqa: PLC0415 - see above

        return {"broker": self.server.address, "core": fast_path.KIND}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Return a future that gets an exception when a task of the server fails."""
        return [self.server.failed]


def standalone_parts(
    nameserver: NameServerConfig, broker: BrokerConfig, **given: Any
) -> list[ServerPart]:
    """Return a name server, and a broker that registers with it, for one event loop.

    ``given`` are arguments of ``BrokerPart``.
    """
    from broker.app import connection_room  # noqa: PLC0415 - see above

    room = connection_room()
    first = NameServerPart(nameserver, room)
    return [first, BrokerPart(broker, room, name_server=first, **given)]


def servers_of(parts: Sequence[ServerPart]) -> tuple[list[NameServer], list[Broker]]:
    """Return the name servers and the brokers of parts that were started."""
    return (
        [part.server for part in parts if isinstance(part, NameServerPart)],
        [part.server for part in parts if isinstance(part, BrokerPart)],
    )
