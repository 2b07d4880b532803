"""How fast one connection may create topics.

A topic is in every table, file and registration for good, so one peer must not create topics as
fast as it can send. Within the rate nothing waits. Beyond it a send to a new topic waits until the
topic may be created, in the order of the names, for about as long as a client waits for an answer;
then it is refused with SYSTEM_BUSY. Other requests of the connection are served meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from broker.errors import RequestRefused
from broker.limits import BrokerLimits
from remoting.clock import Clock
from remoting.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from remoting.connection import Connection


class NotYet(Exception):
    """A new topic may not be created yet.

    Attributes:
        turn: ends when it may be.
    """

    def __init__(self, turn: asyncio.Future[None]) -> None:
        super().__init__("the topic is created when its turn comes")
        self.turn = turn


class _Waiting:
    """The new topics of one connection, and the sends that wait for them."""

    __slots__ = ("next_at", "sends", "size", "turns")

    def __init__(self) -> None:
        self.next_at = float("-inf")
        self.turns: dict[str, asyncio.Future[None]] = {}
        self.sends = 0
        self.size = 0

    def call(self, name: str) -> None:
        turn = self.turns.pop(name)
        if not turn.done():
            turn.set_result(None)


class NewTopics:
    """Limits how fast each connection of a broker creates topics."""

    __slots__ = ("_clock", "_limits", "_waiting")

    def __init__(self, clock: Clock, limits: BrokerLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._waiting: WeakKeyDictionary[Connection, _Waiting] = WeakKeyDictionary()

    def check(self, connection: Connection, name: str) -> None:
        """Count a topic that a connection is about to create.

        Raises:
            NotYet: it has to wait.
            RequestRefused: it would have to wait too long, or too many of its sends wait.
        """
        limits = self._limits
        waiting = self._waiting.setdefault(connection, _Waiting())
        now = self._clock.monotonic()
        # A second's worth may come at once.
        at = max(waiting.next_at, now - 1.0)
        turn = waiting.turns.get(name)
        if turn is None and at <= now:
            waiting.next_at = at + 1 / limits.new_topics_per_second
            return
        if (
            (turn is None and at - now > limits.new_topic_wait_seconds)
            or waiting.sends >= limits.waiting_new_topics
            or waiting.size >= limits.waiting_new_topic_bytes
        ):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"topic {name} is not made now: this connection makes more than "
                f"{limits.new_topics_per_second} topics a second; send again in some seconds, or "
                "make the topics before with `pocketmq topic create`",
            )
        if turn is None:
            waiting.next_at = at + 1 / limits.new_topics_per_second
            loop = asyncio.get_running_loop()
            turn = waiting.turns[name] = loop.create_future()
            loop.call_later(at - now, waiting.call, name)
        raise NotYet(turn)

    async def wait(self, connection: Connection, turn: asyncio.Future[None], size: int) -> None:
        """Wait for a turn with a request of ``size`` bytes."""
        waiting = self._waiting[connection]
        waiting.sends += 1
        waiting.size += size
        try:
            await asyncio.shield(turn)
        finally:
            waiting.sends -= 1
            waiting.size -= size
