"""What all connections of one server, or of one pool, have in common."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remoting.clock import Clock, SystemClock
from remoting.counters import Counters
from remoting.deadlines import Alarms
from remoting.large_frames import BufferPool
from remoting.limits import ConnectionLimits
from remoting.log import Log, RateLimitedLog
from remoting.protocol.command import Command
from remoting.tasks import Supervisor

if TYPE_CHECKING:
    from remoting.connection import Connection
    from remoting.process_limits import ConnectionRoom

_log = Log("remoting")

Handler = Callable[[Command, "Connection"], Command | Awaitable[Command | None] | None]
"""Does a request. Returns the answer, an awaitable of it, or None: answered later or never."""

Feed = Callable[[bytes, int], int]
"""Works ``buffer`` from ``position`` on and returns up to where it came.

It stops at an incomplete frame, when ``connection.crowded`` says so, and after ``SLICE_SECONDS`` or
``SLICE_BYTES``: what is left is handed in again in the loop's next turn. A position instead of a
shorter buffer saves copying, or wrapping, the rest for each slice. It hands frames it does not know
to ``connection.receive``. Raises FrameError to have the connection dropped.
"""

FeedFactory = Callable[["Connection"], Feed]
ConnectionCallback = Callable[["Connection"], None]


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """Settings, counters and the shared timer of a set of connections."""

    name: str
    serving: bool
    """True for accepted connections: a peer that does not take its answers is not read from."""
    handler: Handler | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    counters: Counters = field(default_factory=Counters)
    clock: Clock = field(default_factory=SystemClock)
    offer_msgpack: bool = False
    accept_msgpack: bool = False
    feed_factory: FeedFactory | None = None
    on_close: ConnectionCallback | None = None
    draining: bool = False
    """True while a server stops: requests are not begun any more."""
    max_connections: int = sys.maxsize
    room: ConnectionRoom | None = None
    """Shared with the other servers of the process; None: descriptors are not looked at."""
    connections: set[Connection] = field(default_factory=set)
    buffers: BufferPool = field(default_factory=BufferPool)
    """Where large frames land."""
    alarms: Alarms = field(init=False)
    tasks: Supervisor = field(init=False)
    peer_log: RateLimitedLog = field(init=False)
    held: int = 0
    """Answers that wait outside of a handler; see ``Connection.defer_answers``."""
    _none_held: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.alarms = Alarms(self.clock)
        self.tasks = Supervisor(self.name)
        self.peer_log = RateLimitedLog(self.clock)

    def notify(self, callback: ConnectionCallback | None, connection: Connection) -> None:
        """Call an owner's callback; its faults are logged and go no further."""
        if callback is None:
            return
        try:
            callback(connection)
        except Exception:  # noqa: BLE001 - an owner's fault must not break the server
            _log.exception("connection callback failed", remote=connection.remote_text)

    def defer(self, count: int) -> None:
        """So many answers more, or less, wait outside of a handler."""
        self.held += count
        if not self.held and self._none_held is not None:
            self._none_held.set_result(None)
            self._none_held = None

    def reason_to_refuse(self) -> str:
        """Why a connection can't be taken now; empty: it can."""
        if self.draining:
            return "refused: the server stops"
        if len(self.connections) >= self.max_connections:
            return f"refused: {self.max_connections} connections are open, as many as may be"
        return "" if self.room is None else self.room.reason_to_refuse()

    async def _answered(self, timeout: float) -> None:
        """Wait until no answers wait outside of a handler."""
        if self.held:
            self._none_held = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._none_held], timeout=timeout)
            self._none_held = None

    async def stop(self, reason: str, *, drain_timeout: float) -> None:
        """Begin no more requests, let those in progress finish, close all connections.

        What is still at work after ``drain_timeout`` seconds is cancelled. Cancelling the stop
        cuts the connections off. May be called twice.
        """
        self.draining = True
        try:
            for connection in self.connections:
                connection.stop_requests()
            await asyncio.gather(self.tasks.join(drain_timeout), self._answered(drain_timeout))
            await self.tasks.close()
            connections = tuple(self.connections)
            for connection in connections:
                connection.close(reason)
            for connection in connections:
                await connection.wait_closed()
        finally:
            self.cut_off(reason)

    def cut_off(self, reason: str) -> None:
        """End all connections without sending what is left."""
        for connection in tuple(self.connections):
            connection.abort(reason)
        self.alarms.close()
