"""Routes: which queues a topic has and which broker serves each.

``RouteTable`` is pure: decoded routes come in with the time, and it tells what is known and what
has to be queried again. A known route stays in use while the name servers can't be reached or,
having just restarted, don't know the topic yet (cf. MQClientInstance).

``RouteKeeper`` queries the name servers: a topic's first user waits for the route, together with
everybody else who asks meanwhile. From then on the route is refreshed every 30 s, at once when a
name server of ours announces a change, and when a broker in it fails. A failed refresh leaves the
known route in use. For announcements it sends the topics in use, one-way, on the connection of its
route requests; again when they change and on each new connection. A name server that doesn't know
that request ignores it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from client.errors import NoRoute, PocketMQError, TopicNotFound, Unavailable, remote_error
from client.limits import (
    FALLBACK_ROUTE_PERIOD,
    MAX_ROUTES,
    NEW_TOPIC_PAUSES,
    ROUTE_REFRESH_PERIOD,
    ROUTE_RETRY_PERIOD,
)
from client.remote import NameServers, Remote
from client.wire.backoff import Backoff
from remoting.clock import Clock
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.log import Log
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.route import ClusterInfo, TopicRouteData
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, HeaderError
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader, TopicRequestHeader
from remoting.protocol.names import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

MASTER_ID: Final = 0
MAX_QUEUES: Final = 65_536
"""Queues of one topic taken from a route; a damaged number must not fill memory."""


@dataclass(frozen=True, slots=True)
class Route:
    """A topic's queues and brokers.

    Attributes:
        writable: queues a producer may use, in the order of round robin.
        readable: queues a consumer may use, sorted.
        brokers: broker name -> broker id -> address.
        clusters: broker name -> cluster name.
        fallback: made from the template for new topics: the topic doesn't exist yet.
    """

    topic: str
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    fallback: bool = False

    def master(self, broker: str) -> str | None:
        """The address a send or commit for this broker's queues goes to."""
        addresses = self.brokers.get(broker)
        return addresses.get(MASTER_ID) if addresses else None

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        """The address to read from: the wanted one, else the master, else any."""
        addresses = self.brokers.get(broker)
        if not addresses:
            return None
        return addresses.get(broker_id) or addresses.get(MASTER_ID) or addresses[min(addresses)]


def route_of(topic: str, data: TopicRouteData) -> Route:
    """What a client makes of a name server's answer (cf. topicRouteData2TopicPublishInfo)."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    clusters = {broker.broker_name: broker.cluster for broker in data.broker_datas}
    ordered = _ordered(topic, data.order_topic_conf)
    writable = ordered or tuple(
        MessageQueue(topic, queue.broker_name, index)
        for queue in sorted(data.queue_datas, key=lambda queue: queue.broker_name)
        if queue.perm & PERM_WRITE and MASTER_ID in brokers.get(queue.broker_name, {})
        for index in range(min(queue.write_queue_nums, MAX_QUEUES))
    )
    readable = sorted(
        MessageQueue(topic, queue.broker_name, index)
        for queue in data.queue_datas
        if queue.perm & PERM_READ
        for index in range(min(queue.read_queue_nums, MAX_QUEUES))
    )
    return Route(topic, writable, tuple(readable), brokers, clusters)


def fallback_route(topic: str, template: TopicRouteData, default_queues: int) -> Route:
    """The route of a topic that the first send to it creates, after the template's."""
    made = route_of(topic, template)
    counts = {queue.broker_name: queue.read_queue_nums for queue in template.queue_datas}
    return Route(
        topic,
        tuple(
            queue
            for queue in made.writable
            if queue.queue_id < min(default_queues, counts[queue.broker_name])
        ),
        (),
        made.brokers,
        made.clusters,
        fallback=True,
    )


def _ordered(topic: str, text: str | None) -> tuple[MessageQueue, ...]:
    """The queues of ``broker:count;broker2:count``; nothing for an unreadable text."""
    queues: list[MessageQueue] = []
    for part in (text or "").split(";"):
        broker, _, count = part.rpartition(":")
        if broker and count.isdecimal():
            queues += [
                MessageQueue(topic, broker, index) for index in range(min(int(count), MAX_QUEUES))
            ]
    return tuple(queues)


@dataclass(slots=True)
class _Entry:
    route: Route | None = None
    asked_at: float = float("-inf")


class RouteTable:
    """The routes one instance uses."""

    def __init__(self, refresh_period: float = ROUTE_REFRESH_PERIOD) -> None:
        self._refresh_period = refresh_period
        self._entries: dict[str, _Entry] = {}

    def get(self, topic: str) -> Route | None:
        """The route, as last known."""
        entry = self._entries.get(topic)
        return entry.route if entry is not None else None

    def put(self, route: Route, now: float) -> None:
        """A route was learnt; the topic is refreshed from now on."""
        entry = self._entries.get(route.topic)
        if entry is None:
            if len(self._entries) >= MAX_ROUTES:
                self._entries.pop(next(iter(self._entries)))
            entry = self._entries[route.topic] = _Entry()
        entry.route = route
        entry.asked_at = now

    def asked(self, topic: str, now: float) -> None:
        """A refresh began or failed: the next is due a period later."""
        entry = self._entries.get(topic)
        if entry is not None:
            entry.asked_at = now

    def forget(self, topic: str) -> None:
        """The topic is gone."""
        self._entries.pop(topic, None)

    def age(self, topic: str, now: float) -> float:
        """Seconds since the topic's route was last asked for."""
        entry = self._entries.get(topic)
        return now - entry.asked_at if entry is not None else float("inf")

    def due(self, now: float) -> list[str]:
        """The topics to ask for again."""
        return [
            topic
            for topic, entry in self._entries.items()
            if now - entry.asked_at >= self._period(entry)
        ]

    def next_due(self, now: float) -> float:
        """Seconds until ``due`` gives something."""
        waits = [entry.asked_at + self._period(entry) - now for entry in self._entries.values()]
        return max(0.0, min(waits, default=self._refresh_period))

    def topics(self) -> Iterable[str]:
        """The topics whose routes are kept."""
        return self._entries.keys()

    def routes(self) -> Iterable[Route]:
        """All known routes."""
        return [entry.route for entry in self._entries.values() if entry.route is not None]

    def brokers(self) -> dict[str, dict[int, str]]:
        """Every broker of the routes: name -> id -> address."""
        merged: dict[str, dict[int, str]] = {}
        for route in self.routes():
            for name, addresses in route.brokers.items():
                merged.setdefault(name, {}).update(addresses)
        return merged

    def _period(self, entry: _Entry) -> float:
        if entry.route is not None and entry.route.fallback:
            return FALLBACK_ROUTE_PERIOD
        return self._refresh_period


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

    def invalidate(self, topic: str) -> None:
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


class RouteSubscription:
    """The subscription of one instance."""

    def __init__(self, remote: Remote, name_servers: NameServers, table: RouteTable) -> None:
        self._remote = remote
        self._name_servers = name_servers
        self._table = table
        self._told: tuple[Connection, frozenset[str]] | None = None

    def name_topics(self, topic: str) -> None:
        """Name the topics in use, with ``topic``, unless the name server has them already."""
        connection = self._remote.pool.connected(self._name_servers.current)
        topics = frozenset((topic, *self._table.topics()))
        if connection is None or self._told == (connection, topics):
            return
        request = self._remote.request(
            OwnRequestCode.SUBSCRIBE_ROUTE,
            body=encode(TopicList(topic_list=sorted(topics))),
            oneway=True,
        )
        try:
            connection.send_oneway(request)
        except RemotingError:
            return
        self._told = (connection, topics)

    def handle(self, command: Command, routes: RouteKeeper) -> Command | None:
        """What a name server or broker asks of us: only route changes are anything to us now."""
        if command.code == OwnRequestCode.ROUTE_CHANGED:
            try:
                routes.changed(command.read(TopicRequestHeader).topic)
            except HeaderError:
                return None
            return None
        if command.is_oneway:
            return None
        return command.reply(3, f" request type {command.code} not supported")
