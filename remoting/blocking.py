"""A connection for threads and Spark tasks: a plain socket, no loop.

One thread uses it at a time. Requests may be pipelined: ``submit`` several, then ``receive`` the
answers in the order they come. The receive buffer is reused: **an answer's body is a view of it and
valid until the next call**; who keeps it takes ``bytes(body)``.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Final, Self

from remoting.addresses import parse_address
from remoting.errors import ConnectFailed, ConnectionLost, RequestTimeout, TooManyRequests
from remoting.limits import CONNECT_TIMEOUT, MAX_PENDING_REQUESTS, RECEIVE_BUFFER_BYTES
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import cut, decode, encode, needed
from remoting.protocol.limits import MAX_FRAME_BYTES

_OPAQUE_MASK: Final = 0x7FFF_FFFF
_SHORTEST_WAIT: Final = 0.001


class _ReceiveBuffer:
    """Bytes that were received, in one buffer that is used again and again."""

    __slots__ = ("_end", "_max_frame_bytes", "_start", "_view")

    def __init__(self, size: int, max_frame_bytes: int) -> None:
        self._view = memoryview(bytearray(size))
        self._start = 0
        self._end = 0
        self._max_frame_bytes = max_frame_bytes

    def next_command(self) -> Command | None:
        """The next whole frame, if it is there; else there is room for the rest of it."""
        filled = self._view[: self._end]
        frame = cut(filled, self._start, max_frame_bytes=self._max_frame_bytes)
        if frame is None:
            self._make_room(needed(filled, self._start, max_frame_bytes=self._max_frame_bytes))
            return None
        self._start = frame.end
        return decode(frame)

    def fill(self, sock: socket.socket) -> int:
        """Receive once; returns the count of bytes, 0 at the end."""
        count = sock.recv_into(self._view[self._end :])
        self._end += count
        return count

    def _make_room(self, size: int) -> None:
        rest = bytes(self._view[self._start : self._end])
        if self._start + size <= len(self._view) and rest:
            return
        if size > len(self._view):
            self._view = memoryview(bytearray(size))
        self._view[: len(rest)] = rest
        self._start = 0
        self._end = len(rest)


class BlockingConnection:
    """Commands to and from one peer, for one thread.

    Args:
        address: ``host:port``.
        timeout: seconds for each call that does not say otherwise.

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
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._next_opaque = 0
        self._codes: dict[int, int] = {}
        self._ready: deque[Command] = deque()
        self._close_reason = ""
        self._buffer = _ReceiveBuffer(RECEIVE_BUFFER_BYTES, max_frame_bytes)
        try:
            self._socket = socket.create_connection(parse_address(address), connect_timeout)
        except TimeoutError as failure:
            reason = f"no answer within {connect_timeout:g} s"
            raise ConnectFailed(address, reason) from failure
        except OSError as failure:
            raise ConnectFailed(address, failure.strerror or str(failure)) from failure
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._close_reason = self._close_reason or "closed by us"
        self._socket.close()

    def request(self, command: Command, *, timeout: float | None = None) -> Command:
        """Send a request and wait for its answer, whatever its code.

        Answers to requests submitted before are kept for ``receive``.

        Raises:
            RequestTimeout: no answer in time; a late one is dropped when it comes.
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
            raise RequestTimeout(self.address, command.code, timeout) from None
        return answer

    def submit(self, command: Command, *, timeout: float | None = None) -> int:
        """Send a request without waiting for its answer; returns its opaque.

        Submit few at a time: a server that can't get rid of its answers stops reading.

        Raises:
            RequestTimeout: it could not be sent in time; the connection is closed.
            ConnectionLost: the connection is gone.
            TooManyRequests: as many are in flight as may be; nothing was sent.
        """
        if self.in_flight >= MAX_PENDING_REQUESTS:
            raise TooManyRequests(self.address, "requests", MAX_PENDING_REQUESTS)
        self.send_oneway(command, timeout=timeout)
        self._codes[command.opaque] = command.code
        return command.opaque

    def send_oneway(self, command: Command, *, timeout: float | None = None) -> None:
        """Send a request that nobody answers. Raises as ``submit`` does."""
        self._check_open()
        timeout = self._timeout if timeout is None else timeout
        command.opaque = self._take_opaque()
        try:
            self._socket.settimeout(max(timeout, _SHORTEST_WAIT))
            self._socket.sendall(encode(command))
        except TimeoutError:
            # Part of the frame may have left: nothing can follow it.
            self._end("a request could not be sent in time")
            raise RequestTimeout(self.address, command.code, timeout) from None
        except OSError as failure:
            raise self._end(failure.strerror or str(failure)) from failure

    def receive(self, *, timeout: float | None = None) -> Command:
        """The next answer to a submitted request, in the order they come.

        Raises:
            RequestTimeout: none came in time; it can be waited for again.
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
            return self._next_answer(time.monotonic() + timeout)
        except TimeoutError:
            code = next(iter(self._codes.values()))
            raise RequestTimeout(self.address, code, timeout) from None

    def _next_answer(self, deadline: float) -> Command:
        """The next response anybody waits for. What servers ask of clients is passed over."""
        while True:
            command = self._next_command(deadline)
            if command.is_response and self._codes.pop(command.opaque, None) is not None:
                return command

    def _next_command(self, deadline: float) -> Command:
        self._check_open()
        try:
            while (command := self._buffer.next_command()) is None:
                # A deadline that has passed gets one more try: what has come already counts.
                self._socket.settimeout(max(deadline - time.monotonic(), _SHORTEST_WAIT))
                if not self._buffer.fill(self._socket):
                    raise self._end("closed by the peer")
        except FrameError as problem:
            raise self._end(f"it sent what can't be understood: {problem}") from problem
        except TimeoutError:
            raise
        except OSError as failure:
            raise self._end(failure.strerror or str(failure)) from failure
        return command

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        while opaque in self._codes:
            opaque = (opaque + 1) & _OPAQUE_MASK
        self._next_opaque = (opaque + 1) & _OPAQUE_MASK
        return opaque

    def _check_open(self) -> None:
        if self._close_reason:
            raise ConnectionLost(self.address, self._close_reason)

    def _end(self, reason: str) -> ConnectionLost:
        self._close_reason = reason
        self._socket.close()
        return ConnectionLost(self.address, reason)
