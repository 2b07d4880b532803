"""The routes of the topics that a task writes to.

A route is requested when the first row of a topic is sent, and again when one of its brokers fails.
If a topic doesn't exist and brokers create topics automatically, its route has the queues that the
first send will create (cf. MQClientInstance). Otherwise the error suggests similar topic names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from client.network.routes import Route, fallback_route, route_of
from remoting.protocol.names import AUTO_CREATE_TOPIC
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError, ConnectorError, UnknownTopicError
from spark_connector.limits import MAX_TOPICS, NAMES_SHOWN, ROUTE_PERIOD
from spark_connector.requests import NameServerCalls


class WriteRoutes:
    """The routes of one task.

    Args:
        name_servers: sends the requests.
        default_queues: the number of queues of a topic that is created by a send.
        clock: returns monotonic seconds.
        max_topics: the most topics a task may write to.
    """

    def __init__(
        self,
        name_servers: NameServerCalls,
        default_queues: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_topics: int = MAX_TOPICS,
    ) -> None:
        self._name_servers = name_servers
        self._default_queues = default_queues
        self._clock = clock
        self._max_topics = max_topics
        self._routes: dict[str, tuple[float, Route]] = {}

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the writable queues of a topic, in order: at least one.

        Raises:
            UnknownTopicError: the topic does not exist, and sends can't create it.
            BrokerError: no name server answers, or no broker accepts messages for the topic.
            ConnectorError: the task writes to too many topics.
        """
        entry = self._routes.get(topic)
        return entry[1].writable if entry else self._look_up(topic).writable

    def address(self, queue: MessageQueue) -> str | None:
        """Return the address of a queue's master, or None if its broker isn't in the route."""
        self.queues(queue.topic)
        return self._routes[queue.topic][1].master(queue.broker_name)

    def invalidate(self, topic: str) -> None:
        """Request a topic's route again, unless that was done less than ``ROUTE_PERIOD`` ago."""
        entry = self._routes.get(topic)
        if entry is None or self._clock() - entry[0] < ROUTE_PERIOD:
            return
        try:
            self._look_up(topic)
        except ConnectorError:
            self._routes[topic] = (self._clock(), entry[1])

    def _look_up(self, topic: str) -> Route:
        if len(self._routes) >= self._max_topics and topic not in self._routes:
            raise ConnectorError(
                f"the rows of one task name more than {self._max_topics} topics",
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
        data = self._name_servers.route(topic)
        if data is not None:
            return route_of(topic, data)
        template = self._name_servers.route(AUTO_CREATE_TOPIC)
        if template is not None:
            return fallback_route(topic, template, self._default_queues)
        if not self._name_servers.cluster().broker_addr_table:
            raise BrokerError(
                f"the name server knows no broker, so nothing can be written to topic {topic}",
                "start a broker that registers there, or wait until it has",
            )
        try:
            near = get_close_matches(topic, self._name_servers.topics(), n=NAMES_SHOWN)
        except BrokerError:
            near = []
        advice = f"did you mean {' or '.join(near)}? " if near else ""
        raise UnknownTopicError(
            f"the topic {topic} to write to does not exist, and brokers here don't make topics",
            f"{advice}create it with `pocketmq topic create {topic}`",
        )
