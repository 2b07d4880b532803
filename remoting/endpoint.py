"""The state shared by all connections of one server or one pool, and the requests in progress.

A handler that can answer at once returns the answer, without a task or a future. One that has to
wait returns an awaitable: a future gets a callback, anything else becomes a task of the endpoint.
Such requests, and the bytes of their frames, are counted. The server stops reading from a peer that
has too many requests in progress; when all peers together have too many, further requests are
answered SYSTEM_BUSY, as in RocketMQ.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from remoting.addresses import network_of
from remoting.counters import Counters
from remoting.deadlines import Alarms
from remoting.errors import CommandTooLarge
from remoting.limits import ConnectionLimits
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, HeaderError
from remoting.reading import BufferPool
from remoting.runtime.clock import Clock, SystemClock
from remoting.runtime.log import Log, RateLimitedLog
from remoting.runtime.tasks import Supervisor

if TYPE_CHECKING:
    from remoting.connection import Connection
    from remoting.runtime.process_limits import ConnectionRoom
    from remoting.security.credentials import Signer

_log = Log("remoting")

Handler = Callable[[Command, "Connection"], Command | Awaitable[Command | None] | None]
"""Processes a request. Returns the answer, an awaitable of it, or None when the handler answers by
other means or never."""

Feed = Callable[[bytes, int], int]
"""Processes ``buffer`` from ``position`` on; returns the position up to which it did.

It stops at an incomplete frame, when ``connection.crowded`` is true, and after ``SLICE_SECONDS`` or
``SLICE_BYTES``. The connection then calls it again, in a later iteration of the loop, with the
position it returned; passing a position avoids copying the remaining bytes for each slice. A custom
feed passes the frames it does not handle to ``connection.receive``. A FrameError closes the
connection.
"""

FeedFactory = Callable[["Connection"], Feed]
ConnectionCallback = Callable[["Connection"], None]


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """Settings, counters and the shared timer of a set of connections."""

    name: str
    serving: bool
    """True for accepted connections: while a peer does not read its answers, nothing is read."""
    handler: Handler | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    counters: Counters = field(default_factory=Counters)
    clock: Clock = field(default_factory=SystemClock)
    offer_msgpack: bool = False
    accept_msgpack: bool = False
    feed_factory: FeedFactory | None = None
    on_close: ConnectionCallback | None = None
    signer: Signer | None = None
    """Signs the requests of a client; those that a server sends are not signed, as in RocketMQ."""
    draining: bool = False
    """True while a server stops: no new requests are processed."""
    max_connections: int = sys.maxsize
    max_connections_per_address: int = 0
    """See ``remoting.addresses.network_of``; 0: not limited."""
    room: ConnectionRoom | None = None
    """Shared with the other servers of the process; None: file descriptors are not checked."""
    connections: set[Connection] = field(default_factory=set)
    buffers: BufferPool = field(default_factory=BufferPool)
    """The buffers that large frames are read into."""
    alarms: Alarms = field(init=False)
    tasks: Supervisor = field(init=False)
    peer_log: RateLimitedLog = field(init=False)
    deferred: int = 0
    """Requests answered later without a task; see ``Connection.defer_answers``."""
    _none_deferred: asyncio.Future[None] | None = None
    _by_address: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alarms = Alarms(self.clock)
        self.tasks = Supervisor(self.name)
        self.peer_log = RateLimitedLog(self.clock)

    def intercept(self, around: Callable[[Handler], Handler]) -> Callable[[], None]:
        """Pass every request through a handler around the present one, none through a feed.

        Returns:
            A function that ends this; open connections stay without a feed.
        """
        before = self.handler, self.feed_factory
        assert self.handler is not None
        self.handler, self.feed_factory = around(self.handler), None
        for connection in self.connections:
            connection.stop_requests()

        def end() -> None:
            self.handler, self.feed_factory = before

        return end

    def began(self, connection: Connection) -> None:
        """Add an open connection."""
        self.connections.add(connection)
        if self.room is not None:
            self.room.taken += 1
        if self.max_connections_per_address:
            network = network_of(connection.remote[0])
            self._by_address[network] = self._by_address.get(network, 0) + 1

    def ended(self, connection: Connection) -> None:
        """Remove a closed connection and call ``on_close``, whose exceptions are only logged."""
        self.connections.discard(connection)
        if self.room is not None:
            self.room.taken -= 1
        if self.max_connections_per_address:
            network = network_of(connection.remote[0])
            self._by_address[network] -= 1
            if not self._by_address[network]:
                del self._by_address[network]
        self.counters.connections_closed += 1
        if self.serving:
            self.counters.tls_connections -= connection.is_tls
        if self.on_close is None:
            return
        try:
            self.on_close(connection)
        except Exception:  # noqa: BLE001 - an owner's fault must not break the server
            _log.exception("connection callback failed", remote=connection.remote_text)

    def defer(self, count: int) -> None:
        """Add ``count``, which may be negative, to the number of deferred answers."""
        self.deferred += count
        if not self.deferred and self._none_deferred is not None:
            self._none_deferred.set_result(None)
            self._none_deferred = None

    def reason_to_refuse(self, host: str) -> str:
        """Return why a new connection from ``host`` is refused; empty when it is accepted."""
        if self.draining:
            return "refused: the server is stopping"
        if len(self.connections) >= self.max_connections:
            return f"refused: {self.max_connections} connections are open, which is the limit"
        if self.address_is_full(host):
            limit = self.max_connections_per_address
            return f"refused: {limit} connections from its address are open, which is the limit"
        return "" if self.room is None else self.room.reason_to_refuse()

    def address_is_full(self, host: str) -> bool:
        """Return whether an address has as many connections as it may have."""
        limit = self.max_connections_per_address
        return limit > 0 and self._by_address.get(network_of(host), 0) >= limit

    async def _answered(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until no answers are deferred."""
        if self.deferred:
            self._none_deferred = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._none_deferred], timeout=timeout)
            self._none_deferred = None

    async def stop(self, reason: str, *, drain_timeout: float) -> None:
        """Begin no more requests, let those in progress finish, then close all connections.

        Requests still in progress after ``drain_timeout`` seconds are cancelled. Cancelling this
        coroutine aborts the connections. May be called twice.
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
        """Abort all connections: what is queued is not sent."""
        for connection in tuple(self.connections):
            connection.abort(reason)
        self.alarms.close()


BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"
_MAX_REMARK_CHARS: Final = 1024
_PIN_FACTOR: Final = 2
_DEFERRED_BYTES: Final = 512
"""Memory charged for a deferred request, which keeps only the numbers needed for its answer."""


class InFlightRequests:
    """The requests of one connection that are in progress."""

    __slots__ = ("_connection", "_endpoint", "bytes", "requests")

    def __init__(self, connection: Connection, endpoint: Endpoint) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self.requests = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether the connection has reached its limit of requests or bytes in progress."""
        limits = self._endpoint.limits
        return (
            self.requests >= limits.max_in_progress_requests
            or self.bytes >= limits.max_in_progress_bytes
        )

    @property
    def may_defer(self) -> bool:
        """Whether requests that are answered later may be begun."""
        return not self.full and not self._endpoint_full(_DEFERRED_BYTES)

    def defer(self, count: int) -> None:
        """Add ``count``, which may be negative, to the number of deferred requests."""
        self._count(count, count * _DEFERRED_BYTES)
        self._endpoint.defer(count)

    def serve(self, command: Command, size: int) -> None:
        """Process a request whose frame had ``size`` bytes."""
        handler = self._endpoint.handler
        if handler is None:
            # cf. NettyRemotingAbstract.processRequestCommand, leading space included
            self._answer(
                command,
                command.reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
                ),
            )
            return
        try:
            answer = handler(command, self._connection)
            if answer is None:
                return
            if isinstance(answer, Command):
                self._answer(command, answer)
                return
        except Exception as failure:  # noqa: BLE001 - a fault in one request ends only that request
            self._fail(command, failure)
            return
        self._serve_later(command, answer, size)

    def _serve_later(self, command: Command, answer: Awaitable[Command | None], size: int) -> None:
        if self._endpoint_full(size) or (self.full and not self._endpoint.serving):
            _discard(answer)
            self._endpoint.counters.requests_refused_busy += 1
            self._answer(command, command.reply(ResponseCode.SYSTEM_BUSY, BUSY))
            return
        # Copy a small body, or its view would keep a much larger read in memory meanwhile.
        body = command.body
        if isinstance(body, memoryview) and _PIN_FACTOR * len(body) < memoryview(body.obj).nbytes:
            command.body = bytes(body)
        self._count(1, size)
        served = partial(self._served, command, size)
        if asyncio.isfuture(answer):
            self._endpoint.defer(1)
            answer.add_done_callback(served)
            answer.add_done_callback(lambda _: self._endpoint.defer(-1))
        else:
            work = answer if asyncio.iscoroutine(answer) else _wait_for(answer)
            self._endpoint.tasks.spawn(work, "request", on_done=served)

    def _served(self, command: Command, size: int, task: asyncio.Future[Command | None]) -> None:
        self._count(-1, -size)
        self._connection.request_served()
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self._fail(command, failure)
            return
        answer = task.result()
        if answer is not None:
            try:
                self._answer(command, answer)
            except Exception as problem:  # noqa: BLE001 - an answer that can't be encoded
                self._fail(command, problem)

    def _answer(self, command: Command, answer: Command) -> None:
        if not command.is_oneway:
            self._connection.send(answer)

    def _fail(self, command: Command, failure: BaseException) -> None:
        endpoint = self._endpoint
        endpoint.counters.requests_failed += 1
        expected = isinstance(failure, HeaderError | BodyError | CommandTooLarge)
        remark = str(failure) if expected else f"{type(failure).__name__}: {failure}"
        endpoint.peer_log.write(
            "request failed",
            remote=self._connection.remote_text,
            code=command.code,
            reason=remark[:_MAX_REMARK_CHARS],
            exc_info=None if expected else failure,
        )
        self._answer(command, command.reply(ResponseCode.SYSTEM_ERROR, remark[:_MAX_REMARK_CHARS]))

    def _endpoint_full(self, size: int) -> bool:
        limits = self._endpoint.limits
        counters = self._endpoint.counters
        return (
            counters.requests_in_progress >= limits.max_total_in_progress_requests
            or counters.bytes_in_flight + size > limits.max_total_in_progress_bytes
        )

    def _count(self, requests: int, size: int) -> None:
        self.requests += requests
        self.bytes += size
        self._endpoint.counters.requests_in_progress += requests
        self._endpoint.counters.bytes_in_flight += size


def _discard(answer: Awaitable[Command | None]) -> None:
    """Close or cancel an awaitable that was never awaited, without asyncio's warning."""
    if asyncio.iscoroutine(answer):
        answer.close()
    elif asyncio.isfuture(answer):
        answer.cancel()


async def _wait_for(answer: Awaitable[Command | None]) -> Command | None:
    return await answer
