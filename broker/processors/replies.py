"""Replies of consumers to requests of producers: codes 324 and 325 (cf. ReplyMessageProcessor).

A reply is admitted like a send. It is pushed to the client that asked, as a request with code 326,
and stored whether that client took it or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.processors.send import REFUSALS, SendHeader, SendProcessor, read_header
from broker.state import BrokerState
from broker.store.results import PendingMessage, PutStatus
from remoting.errors import RemotingError
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import ReplyMessageRequestHeader
from remoting.protocol.message import ids, properties

if TYPE_CHECKING:
    from remoting.connection import Connection

_REPLY_TO_CLIENT: Final = properties.REPLY_TO_CLIENT.encode()
_PUSH_REPLY_TIME: Final = properties.PUSH_REPLY_TIME.encode()

REPLY_SECONDS: Final = 10.0
"""How long a client has to take a reply (cf. Broker2Client.callClient)."""


class ReplyProcessor:
    """Handles replies."""

    __slots__ = ("_sends", "_state")

    def __init__(self, state: BrokerState, sends: SendProcessor) -> None:
        self._state = state
        self._sends = sends

    async def reply(self, command: Command, connection: Connection) -> Command:
        """Handle SEND_REPLY_MESSAGE and its V2; the answer says whether the client took it."""
        state, sends, header = self._state, self._sends, read_header(command)
        try:
            target = sends.admit(command, connection, header, paced=False)
        except REFUSALS as error:
            return sends.refuse(command, error)
        # Copy the body: the buffer is reused while we await.
        body = bytes(command.body)
        text = (header.properties or "").encode("utf-8", "replace")
        message = sends.message(connection, header, target, body, text)
        failure = await self._push(header, message, connection)
        message_id, queue_offset = "0", 0
        if state.config.store_reply_message_enable:
            result = state.store.put(message)
            if result.status is PutStatus.OK:
                message_id = ids.offset_id_of(state.packed_host, result.physical_offset)
                queue_offset = result.queue_offset
                sends.count(message.topic, 1, len(body), result, target.allowance)
        answer = sends.answer(command, message_id, target.queue_id, queue_offset, text)
        if failure is None:
            state.counters.replies_pushed += 1
        else:
            state.counters.replies_failed += 1
            answer.code, answer.remark = ResponseCode.SYSTEM_ERROR, failure
        return answer

    async def _push(
        self, header: SendHeader, message: PendingMessage, connection: Connection
    ) -> str | None:
        """Send a reply to the client in its properties; return why that failed, or None.

        The texts are RocketMQ's.
        """
        client_id = properties.find(message.properties, _REPLY_TO_CLIENT)
        if client_id is None:
            return "reply message properties[REPLY_TO_CLIENT] is null"
        name = client_id.decode("utf-8", "replace")
        asker = self._state.producers.find(name)
        if asker is None:
            return f"push reply message fail, channel of <{name}> not found."
        now_ms = self._state.clock.now_ms()
        # Only the pushed properties have it; RocketMQ stores the reply as it was sent.
        text = properties.append(message.properties, _PUSH_REPLY_TIME, b"%d" % now_ms)
        request = Command.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            ReplyMessageRequestHeader(
                producer_group=header.producer_group,
                topic=message.topic,
                default_topic=header.default_topic,
                default_topic_queue_nums=header.default_topic_queue_nums,
                queue_id=message.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                flag=header.flag,
                properties=text.decode("utf-8", "replace"),
                reconsume_times=header.reconsume_times or 0,
                unit_mode=header.unit_mode or False,
                born_host=connection.remote_text,
                store_host=self._state.address,
                store_timestamp=now_ms,
            ),
            body=bytes(message.body),
        )
        try:
            taken = (await asker.request(request, timeout=REPLY_SECONDS)).code
        except (RemotingError, ValueError):
            taken = ResponseCode.SYSTEM_ERROR
        return None if taken == ResponseCode.SUCCESS else f"push reply message to {name}fail."
