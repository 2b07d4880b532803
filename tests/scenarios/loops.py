"""Event loops on which whole clients and brokers run as actors that can be killed one by one.

Every task and connection belongs to the actor in whose context it was created. ``RealLoop`` uses
real sockets and time. ``SimulatedLoop`` uses neither: waits advance its clock, connections are
pipes in memory with a latency, and work for threads is done immediately. Clients and brokers are
the real ones, down to the bytes of their frames; only the loop and ``SystemClock`` differ.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock
from weakref import WeakSet

from remoting.runtime.clock import SystemClock
from tests.support.virtual_time import VirtualTimeLoop

LATENCY: Final = 0.001
"""Latency in one direction, in seconds."""

FIRST_PORT: Final = 10_000
EPOCH_MS: Final = 1_700_000_000_000


class Actor:
    """One process of the scenario.

    Attributes:
        cut_off: nothing reaches it, nothing it sends arrives, and no connection is closed.
    """

    def __init__(self, name: str, ip: str) -> None:
        self.name = name
        self.ip = ip
        self.dead = False
        self.cut_off = False
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.transports: WeakSet[asyncio.Transport] = WeakSet()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Run a block whose new tasks and connections belong to this actor."""
        token = ACTOR.set(self)
        try:
            yield
        finally:
            ACTOR.reset(token)

    async def kill(self) -> None:
        """End it as SIGKILL would: connections close without unregistering, no task continues."""
        self.dead = True
        for transport in list(self.transports):
            transport.abort()
        tasks = [task for task in self.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


NARRATOR: Final = Actor("narrator", "10.9.9.9")
ACTOR: contextvars.ContextVar[Actor] = contextvars.ContextVar("actor", default=NARRATOR)


class _Actors(asyncio.SelectorEventLoop):
    """A loop that assigns its tasks to actors."""

    def create_task(self, coro: Any, **options: Any) -> Any:
        task = super().create_task(coro, **options)
        ACTOR.get().tasks.add(task)
        return task


class RealLoop(_Actors):
    """A loop with real sockets and time."""

    async def create_connection(  # type: ignore[override] # passed on as it comes
        self, factory: Any, *args: Any, **options: Any
    ) -> Any:
        actor = ACTOR.get()
        if actor.dead:
            raise ConnectionRefusedError
        transport, protocol = await super().create_connection(factory, *args, **options)
        actor.transports.add(transport)
        return transport, protocol


class SimulatedLoop(_Actors, VirtualTimeLoop):
    """A loop without sockets, whose time passes only when everything waits."""

    def __init__(self) -> None:
        super().__init__()
        self._listeners: dict[int, _Listener] = {}
        self._next_port = FIRST_PORT
        self.pipes: WeakSet[_Pipe] = WeakSet()

    @contextmanager
    def as_every_clock(self) -> Iterator[None]:
        """Run a block in which every clock is this loop's."""

        def now_ms(_: SystemClock) -> int:
            return EPOCH_MS + round(self.time() * 1000)

        with mock.patch.multiple(SystemClock, monotonic=staticmethod(self.time), now_ms=now_ms):
            yield

    def run_in_executor(  # type: ignore[override] # the same, less exactly
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the awaiter gets it
            future.set_exception(error)
        return future

    def free_port(self) -> int:
        """Return an unused port number."""
        self._next_port += 1
        return self._next_port

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        port = port or self.free_port()
        if port in self._listeners:
            raise OSError(98, "address in use")
        listener = self._listeners[port] = _Listener(self, protocol_factory, str(host), port)
        return listener

    def stop_listening(self, port: int) -> None:
        self._listeners.pop(port, None)

    def remove_reader(self, fd: Any) -> Any:
        return False if isinstance(fd, _ListeningSocket) else super().remove_reader(fd)

    async def create_connection(  # type: ignore[override] # a part of its signature
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        actor = ACTOR.get()
        await asyncio.sleep(2 * LATENCY)
        listener = self._listeners.get(port)
        if actor.cut_off or (listener is not None and listener.actor.cut_off):
            await asyncio.Event().wait()
        if actor.dead or listener is None or listener.actor.dead:
            raise ConnectionRefusedError(111, "refused")
        ours = protocol_factory()
        near, far = _Pipe(self, actor), _Pipe(self, listener.actor)
        near.join(far, ours, (actor.ip, self.free_port()), (str(host), port))
        theirs = listener.context.run(listener.factory)
        far.join(near, theirs, (str(host), port), near.get_extra_info("sockname"))
        listener.context.run(theirs.connection_made, far)
        ours.connection_made(near)
        return near, ours

    def end_partition(self) -> None:
        """Deliver what was sent while an actor was cut off."""
        for pipe in list(self.pipes):
            pipe.wake()


class _ListeningSocket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class _Listener:
    """The result of ``create_server``."""

    def __init__(
        self, loop: SimulatedLoop, factory: Callable[[], Any], host: str, port: int
    ) -> None:
        self._loop = loop
        self._port = port
        self.factory = factory
        self.actor = ACTOR.get()
        self.context = contextvars.copy_context()
        self.sockets = [_ListeningSocket((host, port))]

    async def start_serving(self) -> None:
        """Return at once: it accepts connections since it was created."""

    def close(self) -> None:
        self._loop.stop_listening(self._port)

    async def wait_closed(self) -> None:
        """Return at once: there is nothing to wait for."""


class _Pipe(asyncio.Transport):
    """One end of a connection; what is written arrives at the other after the latency."""

    def __init__(self, loop: SimulatedLoop, actor: Actor) -> None:
        super().__init__()
        self._loop = loop
        self.actor = actor
        self._context = contextvars.copy_context()
        self._context.run(ACTOR.set, actor)
        self._arriving: deque[tuple[float, bytes | None]] = deque()
        self._scheduled = False
        self._paused = False
        self._closing = False
        actor.transports.add(self)
        loop.pipes.add(self)

    def join(self, peer: _Pipe, protocol: Any, local: Any, remote: Any) -> None:
        self._peer, self._protocol = peer, protocol
        self._extra = {"peername": remote, "sockname": local}

    def write(self, data: Any) -> None:
        if not self._closing and not self.actor.dead:
            self._peer.take(bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._peer.take(None)
            self._loop.call_soon(self._protocol.connection_lost, None, context=self._context)

    abort = close

    def take(self, data: bytes | None) -> None:
        self._arriving.append((self._loop.time() + LATENCY, data))
        self.wake()

    def wake(self) -> None:
        """Deliver received data, if possible now."""
        if self._arriving and not self._scheduled and not self._paused:
            self._scheduled = True
            when = max(self._arriving[0][0], self._loop.time())
            self._loop.call_at(when, self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._scheduled = False
        if self.actor.cut_off or self._peer.actor.cut_off or self._paused or self._closing:
            return
        if not self._arriving:
            return
        _, data = self._arriving.popleft()
        if data is not None:
            self._give(data)
        elif not self._protocol.eof_received():
            self.close()
        self.wake()

    def _give(self, data: bytes) -> None:
        while data:
            if not isinstance(self._protocol, asyncio.BufferedProtocol):
                self._protocol.data_received(data)
                return
            buffer: Any = self._protocol.get_buffer(-1)
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self._protocol.buffer_updated(len(part))

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.wake()

    def is_reading(self) -> bool:
        return not self._paused

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0
