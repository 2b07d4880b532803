"""The driver's view of a cluster: routes, the ends of queues, committed offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from client.routes import MASTER_ID, Route, route_of
from client.wire.offsets import (
    commit_header,
    committed_header,
    committed_offset,
    pull_header,
)
from client.wire.pull_answer import PULL_ANSWERS
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from remoting.protocol.bodies.stats import TopicStatsTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.admin import (
    CreateTopicRequestHeader,
    TopicRequestHeader,
)
from remoting.protocol.names import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    is_system_topic,
    retry_topic,
)
from remoting.protocol.queue import MessageQueue
from remoting.settings import nearest
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
from spark_connector.source.positions import QueueFacts

_FOUND_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
Facts = dict[MessageQueue, QueueFacts]


class Brokers:
    """The driver's view of a cluster. Opens no connection before it is asked something."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.calls = Calls(options)
        self._name_servers = NameServerCalls(self.calls)
        self._begun: set[tuple[str, str, str]] = set()

    def routes(self, subscription: Subscription, *, gone: bool = False) -> dict[str, Route]:
        """The routes of the topics a query reads.

        Args:
            subscription: what it reads.
            gone: leave out topics that aren't there, instead of raising.

        Raises:
            UnknownTopicError: a topic isn't there, or nothing matches the pattern.
            BrokerError: no name server answers.
        """
        topics = subscription.topics
        if subscription.pattern is not None:
            topics = tuple(
                [name for name in self._topics() if subscription.pattern.fullmatch(name)]
            )
        found = {topic: route for topic in topics if (route := self._route(topic)) is not None}
        lacking = [topic for topic in topics if topic not in found]
        if lacking and not gone:
            raise self._unknown(lacking[0])
        if not found and not gone:
            raise UnknownTopicError(
                f"no topic matches {subscription}", "create one, or correct the expression"
            )
        return found

    def facts(
        self, routes: Mapping[str, Route], *, down: dict[str, BrokerError] | None = None
    ) -> Facts:
        """The ends of all readable queues.

        Args:
            routes: of the topics.
            down: takes the errors of brokers that can't be asked, by address; their queues are
                left out, as are those of topics a broker doesn't have. Without it these are
                errors that are raised.
        """
        found: Facts = {}
        for route in routes.values():
            readable = set(route.readable)
            for address in sorted(filter(None, map(route.master, _names(route)))):
                if down is not None and address in down:
                    continue
                try:
                    found |= {
                        queue: ends
                        for queue, ends in self._stats(address, route.topic, down).items()
                        if queue in readable
                    }
                except BrokerError as error:
                    if down is None:
                        raise
                    down[address] = error
        return found

    def committed(
        self, routes: Mapping[str, Route], group: str, queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, int | None]:
        """How far a group has come in each queue; None: it has committed nothing."""
        found: dict[MessageQueue, int | None] = {}
        for address, here in _by_master(routes, queues).items():
            commands = [
                request(RequestCode.QUERY_CONSUMER_OFFSET, committed_header(queue, group))
                for queue in here
            ]
            what = f"offsets committed by group {group}"
            answers = self.calls.many(address, commands, what, accept=_FOUND_OR_NOT)
            offsets = [understand(address, committed_offset, answer) for answer in answers]
            if 0 in offsets:
                # A broker of 4.x says 0 of young queues, too, in which nothing was committed.
                table = self._offset_table(address)
                offsets = [
                    table.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)
                    if offset == 0
                    else offset
                    for queue, offset in zip(here, offsets, strict=True)
                ]
            found |= dict(zip(here, offsets, strict=True))
        return found

    def commit(
        self, routes: Mapping[str, Route], group: str, offsets: Mapping[MessageQueue, int]
    ) -> None:
        """Store how far a group has come. Queues whose broker isn't known are left out.

        Of a topic's very first commits one goes ahead: of several at once Apache's brokers may
        forget all but one (cf. ConsumerOffsetManager.commitOffset).

        Raises:
            BrokerError: a broker did not take them; it is not asked again.
        """
        for address, here in _by_master(routes, offsets).items():
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

    def introduce(
        self, routes: Mapping[str, Route], group: str, queues: Iterable[MessageQueue]
    ) -> None:
        """Make a group known where it isn't, so that its commits are taken and tools find it.

        Brokers make groups that pull, and those of 5.x refuse commits of others. Apache's tools
        find groups, and their brokers, by the retry topic, which a broker makes by itself only for
        groups with members (cf. ClientManageProcessor.heartBeat), and a query has none.

        Raises:
            BrokerError: a broker doesn't do that.
        """
        topic = retry_topic(group)
        if self._route(topic) is not None:
            return
        for address, here in _by_master(routes, queues).items():
            pull = pull_header(here[0], group, 0, messages=1, suspend_ms=0, expression="*")
            command = request(RequestCode.PULL_MESSAGE, pull)
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
        return sorted(
            name
            for name in self._name_servers.topics()
            if not is_system_topic(name) and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )

    def _unknown(self, topic: str) -> UnknownTopicError:
        known = self._topics()
        there = f"there are {', '.join(known[:5])}" if known else "there is no topic at all"
        # A name server forgets the topics of a broker that has died.
        brokers = "" if known else "check that its brokers run, "
        return UnknownTopicError(
            f"the name server {self._name_servers.address} knows no topic {topic!r}"
            f"{nearest(topic, known) or '; ' + there}",
            f"{brokers}correct the name, or create it: pocketmq topic create",
        )

    def _stats(self, address: str, topic: str, down: object) -> Facts:
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
            queue: QueueFacts(max(0, ends.min_offset), max(0, ends.min_offset, ends.max_offset))
            for queue, ends in table.items()
        }

    def _offset_table(self, address: str) -> dict[str, dict[int, int]]:
        command = request(RequestCode.GET_ALL_CONSUMER_OFFSET)
        answer = self.calls.one(address, command, "the table of committed offsets")
        return understand(address, decode, ConsumerOffsetSerializeWrapper, answer.body).offset_table


def addresses_of(routes: Mapping[str, Route], queue: MessageQueue) -> tuple[str, ...]:
    """Where a queue can be read, the master first; nothing when its broker isn't known."""
    route = routes.get(queue.topic)
    if route is None:
        return ()
    brokers = route.brokers.get(queue.broker_name, {})
    return tuple(brokers[number] for number in sorted(brokers))


def master_of(routes: Mapping[str, Route], queue: MessageQueue) -> str | None:
    """Where a queue is written; None when that isn't known."""
    route = routes.get(queue.topic)
    return route.master(queue.broker_name) if route is not None else None


def _names(route: Route) -> Sequence[str]:
    return sorted(name for name, ids in route.brokers.items() if MASTER_ID in ids)


def _by_master(
    routes: Mapping[str, Route], queues: Iterable[MessageQueue]
) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        address = master_of(routes, queue)
        if address is not None:
            found[address].append(queue)
    return found
