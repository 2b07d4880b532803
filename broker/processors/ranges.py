"""Where a queue ends, and how many bytes a range of it has: code 30 (see ``byte_range``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.processors.errors import Refused
from broker.processors.offload import Answer
from broker.state import BrokerState
from remoting.protocol.byte_range import ByteQuestion
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.headers.pull import GetMaxOffsetRequestHeader, GetMaxOffsetResponseHeader

if TYPE_CHECKING:
    from remoting.connection import Connection


class RangeProcessor:
    """Serves ends and sizes of queues."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def maximum(self, command: Command, connection: Connection) -> Answer:
        """GET_MAX_OFFSET: the offset of the next message to come, and what else is asked."""
        header = command.read(GetMaxOffsetRequestHeader)
        try:
            question = ByteQuestion.of(command.fields)
        except HeaderError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if question is None:
            return command.reply(header=self._end(header))
        return self._measured(command, connection, header, question)

    async def _measured(
        self,
        command: Command,
        connection: Connection,
        header: GetMaxOffsetRequestHeader,
        question: ByteQuestion,
    ) -> Command:
        answer = await self._state.store.bytes_of(
            connection, header.topic, header.queue_id, question
        )
        return command.reply(header=self._end(header), extra=answer.fields())

    def _end(self, header: GetMaxOffsetRequestHeader) -> GetMaxOffsetResponseHeader:
        offset = self._state.store.max_offset(header.topic, header.queue_id)
        return GetMaxOffsetResponseHeader(offset=offset)
