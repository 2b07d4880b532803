"""A connection for threads and Spark tasks: a plain socket, no loop.

One thread uses it at a time. Requests may be pipelined: ``submit`` several, then ``receive`` the
answers in the order they come. The receive buffer is reused: **an answer's body is a view of it and
valid until the next call**; who keeps it takes ``bytes(body)``, or says where bodies go
(``place``), and has them received there, large ones nearly without a copy.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from remoting.addresses import parse_address
from remoting.errors import AnswerTimeout, ConnectFailed, ConnectionLost, TooManyRequests
from remoting.limits import CONNECT_TIMEOUT, MAX_PENDING_REQUESTS, RECEIVE_BUFFER_BYTES
from remoting.protocol.codes import SerializeType
from remoting.protocol.command import Command, free_opaque
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import PREFIX_BYTES, Frame, cut, decode, encode, needed
from remoting.protocol.limits import MAX_FRAME_BYTES

_SHORTEST_WAIT: Final = 0.001

_READ_BEFORE_PLACING: Final = 64 * 1024
"""Received at once while it isn't known where a body goes; so much of it is copied."""

Place = Callable[[Command, int], memoryview | None]
"""Where the body of an answer goes: given the answer without its body, and the body's length, a
view of exactly so many bytes; None for the connection's own buffer. It may be asked twice."""


class _ReceiveBuffer:
    """Bytes that were received, in one buffer that is used again and again."""

    __slots__ = ("_end", "_max_frame_bytes", "_start", "_view")

    def __init__(self, size: int, max_frame_bytes: int) -> None:
        self._view = memoryview(bytearray(size))
        self._start = 0
        self._end = 0
        self._max_frame_bytes = max_frame_bytes

    def next_command(self) -> Command | None:
        """The next whole frame, if it is there."""
        frame = cut(self._view[: self._end], self._start, max_frame_bytes=self._max_frame_bytes)
        if frame is None:
            return None
        self._start = frame.end
        return decode(frame)

    def begun(self) -> tuple[Command, int] | None:
        """The next frame without its body, and the body's length, if so much is there."""
        at, filled = self._start, self._view[: self._end]
        size = needed(filled, at, max_frame_bytes=self._max_frame_bytes)
        body_at = at + PREFIX_BYTES + int.from_bytes(filled[at + 5 : at + PREFIX_BYTES])
        if self._end - at < PREFIX_BYTES or self._end < body_at:
            return None
        header = filled[at + PREFIX_BYTES : body_at]
        frame = Frame(SerializeType(filled[at + 4]), header, filled[:0], at + size)
        return decode(frame), frame.end - body_at

    def take_begun(self, target: memoryview) -> int:
        """Move what has come of the begun frame's body into ``target``; how much that is."""
        at = self._start
        body_at = at + PREFIX_BYTES + int.from_bytes(self._view[at + 5 : at + PREFIX_BYTES])
        count = self._end - body_at
        target[:count] = self._view[body_at : self._end]
        self._start = self._end = 0
        return count

    def make_room(self) -> None:
        """Move or enlarge the buffer so that the rest of the next frame fits."""
        filled = self._view[: self._end]
        size = needed(filled, self._start, max_frame_bytes=self._max_frame_bytes)
        rest = bytes(filled[self._start :])
        if self._start + size <= len(self._view) and rest:
            return
        if size > len(self._view):
            self._view = memoryview(bytearray(size))
        self._view[: len(rest)] = rest
        self._start = 0
        self._end = len(rest)

    def fill(self, sock: socket.socket, most: int | None = None) -> int:
        """Receive once; returns the count of bytes, 0 at the end."""
        stop = None if most is None else self._end + most
        count = sock.recv_into(self._view[self._end : stop])
        self._end += count
        return count


class BlockingConnection:
    """Commands to and from one peer, for one thread.

    Args:
        address: ``host:port``.
        timeout: seconds for each call that does not say otherwise.
        connect_timeout: seconds to connect.
        max_frame_bytes: of an answer; a larger one ends the connection.
        max_in_flight: requests without an answer.
        buffer_bytes: first size of the receive buffer; it grows to the largest frame met.

    Raises:
        ConnectFailed: it can't be made.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = CONNECT_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_in_flight: int = MAX_PENDING_REQUESTS,
        buffer_bytes: int = RECEIVE_BUFFER_BYTES,
    ) -> None:
        self.address = address
        self._max_in_flight = max_in_flight
        self._timeout = timeout
        self._next_opaque = 0
        self._codes: dict[int, int] = {}
        self._ready: deque[Command] = deque()
        self._close_reason = ""
        self._buffer = _ReceiveBuffer(buffer_bytes, max_frame_bytes)
        try:
            self._socket = socket.create_connection(parse_address(address), connect_timeout)
        except TimeoutError as failure:
            reason = f"no answer within {connect_timeout:g} s"
            raise ConnectFailed(address, reason) from failure
        except OSError as failure:
            raise ConnectFailed(address, failure.strerror or str(failure)) from failure
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """The socket's file descriptor, to wait for answers with ``select``."""
        return self._socket.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return bool(self._close_reason)

    @property
    def in_flight(self) -> int:
        """Requests that were submitted and whose answers were not received yet."""
        return len(self._codes) + len(self._ready)

    @property
    def usable(self) -> bool:
        """Whether the next request has a chance: the peer hasn't left while nothing was asked."""
        if self._close_reason or self.in_flight:
            return False
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        return not waiting.poll(0)

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._close_reason = self._close_reason or "closed by us"
        self._socket.close()

    def request(self, command: Command, *, timeout: float | None = None) -> Command:
        """Send a request and wait for its answer, whatever its code.

        Answers to requests submitted before are kept for ``receive``.

        Raises:
            AnswerTimeout: no answer in time; a late one is dropped when it comes.
            ConnectionLost: the connection is gone, before or after the request was sent.
        """
        timeout = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        opaque = self.submit(command, timeout=timeout)
        try:
            while (answer := self._next_answer(deadline)).opaque != opaque:
                answer.body = bytes(answer.body)
                self._ready.append(answer)
        except TimeoutError:
            del self._codes[opaque]
            raise AnswerTimeout(self.address, command.code, timeout) from None
        return answer

    def submit(self, command: Command, *, timeout: float | None = None) -> int:
        """Send a request without waiting for its answer; returns its opaque.

        Submit few at a time: a server that can't get rid of its answers stops reading.

        Raises:
            AnswerTimeout: it could not be sent in time; the connection is closed.
            ConnectionLost: the connection is gone.
            TooManyRequests: as many are in flight as may be; nothing was sent.
        """
        if self.in_flight >= self._max_in_flight:
            raise TooManyRequests(self.address, "requests", self._max_in_flight)
        self.send_oneway(command, timeout=timeout)
        self._codes[command.opaque] = command.code
        return command.opaque

    def send_oneway(self, command: Command, *, timeout: float | None = None) -> None:
        """Send a request that nobody answers. Raises as ``submit`` does."""
        self._check_open()
        timeout = self._timeout if timeout is None else timeout
        command.opaque = free_opaque(self._next_opaque, self._codes)
        self._next_opaque = command.opaque + 1
        try:
            self._socket.settimeout(max(timeout, _SHORTEST_WAIT))
            self._socket.sendall(encode(command))
        except TimeoutError:
            # Part of the frame may have left: nothing can follow it.
            self._end("a request could not be sent in time")
            raise AnswerTimeout(self.address, command.code, timeout) from None
        except OSError as failure:
            raise self._end(failure.strerror or str(failure)) from failure

    def receive(self, *, timeout: float | None = None, place: Place | None = None) -> Command:
        """The next answer to a submitted request, in the order they come.

        Args:
            timeout: seconds until it has to be there.
            place: where its body goes.

        Raises:
            AnswerTimeout: none came in time; it can be waited for again, unless the connection is
                closed because half of it had been placed.
            ConnectionLost: the connection is gone.
            ValueError: nothing was submitted.
        """
        if self._ready:
            return self._ready.popleft()
        self._check_open()
        if not self._codes:
            raise ValueError("nothing was submitted, so nothing can be received")
        timeout = self._timeout if timeout is None else timeout
        try:
            return self._next_answer(time.monotonic() + timeout, place)
        except TimeoutError:
            code = next(iter(self._codes.values()))
            raise AnswerTimeout(self.address, code, timeout) from None

    def _next_answer(self, deadline: float, place: Place | None = None) -> Command:
        """The next response anybody waits for. What servers ask of clients is passed over."""
        while True:
            command = self._next_command(deadline, place)
            if command.is_response and self._codes.pop(command.opaque, None) is not None:
                return command

    def _next_command(self, deadline: float, place: Place | None) -> Command:
        self._check_open()
        try:
            return self._receive_command(place, deadline)
        except FrameError as problem:
            raise self._end(f"it sent what can't be understood: {problem}") from problem
        except TimeoutError:
            raise
        except OSError as failure:
            raise self._end(failure.strerror or str(failure)) from failure

    def _receive_command(self, place: Place | None, deadline: float) -> Command:
        """The next command; ``place`` says where the body of an awaited answer goes."""
        buffer = self._buffer
        while (command := buffer.next_command()) is None:
            begun = None if place is None else buffer.begun()
            if begun is not None:
                target = self._target(place, *begun)
                if target is not None:
                    command, _ = begun
                    self._receive_body(target, deadline)
                    command.body = target
                    return command
            buffer.make_room()
            self._fill(deadline, None if place is None else _READ_BEFORE_PLACING)
        target = self._target(place, command, len(command.body))
        if target is not None:
            target[:] = command.body
            command.body = target
        return command

    def _target(self, place: Place | None, command: Command, length: int) -> memoryview | None:
        if (
            place is None
            or not length
            or not command.is_response
            or command.opaque not in self._codes
        ):
            return None
        return place(command, length)

    def _receive_body(self, target: memoryview, deadline: float) -> None:
        at = self._buffer.take_begun(target)
        while at < len(target):
            try:
                self._await(deadline)
                count = self._socket.recv_into(target[at:])
            except TimeoutError:
                self._end("half an answer came, and the rest not in time")
                raise
            if not count:
                raise self._end("closed by the peer")
            at += count

    def _fill(self, deadline: float, most: int | None = None) -> None:
        self._await(deadline)
        if not self._buffer.fill(self._socket, most):
            raise self._end("closed by the peer")

    def _await(self, deadline: float) -> None:
        # A deadline that has passed gets one more try: what has come already counts.
        self._socket.settimeout(max(deadline - time.monotonic(), _SHORTEST_WAIT))

    def _check_open(self) -> None:
        if self._close_reason:
            raise ConnectionLost(self.address, self._close_reason)

    def _end(self, reason: str) -> ConnectionLost:
        self._close_reason = reason
        self._socket.close()
        return ConnectionLost(self.address, reason)
