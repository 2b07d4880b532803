"""Routes on demand and kept fresh: ``RouteTable`` with the name servers behind it.

A topic's first user waits for its route, together with everybody else who asks meanwhile. From
then on the route is refreshed every 30 s, at once when a name server of ours announces a change,
and when a broker that it names fails. A failing refresh leaves the known route in use.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from client.backoff import Backoff
from client.errors import NoRoute, PocketMQError, TopicNotFound, Unavailable, remote_error
from client.limits import NEW_TOPIC_PAUSES, ROUTE_RETRY_PERIOD
from client.name_servers import NameServers
from client.routes import Route, RouteTable, fallback_route, route_of
from remoting.clock import Clock
from remoting.log import Log
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.route import ClusterInfo, TopicRouteData
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.errors import BodyError
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from remoting.protocol.names import AUTO_CREATE_TOPIC
from remoting.tasks import Supervisor

_log = Log("client")

_FOUND_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST})


class RouteKeeper:
    """The routes of one instance.

    Args:
        before_ask: is called with a topic before its route is asked for.
        on_change: is called with a route that is new or has changed.
    """

    def __init__(
        self,
        name_servers: NameServers,
        table: RouteTable,
        clock: Clock,
        tasks: Supervisor,
        before_ask: Callable[[str], None],
        on_change: Callable[[Route], None],
    ) -> None:
        self._name_servers = name_servers
        self._clock = clock
        self._tasks = tasks
        self.table = table
        self._before_ask = before_ask
        self._on_change = on_change
        self._fetching: dict[str, asyncio.Task[Route | PocketMQError | None]] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Refresh what is due, for ever."""
        while True:
            for topic in self.table.due(self._clock.monotonic()):
                await self._refresh(topic)
            self._wake.clear()
            pause = self.table.next_due(self._clock.monotonic())
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def to_read(self, topic: str) -> Route:
        """The route of a topic that exists.

        Raises:
            TopicNotFound: the name servers don't know it.
            NoNameServer: none could be asked.
        """
        route = self.table.get(topic)
        if route is None or route.fallback:
            route = await self._fetch(topic)
        if route is None:
            raise _not_found(topic)
        return route

    async def fresh(self, topic: str) -> Route:
        """The route as it is now, for those who ask rarely and want to see every queue.

        A topic that a send has just created takes a moment to get to the name servers.

        Raises:
            TopicNotFound: the name servers don't know it.
            NoNameServer: none could be asked.
        """
        for pause in (*NEW_TOPIC_PAUSES, None):
            route = await self._fetch(topic)
            if route is not None:
                return route
            if pause is None:
                break
            await asyncio.sleep(pause)
        raise _not_found(topic)

    async def to_write(self, topic: str, default_queues: int, timeout: float) -> Route:
        """The route for sends to a topic, that of the template when the topic doesn't exist.

        While nothing can be reached it is tried again until ``timeout`` seconds have passed.

        Raises:
            TopicNotFound: there is neither the topic nor a template to create it by.
            NoRoute: no broker is there to serve it.
            NoNameServer: none could be asked.
        """
        known = self.table.get(topic)
        if known is not None and known.writable:
            return known
        deadline = self._clock.monotonic() + timeout
        backoff = Backoff(random.Random())  # noqa: S311
        while True:
            try:
                return await self._look_up(topic, default_queues)
            except Unavailable:
                pause = backoff.next()
                if self._clock.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def _look_up(self, topic: str, default_queues: int) -> Route:
        route = await self._fetch(topic)
        if route is None:
            route = await self._from_template(topic, default_queues)
        if not route.writable:
            raise NoRoute(
                "no broker takes messages for it",
                topic=topic,
                hint="look at the topic's permission and whether its brokers' masters run",
            )
        return route

    def suspect(self, topic: str) -> None:
        """Something the route says doesn't hold: ask again soon, but not all the time."""
        now = self._clock.monotonic()
        if self.table.age(topic, now) >= ROUTE_RETRY_PERIOD and topic not in self._fetching:
            self.changed(topic)

    def changed(self, topic: str) -> None:
        """The topic's route is known to be another now."""
        if self.table.get(topic) is not None:
            self.table.asked(topic, float("-inf"))
            self._wake.set()

    async def _refresh(self, topic: str) -> None:
        try:
            await self._fetch(topic)
        except PocketMQError as error:
            _log.warning("route not refreshed", topic=topic, error=str(error))
            self.table.asked(topic, self._clock.monotonic())

    async def _fetch(self, topic: str) -> Route | None:
        """The route from a name server, shared by all who ask now; None: it knows none."""
        task = self._fetching.get(topic)
        if task is None:
            task = self._tasks.spawn(self._load(topic), f"route of {topic}")
            self._fetching[topic] = task
            task.add_done_callback(lambda _: self._fetching.pop(topic, None))
        outcome = await asyncio.shield(task)
        if isinstance(outcome, PocketMQError):
            raise outcome
        return outcome

    async def _load(self, topic: str) -> Route | PocketMQError | None:
        """As ``_fetch``; errors are results here, for a task that fails counts as a fault."""
        self._before_ask(topic)
        try:
            data = await self._ask(topic)
        except PocketMQError as error:
            return error
        if data is None:
            self.table.asked(topic, self._clock.monotonic())
            return None
        route = route_of(topic, data)
        self.learn(route)
        return route

    def learn(self, route: Route) -> None:
        """A fresh route is there."""
        known = self.table.get(route.topic)
        self.table.put(route, self._clock.monotonic())
        self._wake.set()
        if known != route:
            self._on_change(route)

    async def _ask(self, topic: str) -> TopicRouteData | None:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        answer = await self._name_servers.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, header, accept=_FOUND_OR_NOT, topic=topic
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            return decode(TopicRouteData, answer.body)
        except BodyError as error:
            raise NoRoute(
                f"the name server's answer can't be read: {error}", topic=topic
            ) from error

    async def _from_template(self, topic: str, default_queues: int) -> Route:
        template = await self._ask(AUTO_CREATE_TOPIC)
        if template is not None:
            route = fallback_route(topic, template, default_queues)
            if self.table.get(topic) is None:
                self.learn(route)
            return route
        if await self._knows_brokers():
            raise _not_found(topic)
        raise NoRoute(
            "the name server knows no broker",
            topic=topic,
            hint="start a broker that registers there, or wait until it has (up to 30 s)",
        )

    async def _knows_brokers(self) -> bool:
        answer = await self._name_servers.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            return bool(decode(ClusterInfo, answer.body).broker_addr_table)
        except BodyError:
            return False


def _not_found(topic: str) -> PocketMQError:
    error = remote_error(
        ResponseCode.TOPIC_NOT_EXIST, "the name server doesn't know it", "the route", topic=topic
    )
    assert isinstance(error, TopicNotFound)
    return error
