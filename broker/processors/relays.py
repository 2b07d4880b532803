"""Questions to a consumer that go through the broker: codes 223, 307 and 309 (cf. Broker2Client).

The broker asks the consumer on the connection that the consumer itself has made, and gives the
answer back. A consumer that is gone, too old, or does not answer in time is told in the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import structlog

from broker.errors import Refused
from broker.groups.members import Member
from broker.state import BrokerState
from remoting.errors import RemotingError, RequestTimeout
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import GetConsumerStatusBody
from remoting.protocol.codes import (
    V3_0_7_SNAPSHOT,
    V3_1_8_SNAPSHOT,
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
from remoting.protocol.message.ids import parse_offset_id
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from remoting.connection import Connection

CALL_SECONDS: Final = 10.0
"""How long a consumer has for its answer (cf. Broker2Client.callClient)."""

STATUS_SECONDS: Final = 5.0

_log = structlog.get_logger("broker")


class RelayProcessor:
    """Passes requests on to consumers."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    async def running_info(self, command: Command, _: Connection) -> Command:
        """GET_CONSUMER_RUNNING_INFO: what a consumer says of itself."""
        header = command.read(GetConsumerRunningInfoRequestHeader)
        return await self._relay(command, header.consumer_group, header.client_id)

    async def consume_directly(self, command: Command, _: Connection) -> Command:
        """CONSUME_MESSAGE_DIRECTLY: a consumer shall handle one message now.

        The broker adds its name, and the message that the id names.
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
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets that consumers hold of a topic."""
        header = command.read(GetConsumerStatusRequestHeader)
        wanted = (header.client_addr or "").strip()
        table: dict[str, dict[MessageQueue, int]] = {}
        for member in self._members(header.group):
            check_version(member, V3_0_7_SNAPSHOT)
            if wanted not in {"", member.client_id}:
                continue
            offsets = await _ask_status(member, header)
            if offsets is not None:
                table[member.client_id] = offsets
            if wanted:
                break
        return command.reply(body=encode(GetConsumerStatusBody(consumer_table=table)))

    def _members(self, name: str) -> Iterable[Member]:
        group = self._state.consumers.groups.get(name)
        if group is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{name}]"
            )
        return list(group.members.values())

    def _message(self, text: str) -> bytes:
        try:
            place = parse_offset_id(text)
        except ValueError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = self._state.store.record_at(place.physical_offset)
        if record is None:
            raise Refused(
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
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online"
            )
        member = members[0]
        if member.version < V3_1_8_SNAPSHOT:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{name_of(member.version)}> too low to "
                f"finish, please upgrade it to {name_of(V3_1_8_SNAPSHOT)}",
            )
        request = Command.request(
            command.code,
            body=body or bytes(command.body),
            extra=tuple({**command.fields, **(extra or {})}.items()),
        )
        try:
            answer = await member.connection.request(request, timeout=CALL_SECONDS)
        except RequestTimeout as error:
            raise Refused(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group_name}> <{client_id}> Timeout: {error}",
            ) from error
        except (RemotingError, ValueError) as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group_name}> <{client_id}> Exception: {error}",
            ) from error
        return command.reply(
            answer.code, answer.remark, body=answer.body, extra=tuple(answer.fields.items())
        )


def check_version(member: Member, least: int) -> None:
    """Raises ``Refused`` when a consumer is too old for a question."""
    if member.version < least:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the client does not support this feature. version={name_of(member.version)}",
        )


async def _ask_status(
    member: Member, header: GetConsumerStatusRequestHeader
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
            "consumer did not tell its offsets",
            group=header.group,
            client=member.client_id,
            reason=str(error),
        )
        return None
