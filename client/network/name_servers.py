"""Requests to the name servers, and the routes they return.

Name servers are tried one after another until one answers; all later requests then start with that
one. The first is chosen at random to spread clients over the servers (cf. NettyRemotingClient).
While a name server is silent, the next one is asked as well, and the first answer counts.

``RouteKeeper`` requests a topic's route on first use; concurrent callers share the request. From
then on the route is refreshed every 30 s, at once when a PocketMQ name server announces a change,
and when one of its brokers fails. A failed refresh leaves the known route in use. To get
announcements, the keeper sends the topics in use, one-way, on the connection it uses for route
requests; it sends them again when they change and on each new connection. A name server that
doesn't support that request ignores it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Final

from client.errors import (
    NoNameServer,
    NoRoute,
    NotSupported,
    PocketMQError,
    TopicNotFound,
    Unavailable,
    UsageError,
    remote_error,
)
from client.limits import (
    NAME_SERVER_PATIENCE,
    NAME_SERVER_TIMEOUT,
    NEW_TOPIC_PAUSES,
    ROUTE_RETRY_PERIOD,
)
from client.network.remote import SUCCESS_ONLY, Remote
from client.network.routes import MASTER_ID, Route, RouteTable, fallback_route, route_of
from client.wire.backoff import Backoff
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.limits import STALL_SECONDS
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Header
from remoting.protocol.errors import BodyError, HeaderError
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader, TopicRequestHeader
from remoting.protocol.names import AUTO_CREATE_TOPIC
from remoting.protocol.own_codes import OwnRequestCode
from remoting.runtime.clock import Clock
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor, wait_at_most

_log = Log("client")

SERVED_BY_ALL: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""Requests that every name server serves and no broker serves."""


class NameServers:
    """The name servers of one client."""

    def __init__(
        self, remote: Remote, addresses: Sequence[str], *, choose: random.Random | None = None
    ) -> None:
        self._remote = remote
        self.addresses = list(addresses)
        self._current = (choose or random.Random()).randrange(len(self.addresses))  # noqa: S311

    @property
    def current(self) -> str:
        """The address that is asked first."""
        return self.addresses[self._current]

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        *,
        body: bytes = b"",
        accept: Container[int] = SUCCESS_ONLY,
        topic: str | None = None,
    ) -> Command:
        """Return the first answer of a name server.

        Raises:
            NoNameServer: none did.
            UsageError: the address is a broker's.
            RemoteError: one answered with a code that is not in ``accept``.
        """
        # Start with the one that answered last, so that a silent server delays one request only.
        failures: list[str] = []
        untried = [*range(self._current, len(self.addresses)), *range(self._current)]
        calls: dict[asyncio.Task[Command], int] = {}
        try:
            while untried or calls:
                if untried:
                    call = self._remote.call(
                        self.addresses[untried[0]],
                        code,
                        header,
                        body=body,
                        timeout=NAME_SERVER_TIMEOUT,
                        accept=accept,
                        topic=topic,
                    )
                    calls[asyncio.create_task(call)] = untried.pop(0)
                answered, _ = await asyncio.wait(
                    calls,
                    timeout=NAME_SERVER_PATIENCE if untried else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in answered:
                    index = calls[task]
                    try:
                        answer = task.result()
                    except Unavailable as error:
                        failures.append(f"{self.addresses[index]}: {error.message}")
                        del calls[task]
                    except NotSupported as error:
                        if code not in SERVED_BY_ALL:
                            raise
                        raise UsageError(
                            f"{self.addresses[index]} is a broker, not a name server",
                            topic=topic,
                            hint="give the name server's address, by default port 9876",
                        ) from error
                    else:
                        self._current = index
                        return answer
        finally:
            for task in calls:
                task.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        raise NoNameServer(
            "no name server answers: " + "; ".join(failures),
            topic=topic,
            hint="check their addresses and that one of them runs",
        )

    async def ask_all(
        self, code: int, header: Header | None = None, *, accept: Container[int] = SUCCESS_ONLY
    ) -> list[Command]:
        """Send a request to every name server and return their answers.

        Name servers don't replicate, so a change has to be made at each.

        Raises:
            Unavailable: one could not be reached; those before it have carried out the request.
            RemoteError: one refused.
        """
        return [
            await self._remote.call(
                address, code, header, timeout=NAME_SERVER_TIMEOUT, accept=accept
            )
            for address in self.addresses
        ]


_FOUND_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST})


class RouteKeeper:
    """The routes of one instance.

    Args:
        on_change: called with each route that is new or has changed.
    """

    def __init__(
        self,
        remote: Remote,
        name_servers: NameServers,
        table: RouteTable,
        clock: Clock,
        tasks: Supervisor,
        on_change: Callable[[Route], None],
    ) -> None:
        self._remote = remote
        self._name_servers = name_servers
        self._clock = clock
        self._tasks = tasks
        self.table = table
        self._on_change = on_change
        self._subscribed: tuple[Connection, frozenset[str]] | None = None
        self._fetching: dict[str, asyncio.Task[Route | PocketMQError | None]] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Refresh the routes that are due, until cancelled."""
        while True:
            for topic in self.table.due(self._clock.monotonic()):
                try:
                    await self._fetch(topic)
                except PocketMQError as error:
                    _log.warning("route not refreshed", topic=topic, error=str(error))
                    self.table.asked(topic, self._clock.monotonic())
            self._wake.clear()
            await wait_at_most(self.table.next_due(self._clock.monotonic()), self._wake)

    async def to_read(self, topic: str) -> Route:
        """Return the route of an existing topic.

        Raises:
            TopicNotFound: the name servers don't have it.
            NoNameServer: no name server answered.
        """
        route = self.table.get(topic)
        if route is None or route.fallback:
            route = await self._fetch(topic)
        if route is None:
            raise _not_found(topic)
        return route

    async def fresh(self, topic: str) -> Route:
        """Request a topic's route now, for rare callers that need every current queue.

        A topic that a send has just created takes a moment to reach the name servers, so the
        request is repeated after each of ``NEW_TOPIC_PAUSES``.

        Raises:
            TopicNotFound: the name servers don't have it.
            NoNameServer: no name server answered.
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
        """Return the route for sends to a topic; for a missing topic, the template's.

        While no name server or broker is available, retry for up to ``timeout`` seconds.

        Raises:
            TopicNotFound: neither the topic nor a template topic exists.
            NoRoute: no broker accepts messages for it.
            NoNameServer: no name server answered.
        """
        route = self.table.get(topic)
        if route is not None and route.writable:
            return route
        deadline = self._clock.monotonic() + timeout
        backoff = Backoff()
        while True:
            try:
                left = max(deadline - self._clock.monotonic(), 0.0)
                return await self._look_up(topic, default_queues, left)
            except Unavailable:
                pause = backoff.next()
                if self._clock.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def _look_up(self, topic: str, default_queues: int, timeout: float) -> Route:
        route = await self._fetch(topic, timeout)
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
        """Refresh a route that proved wrong, at most once per ``ROUTE_RETRY_PERIOD``."""
        now = self._clock.monotonic()
        if self.table.age(topic, now) >= ROUTE_RETRY_PERIOD and topic not in self._fetching:
            self.changed(topic)

    def changed(self, topic: str) -> None:
        """Refresh a topic's route at once: it has changed."""
        if self.table.get(topic) is not None:
            self.table.asked(topic, float("-inf"))
            self._wake.set()

    async def _fetch(self, topic: str, timeout: float | None = None) -> Route | None:
        """Request a route, sharing concurrent requests; None: the topic doesn't exist."""
        loop = asyncio.get_running_loop()
        due = loop.time() + (timeout or 0.0)
        task = self._fetching.get(topic)
        if task is None:
            task = self._tasks.spawn(self._load(topic), f"route of {topic}")
            self._fetching[topic] = task
            task.add_done_callback(lambda _: self._fetching.pop(topic, None))
        while not (await asyncio.wait({task}, timeout=timeout))[0]:
            # After a stall of the event loop the answer may be there, and nobody has read it.
            late, due = loop.time() - due, loop.time() + (timeout or 0.0)
            if late <= STALL_SECONDS:
                raise NoNameServer(
                    f"no name server answers within {timeout:g} s",
                    topic=topic,
                    hint="check their addresses and that one of them runs",
                )
        outcome = task.result()
        if isinstance(outcome, PocketMQError):
            raise outcome
        return outcome

    async def _load(self, topic: str) -> Route | PocketMQError | None:
        """Request a route; return errors, because a task that raises is reported as a fault."""
        self._subscribe(topic)
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
        """Store a route, and call ``on_change`` if it differs from the known one."""
        before = self.table.get(route.topic)
        self.table.put(route, self._clock.monotonic())
        self._wake.set()
        if before != route:
            self._subscribe(route.topic)
            self._on_change(route)

    def _subscribe(self, topic: str) -> None:
        """Send the topics in use, including ``topic``, unless this connection has had them."""
        connection = self._remote.pool.connected(self._name_servers.current)
        topics = frozenset((topic, *self.table.topics()))
        if connection is None or self._subscribed == (connection, topics):
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
        self._subscribed = (connection, topics)

    def announced(self, command: Command) -> None:
        """Handle a name server's announcement of a changed route."""
        with suppress(HeaderError):
            self.changed(command.read(TopicRequestHeader).topic)

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

    async def learn_masters(self) -> bool:
        """Add all brokers to those of the routes; return whether they have changed.

        Raises:
            NoNameServer: no name server answered.
            RemoteError: one refused.
        """
        return self.table.put_masters(
            {
                name: broker.broker_addrs[MASTER_ID]
                for name, broker in (await self._brokers()).items()
                if MASTER_ID in broker.broker_addrs
            }
        )

    async def _brokers(self) -> dict[str, BrokerData]:
        """Return the name server's brokers by name."""
        answer = await self._name_servers.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            return decode(ClusterInfo, answer.body).broker_addr_table
        except BodyError:
            return {}

    async def _from_template(self, topic: str, default_queues: int) -> Route:
        template = await self._ask(AUTO_CREATE_TOPIC)
        if template is not None:
            route = fallback_route(topic, template, default_queues)
            if self.table.get(topic) is None:
                self.learn(route)
            return route
        if await self._brokers():
            raise _not_found(topic)
        raise NoRoute(
            "the name server knows no broker",
            topic=topic,
            hint="start a broker that registers there, or wait until it has (up to 30 s)",
        )


def _not_found(topic: str) -> PocketMQError:
    error = remote_error(
        ResponseCode.TOPIC_NOT_EXIST, "the name server doesn't have it", "the route", topic=topic
    )
    assert isinstance(error, TopicNotFound)
    return error
