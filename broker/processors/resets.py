"""Offsets of a group moved by administrators: codes 222 and 314 (cf. Broker2Client.resetOffset).

A reset of a group that is online goes to its members, who drop their queues, take the new offsets,
commit them and go on: an offset that only the broker knew would be overwritten by their next
commit. A group that is offline is told so; its offsets are then set one by one with
UPDATE_CONSUMER_OFFSET, as RocketMQ's tools do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from broker.errors import Refused
from broker.groups.consumers import ConsumerGroup
from broker.processors.relays import check_version
from broker.processors.remarks import check_group
from broker.state import BrokerState
from remoting.errors import RemotingError
from remoting.protocol.bodies import Body, decode, encode
from remoting.protocol.bodies.group import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from remoting.protocol.codes import V3_0_7_SNAPSHOT, Language, RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import CloneGroupOffsetRequestHeader, ResetOffsetRequestHeader
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from remoting.connection import Connection

LATEST: Final = -1
"""The timestamp that means the end of a queue."""

_log = structlog.get_logger("broker")


class ResetProcessor:
    """Moves offsets."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def reset(self, command: Command, _: Connection) -> Command:
        """INVOKE_BROKER_TO_RESET_OFFSET: for all members of a group that is online.

        By time, in all queues; a client of ours may give the offsets themselves in the body.
        """
        header = command.read(ResetOffsetRequestHeader)
        offsets = self._given(header, command) if command.body else self._targets(header)
        group = self._state.consumers.groups.get(header.group)
        if group is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        for_c = command.language is Language.CPP
        self._push(
            group, header, _for_c(offsets) if for_c else ResetOffsetBody(offset_table=offsets)
        )
        _log.info(
            "offsets reset",
            group=header.group,
            topic=header.topic,
            queues=len(offsets),
            timestamp=header.timestamp,
            members=len(group.members),
        )
        return command.reply(body=encode(ResetOffsetBody(offset_table=offsets)))

    def clone(self, command: Command, _: Connection) -> Command:
        """CLONE_GROUP_OFFSET: a group goes on where another one is."""
        header = command.read(CloneGroupOffsetRequestHeader)
        check_group(header.dest_group)
        offsets = self._state.offsets
        cloned = 0
        for topic in self._topics_to_clone(header):
            for queue_id, offset in offsets.queues_of(header.src_group, topic).items():
                offsets.commit(header.dest_group, topic, queue_id, offset)
                cloned += 1
        _log.info("offsets cloned", source=header.src_group, group=header.dest_group, queues=cloned)
        return command.reply()

    def _topics_to_clone(self, header: CloneGroupOffsetRequestHeader) -> list[str]:
        state = self._state
        topics = [header.topic] if header.topic else state.offsets.topics_of(header.src_group)
        online = None if header.offline else state.consumers.groups.get(header.src_group)
        return sorted(
            topic
            for topic in topics
            if topic in state.topics and (online is None or topic in online.subscriptions)
        )

    def _given(self, header: ResetOffsetRequestHeader, command: Command) -> dict[MessageQueue, int]:
        offsets = decode(ResetOffsetBody, command.body).offset_table
        name = self._state.config.broker_name
        for queue, offset in offsets.items():
            if (queue.topic, queue.broker_name) != (header.topic, name) or offset < 0:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"{queue} can't be reset to {offset} with topic {header.topic} at {name}: "
                    "give offsets from 0 on, of queues of this topic and broker",
                )
        return offsets

    def _targets(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        topic = self._state.topics.get(header.topic)
        if topic is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        name = self._state.config.broker_name
        return {
            MessageQueue(header.topic, name, queue_id): self._target(header, queue_id)
            for queue_id in range(topic.write_queue_nums)
        }

    def _target(self, header: ResetOffsetRequestHeader, queue_id: int) -> int:
        store = self._state.store
        consumed = self._state.offsets.query(header.group, header.topic, queue_id)
        if consumed < 0:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
            )
        if header.timestamp == LATEST:
            target = store.max_offset(header.topic, queue_id)
        else:
            target = store.offset_by_time(header.topic, queue_id, header.timestamp)
        target = max(target, 0)
        return target if header.is_force or target < consumed else consumed

    def _push(self, group: ConsumerGroup, header: ResetOffsetRequestHeader, body: Body) -> None:
        members = list(group.members.values())
        for member in members:
            check_version(member, V3_0_7_SNAPSHOT)
        header = ResetOffsetRequestHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False
        )
        for member in members:
            request = Command.request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body=encode(body), oneway=True
            )
            try:
                member.connection.send_oneway(request)
            except RemotingError as error:
                _log.warning(
                    "member not told of the reset",
                    group=header.group,
                    client=member.client_id,
                    reason=str(error),
                )


def _for_c(offsets: dict[MessageQueue, int]) -> ResetOffsetBodyForC:
    rows = [
        MessageQueueForC(
            topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset
        )
        for queue, offset in offsets.items()
    ]
    return ResetOffsetBodyForC(offset_table=rows)
