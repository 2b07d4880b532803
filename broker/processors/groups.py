"""Administration of groups.

Handles DESCRIBE_CONSUMER_GROUP and the codes 200, 201, 203, 204, 207, 225, 300, 328, 343, 345, 352
and 353. A change of settings is answered when it is on disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from broker.delivery.redelivery import DLQ_QUEUES
from broker.errors import NOT_SAVED, RequestRefused, check_group
from broker.group_monitor import GroupMonitor
from broker.groups.consumers import ConsumerGroup, ConsumerMember
from broker.groups.health import is_conflict
from broker.groups.producers import ClientChannel
from broker.limits import MAX_QUEUES_DESCRIBED, MAX_QUEUES_PER_TOPIC
from broker.processors.offload import Answer, Offload, sliced
from broker.state import BrokerState
from broker.topics.table import UNIT_SUB_FLAG
from remoting.protocol import names
from remoting.protocol.bodies import clients, decode, encode
from remoting.protocol.bodies.description import (
    BlockedQueue,
    GroupDescriptionBody,
    GroupMemberInfo,
    GroupQueueInfo,
)
from remoting.protocol.bodies.group import (
    GroupForbidden,
    MessageRequestModeSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.stats import GroupList, QuerySubscriptionResponseBody, TopicList
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import TopicRequestHeader
from remoting.protocol.headers.group import (
    ConsumerGroupRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetProducerConnectionListRequestHeader,
    GroupRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from remoting.protocol.limits import MAX_TOPIC_LENGTH
from remoting.runtime.clock import epoch_ms

if TYPE_CHECKING:
    from remoting.connection import Connection


_log = structlog.get_logger("broker")


_Blocked = dict[tuple[str, int], tuple[ConsumerMember, BlockedQueue]]


class GroupProcessor:
    """Handles the administration of groups."""

    __slots__ = ("_monitor", "_offload", "_state")

    def __init__(self, state: BrokerState, offload: Offload, monitor: GroupMonitor) -> None:
        self._offload = offload
        self._state = state
        self._monitor = monitor

    def put(self, command: Command, _: Connection) -> Awaitable[Command]:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create a group or replace its settings."""
        return self._put_all(command, [decode(SubscriptionGroupConfig, command.body)])

    def put_list(self, command: Command, _: Connection) -> Awaitable[Command]:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: set several groups, all or none."""
        return self._put_all(command, decode(SubscriptionGroupList, command.body).group_config_list)

    def all_groups(self, command: Command, connection: Connection) -> Answer:
        """Handle GET_ALL_SUBSCRIPTIONGROUP_CONFIG: return both tables."""
        version = self._state.groups.data_version
        forbidden = self._state.groups.forbidden_copy()
        return self._offload.answer(
            command,
            connection,
            sliced(list(self._state.groups.table.items())),
            lambda some: SubscriptionGroupWrapper(dict(some), version, forbidden),
            version=version,
        )

    def request_modes(self, command: Command, _: Connection) -> Command:
        """Handle GET_ALL_MESSAGE_REQUEST_MODE: return what groups are to pull or to pop."""
        body = self._state.request_modes or MessageRequestModeSerializeWrapper()
        return command.reply(body=encode(body))

    def config(self, command: Command, _: Connection) -> Command:
        """Handle GET_SUBSCRIPTIONGROUP_CONFIG: return one group's settings; it may be created."""
        name = command.read(GroupRequestHeader).group
        config = self._state.group_config(name)
        if config is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {name}",
            )
        return command.reply(body=encode(config))

    def delete(self, command: Command, _: Connection) -> Awaitable[Command]:
        """Handle DELETE_SUBSCRIPTIONGROUP: delete the settings, and the offsets if requested."""
        header = command.read(DeleteSubscriptionGroupRequestHeader)
        self._state.groups.delete(header.group_name, self._state.clock.now_ms())
        self._state.traffic.forget_group(header.group_name)
        offsets = 0
        if header.remove_offset or header.clean_offset:
            offsets = self._state.offsets.remove_group(header.group_name)
        _log.info("group deleted", group=header.group_name, offsets=offsets)
        return self._saved(command)

    def consumer_connections(self, command: Command, _: Connection) -> Command:
        """Handle GET_CONSUMER_CONNECTION_LIST: return a group's consumers and subscriptions."""
        name = command.read(ConsumerGroupRequestHeader).consumer_group
        group = self._state.consumers.groups.get(name)
        if group is None:
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        body = clients.ConsumerConnection(
            connection_set=_connections(group.members.values()),
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return command.reply(body=encode(body))

    def producer_connections(self, command: Command, _: Connection) -> Command:
        """Handle GET_PRODUCER_CONNECTION_LIST: return a group's producers."""
        name = command.read(GetProducerConnectionListRequestHeader).producer_group
        members = self._state.producers.groups.get(name)
        if members is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = clients.ProducerConnection(connection_set=_connections(members.values()))
        return command.reply(body=encode(body))

    def consumed_by(self, command: Command, _: Connection) -> Command:
        """Handle QUERY_TOPIC_CONSUME_BY_WHO: return the groups that consume a topic.

        These are the online groups that subscribe to it, and groups with offsets in it.
        """
        topic = command.read(TopicRequestHeader).topic
        groups = self._state.consumers.groups_of(topic) | self._state.offsets.groups_of(topic)
        return command.reply(body=encode(GroupList(group_list=sorted(groups))))

    def all_producers(self, command: Command, connection: Connection) -> Answer:
        """Handle GET_ALL_PRODUCER_INFO: return the producers of all groups."""
        groups, began_ms = self._state.producers.groups, epoch_ms(self._state.clock)
        return self._offload.answer(
            command,
            connection,
            sliced(list(groups)),
            # Groups may have ended since the slices were made.
            lambda some: clients.ProducerTableInfo(
                {
                    name: _producers(groups[name].values(), began_ms)
                    for name in some
                    if name in groups
                }
            ),
        )

    def topics_of(self, command: Command, _: Connection) -> Command:
        """Handle QUERY_TOPICS_BY_CONSUMER: return the topics in which a group has offsets."""
        state = self._state
        topics = sorted(state.offsets.topics_of(command.read(GroupRequestHeader).group))
        return command.reply(body=encode(TopicList(topics, state.address)))

    def subscription_of(self, command: Command, _: Connection) -> Command:
        """Handle QUERY_SUBSCRIPTION_BY_CONSUMER: return an online group's subscription."""
        header = command.read(QuerySubscriptionByConsumerRequestHeader)
        online = self._state.consumers.groups.get(header.group)
        subscription = None if online is None else online.subscriptions.get(header.topic or "")
        return command.reply(
            body=encode(QuerySubscriptionResponseBody(subscription, header.group, header.topic))
        )

    async def forbidden(self, command: Command, _: Connection) -> Command:
        """Handle UPDATE_AND_GET_GROUP_FORBIDDEN: set and return whether a group may read a topic.

        As in RocketMQ, it doesn't apply to pulls that bring their own subscription.
        """
        header, state = command.read(UpdateGroupForbiddenRequestHeader), self._state
        group, topic = header.group, header.topic
        if header.readable is not None:
            try:
                state.groups.set_may_read(
                    group, topic, state.clock.now_ms(), allowed=header.readable
                )
            except ValueError as error:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
            _log.info("group may read", group=group, topic=topic, allowed=header.readable)
            if not await state.changes.groups_changed():
                return command.reply(ResponseCode.SYSTEM_ERROR, NOT_SAVED)
        body = GroupForbidden(topic, group, state.groups.may_read(group, topic))
        return command.reply(remark="", body=encode(body))

    def describe(self, command: Command, _: Connection) -> Command:
        """Handle DESCRIBE_CONSUMER_GROUP: check a group now and describe it; it may be offline."""
        name = command.read(ConsumerGroupRequestHeader).consumer_group
        self._monitor.check(name)
        group = self._state.consumers.groups.get(name)
        findings = self._state.findings.of(name)
        description = GroupDescriptionBody(
            members=[]
            if group is None
            else [
                _member(member, epoch_ms(self._state.clock)) for member in group.members.values()
            ],
            conflicts=[finding for finding in findings if is_conflict(finding)],
            queues=list(islice(self._queues(name, group), MAX_QUEUES_DESCRIBED)),
            warnings=[finding for finding in findings if not is_conflict(finding)],
        )
        return command.reply(body=encode(description))

    def _queues(self, name: str, group: ConsumerGroup | None) -> Iterator[GroupQueueInfo]:
        topics = self._state.offsets.topics_of(name)
        blocked: _Blocked = {}
        if group is not None:
            for member in group.members.values():
                topics |= member.subscriptions.keys()
            for member, queue in group.blocked(self._state.config.broker_name):
                blocked[queue.topic, queue.queue_id] = member, queue
        for topic in sorted(topics):
            config = self._state.topics.get(topic)
            for queue_id in range(0 if config is None else config.read_queue_nums):
                yield self._queue(name, group, topic, queue_id, blocked)

    def _queue(
        self,
        name: str,
        group: ConsumerGroup | None,
        topic: str,
        queue_id: int,
        blocked: _Blocked,
    ) -> GroupQueueInfo:
        state = self._state
        queue = state.message_queue(topic, queue_id)
        info = GroupQueueInfo(
            topic=topic,
            queue_id=queue_id,
            min_offset=max(state.store.queries.min_offset(topic, queue_id), 0),
            max_offset=state.store.queries.max_offset(topic, queue_id),
            committed=state.offsets.query(name, topic, queue_id),
            lock_owner=state.locks.owner(name, queue, state.monotonic_ms),
        )
        pull = None if group is None else group.pulls.get((topic, queue_id))
        if pull is not None:
            info.last_puller, at, _ = pull
            info.last_pull_ms = epoch_ms(state.clock) + round(at * 1000)
        stop = blocked.get((topic, queue_id))
        if stop is not None and info.committed <= stop[1].offset:
            info.blocked_by, info.blocked = stop[0].client_id, stop[1]
            info.blocked_since = stop[1].since_ms
        return info

    def _put_all(
        self, command: Command, configs: list[SubscriptionGroupConfig]
    ) -> Awaitable[Command]:
        for config in configs:
            check_group(config.group_name)
            if not 0 <= config.retry_queue_nums <= MAX_QUEUES_PER_TOPIC:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {config.group_name}: retryQueueNums has to be 0 to "
                    f"{MAX_QUEUES_PER_TOPIC}",
                )
        for config in configs:
            self._state.groups.put(config, self._state.clock.now_ms())
            _log.info("group set", group=config.group_name)
        return self._saved(command)

    async def _saved(self, command: Command) -> Command:
        saved = await self._state.changes.groups_changed()
        return command.reply() if saved else command.reply(ResponseCode.SYSTEM_ERROR, NOT_SAVED)


def _connections(channels: Iterable[ClientChannel]) -> list[clients.ConnectionInfo]:
    return [
        clients.ConnectionInfo(
            client_id=channel.client_id,
            client_addr=channel.address,
            language=channel.language,
            version=channel.version,
        )
        for channel in channels
    ]


def _producers(channels: Iterable[ClientChannel], began_ms: int) -> list[clients.ProducerInfo]:
    return [
        clients.ProducerInfo(
            client_id=channel.client_id,
            remote_ip=f"/{channel.address}",
            language=channel.language,
            version=channel.version,
            last_update_timestamp=began_ms + channel.last_update_ms,
        )
        for channel in channels
    ]


def _member(member: ConsumerMember, began_ms: int) -> GroupMemberInfo:
    profile = member.profile
    return GroupMemberInfo(
        client_id=member.client_id,
        client_addr=member.address,
        language=member.language,
        version=member.version,
        consume_type=profile.consume_type,
        message_model=profile.message_model,
        consume_from_where=profile.consume_from_where,
        strategy=profile.strategy,
        subscriptions=list(member.subscriptions.values()),
        joined_ms=began_ms + member.joined_ms,
        last_heartbeat_ms=began_ms + member.last_update_ms,
        ours=member.ours,
    )


def retry_topic(state: BrokerState, group: str, queues: int, *, unit: bool) -> TopicConfig:
    """Return the group's retry topic, creating it if needed.

    Raises:
        RequestRefused: the group's name is too long for a topic.
        LimitReached: there are too many topics.
    """
    flag = UNIT_SUB_FLAG if unit else 0
    return _fixed(state, names.retry_topic(group), queues, flag)


def dead_letter_topic(state: BrokerState, group: str) -> TopicConfig:
    """Return the group's dead-letter topic, creating it if needed; raises like ``retry_topic``."""
    return _fixed(state, names.dlq_topic(group), DLQ_QUEUES, 0)


def _fixed(state: BrokerState, name: str, queues: int, flag: int) -> TopicConfig:
    if len(name) > MAX_TOPIC_LENGTH:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the group's name is too long for its topic {name[:40]}...: a topic has at most "
            f"{MAX_TOPIC_LENGTH} characters",
        )
    return state.create_topic(name, queues, sys_flag=flag)
