"""The queues of topics at all brokers, from the name servers' routes.

Whether a group has more members than queues, and which member owns a queue, depends on the queues
at all brokers. For the few topics where this matters the route is queried in the background. A
route is used for a minute. Without one, callers report nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from broker.limits import MAX_TOPICS_SPREAD
from remoting.errors import RemotingError
from remoting.protocol import names
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from remoting.protocol.queue import MessageQueue
from remoting.runtime.clock import Clock

KNOWN_SECONDS: Final = 60.0
ROUTE_TIMEOUT_SECONDS: Final = 3.0
REFRESH_SECONDS: Final = 2.0
ASKED_AT_ONCE: Final = 20
"""Routes queried in one round, one after another."""

Ask = Callable[[str, Command], Awaitable[Command]]
"""Sends a request to the name server at an address; returns the answer."""


class TopicSpread:
    """The queues of topics at all brokers.

    Args:
        name_servers: the addresses of the name servers, tried in order until one answers.
        ask: sends a request to a name server.
        clock: the time.
    """

    def __init__(self, name_servers: Sequence[str], ask: Ask, clock: Clock) -> None:
        self._name_servers = name_servers
        self._ask = ask
        self._clock = clock
        self._queues: dict[str, tuple[float, list[MessageQueue]]] = {}
        self._asked: dict[str, None] = {}

    def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return a topic's readable queues, or None until the next ``refresh`` has the route."""
        route = self._queues.get(topic)
        if route is not None and self._clock.monotonic() - route[0] < KNOWN_SECONDS:
            return route[1]
        if len(self._asked) < MAX_TOPICS_SPREAD:
            self._asked[topic] = None
        return None

    async def run(self) -> None:
        """Query routes periodically until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Query the routes of the topics for which ``queues`` returned None."""
        topics, self._asked = list(self._asked), {}
        if len(self._queues) + len(topics) > MAX_TOPICS_SPREAD:
            self._queues.clear()
        for topic in topics[:ASKED_AT_ONCE]:
            queues = await self._route(topic)
            if queues is not None:
                self._queues[topic] = (self._clock.monotonic(), queues)

    async def _route(self, topic: str) -> list[MessageQueue] | None:
        header = GetRouteInfoRequestHeader(topic=topic)
        for address in self._name_servers:
            try:
                reply = await self._ask(
                    address, Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
                )
                if reply.code == ResponseCode.SUCCESS:
                    return _readable(topic, decode(TopicRouteData, reply.body))
            except (RemotingError, ProtocolError):
                continue
        return None


def _readable(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & names.PERM_READ
        for queue_id in range(data.read_queue_nums)
    ]
