"""A member's view of its group: subscriptions, members, and owners of the queue locks.

Brokers may temporarily disagree about the members of a group. Therefore all members query the same
broker for a topic, the first by name that responds, and not a random one as RocketMQ's clients do.
A broker that was just reconnected to may have restarted: the member waits ``RESTART_GRACE`` seconds
for the other members to send their heartbeats and to take their locks again.

The version of a subscription is the time when its expression was set, and changes only with it. A
broker keeps the subscription with the highest version, so if the version increased otherwise, this
member would overwrite the subscriptions of others.

RocketMQ shares the queues of a topic among all members of a group, also those that don't subscribe
to it, so that nobody reads the queues of these. PocketMQ's members leave them out if a PocketMQ
broker reports that all members are PocketMQ's. If there is one other client, all members must
follow its rule, or else queues would have two owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from client.errors import (
    NoRoute,
    PocketMQError,
    RemoteError,
    SubscriptionInvalid,
    Unavailable,
    UsageError,
    remote_error,
)
from client.group.rebalancer import View
from client.limits import RESTART_GRACE
from client.network.context import ClientContext
from client.network.routes import Route
from client.positions import Place, Position, check_topic_name
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.description import GroupDescriptionBody
from remoting.protocol.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumeFromWhere,
    SubscriptionData,
)
from remoting.protocol.bodies.stats import GetConsumerListByGroupResponseBody, MemberTopics
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.message.tags import SqlExpression, TagExpression
from remoting.protocol.names import retry_topic
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log

_log = Log("client")

_FILTER_ANSWERS = frozenset(
    {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED}
)
_SERVED_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a group, as one broker reports them.

    Attributes:
        ids: the client ids of all members, sorted.
        topics: the members by their topics; empty if all have the same, or with Apache's brokers.
    """

    ids: tuple[str, ...] = ()
    topics: tuple[MemberTopics, ...] = ()

    @property
    def foreign(self) -> tuple[str, ...]:
        """The members that are not PocketMQ's, sorted; empty if all have the same topics."""
        return tuple(sorted(_members_of(part for part in self.topics if not part.ours)))

    def unsubscribed(self, topic: str) -> set[str]:
        """Return the members that don't subscribe to a topic."""
        subscribed = _members_of(part for part in self.topics if topic in part.topics)
        return _members_of(self.topics) - subscribed

    def sharing(self, topic: str, own: str) -> tuple[str, ...]:
        """Return the members that share a topic's queues, ``own`` among them, sorted."""
        left_out = set() if self.foreign else self.unsubscribed(topic) - {own}
        return tuple(client_id for client_id in self.ids if client_id not in left_out)

    def unread_shares(self) -> dict[str, tuple[str, ...]]:
        """Return the members that share a topic's queues without subscribing to it, by topic."""
        if not self.foreign:
            return {}
        topics = sorted({topic for part in self.topics for topic in part.topics})
        lacking = {topic: self.unsubscribed(topic) for topic in topics}
        return {topic: tuple(sorted(ids)) for topic, ids in lacking.items() if ids}


def _members_of(parts: Iterable[MemberTopics]) -> set[str]:
    return {client_id for part in parts for client_id in part.members}


class GroupView:
    """Reads the state of one group from its brokers.

    An object is used for one round and caches each broker's responses, which serve all topics.

    Args:
        before: the members in the previous round.

    Attributes:
        members: the members that the first broker to respond reported; None: none has.
    """

    def __init__(self, context: ClientContext, group: str, before: Collection[str]) -> None:
        self._context = context
        self._group = group
        self._before = frozenset(before)
        self.members: GroupMembers | None = None
        self._lists: dict[str, asyncio.Task[GroupMembers]] = {}
        self._owners: dict[str, asyncio.Task[Mapping[MessageQueue, str] | None]] = {}

    async def view(self, route: Route, *, shared: bool, owners: bool) -> View:
        """Return the state of one topic.

        Args:
            shared: whether to read the members, which share the queues.
            owners: whether to read the owners of the locks too.

        Raises:
            PocketMQError: the members can't be read.
        """
        if not shared or not route.readable:
            return View(route.readable)
        everybody = await self._members(route)
        self.members = self.members or everybody
        members = everybody.sharing(route.topic, self._context.client_id)
        if not owners:
            return View(route.readable, members)
        brokers = sorted({queue.broker_name for queue in route.readable})
        for broker in brokers:
            if broker not in self._owners:
                self._owners[broker] = asyncio.create_task(self._describe(route, broker))
        described = await asyncio.gather(*(self._owners[broker] for broker in brokers))
        return View(
            route.readable,
            members,
            {
                queue: owner
                for owned in described
                for queue, owner in (owned or {}).items()
                if queue.topic == route.topic
            },
            frozenset(
                broker for broker, owned in zip(brokers, described, strict=True) if owned is None
            ),
        )

    async def _members(self, route: Route) -> GroupMembers:
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
        raise failure or NoRoute("no address of a broker of the topic is known", topic=route.topic)

    async def _list(self, address: str) -> GroupMembers:
        """Read the members from a broker; send it a heartbeat first if this one is missing."""
        try:
            members = await self._ask(address)
        except RemoteError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            members = GroupMembers()
        if self._context.client_id not in members.ids:
            _log.info("not in the group's list, a heartbeat goes first", broker=address)
            await self._context.heartbeats.now(address)
            members = await self._ask(address)
        rest = RESTART_GRACE - self._context.heartbeats.seconds_since_reconnect(address)
        if rest > 0 and not self._before <= {*members.ids}:
            await asyncio.sleep(rest)
            members = await self._ask(address)
        return members

    async def _ask(self, address: str) -> GroupMembers:
        answer = await self._context.remote.call(
            address,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            ConsumerGroupRequestHeader(consumer_group=self._group),
            group=self._group,
        )
        try:
            body = decode(GetConsumerListByGroupResponseBody, answer.body)
        except BodyError as error:
            raise _unreadable(error, self._group, address) from error
        # Sort by UTF-16 code units as Java does: all members must use the same order.
        ids = sorted(
            set(body.consumer_id_list), key=lambda text: text.encode("utf-16-be", "replace")
        )
        return GroupMembers(tuple(ids), tuple(body.member_topics or ()))

    async def _describe(self, route: Route, broker: str) -> Mapping[MessageQueue, str] | None:
        """Return the lock owners at one broker; empty: an Apache broker, None: no response."""
        address = route.master(broker)
        if address is None:
            return None
        rest = RESTART_GRACE - self._context.heartbeats.seconds_since_reconnect(address)
        if rest > 0:
            await asyncio.sleep(rest)
        try:
            answer = await describe(self._context, address, self._group)
        except PocketMQError as error:
            _log.warning("queue owners not read from a broker", broker=address, error=str(error))
            return None
        return {
            MessageQueue(queue.topic, broker, queue.queue_id): queue.lock_owner
            for queue in (answer.queues if answer is not None else ())
            if queue.lock_owner is not None
        }


async def describe(context: ClientContext, address: str, group: str) -> GroupDescriptionBody | None:
    """Read a PocketMQ broker's description of a group; None: the broker doesn't support it.

    Raises:
        PocketMQError: there was no valid response.
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
        raise _unreadable(error, group, address) from error


def _unreadable(error: BodyError, group: str, address: str) -> RemoteError:
    code = ResponseCode.SYSTEM_ERROR
    return remote_error(code, str(error), "the answer", group=group, broker=address)


EVERYTHING = TagExpression.parse("*")


class Subscribed:
    """The subscriptions of one member.

    Args:
        now_ms: returns the wall-clock time in ms since the Unix epoch, for versions.
        retry: whether the group's retry topic is subscribed to as well.
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
        self._retry_topic = retry_topic(group) if retry else None
        self._versions: dict[str, tuple[TagExpression, int]] = {}
        for topic, expression in expressions.items():
            self.put(topic, expression)
        if self._retry_topic is not None:
            self._versions[self._retry_topic] = (EVERYTHING, now_ms())

    @property
    def topics(self) -> list[str]:
        """All topics, the retry topic last."""
        retry = [] if self._retry_topic is None else [self._retry_topic]
        return [*(topic for topic in self._versions if topic != self._retry_topic), *retry]

    def expression(self, topic: str) -> TagExpression | None:
        """Return the tag expression of a topic; None: not subscribed."""
        expression, _ = self._versions.get(topic, (None, 0))
        return expression

    def put(self, topic: str, expression: TagExpression) -> bool:
        """Subscribe to a topic, or change its expression. Returns whether anything changed.

        Raises:
            UsageError: ``topic`` is not a valid topic name, or is the group's retry topic.
        """
        check_topic_name(topic)
        if topic == self._retry_topic:
            raise UsageError("the group's retry topic is subscribed automatically", topic=topic)
        if self.expression(topic) == expression:
            return False
        self._versions[topic] = (expression, self._now_ms())
        return True

    def remove(self, topic: str) -> bool:
        """End a subscription. Returns whether there was one."""
        return topic != self._retry_topic and self._versions.pop(topic, None) is not None

    def data(self) -> list[SubscriptionData]:
        """Return the subscriptions for a heartbeat."""
        return [
            subscription_data(topic, expression, version_ms)
            for topic, (expression, version_ms) in self._versions.items()
        ]


def subscription_data(topic: str, expression: TagExpression, version_ms: int) -> SubscriptionData:
    """Return a subscription as heartbeats contain it."""
    return SubscriptionData(
        topic=topic,
        sub_string=expression.text,
        tags_set=sorted(expression.tags),
        code_set=sorted(expression.codes),
        sub_version=version_ms,
        expression_type=expression.kind,
    )


async def check_filter(
    context: ClientContext, group: str, topic: str, expression: TagExpression, address: str
) -> None:
    """Ask a broker whether it accepts a filter, unless it is by tags.

    Raises:
        SubscriptionInvalid: the expression is wrong.
        RemoteError: the broker doesn't filter by properties.
        Unavailable: the broker didn't answer.
    """
    if not isinstance(expression, SqlExpression):
        return
    subscription = subscription_data(topic, expression, context.clock.now_ms())
    body = CheckClientRequestBody(
        client_id=context.client_id, group=group, subscription_data=subscription
    )
    answer = await context.remote.call(
        address,
        RequestCode.CHECK_CLIENT_CONFIG,
        body=encode(body),
        accept=_FILTER_ANSWERS,
        topic=topic,
        group=group,
    )
    if answer.code == ResponseCode.SUCCESS:
        return
    remark = answer.remark or "no reason given"
    if answer.code == ResponseCode.SYSTEM_ERROR:
        kind, text = RemoteError, remark
        hint = "set enablePropertyFilter=true in the broker's configuration"
    else:
        kind, text = SubscriptionInvalid, f"the filter {expression.text!r} is wrong: {remark}"
        hint = "correct the expression; see the documents' page on filters"
    raise kind(
        text,
        code=answer.code,
        remark=remark,
        topic=topic,
        group=group,
        broker=address,
        hint=hint,
    )


def from_where(start_from: Position) -> ConsumeFromWhere:
    """Return the ``consumeFromWhere`` of heartbeats for a ``start_from`` option."""
    if start_from is Place.END:
        return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    if isinstance(start_from, datetime):
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
