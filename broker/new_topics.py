"""How fast each connection may make topics by sending to new names.

A topic is in every table, file and registration for good, so one peer must not make them as fast as
it can send. Within the pace nothing waits. Beyond it sends to a new name wait for that name's turn,
in the order of the names, for as long as a client usually waits for an answer; then they are told
to come again later. Other requests of the connection go on meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from broker.limits import (
    MAX_NEW_TOPIC_WAIT_SECONDS,
    MAX_WAITING_NEW_TOPIC_BYTES,
    MAX_WAITING_NEW_TOPICS,
    NEW_TOPICS_PER_SECOND,
)
from broker.processors.errors import RequestRefused
from remoting.clock import Clock
from remoting.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from remoting.connection import Connection

_SECONDS: Final = 1 / NEW_TOPICS_PER_SECOND


class NotYet(Exception):
    """A new topic's turn has not come.

    Attributes:
        turn: ends when it comes.
    """

    def __init__(self, turn: asyncio.Future[None]) -> None:
        super().__init__("the topic is made when its turn comes")
        self.turn = turn


class _Line:
    """The names of one connection that wait."""

    __slots__ = ("next_at", "size", "turns", "waiting")

    def __init__(self) -> None:
        self.next_at = float("-inf")
        self.turns: dict[str, asyncio.Future[None]] = {}
        self.waiting = 0
        self.size = 0

    def call(self, name: str) -> None:
        turn = self.turns.pop(name)
        if not turn.done():
            turn.set_result(None)


class NewTopics:
    """The paces of all connections of a broker."""

    __slots__ = ("_clock", "_lines")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: WeakKeyDictionary[Connection, _Line] = WeakKeyDictionary()

    def check(self, connection: Connection, name: str) -> None:
        """A connection wants to make a topic.

        Raises:
            NotYet: it has to wait.
            RequestRefused: it would have to wait for too long, or too many of its sends wait.
        """
        line = self._lines.get(connection)
        if line is None:
            line = self._lines[connection] = _Line()
        now = self._clock.monotonic()
        # A second's worth may come at once.
        at = max(line.next_at, now - 1.0)
        turn = line.turns.get(name)
        if turn is None and at <= now:
            line.next_at = at + _SECONDS
            return
        if turn is None and at - now > MAX_NEW_TOPIC_WAIT_SECONDS:
            raise _too_many(name)
        if line.waiting >= MAX_WAITING_NEW_TOPICS or line.size >= MAX_WAITING_NEW_TOPIC_BYTES:
            raise _too_many(name)
        if turn is None:
            line.next_at = at + _SECONDS
            loop = asyncio.get_running_loop()
            turn = line.turns[name] = loop.create_future()
            loop.call_later(at - now, line.call, name)
        raise NotYet(turn)

    async def wait(self, connection: Connection, turn: asyncio.Future[None], size: int) -> None:
        """Wait for a turn with a request of ``size`` bytes."""
        line = self._lines[connection]
        line.waiting += 1
        line.size += size
        try:
            await asyncio.shield(turn)
        finally:
            line.waiting -= 1
            line.size -= size


def _too_many(name: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.SYSTEM_BUSY,
        f"topic {name} is not made now: this connection makes more than {NEW_TOPICS_PER_SECOND} "
        "topics a second; send again in some seconds, or make the topics before with "
        "`pocketmq topic create`",
    )
