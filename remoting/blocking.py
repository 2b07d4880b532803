"""A blocking connection for threads and Spark tasks, without an event loop.

It must be used by one thread at a time. Requests may be pipelined: ``submit`` several, then
``receive`` the answers in the order they arrive. The receive buffer is reused: **an answer's body
is a view of it, valid until the next call**. A caller that keeps a body takes ``bytes(body)``, or
passes ``place`` to choose the memory that bodies are received into; then most bytes of a large body
are not copied.
"""

from __future__ import annotations

import select
import socket
import ssl
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
from remoting.security.credentials import Signer
from remoting.security.tls import ClientTls, Tls, TlsError, connect_failure, loss_reason

_SHORTEST_WAIT: Final = 0.001

_READ_BEFORE_PLACING: Final = 64 * 1024
"""Bytes received at once before ``place`` is called; at most as many of a body are copied."""

Place = Callable[[Command, int], memoryview | None]
"""Returns the memory for the body of an answer: a view of exactly the body's length, or None to use
the connection's buffer. Called with the answer without its body, and the body's length in bytes. It
may be called twice for one answer."""


class _ReceiveBuffer:
    """The bytes received and not yet processed, in one buffer that is reused."""

    __slots__ = ("_end", "_max_frame_bytes", "_start", "_view")

    def __init__(self, size: int, max_frame_bytes: int) -> None:
        self._view = memoryview(bytearray(size))
        self._start = 0
        self._end = 0
        self._max_frame_bytes = max_frame_bytes

    def next_command(self) -> Command | None:
        """Remove and decode the next frame; None if it is incomplete."""
        frame = cut(self._view[: self._end], self._start, max_frame_bytes=self._max_frame_bytes)
        if frame is None:
            return None
        self._start = frame.end
        return decode(frame)

    def begun(self) -> tuple[Command, int] | None:
        """Decode the next frame without its body; return it and the body's length.

        None if the header is incomplete.
        """
        at, filled = self._start, self._view[: self._end]
        size = needed(filled, at, max_frame_bytes=self._max_frame_bytes)
        body_at = at + PREFIX_BYTES + int.from_bytes(filled[at + 5 : at + PREFIX_BYTES])
        if self._end - at < PREFIX_BYTES or self._end < body_at:
            return None
        header = filled[at + PREFIX_BYTES : body_at]
        frame = Frame(SerializeType(filled[at + 4]), header, filled[:0], at + size)
        return decode(frame), frame.end - body_at

    def take_begun(self, target: memoryview) -> int:
        """Move the received part of the body into ``target``; return its length in bytes.

        ``begun`` must have returned the frame. The buffer is empty afterwards.
        """
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

    def fill(self, sock: socket.socket, limit: int | None = None) -> int:
        """Receive once; return the number of bytes, 0 at the end of the stream."""
        stop = None if limit is None else self._end + limit
        count = sock.recv_into(self._view[self._end : stop])
        self._end += count
        return count


class BlockingConnection:
    """A connection to one peer, for use by one thread at a time.

    Args:
        address: ``host:port``.
        timeout: default timeout of calls, in seconds.
        connect_timeout: seconds to connect, and seconds for the TLS handshake.
        tls: as in ``ConnectionPool``.
        max_frame_bytes: the limit of an answer; a larger one closes the connection.
        max_in_flight: the limit of unanswered requests.
        buffer_bytes: initial size of the receive buffer, which grows to the largest frame.
        signer: signs the requests; None sends them unsigned.

    Raises:
        ConnectFailed: the connection can't be made.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = CONNECT_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        tls: ClientTls | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_in_flight: int = MAX_PENDING_REQUESTS,
        buffer_bytes: int = RECEIVE_BUFFER_BYTES,
        signer: Signer | None = None,
    ) -> None:
        self.address = address
        self._signer = signer
        self._max_in_flight = max_in_flight
        self._timeout = timeout
        self._next_opaque = 0
        self._codes: dict[int, int] = {}
        self._ready: deque[Command] = deque()
        self._close_reason = ""
        self._buffer = _ReceiveBuffer(buffer_bytes, max_frame_bytes)
        self._is_silent = True
        try:
            self._socket = _connected(parse_address(address), connect_timeout, tls)
        except (OSError, TlsError) as failure:
            reason, hint = connect_failure(failure, tls=tls is not None, timeout=connect_timeout)
            raise ConnectFailed(address, reason, hint) from failure

    def fileno(self) -> int:
        """Return the socket's file descriptor, for waiting with ``select``.

        With TLS, bytes that were received with an earlier answer may wait besides the socket.
        """
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
        """The number of submitted requests whose answers have not been returned yet."""
        return len(self._codes) + len(self._ready)

    @property
    def usable(self) -> bool:
        """Whether it is open and idle, and the peer has not closed it meanwhile."""
        if self._close_reason or self.in_flight:
            return False
        if isinstance(self._socket, ssl.SSLSocket):
            # What can be read may be a session ticket. Only TLS itself can distinguish that.
            self._socket.settimeout(0.0)
            try:
                self._socket.recv(1)
            except ssl.SSLWantReadError:
                return True
            except OSError:
                pass
            return False
        waiting = select.poll()
        waiting.register(self, select.POLLIN)
        return not waiting.poll(0)

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._close_reason = self._close_reason or "closed by us"
        self._socket.close()

    def request(self, command: Command, *, timeout: float | None = None) -> Command:
        """Send a request and return its answer, whatever the response code.

        Answers to requests submitted before are kept for ``receive``.

        Raises:
            AnswerTimeout: no answer in time; a late one is dropped when it arrives.
            ConnectionLost: the connection closed, before or after the request was sent.
            TooManyRequests: see ``submit``.
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
        """Send a request without waiting for its answer; return its opaque.

        Submit few requests before receiving: a server that can't send its answers stops reading.

        Raises:
            AnswerTimeout: it could not be sent in time; the connection is closed.
            ConnectionLost: the connection is closed.
            TooManyRequests: ``max_in_flight`` requests are in flight; nothing was sent.
        """
        if self.in_flight >= self._max_in_flight:
            raise TooManyRequests(self.address, "requests", self._max_in_flight)
        self.send_oneway(command, timeout=timeout)
        self._codes[command.opaque] = command.code
        return command.opaque

    def send_oneway(self, command: Command, *, timeout: float | None = None) -> None:
        """Send a request without expecting an answer. Raises as ``submit`` does."""
        self._check_open()
        timeout = self._timeout if timeout is None else timeout
        command.opaque = free_opaque(self._next_opaque, self._codes)
        self._next_opaque = command.opaque + 1
        if self._signer is not None:
            self._signer.refresh()
            command = self._signer(command)
        deadline = time.monotonic() + timeout
        try:
            unsent = memoryview(encode(command))
            self._await(deadline)
            # Not sendall: with TLS its timeout is for each record.
            while unsent := unsent[self._socket.send(unsent) :]:
                self._socket.settimeout(_until(deadline))
        except TimeoutError:
            # Part of the frame may have been sent, so nothing can be sent after it.
            self._end("a request could not be sent in time")
            raise AnswerTimeout(self.address, command.code, timeout) from None
        except OSError as failure:
            raise self._lost(failure) from failure

    def receive(self, *, timeout: float | None = None, place: Place | None = None) -> Command:
        """Return the next answer to a submitted request, in the order of arrival.

        Args:
            timeout: in seconds; None for the connection's default.
            place: see ``Place``; None for the connection's buffer.

        Raises:
            AnswerTimeout: no answer in time. Call again to continue waiting, unless the connection
                is closed because part of a body was received into memory of ``place``.
            ConnectionLost: the connection is closed.
            ValueError: no request was submitted.
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
        """Return the next awaited answer. Requests from the server are ignored."""
        while True:
            command = self._next_command(deadline, place)
            if command.is_response and self._codes.pop(command.opaque, None) is not None:
                return command

    def _next_command(self, deadline: float, place: Place | None) -> Command:
        self._check_open()
        try:
            return self._receive_command(place, deadline)
        except FrameError as problem:
            raise self._end(f"invalid frame: {problem}") from problem
        except TimeoutError:
            raise
        except OSError as failure:
            raise self._lost(failure) from failure

    def _receive_command(self, place: Place | None, deadline: float) -> Command:
        """Return the next command; the body of an awaited answer is received as by ``place``."""
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
            self._await(deadline)
            if not buffer.fill(self._socket, None if place is None else _READ_BEFORE_PLACING):
                raise self._lost(None)
            self._is_silent = False
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
                self._end("only part of an answer arrived in time")
                raise
            if not count:
                raise self._lost(None)
            at += count

    def _await(self, deadline: float) -> None:
        # After the deadline, wait for a minimal time, to receive what has already arrived.
        self._socket.settimeout(max(deadline - time.monotonic(), _SHORTEST_WAIT))

    def _check_open(self) -> None:
        if self._close_reason:
            raise ConnectionLost(self.address, self._close_reason)

    def _lost(self, failure: OSError | None) -> ConnectionLost:
        tls = isinstance(self._socket, ssl.SSLSocket)
        return self._end(loss_reason(failure, silent=self._is_silent, tls=tls))

    def _end(self, reason: str) -> ConnectionLost:
        self._close_reason = reason
        self._socket.close()
        return ConnectionLost(self.address, reason)


def _connected(address: tuple[str, int], timeout: float, tls: ClientTls | None) -> socket.socket:
    """Return a connected socket, after the handshake if it has TLS."""
    context = tls.context() if isinstance(tls, Tls) else tls
    sock = socket.create_connection(address, timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if context is None else context.wrap_socket(sock, server_hostname=address[0])
    except BaseException:
        sock.close()
        raise


def _until(deadline: float) -> float:
    """Return the seconds left. Raises TimeoutError if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
