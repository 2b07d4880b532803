"""Requests in progress on one connection: theirs that we serve, ours that wait for an answer.

A handler that has its answer returns it: no task, no future. One that has to wait returns an
awaitable: a future is awaited as it is, anything else becomes a task of the endpoint. These
requests are counted, and so are the bytes of their frames. A peer with too many requests in
progress is not read from for a while; when all peers together have too many, further requests are
answered SYSTEM_BUSY, as the protocol provides.

The deadline of our own request is a number in its entry, not a timer: the connection's one alarm
searches the table when the earliest deadline comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from remoting.errors import AnswerTimeout, CommandTooLarge, ConnectionLost
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, HeaderError

if TYPE_CHECKING:
    from remoting.connection import Connection
    from remoting.endpoint import Endpoint


BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"
_MAX_REMARK_CHARS: Final = 1024
_PIN_FACTOR: Final = 2
_HELD_BYTES: Final = 512
"""What a request keeps of which only the answer's numbers wait."""


class InFlightRequests:
    """The requests of one connection that are being done."""

    __slots__ = ("_connection", "_endpoint", "bytes", "requests")

    def __init__(self, connection: Connection, endpoint: Endpoint) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self.requests = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether the connection has as many requests in progress as it may have."""
        limits = self._endpoint.limits
        return (
            self.requests >= limits.max_in_progress_requests
            or self.bytes >= limits.max_in_progress_bytes
        )

    @property
    def may_defer(self) -> bool:
        """Whether requests whose answers have to wait may be begun."""
        return not self.full and not self._endpoint_full(_HELD_BYTES)

    def defer(self, count: int) -> None:
        """So many requests more, or less, wait for their answers outside of a handler."""
        self._count(count, count * _HELD_BYTES)
        self._endpoint.defer(count)

    def serve(self, command: Command, size: int) -> None:
        """Do a request whose frame had ``size`` bytes."""
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
        # A small body that has to wait must not keep a large read alive.
        body = command.body
        if isinstance(body, memoryview) and _PIN_FACTOR * len(body) < memoryview(body.obj).nbytes:
            command.body = bytes(body)
        self._count(1, size)
        served = partial(self._served, command, size)
        if asyncio.isfuture(answer):
            self._endpoint.defer(1)
            answer.add_done_callback(served)
            answer.add_done_callback(self._let_go)
        else:
            work = answer if asyncio.iscoroutine(answer) else _wait_for(answer)
            self._endpoint.tasks.spawn(work, "request", on_done=served)

    def _let_go(self, _: object) -> None:
        self._endpoint.defer(-1)

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
        told = isinstance(failure, HeaderError | BodyError | CommandTooLarge)
        remark = str(failure) if told else f"{type(failure).__name__}: {failure}"
        endpoint.peer_log.write(
            "request failed",
            remote=self._connection.remote_text,
            code=command.code,
            reason=remark[:_MAX_REMARK_CHARS],
            exc_info=None if told else failure,
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
    """End an awaitable that has not been waited for, without a warning."""
    if asyncio.iscoroutine(answer):
        answer.close()
    elif asyncio.isfuture(answer):
        answer.cancel()


async def _wait_for(answer: Awaitable[Command | None]) -> Command | None:
    return await answer


_OPAQUE_MASK: Final = 0x7FFF_FFFF


class Pending(NamedTuple):
    """One of them. ``timeout`` in seconds as the caller gave it; ``deadline`` on the clock."""

    future: asyncio.Future[Command]
    code: int
    timeout: float
    deadline: float


class PendingRequests:
    """The table of one connection."""

    __slots__ = ("_opaque", "_table", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._opaque = 0
        self._table: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._table)

    def next_opaque(self) -> int:
        """A correlation id that no waiting request has; wraps within the positive int32."""
        opaque = self._opaque
        while opaque in self._table:
            opaque = (opaque + 1) & _OPAQUE_MASK
        self._opaque = (opaque + 1) & _OPAQUE_MASK
        return opaque

    @property
    def has_room(self) -> bool:
        """Whether one more may wait."""
        return len(self._table) < self.limit

    def add(self, opaque: int, pending: Pending) -> None:
        """Wait for the answer to ``opaque``."""
        self._table[opaque] = pending

    def forget(self, opaque: int) -> None:
        """Nobody waits for it any more."""
        self._table.pop(opaque, None)

    def resolve(self, response: Command) -> bool:
        """Hand ``response`` to who waits for it. False: nobody does."""
        pending = self._table.pop(response.opaque, None)
        if pending is None or pending.future.done():
            return False
        pending.future.set_result(response)
        return True

    def expire(self, now: float, address: str) -> int:
        """Fail what is overdue; returns how many were."""
        overdue = 0
        for opaque, pending in list(self._table.items()):
            if pending.deadline <= now:
                del self._table[opaque]
                if pending.future.done():
                    continue
                overdue += 1
                pending.future.set_exception(AnswerTimeout(address, pending.code, pending.timeout))
        return overdue

    def next_deadline(self) -> float:
        """Forget what was cancelled; returns the earliest deadline, inf without one."""
        earliest = inf
        for opaque, pending in list(self._table.items()):
            if pending.future.done():
                del self._table[opaque]
            elif pending.deadline < earliest:
                earliest = pending.deadline
        return earliest

    def fail_all(self, address: str, reason: str) -> None:
        """The connection is gone: nothing will be answered."""
        table, self._table = self._table, {}
        for pending in table.values():
            if not pending.future.done():
                pending.future.set_exception(ConnectionLost(address, reason))
