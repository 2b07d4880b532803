"""Where a task's rows can go: the queues of topics and their brokers' addresses.

A task asks a name server when it meets a topic, and again when a broker it names fails. A topic
that doesn't exist has the queues that the first send will make, if brokers let sends make topics
(cf. MQClientInstance); otherwise the error names topics with a similar name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import Final

from client.routes import Route, fallback_route, route_of
from client.wire.backoff import Backoff
from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.route import ClusterInfo, TopicRouteData
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from remoting.protocol.headers.base import Header
from remoting.protocol.names import AUTO_CREATE_TOPIC
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError, ConnectorError, UnknownTopicError
from spark_connector.limits import MAX_TOPICS, NAMES_SHOWN, ROUTE_PERIOD
from spark_connector.options import ConnectionOptions

Lease = Callable[[str], AbstractContextManager[BlockingConnection]]
"""A connection to an address for the time of a block."""

_ANSWERS: Final[frozenset[int]] = frozenset({ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST})


class WriteRoutes:
    """The routes of one task.

    Args:
        lease: connections.
        default_queues: queues asked for when a send makes its topic.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        lease: Lease,
        default_queues: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._lease = lease
        self._default_queues = default_queues
        self._clock = clock
        self._sleep = sleep
        self._random = random.Random()  # noqa: S311 - spreads load
        self._routes: dict[str, tuple[float, Route]] = {}
        self._current = self._random.randrange(len(options.name_servers))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic that can be written to, in their order: at least one.

        Raises:
            UnknownTopicError: the topic does not exist, and sends can't make it.
            BrokerError: no name server answers, or no broker takes messages for the topic.
        """
        known = self._routes.get(topic)
        return known[1].writable if known else self._look_up(topic).writable

    def address(self, queue: MessageQueue) -> str | None:
        """Where sends to a queue go; None: no broker of this name is in the route."""
        self.queues(queue.topic)
        return self._routes[queue.topic][1].master(queue.broker_name)

    def invalidate(self, topic: str) -> None:
        """Something the route says doesn't hold: ask again, but not all the time."""
        known = self._routes.get(topic)
        if known is None or self._clock() - known[0] < ROUTE_PERIOD:
            return
        try:
            self._look_up(topic)
        except ConnectorError:
            self._routes[topic] = (self._clock(), known[1])

    def _look_up(self, topic: str) -> Route:
        if len(self._routes) >= MAX_TOPICS and topic not in self._routes:
            raise ConnectorError(
                f"the rows of one task name more than {MAX_TOPICS} topics",
                "is the column topic the right one? else repartition by it",
            )
        route = self._route(topic)
        if not route.writable:
            raise BrokerError(
                f"no broker takes messages for topic {topic}",
                "look at the topic's permission, and whether its brokers' masters run",
            )
        self._routes[topic] = (self._clock(), route)
        return route

    def _route(self, topic: str) -> Route:
        data = self._ask_route(topic)
        if data is not None:
            return route_of(topic, data)
        template = self._ask_route(AUTO_CREATE_TOPIC)
        if template is not None:
            return fallback_route(topic, template, self._default_queues)
        if not self._knows_brokers():
            raise BrokerError(
                f"the name server knows no broker, so nothing can be written to topic {topic}",
                "start a broker that registers there, or wait until it has",
            )
        near = get_close_matches(topic, self._topics(), n=NAMES_SHOWN)
        advice = f"did you mean {' or '.join(near)}? " if near else ""
        raise UnknownTopicError(
            f"the topic {topic} to write to does not exist, and brokers here don't make topics",
            f"{advice}create it with `pocketmq topic create {topic}`",
        )

    def _ask_route(self, topic: str) -> TopicRouteData | None:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        answer = self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, f"the route of {topic}")
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            return decode(TopicRouteData, answer.body)
        except BodyError as error:
            raise BrokerError(
                f"the name server's answer about topic {topic} can't be read: {error}",
                "is the address in nameServer that of a name server?",
            ) from error

    def _knows_brokers(self) -> bool:
        answer = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, None, "the list of brokers")
        try:
            return bool(decode(ClusterInfo, answer.body).broker_addr_table)
        except BodyError:
            return False

    def _topics(self) -> list[str]:
        try:
            answer = self._ask(
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, "the list of topics"
            )
            return decode(TopicList, answer.body).topic_list
        except (BrokerError, BodyError):
            return []

    def _ask(self, code: int, header: Header | None, what: str) -> Command:
        """The answer of the first name server that gives one, over some rounds."""
        servers = self._options.name_servers
        backoff = Backoff(self._random, first=self._options.retry_interval)
        failures: list[str] = []
        for attempt in range(self._options.retries + 1):
            if attempt:
                self._sleep(backoff.next())
            failures = []
            for _ in servers:
                try:
                    return self._ask_one(servers[self._current], code, header)
                except (RemotingError, _Refused) as error:
                    failures.append(str(error))
                    self._current = (self._current + 1) % len(servers)
        raise BrokerError(
            f"no name server of {', '.join(servers)} gave {what}: {failures[-1]}",
            "check the option nameServer, and that it runs",
        )

    def _ask_one(self, address: str, code: int, header: Header | None) -> Command:
        with self._lease(address) as connection:
            timeout = self._options.request_timeout
            answer = connection.request(Command.request(code, header), timeout=timeout)
            answer.body = bytes(answer.body)
        if answer.code not in _ANSWERS:
            raise _Refused(f"{address} answered code {answer.code}: {answer.remark}")
        return answer


class _Refused(Exception):
    """A name server answered that it can't answer."""
