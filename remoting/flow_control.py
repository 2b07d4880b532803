"""What bounds the work for one peer: when it is not read from, and how many requests it may have.

Back-pressure is counted in our own bytes. ``ReadPause`` stops reading while there is any reason to.

A handler that has its answer returns it: no task, no future. One that has to wait returns an
awaitable: a future is awaited as it is, anything else becomes a task of the endpoint. These
requests are counted, and so are the bytes of their frames. A peer with too many requests in
progress is not read from for a while; when all peers together have too many, further requests are
answered SYSTEM_BUSY, as the protocol provides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from remoting.errors import CommandTooLarge
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, HeaderError

if TYPE_CHECKING:
    from remoting.connection import Connection
    from remoting.endpoint import Endpoint


class Reason(IntEnum):
    """Why nothing is read from a peer; bits, of which several may be set.

    No ``IntFlag``: its operators are Python code, and these run for every frame.
    """

    BACKLOG = 1
    """It was read faster than it was worked."""
    UNSENT = 2
    """The peer does not take its answers."""
    IN_PROGRESS = 4
    """Too many of its requests are being done."""
    CLOSING = 8
    """Nothing more is wanted from it."""


_STOPS_WORK: Final = Reason.UNSENT | Reason.IN_PROGRESS | Reason.CLOSING


class Reading(Protocol):
    """The part of a transport that ``ReadPause`` uses."""

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        ...

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...


class ReadPause:
    """Pauses and resumes the reading of a transport; says whether what was read may be worked.

    Attributes:
        reasons: the reasons that hold now.
        allows_work: whether frames that were read may be worked.
    """

    __slots__ = ("_transport", "allows_work", "reasons")

    def __init__(self, transport: Reading) -> None:
        self._transport = transport
        self.reasons = 0
        self.allows_work = True

    def pause(self, reason: Reason) -> None:
        """Stop reading for ``reason``."""
        if not self.reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self._set(self.reasons | reason)

    def resume(self, reason: Reason) -> bool:
        """Take ``reason`` away. True if it was there and frames may be worked again."""
        if not self.reasons & reason:
            return False
        self._set(self.reasons & ~reason)
        if not self.reasons and not self._transport.is_closing():
            self._transport.resume_reading()
        return self.allows_work

    def _set(self, reasons: int) -> None:
        self.reasons = reasons
        self.allows_work = not reasons & _STOPS_WORK


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
