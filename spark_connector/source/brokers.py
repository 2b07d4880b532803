"""The driver's requests to a cluster: routes, the ends of queues, committed offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from client.network.routes import Route, route_of
from client.wire.offsets import (
    commit_header,
    committed_header,
    committed_offset,
    pull_header,
)
from client.wire.pull_answer import PULL_ANSWERS
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from remoting.protocol.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.bodies.stats import TopicStatsTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import (
    CreateTopicRequestHeader,
    TopicRequestHeader,
)
from remoting.protocol.message.tags import SqlExpression, TagExpression
from remoting.protocol.names import (
    AUTO_CREATE_TOPIC,
    PERM_READ,
    PERM_WRITE,
    is_internal_topic,
    retry_topic,
)
from remoting.protocol.queue import MessageQueue
from remoting.runtime.settings import nearest
from spark_connector.errors import BrokerError, UnknownTopicError
from spark_connector.options import ConnectionOptions
from spark_connector.requests import (
    FOUND_OR_NO_TOPIC,
    SUCCESS,
    Calls,
    NameServerCalls,
    request,
    understand,
)
from spark_connector.source.options import Subscription
from spark_connector.source.positions import QueueBounds

_FOUND_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
BoundsByQueue = dict[MessageQueue, QueueBounds]


class Brokers:
    """The driver's requests to a cluster. Connections are opened by the first request."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.calls = Calls(options)
        self._name_servers = NameServerCalls(self.calls)
        self._begun: set[tuple[str, str, str]] = set()
        self._checked: set[tuple[str, str]] = set()
        self._ends: dict[MessageQueue, int] = {}  # at the masters

    def routes(self, subscription: Subscription, *, gone: bool = False) -> dict[str, Route]:
        """Return the routes of the topics a query reads, by topic.

        Args:
            subscription: the topics.
            gone: leave out topics that don't exist, instead of raising; there may be none.

        Raises:
            UnknownTopicError: a topic doesn't exist, or none matches the pattern.
            BrokerError: no name server answers.
        """
        topics = subscription.topics
        if subscription.pattern is not None:
            matching = tuple(filter(subscription.pattern.fullmatch, self._topics()))
            cluster = self._name_servers.cluster() if matching else ClusterInfo()
            # Each broker has a topic with its own name, and one with that of its cluster.
            own = cluster.broker_addr_table.keys() | cluster.cluster_addr_table.keys()
            topics = tuple(name for name in matching if name not in own)
        routes = {topic: route for topic in topics if (route := self._route(topic)) is not None}
        lacking = [topic for topic in topics if topic not in routes]
        if lacking and not gone:
            raise self._unknown(lacking[0])
        if not routes and not gone:
            raise UnknownTopicError(
                f"no topic matches {subscription}", "create one, or correct the expression"
            )
        return routes

    def check_filter(self, routes: Mapping[str, Route], group: str, wanted: TagExpression) -> None:
        """Ask all brokers whether they accept a filter, unless it is by tags.

        Apache's brokers deliver all messages to a pull whose expression is wrong.

        Raises:
            BrokerError: a broker refuses the filter.
        """
        if not isinstance(wanted, SqlExpression):
            return
        for topic, route in routes.items():
            body = CheckClientRequestBody(
                group=group,
                subscription_data=SubscriptionData(
                    topic=topic, sub_string=wanted.text, expression_type=wanted.kind
                ),
            )
            command = request(RequestCode.CHECK_CLIENT_CONFIG, body=encode(body))
            for address in filter(None, map(route.address, sorted(route.brokers))):
                if (address, topic) not in self._checked:
                    self.calls.one(address, command, f"messages filtered by {wanted.text!r}")
                    self._checked.add((address, topic))

    def bounds(
        self, routes: Mapping[str, Route], *, down: dict[str, BrokerError] | None = None
    ) -> BoundsByQueue:
        """Return the minimum and maximum offsets of all readable queues.

        Args:
            routes: the routes of the topics.
            down: brokers to skip and their errors, by address; brokers that fail now are added.
                Queues of these brokers are left out, as are those of topics that a broker doesn't
                have. With None, both cases raise.

        Without a master, its slave is asked. A queue of which it lacks messages that the master had
        is left out: the query waits for them.

        Raises:
            BrokerError: ``down`` is None, and a broker fails.
        """
        bounds: BoundsByQueue = {}
        for route in routes.values():
            readable = set(route.readable)
            for name in sorted(route.brokers):
                address = route.address(name)
                if address is None or (down is not None and address in down):
                    continue
                try:
                    stats = self._stats(address, route.topic, down)
                    is_master = address == route.master(name)
                    for queue in readable & stats.keys():
                        if is_master:
                            self._ends[queue] = stats[queue].maximum
                        if stats[queue].maximum >= self._ends.get(queue, 0):
                            bounds[queue] = stats[queue]
                except BrokerError as error:
                    if down is None:
                        raise
                    down[address] = error
        return bounds

    def committed(
        self, routes: Mapping[str, Route], group: str, queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, int | None]:
        """Return a group's committed offset in each queue, None where it has committed nothing.

        Raises:
            BrokerError: a broker fails.
        """
        committed: dict[MessageQueue, int | None] = {}
        for address, here in _by_address(routes, queues).items():
            commands = [
                request(RequestCode.QUERY_CONSUMER_OFFSET, committed_header(queue, group))
                for queue in here
            ]
            what = f"offsets committed by group {group}"
            answers = self.calls.many(address, commands, what, accept=_FOUND_OR_NOT)
            offsets = [understand(address, committed_offset, answer) for answer in answers]
            if 0 in offsets:
                # Brokers of 4.x also answer 0 for short queues without a committed offset.
                command = request(RequestCode.GET_ALL_CONSUMER_OFFSET)
                answer = self.calls.one(address, command, "the table of committed offsets")
                wrapper = understand(address, decode, ConsumerOffsetSerializeWrapper, answer.body)
                table = wrapper.offset_table
                offsets = [
                    table.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)
                    if offset == 0
                    else offset
                    for queue, offset in zip(here, offsets, strict=True)
                ]
            committed |= dict(zip(here, offsets, strict=True))
        return committed

    def commit(
        self, routes: Mapping[str, Route], group: str, offsets: Mapping[MessageQueue, int]
    ) -> None:
        """Commit offsets for a group. Queues without a known broker are left out.

        The first commit of a group in a topic is sent alone: when several arrive concurrently,
        Apache's brokers may lose all but one (cf. ConsumerOffsetManager.commitOffset).

        Raises:
            BrokerError: a broker fails; the request is not repeated.
        """
        for address, here in _by_address(routes, offsets).items():
            topics = {queue.topic: queue for queue in here}
            begins = {(address, group, topic) for topic in topics} - self._begun
            first = [topics[topic] for _, _, topic in begins]
            for queues in (first, [queue for queue in here if queue not in first]):
                commands = [
                    request(
                        RequestCode.UPDATE_CONSUMER_OFFSET,
                        commit_header(queue, group, offsets[queue]),
                    )
                    for queue in queues
                ]
                if commands:
                    self.calls.many(address, commands, f"commit of group {group}", retries=0)
            self._begun |= begins

    def create_group(
        self, routes: Mapping[str, Route], group: str, queues: Iterable[MessageQueue]
    ) -> None:
        """Create a group and its retry topic if they don't exist.

        A broker creates the group when it gets a pull, and brokers of 5.x refuse commits of groups
        that don't exist. Apache's tools find groups and their brokers by the retry topic, which a
        broker creates only for groups with members (cf. ClientManageProcessor.heartBeat); a query
        has none.

        Raises:
            BrokerError: a broker fails or refuses.
        """
        topic = retry_topic(group)
        if self._route(topic) is not None:
            return
        for address, here in _by_address(routes, queues).items():
            command = request(RequestCode.PULL_MESSAGE, pull_header(here[0], group, 0, messages=1))
            what = f"messages for group {group}"
            self.calls.many(address, [command], what, accept=PULL_ANSWERS, retries=0)
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=1,
            write_queue_nums=1,
            perm=PERM_READ | PERM_WRITE,
            topic_filter_type="SINGLE_TAG",
        )
        command = request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        masters = {route.master(name) for route in routes.values() for name in route.brokers}
        for address in sorted(filter(None, masters)):
            self.calls.many(address, [command], f"the retry topic of group {group}", retries=0)

    def _route(self, topic: str) -> Route | None:
        data = self._name_servers.route(topic)
        return None if data is None else route_of(topic, data)

    def _topics(self) -> list[str]:
        return sorted(name for name in self._name_servers.topics() if not is_internal_topic(name))

    def _unknown(self, topic: str) -> UnknownTopicError:
        known = self._topics()
        there = f"there are {', '.join(known[:5])}" if known else "there is no topic at all"
        # A name server removes the topics of a broker that has stopped.
        brokers = "" if known else "check that its brokers run, "
        return UnknownTopicError(
            f"the name server {self._name_servers.address} knows no topic {topic!r}"
            f"{nearest(topic, known) or '; ' + there}",
            f"{brokers}correct the name, or create it: pocketmq topic create",
        )

    def _stats(self, address: str, topic: str, down: object) -> BoundsByQueue:
        answer = self.calls.many(
            address,
            [request(RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic=topic))],
            f"the offsets of topic {topic}",
            accept=SUCCESS if down is None else FOUND_OR_NO_TOPIC,
            retries=None if down is None else 0,
        )[0]
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        table = understand(address, decode, TopicStatsTable, answer.body).offset_table
        return {
            queue: QueueBounds(
                max(0, ends.min_offset),
                max(0, ends.min_offset, ends.max_offset),
                max(0, ends.last_update_timestamp),
            )
            for queue, ends in table.items()
        }


def addresses_of(routes: Mapping[str, Route], queue: MessageQueue) -> tuple[str, ...]:
    """Return the addresses of a queue's broker, the master first; empty if it isn't known."""
    route = routes.get(queue.topic)
    if route is None:
        return ()
    brokers = route.brokers.get(queue.broker_name, {})
    return tuple(brokers[number] for number in sorted(brokers))


def _by_address(
    routes: Mapping[str, Route], queues: Iterable[MessageQueue]
) -> dict[str, list[MessageQueue]]:
    """Group queues by the address of their master, or without one of its slave."""
    by_address: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        for address in addresses_of(routes, queue)[:1]:
            by_address[address].append(queue)
    return by_address
