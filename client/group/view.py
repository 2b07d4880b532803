"""What a member knows of its group: subscriptions, members, and the owners of queues.

Brokers can disagree about the members for a moment. So all members ask the same broker about a
topic, the first by name that answers, and not any broker as RocketMQ's clients do. A broker with a
new connection may have restarted: it gets a moment to receive the heartbeats of the other members,
and they to take their locks again.

A subscription has its creation time as its version, which changes with its expression and nothing
else: a broker keeps the highest version, and a version that rose by itself would overwrite what
other members send later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import datetime

from client.context import ClientContext
from client.errors import NoRoute, PocketMQError, RemoteError, Unavailable, UsageError, remote_error
from client.group.rebalancer import View
from client.limits import RESTART_GRACE
from client.positions import Place, Position, check_topic_name
from client.routes import Route
from remoting.log import Log
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.description import GroupDescriptionBody
from remoting.protocol.bodies.heartbeat import ConsumeFromWhere, SubscriptionData
from remoting.protocol.bodies.stats import GetConsumerListByGroupResponseBody
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.names import retry_topic
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue

_log = Log("client")

_SERVED_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})


class GroupView:
    """The state of one group, from its brokers.

    An object serves one round: an answer of a broker is used for all topics.

    Args:
        before: the members as of the round before.
    """

    def __init__(self, context: ClientContext, group: str, before: Collection[str]) -> None:
        self._context = context
        self._group = group
        self._before = frozenset(before)
        self._lists: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        self._owners: dict[str, asyncio.Task[Mapping[MessageQueue, str] | None]] = {}

    async def view(self, route: Route, *, shared: bool, owners: bool) -> View:
        """The state of one topic.

        Args:
            shared: the members share its queues, so their ids are needed.
            owners: the holders of the locks are needed, too.

        Raises:
            PocketMQError: the members can't be found out.
        """
        if not shared or not route.readable:
            return View(route.readable)
        members = await self._members(route)
        if not owners:
            return View(route.readable, members)
        brokers = sorted({queue.broker_name for queue in route.readable})
        for broker in brokers:
            if broker not in self._owners:
                self._owners[broker] = asyncio.create_task(self._describe(route, broker))
        told = await asyncio.gather(*(self._owners[broker] for broker in brokers))
        return View(
            route.readable,
            members,
            {
                queue: owner
                for some in told
                for queue, owner in (some or {}).items()
                if queue.topic == route.topic
            },
            frozenset(broker for broker, some in zip(brokers, told, strict=True) if some is None),
        )

    async def _members(self, route: Route) -> tuple[str, ...]:
        failure: PocketMQError | None = None
        for broker in sorted(route.brokers):
            address = route.address(broker)
            if address is None:
                continue
            try:
                if address not in self._lists:
                    self._lists[address] = asyncio.create_task(self._list(address))
                return await self._lists[address]
            except Unavailable as error:
                failure = failure or error
        raise failure or NoRoute("no broker of the topic can tell the members", topic=route.topic)

    async def _list(self, address: str) -> tuple[str, ...]:
        """The members, from one broker; it gets a heartbeat first if it doesn't know this one."""
        try:
            members = await self._ask(address)
        except RemoteError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            members = ()
        if self._context.client_id not in members:
            _log.info("not in the group's list, a heartbeat goes first", broker=address)
            await self._context.heartbeats.now(address)
            members = await self._ask(address)
        rest = RESTART_GRACE - self._context.heartbeats.back_for(address)
        if rest > 0 and not self._before <= {*members}:
            await asyncio.sleep(rest)
            members = await self._ask(address)
        # Java sorts by UTF-16 units, and all members have to sort alike.
        return tuple(sorted(set(members), key=lambda one: one.encode("utf-16-be", "replace")))

    async def _ask(self, address: str) -> tuple[str, ...]:
        answer = await self._context.remote.call(
            address,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            ConsumerGroupRequestHeader(consumer_group=self._group),
            group=self._group,
        )
        try:
            return tuple(decode(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list)
        except BodyError as error:
            raise self._unreadable(error, address) from error

    async def _describe(self, route: Route, broker: str) -> Mapping[MessageQueue, str] | None:
        """The lock owners at one broker; empty if it can't tell, None if it doesn't answer."""
        address = route.master(broker)
        if address is None:
            return None
        rest = RESTART_GRACE - self._context.heartbeats.back_for(address)
        if rest > 0:
            await asyncio.sleep(rest)
        try:
            answer = await describe(self._context, address, self._group)
        except PocketMQError as error:
            _log.warning("a broker doesn't tell who holds its queues", error=str(error))
            return None
        return {
            MessageQueue(queue.topic, broker, queue.queue_id): queue.lock_owner
            for queue in (answer.queues if answer is not None else ())
            if queue.lock_owner is not None
        }

    def _unreadable(self, error: BodyError, address: str) -> RemoteError:
        return remote_error(
            ResponseCode.SYSTEM_ERROR,
            str(error),
            "the answer",
            group=self._group,
            broker=address,
        )


async def describe(context: ClientContext, address: str, group: str) -> GroupDescriptionBody | None:
    """The description of a group by a broker of ours; None: it is another's broker.

    Raises:
        PocketMQError: there is no readable answer.
    """
    answer: Command = await context.remote.call(
        address,
        OwnRequestCode.DESCRIBE_CONSUMER_GROUP,
        ConsumerGroupRequestHeader(consumer_group=group),
        accept=_SERVED_OR_NOT,
        group=group,
    )
    if answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return decode(GroupDescriptionBody, answer.body)
    except BodyError as error:
        raise remote_error(
            ResponseCode.SYSTEM_ERROR, str(error), "the answer", group=group, broker=address
        ) from error


EVERYTHING = TagExpression.parse("*")


class Subscribed:
    """The topics of one member.

    Args:
        now_ms: the clock, for versions.
        retry: the group's retry topic is read too.
    """

    def __init__(
        self,
        group: str,
        expressions: Mapping[str, TagExpression],
        now_ms: Callable[[], int],
        *,
        retry: bool,
    ) -> None:
        self._now_ms = now_ms
        self._own = retry_topic(group) if retry else None
        self._versions: dict[str, tuple[TagExpression, int]] = {}
        for topic, expression in expressions.items():
            self.put(topic, expression)
        if self._own is not None:
            self._versions[self._own] = (EVERYTHING, now_ms())

    @property
    def topics(self) -> list[str]:
        """All topics, the retry topic last."""
        return [*(topic for topic in self._versions if topic != self._own), *self._retry()]

    def _retry(self) -> list[str]:
        return [] if self._own is None else [self._own]

    def expression(self, topic: str) -> TagExpression | None:
        """The wanted messages of a topic."""
        found = self._versions.get(topic)
        return None if found is None else found[0]

    def put(self, topic: str, expression: TagExpression) -> bool:
        """Subscribe a topic, or change its expression; False if nothing changes.

        Raises:
            UsageError: this can't be a topic's name, or is the group's own retry topic.
        """
        check_topic_name(topic)
        if topic == self._own:
            raise UsageError("the retry topic is subscribed by itself", topic=topic)
        known = self._versions.get(topic)
        if known is not None and known[0] == expression:
            return False
        self._versions[topic] = (expression, self._now_ms())
        return True

    def remove(self, topic: str) -> bool:
        """End a subscription; False if there is none."""
        return topic != self._own and self._versions.pop(topic, None) is not None

    def data(self) -> list[SubscriptionData]:
        """The subscriptions for a heartbeat."""
        return [
            subscription_data(topic, expression, version_ms)
            for topic, (expression, version_ms) in self._versions.items()
        ]


def subscription_data(topic: str, expression: TagExpression, version_ms: int) -> SubscriptionData:
    """A subscription for a heartbeat."""
    return SubscriptionData(
        topic=topic,
        sub_string=expression.text,
        tags_set=sorted(expression.tags),
        code_set=sorted(expression.codes),
        sub_version=version_ms,
    )


def from_where(start_from: Position) -> ConsumeFromWhere:
    """The name that heartbeats have for where queues without an offset begin."""
    if start_from is Place.END:
        return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    if isinstance(start_from, datetime):
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
