"""Queue locks of orderly consumers: codes 41 and 42 (cf. AdminBrokerProcessor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.processors.remarks import (
    check_broker_name,
    check_client_id,
    check_group,
    check_topic,
)
from broker.state import BrokerState
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from remoting.protocol.command import Command
from remoting.protocol.own_codes import TAKE_LOCKS

if TYPE_CHECKING:
    from remoting.connection import Connection


class LockProcessor:
    """Serves queue locks."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def lock(self, command: Command, _: Connection) -> Command:
        """LOCK_BATCH_MQ: take or keep locks; the answer names those the client holds now."""
        body = decode(LockBatchRequestBody, command.body)
        check_group(body.consumer_group)
        check_client_id(body.client_id)
        for queue in body.mq_set:
            check_topic(queue.topic)
            check_broker_name(queue.broker_name)
        held = self._state.locks.lock(
            body.consumer_group,
            body.client_id,
            body.mq_set,
            self._state.clock.now_ms(),
            by_force=command.fields.get(TAKE_LOCKS) == "true",
        )
        return command.reply(body=encode(LockBatchResponseBody(lock_ok_mq_set=held)))

    def unlock(self, command: Command, _: Connection) -> Command:
        """UNLOCK_BATCH_MQ: give locks back."""
        body = decode(UnlockBatchRequestBody, command.body)
        self._state.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return command.reply()
