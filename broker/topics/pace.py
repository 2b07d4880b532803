"""A limit on how fast one connection may create topics.

A topic stays in every table, file and registration until it is deleted, so one peer must not create
topics as fast as it can send. Below the rate no send waits. Above it, a send to a new topic waits
until the topic may be created, in the order of arrival. A send that would have to wait almost as
long as clients wait for an answer is refused with SYSTEM_BUSY. Other requests of the connection are
not delayed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from broker.errors import RequestRefused
from broker.limits import BrokerLimits
from remoting.protocol.codes import ResponseCode
from remoting.runtime.clock import Clock

if TYPE_CHECKING:
    from remoting.connection import Connection


class TopicDelayed(Exception):
    """Raised when a new topic may not be created yet.

    Attributes:
        ready: a future that ends when the topic may be created.
    """

    def __init__(self, ready: asyncio.Future[None]) -> None:
        super().__init__("the topic can be created later")
        self.ready = ready


class _Waiting:
    """The new topics of one connection, and the number and size of the sends waiting for them."""

    __slots__ = ("next_at", "ready", "sends", "size")

    def __init__(self) -> None:
        self.next_at = float("-inf")
        self.ready: dict[str, asyncio.Future[None]] = {}
        self.sends = 0
        self.size = 0

    def call(self, name: str) -> None:
        ready = self.ready.pop(name)
        if not ready.done():
            ready.set_result(None)


class NewTopics:
    """Limits the rate at which each connection of a broker creates topics."""

    __slots__ = ("_clock", "_limits", "_waiting")

    def __init__(self, clock: Clock, limits: BrokerLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._waiting: WeakKeyDictionary[Connection, _Waiting] = WeakKeyDictionary()

    def check(self, connection: Connection, name: str) -> None:
        """Count a topic that a connection is about to create.

        Raises:
            TopicDelayed: the send must wait.
            RequestRefused: it would wait too long, or too many sends of the connection wait.
        """
        limits = self._limits
        waiting = self._waiting.setdefault(connection, _Waiting())
        now = self._clock.monotonic()
        # Unused capacity of the last second may be used in a burst.
        at = max(waiting.next_at, now - 1.0)
        ready = waiting.ready.get(name)
        if ready is None and at <= now:
            waiting.next_at = at + 1 / limits.new_topics_per_second
            return
        if (
            (ready is None and at - now > limits.new_topic_wait_seconds)
            or waiting.sends >= limits.waiting_new_topics
            or waiting.size >= limits.waiting_new_topic_bytes
        ):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"topic {name} is not created now: this connection creates more than "
                f"{limits.new_topics_per_second} topics a second; send again in a few seconds, or "
                "create the topics first with `pocketmq topic create`",
            )
        if ready is None:
            waiting.next_at = at + 1 / limits.new_topics_per_second
            loop = asyncio.get_running_loop()
            ready = waiting.ready[name] = loop.create_future()
            loop.call_later(at - now, waiting.call, name)
        raise TopicDelayed(ready)

    async def wait(self, connection: Connection, ready: asyncio.Future[None], size: int) -> None:
        """Wait with a request of ``size`` bytes until its topic may be created."""
        waiting = self._waiting[connection]
        waiting.sends += 1
        waiting.size += size
        try:
            await asyncio.shield(ready)
        finally:
            waiting.sends -= 1
            waiting.size -= size
