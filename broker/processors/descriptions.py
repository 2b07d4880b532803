"""All that the broker knows about one consumer group: DESCRIBE_CONSUMER_GROUP, a code of ours."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from broker.group_watch import GroupWatch
from broker.groups.consumers import ConsumerGroup
from broker.groups.findings import is_conflict
from broker.groups.members import Member
from broker.limits import MAX_QUEUES_DESCRIBED
from broker.state import BrokerState
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.description import (
    BlockedQueue,
    GroupDescription,
    GroupMemberInfo,
    GroupQueueInfo,
)
from remoting.protocol.command import Command
from remoting.protocol.own_codes import DescribeConsumerGroupRequestHeader
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from remoting.connection import Connection

_Blocked = dict[tuple[str, int], tuple[Member, BlockedQueue]]


class DescriptionProcessor:
    """Describes groups."""

    __slots__ = ("_state", "_watch")

    def __init__(self, state: BrokerState, watch: GroupWatch) -> None:
        self._state = state
        self._watch = watch

    def describe(self, command: Command, _: Connection) -> Command:
        """DESCRIBE_CONSUMER_GROUP: also of groups that are offline, whose offsets are here."""
        name = command.read(DescribeConsumerGroupRequestHeader).consumer_group
        self._watch.look(name)
        group = self._state.consumers.groups.get(name)
        found = self._state.findings.of(name)
        description = GroupDescription(
            members=[] if group is None else [_member(one) for one in group.members.values()],
            conflicts=[finding for finding in found if is_conflict(finding)],
            queues=list(islice(self._queues(name, group), MAX_QUEUES_DESCRIBED)),
            warnings=[finding for finding in found if not is_conflict(finding)],
        )
        return command.reply(body=encode(description))

    def _queues(self, name: str, group: ConsumerGroup | None) -> Iterator[GroupQueueInfo]:
        blocked = {} if group is None else _blocked(group, self._state.config.broker_name)
        for topic in sorted(self._topics(name, group)):
            config = self._state.topics.get(topic)
            for queue_id in range(0 if config is None else config.read_queue_nums):
                yield self._queue(name, group, topic, queue_id, blocked)

    def _topics(self, name: str, group: ConsumerGroup | None) -> set[str]:
        topics = self._state.offsets.topics_of(name)
        for member in () if group is None else group.members.values():
            topics |= member.subscriptions.keys()
        return topics

    def _queue(
        self,
        name: str,
        group: ConsumerGroup | None,
        topic: str,
        queue_id: int,
        blocked: _Blocked,
    ) -> GroupQueueInfo:
        state = self._state
        now_ms = state.clock.now_ms()
        queue = MessageQueue(topic, state.config.broker_name, queue_id)
        info = GroupQueueInfo(
            topic=topic,
            queue_id=queue_id,
            min_offset=max(state.store.min_offset(topic, queue_id), 0),
            max_offset=state.store.max_offset(topic, queue_id),
            committed=state.offsets.query(name, topic, queue_id),
            lock_owner=state.locks.owner(name, queue, now_ms),
        )
        pull = None if group is None else group.pulls.get((topic, queue_id))
        if pull is not None:
            info.last_puller, at = pull
            info.last_pull_ms = now_ms - round((state.clock.monotonic() - at) * 1000)
        stop = blocked.get((topic, queue_id))
        if stop is not None and info.committed <= stop[1].offset:
            info.blocked_by, info.blocked = stop[0].client_id, stop[1]
            info.blocked_since = stop[1].since_ms
        return info


def _member(member: Member) -> GroupMemberInfo:
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
        joined_ms=member.joined_ms,
        last_heartbeat_ms=member.last_update_ms,
        ours=member.ours,
    )


def _blocked(group: ConsumerGroup, broker_name: str) -> _Blocked:
    return {
        (one.topic, one.queue_id): (member, one)
        for member in group.members.values()
        for one in member.blocked
        if one.broker in {"", broker_name}
    }
