"""Requests to consumers through the broker (cf. Broker2Client): codes 222, 223, 307, 309, 314.

The broker forwards the request on the consumer's connection, and returns the consumer's answer. It
answers with an error if the consumer isn't connected, is too old, or doesn't answer in time.

A reset of offsets is sent to all members of the group. They drop their queues, commit the new
offsets and continue from there. If the broker only changed its table, the members' next commit
would overwrite the change. For an offline group the answer is CONSUMER_NOT_ONLINE; RocketMQ's tools
then set its offsets one by one with UPDATE_CONSUMER_OFFSET.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from broker.errors import RequestRefused, check_group
from broker.groups.consumers import ConsumerGroup, ConsumerMember
from broker.processors.offload import Offload, sliced
from broker.state import BrokerState
from remoting.errors import AnswerTimeout, RemotingError
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.body import MapParts
from remoting.protocol.bodies.group import (
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import (
    V3_0_7_SNAPSHOT,
    V3_1_8_SNAPSHOT,
    Language,
    RequestCode,
    ResponseCode,
    name_of,
)
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from remoting.protocol.headers.pull import CloneGroupOffsetRequestHeader, ResetOffsetRequestHeader
from remoting.protocol.message.ids import parse_offset_id
from remoting.protocol.own_codes import TOPIC_DELETED
from remoting.protocol.queue import MessageQueue
from remoting.protocol.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

if TYPE_CHECKING:
    from remoting.connection import Connection


CALL_SECONDS: Final = 10.0
"""How long to wait for a consumer's answer (cf. Broker2Client.callClient)."""

STATUS_SECONDS: Final = 5.0

LATEST: Final = -1
"""The timestamp that stands for the end of a queue."""

_log = structlog.get_logger("broker")


class ClientCallbackProcessor:
    """Forwards requests to consumers, and resets and copies offsets."""

    __slots__ = ("_offload", "_state")

    def __init__(self, state: BrokerState, offload: Offload) -> None:
        self._offload = offload
        self._state = state

    async def running_info(self, command: Command, _: Connection) -> Command:
        """Handle GET_CONSUMER_RUNNING_INFO: forward it to the consumer."""
        header = command.read(GetConsumerRunningInfoRequestHeader)
        return await self._relay(command, header.consumer_group, header.client_id)

    async def consume_directly(self, command: Command, _: Connection) -> Command:
        """Handle CONSUME_MESSAGE_DIRECTLY: let a consumer process one message now.

        The broker adds its name and the message with the given offset id.
        """
        header = command.read(ConsumeMessageDirectlyResultRequestHeader)
        body = b""
        if header.msg_id:
            body = self._message(header.msg_id)
        return await self._relay(
            command,
            header.consumer_group,
            header.client_id or "",
            extra={"brokerName": self._state.config.broker_name},
            body=body,
        )

    async def consumer_status(self, command: Command, _: Connection) -> Command:
        """Handle INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the members' current offsets in a topic."""
        header = command.read(GetConsumerStatusRequestHeader)
        client_id = (header.client_addr or "").strip()
        table: dict[str, dict[MessageQueue, int]] = {}
        group = self._state.consumers.groups.get(header.group)
        if group is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        for member in list(group.members.values()):
            check_version(member, V3_0_7_SNAPSHOT)
            if client_id not in {"", member.client_id}:
                continue
            offsets = await _ask_status(member, header)
            if offsets is not None:
                table[member.client_id] = offsets
            if client_id:
                break
        return command.reply(body=encode(GetConsumerStatusBody(consumer_table=table)))

    def _message(self, text: str) -> bytes:
        try:
            offset_id = parse_offset_id(text)
        except ValueError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = self._state.store.queries.record_at(offset_id.physical_offset)
        if record is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"there is no message {text} at broker {self._state.config.broker_name}: it is "
                "deleted by now, or another broker's; give the offset id that a query shows",
            )
        return bytes(record)

    async def _relay(
        self,
        command: Command,
        group_name: str,
        client_id: str,
        *,
        extra: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        group = self._state.consumers.groups.get(group_name)
        members = [] if group is None else group.of_id(client_id)
        if not members:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online"
            )
        member = members[0]
        if member.version < V3_1_8_SNAPSHOT:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{name_of(member.version)}> too low to "
                f"finish, please upgrade it to {name_of(V3_1_8_SNAPSHOT)}",
            )
        # All fields of the request are forwarded: newer clients may use some that we don't know.
        # Not its signature, which the consumer could use for a request of its own: the names of
        # fields aren't signed.
        fields = {**command.fields, **(extra or {})}
        for name in (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE):
            fields.pop(name, None)
        request = Command.request(
            command.code, body=body or bytes(command.body), extra=tuple(fields.items())
        )
        try:
            answer = await member.connection.request(request, timeout=CALL_SECONDS)
        except AnswerTimeout as error:
            raise RequestRefused(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group_name}> <{client_id}> Timeout: {error}",
            ) from error
        except (RemotingError, ValueError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group_name}> <{client_id}> Exception: {error}",
            ) from error
        return command.reply(
            answer.code, answer.remark, body=answer.body, extra=tuple(answer.fields.items())
        )

    # offsets

    async def topic_deleted(self, config: TopicConfig) -> None:
        """Have all members that subscribe to a deleted topic start over at its beginning.

        Otherwise they would go on at their offsets, and commit them, if it is created again.
        """
        topic, broker = config.topic_name, self._state.config.broker_name
        numbers = range(config.read_queue_nums)
        offsets = {MessageQueue(topic, broker, number): 0 for number in numbers}
        body = await _encoded(offsets)
        for name, group in list(self._state.consumers.groups.items()):
            if topic in group.subscriptions:
                header = ResetOffsetRequestHeader(
                    topic=topic, group=name, timestamp=0, is_force=True
                )
                self._push(group, header, body, extra=((TOPIC_DELETED, "true"),))

    async def reset(self, command: Command, connection: Connection) -> Command:
        """Handle INVOKE_BROKER_TO_RESET_OFFSET: reset the offsets of an online group.

        The offsets of all queues are found by a timestamp, unless the body contains the offsets,
        which PocketMQ's tools may send. RocketMQ 5's tools may name one queue, and its offset.
        """
        header = command.read(ResetOffsetRequestHeader)
        if command.body:
            offsets = self._given(header, command)
        else:
            offsets = await self._targets(header, connection)
        group = self._state.consumers.groups.get(header.group)
        if group is None:
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        answer = body = await _encoded(offsets)
        if command.language is Language.CPP:
            rows = [
                MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
                for queue, offset in offsets.items()
            ]
            body = encode(ResetOffsetBodyForC(rows))
        for member in group.members.values():
            check_version(member, V3_0_7_SNAPSHOT)
        header = ResetOffsetRequestHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=False
        )
        self._push(group, header, body)
        _log.info(
            "offsets reset",
            group=header.group,
            topic=header.topic,
            queues=len(offsets),
            timestamp=header.timestamp,
            members=len(group.members),
        )
        return command.reply(body=answer)

    def clone(self, command: Command, _: Connection) -> Command:
        """Handle CLONE_GROUP_OFFSET: copy the offsets of one group to another."""
        header = command.read(CloneGroupOffsetRequestHeader)
        check_group(header.dest_group)
        state, offsets = self._state, self._state.offsets
        topics = [header.topic] if header.topic else sorted(offsets.topics_of(header.src_group))
        online = None if header.offline else state.consumers.groups.get(header.src_group)
        cloned = 0
        for topic in topics:
            if topic not in state.topics:
                continue
            if online is not None and topic not in online.subscriptions:
                continue
            for queue_id, offset in offsets.queues_of(header.src_group, topic).items():
                offsets.commit(header.dest_group, topic, queue_id, offset)
                cloned += 1
        _log.info("offsets cloned", source=header.src_group, group=header.dest_group, queues=cloned)
        return command.reply()

    def _given(self, header: ResetOffsetRequestHeader, command: Command) -> dict[MessageQueue, int]:
        offsets = decode(ResetOffsetBody, command.body).offset_table
        name = self._state.config.broker_name
        for queue, offset in offsets.items():
            if (queue.topic, queue.broker_name) != (header.topic, name) or offset < 0:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"{queue} can't be reset to {offset} with topic {header.topic} at {name}: "
                    "give offsets from 0 on, of queues of this topic and broker",
                )
        return offsets

    async def _targets(
        self, header: ResetOffsetRequestHeader, connection: Connection
    ) -> dict[MessageQueue, int]:
        topic = self._state.topics.get(header.topic)
        if topic is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        name = self._state.config.broker_name
        offsets: dict[MessageQueue, int] = {}
        wanted: Sequence[int] = range(topic.write_queue_nums)
        if header.queue_id is not None and header.queue_id >= 0:
            wanted = [header.queue_id]
        for ids in sliced(wanted):
            if offsets:
                await asyncio.sleep(0)
            queues = [MessageQueue(header.topic, name, queue_id) for queue_id in ids]
            targets = await self._offload.read(connection, partial(self._some_targets, header, ids))
            offsets.update(zip(queues, targets, strict=True))
        return offsets

    def _some_targets(self, header: ResetOffsetRequestHeader, ids: Sequence[int]) -> list[int]:
        return [self._target(header, queue_id) for queue_id in ids]

    def _target(self, header: ResetOffsetRequestHeader, queue_id: int) -> int:
        store = self._state.store
        offset = header.offset
        if header.queue_id == queue_id and offset is not None and offset >= 0:
            first = store.queries.min_offset(header.topic, queue_id)
            end = store.queries.max_offset(header.topic, queue_id)
            if not first <= offset <= end:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {offset} not in consume queue range [{first}-{end}]",
                )
            return offset
        consumed = self._state.offsets.query(header.group, header.topic, queue_id)
        if consumed < 0:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
            )
        if header.timestamp == LATEST:
            target = store.queries.max_offset(header.topic, queue_id)
        else:
            target = store.queries.offset_by_time(header.topic, queue_id, header.timestamp)
        target = max(target, 0)
        return target if header.is_force or target < consumed else consumed

    def _push(
        self,
        group: ConsumerGroup,
        header: ResetOffsetRequestHeader,
        body: bytes,
        extra: tuple[tuple[str, str], ...] = (),
    ) -> None:
        for member in list(group.members.values()):
            request = Command.request(
                *(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header),
                body=body,
                oneway=True,
                extra=extra,
            )
            try:
                member.connection.send_oneway(request)
            except RemotingError as error:
                _log.warning(
                    "member not notified of the reset",
                    group=header.group,
                    client=member.client_id,
                    reason=str(error),
                )


async def _encoded(offsets: dict[MessageQueue, int]) -> bytes:
    """Return the body of a reset, without holding up the loop for thousands of queues."""
    whole = MapParts(ResetOffsetBody())
    parts: list[bytes] = []
    for some in sliced(list(offsets.items())):
        if parts:
            await asyncio.sleep(0)
        parts.append(whole.part(ResetOffsetBody(offset_table=dict(some))))
    return whole.whole(parts)


def check_version(member: ConsumerMember, least: int) -> None:
    """Raise ``RequestRefused`` if a consumer's version is below ``least``."""
    if member.version < least:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the client does not support this feature. version={name_of(member.version)}",
        )


async def _ask_status(
    member: ConsumerMember, header: GetConsumerStatusRequestHeader
) -> dict[MessageQueue, int] | None:
    request = Command.request(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        GetConsumerStatusRequestHeader(topic=header.topic, group=header.group),
    )
    try:
        answer = await member.connection.request(request, timeout=STATUS_SECONDS)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        return decode(GetConsumerStatusBody, answer.body).message_queue_table
    except (RemotingError, ProtocolError) as error:
        _log.warning(
            "consumer did not return its offsets",
            group=header.group,
            client=member.client_id,
            reason=str(error),
        )
        return None
