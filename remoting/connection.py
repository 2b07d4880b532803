"""One connection, as both servers and clients use it: commands over a ``Link``.

Responses go to those who wait for them, by opaque; requests go to the endpoint's handler. There is
no task, and no timer handle, per request.

A command's body is a view of the read it came in. It is valid as long as anybody holds it, and it
keeps that read alive: who stores it takes ``bytes(body)``.

All methods belong to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from remoting.agreement import Agreement
from remoting.endpoint import Endpoint
from remoting.errors import CommandTooLarge, ConnectionLost, TooManyRequests
from remoting.framing import Buffer, Reason
from remoting.in_flight import Pending, PendingRequests, Serving
from remoting.limits import MAX_LOOKS, SLICE_BYTES, SLICE_SECONDS, STALL_SECONDS
from remoting.link import Link
from remoting.protocol.codes import SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import FrameError
from remoting.protocol.frame import PREFIX_BYTES, Frame, cut, decode, encode_head


class Connection(Link):
    """Commands to and from one peer.

    Attributes:
        remote, local: ``(ip, port)`` of either end; ``remote_text`` is ``ip:port``.
        context: belongs to the owner, who keeps there what it knows of the peer.
        closed: nothing can be sent any more; ``close_reason`` says why, for people.
    """

    __slots__ = ("_agreement", "_judge_at", "_looking", "_pending", "_serving", "context")

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.context: Any = None
        self._agreement = Agreement(offers=endpoint.offer_msgpack, accepts=endpoint.accept_msgpack)
        self._pending = PendingRequests(endpoint.limits.max_pending_requests)
        self._judge_at = inf
        self._looking = False
        self._serving = Serving(self, endpoint)

    # Coming in

    def feed(self, buffer: bytes, position: int) -> int:
        """The ordinary feed: every frame becomes a command."""
        until = self._clock_now() + SLICE_SECONDS
        stop = position + SLICE_BYTES
        max_frame_bytes = self.endpoint.limits.max_frame_bytes
        while frame := cut(buffer, position, max_frame_bytes=max_frame_bytes):
            position = frame.end
            self.receive(frame)
            if position >= stop or self.crowded or self._clock_now() >= until:
                break
        return position

    def receive(self, frame: Frame) -> None:
        """Work one frame.

        Raises:
            FrameError: its header is undecodable, or of a codec that was not agreed on.
        """
        if frame.serialize == SerializeType.MSGPACK and not self._agreement.agreed:
            raise FrameError("a msgpack header without an agreement on it")
        command = decode(frame)
        self._counters.frames_in += 1
        if command.is_response:
            self._agreement.see_response(command)
            if not self._pending.resolve(command):
                self._counters.responses_unknown += 1
        elif not self.endpoint.draining:
            self._agreement.see_request(command)
            self._serving.serve(command, PREFIX_BYTES + len(frame.header) + len(frame.body))
            if self.endpoint.serving and self._serving.full:
                self._gate.bar(Reason.IN_PROGRESS)

    def request_served(self) -> None:
        """A request that was in progress has ended."""
        if not self._serving.full:
            self._lift(Reason.IN_PROGRESS)

    @property
    def speaks_msgpack(self) -> bool:
        """Whether msgpack headers may come in: it was agreed on."""
        return self._agreement.agreed

    @property
    def may_hold(self) -> bool:
        """Whether an owner's feed may begin requests whose answers have to wait."""
        return self._serving.may_hold

    def hold_answers(self, count: int) -> None:
        """An owner's feed has begun requests whose answers wait; see ``release_answers``."""
        self._serving.hold(count)
        if self.endpoint.serving and self._serving.full:
            self._gate.bar(Reason.IN_PROGRESS)

    def release_answers(self, count: int) -> None:
        """Requests that ``hold_answers`` told of have been answered."""
        self._serving.hold(-count)
        self.request_served()

    def stop_requests(self) -> None:
        """Give an owner's feed no more to do: the ordinary one knows when the endpoint drains."""
        self._feed = self.feed

    # Going out

    def send(self, command: Command) -> None:
        """Send an answer, or a command as it is. Dropped when the connection is gone.

        Raises:
            ValueError: the command fits into no frame.
        """
        if not self.closed:
            data = self._agreement.encode_answer(command)
            self._checked(len(data))
            self.send_bytes(data)

    def send_with_body(self, command: Command, body: Iterable[Buffer]) -> None:
        """Send an answer with a body in several pieces, which are not copied before the write."""
        if not self.closed:
            pieces = list(body)
            self._outbox.add(encode_head(command, sum(map(len, pieces))))
            self._outbox.extend(pieces)
            self._posted()

    def send_pieces(self, pieces: Sequence[Buffer]) -> None:
        """Send whole frames that lie in several pieces. Dropped when the connection is gone."""
        if not self.closed:
            self._outbox.extend(pieces)
            self._posted()

    def send_oneway(self, command: Command) -> None:
        """Send a request that nobody answers.

        Raises:
            ConnectionLost: the connection is gone.
            TooManyRequests: the peer takes nothing, and as much waits for it as may.
        """
        if self.closed:
            raise ConnectionLost(self.remote_text, self.close_reason)
        command.opaque = self._pending.next_opaque()
        head = self._agreement.encode_request(command)
        size = self._checked(len(head) + len(command.body))
        if self._watch.blocked_since != inf:
            limit = self.endpoint.limits.max_unsent_bytes
            if self.unsent_bytes + size > limit:
                raise TooManyRequests(self.remote_text, "unsent bytes", limit)
        self._outbox.add(head)
        self._outbox.add(command.body)
        self._posted()

    async def request(self, command: Command, *, timeout: float) -> Command:
        """Send a request and wait for its answer, whatever its code.

        Cancelling does not unsend it; the answer is dropped when it comes.

        Raises:
            RequestTimeout: no answer within ``timeout`` seconds.
            ConnectionLost: the connection is gone, before or after the request was sent.
            TooManyRequests: as many wait on this connection as may; nothing was sent.
        """
        future = self.request_nowait(command, timeout=timeout)
        opaque = command.opaque
        try:
            return await future
        except asyncio.CancelledError:
            self._pending.forget(opaque)
            raise

    def request_nowait(self, command: Command, *, timeout: float) -> asyncio.Future[Command]:
        """Send a request; the future has its answer. Raises and fails as ``request`` does."""
        if not self._pending.has_room:
            raise TooManyRequests(self.remote_text, "requests", self._pending.limit)
        self.send_oneway(command)
        deadline = self._clock_now() + timeout
        future: asyncio.Future[Command] = self._loop.create_future()
        self._pending.add(command.opaque, Pending(future, command.code, timeout, deadline))
        self._arm(deadline)
        return future

    def _checked(self, size: int) -> int:
        limit = self.endpoint.limits.max_frame_bytes
        if size > limit:
            raise CommandTooLarge(size, limit)
        return size

    # What the link asks

    def _on_open(self) -> None:
        endpoint = self.endpoint
        if endpoint.serving:
            self._counters.connections_accepted += 1
        else:
            self._counters.connections_opened += 1
        endpoint.connections.add(self)
        if endpoint.room is not None:
            endpoint.room.taken += 1
        if endpoint.feed_factory is not None:
            self._feed = endpoint.feed_factory(self)
        endpoint.tell(endpoint.on_connect, self)

    def _on_lost(self) -> None:
        endpoint = self.endpoint
        self._pending.fail_all(self.remote_text, self.close_reason)
        if self in endpoint.connections:
            endpoint.connections.discard(self)
            if endpoint.room is not None:
                endpoint.room.taken -= 1
            self._counters.connections_closed += 1
            endpoint.tell(endpoint.on_close, self)

    def _expire(self, now: float) -> float:
        deadline = self._pending.next_deadline()
        if deadline > now:
            return deadline
        if self._looking:
            return inf
        if self._judge_at == inf:
            late = now - deadline
            # An application that kept the loop busy kept us from writing and reading: the peer
            # gets that time again, once.
            self._judge_at = now + late if late > STALL_SECONDS else now
        if now < self._judge_at:
            return self._judge_at
        self._looking = True
        self._loop.call_soon(self._look, MAX_LOOKS, 0, self._watch.last_in)
        return inf

    def _look(self, looks: int, quiet: int, last_in: float) -> None:
        """Fail what is overdue, after two turns of the loop in a row that read nothing.

        The answers may lie in the socket, unread because the loop was busy. One turn is not enough:
        what is called soon may run before that turn's reads.
        """
        if self._lost.done():
            return
        unworked = self._inbox.ready and self._gate.works
        quiet = 0 if unworked or self._watch.last_in != last_in else quiet + 1
        if quiet < 2 and looks:
            self._loop.call_soon(self._look, looks - 1, quiet, self._watch.last_in)
            return
        self._looking = False
        self._judge_at = inf
        self._counters.requests_timed_out += self._pending.expire(
            self._clock_now(), self.remote_text
        )
        self._arm(self._pending.next_deadline())

    def _is_busy(self) -> bool:
        return bool(len(self._pending) or self._serving.requests)
