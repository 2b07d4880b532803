"""Requests of transactions: END_TRANSACTION (37), CHECK_TRANSACTION_STATE (39), and 323.

The checks are RocketMQ's (cf. EndTransactionProcessor); ``broker.delivery.transactions`` does what
they allow, and decides when a producer is asked.
"""

from __future__ import annotations

import struct
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import structlog

from broker.delivery.half_messages import PGROUP
from broker.delivery.redelivery import is_void, replaced, target_of
from broker.errors import RequestRefused
from broker.state import BrokerState
from broker.store.results import PutResult
from remoting.access.accounts import PUB
from remoting.access.guard import Guard
from remoting.errors import RemotingError
from remoting.protocol import names
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.headers.send import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message import ids, properties
from remoting.protocol.message.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
    encode_record,
)
from remoting.protocol.message.view import RecordView, property_text
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from remoting.connection import Connection

_log = structlog.get_logger("broker")

_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_WAIT: Final = properties.WAIT.encode()


class TransactionProcessor:
    """Handles requests from producers about transactions, and asks producers about open ones."""

    __slots__ = ("_guard", "_log", "_round", "_state")

    def __init__(self, state: BrokerState, guard: Guard | None = None) -> None:
        self._state = state
        self._guard = guard
        self._round = 0
        self._log = RateLimitedLog(state.clock, _log.warning)

    async def end(self, command: Command, connection: Connection) -> Command:
        """Handle END_TRANSACTION: commit or roll back."""
        header = command.read(EndTransactionRequestHeader)
        kind = header.commit_or_rollback
        if kind == TRANSACTION_NONE:
            # The producer has not decided: a check asks later. RocketMQ leaves it unanswered.
            return command.reply()
        if kind not in {TRANSACTION_COMMIT, TRANSACTION_ROLLBACK}:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {kind}: send 8 to commit, 12 to roll back, 0 for neither",
            )
        try:
            record = await self._half_record(connection, header)
            self._state.transactions.end(record, commit=kind == TRANSACTION_COMMIT)
        except RequestRefused as refused:
            self._state.counters.transactions_refused += 1
            self._log.write(
                "transaction not ended",
                group=header.producer_group,
                message=header.msg_id,
                offset=header.tran_state_table_offset,
                client=connection.remote_text,
                reason=refused.remark,
            )
            raise
        return command.reply()

    async def _half_record(
        self, connection: Connection, header: EndTransactionRequestHeader
    ) -> RecordView:
        """Return the half message that a request names (cf. EndTransactionProcessor)."""
        record = await self._record(connection, header.commit_log_offset, names.HALF_TOPIC)
        if record is None or not self._is_queued(record.queue_offset, header.commit_log_offset):
            reason = "Find prepared transaction message failed"
        elif property_text(record, PGROUP) != header.producer_group:
            reason = "The producer group wrong"
        elif record.queue_offset != header.tran_state_table_offset:
            reason = "The transaction state table offset wrong"
        else:
            return record
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, reason)

    def _is_queued(self, queue_offset: int, position: int) -> bool:
        """Return whether a message of the half topic's queue is at a physical offset.

        What is not in the queue may be the body of a message, which anybody may have sent.
        """
        store = self._state.store
        queue = store.queues.get((names.HALF_TOPIC, 0))
        entry = None if queue is None else queue.entry(queue_offset)
        if entry is not None:
            return entry[0] == position
        # A producer that is asked may answer before the message is confirmed.
        waiting = (entries for _, entries in store.dispatcher.waiting(names.HALF_TOPIC))
        return any(position == at for entries in waiting for at, _, _ in ENTRY.iter_unpack(entries))

    async def _record(self, connection: Connection, offset: int, *topics: str) -> RecordView | None:
        """Return the record at an offset if it is a message of the topics that is not void."""
        record = await self._state.record_at(connection, offset)
        if record is None or record.topic not in topics or is_void(record, self._state.store):
            return None
        return record

    def ask(self, record: RecordView, text: bytes, stored: PutResult) -> None:
        """Send CHECK_TRANSACTION_STATE to one of the producers.

        Args:
            record: the half message as it was.
            text: its properties now.
            stored: where it is now.
        """
        group = property_text(record, PGROUP) or ""
        connection = self._producer(group, record)
        if connection is None:
            self._state.counters.transaction_checks_without_producer += 1
            self._log.write(
                "a half message is open and no producer of its group is connected to be asked, "
                "or none whose account may publish to the topic",
                group=group,
                message=record.unique_id,
            )
            return
        # The stored one keeps WAIT=true; RocketMQ sends it with false.
        sent = replaced(text, _WAIT, b"false")
        try:
            topic, queue_id = target_of(record)
            body = encode_record(
                topic=topic,
                queue_id=queue_id,
                body=record.stored_body,
                properties=sent if len(sent) <= MAX_PROPERTIES_BYTES else record.properties_text,
                born_host=record.born_host_bytes,
                store_host=record.store_host_bytes,
                flag=record.flag,
                queue_offset=stored.queue_offset,
                physical_offset=stored.physical_offset,
                sys_flag=record.sys_flag,
                born_timestamp_ms=record.born_timestamp_ms,
                store_timestamp_ms=stored.store_timestamp_ms,
                reconsume_times=record.reconsume_times,
            )
            connection.send_oneway(
                Command.request(
                    RequestCode.CHECK_TRANSACTION_STATE,
                    CheckTransactionStateRequestHeader(
                        tran_state_table_offset=stored.queue_offset,
                        commit_log_offset=stored.physical_offset,
                        msg_id=record.unique_id,
                        transaction_id=record.unique_id,
                        offset_msg_id=ids.offset_id_of(
                            record.store_host_bytes, stored.physical_offset
                        ),
                    ),
                    body=body,
                    oneway=True,
                )
            )
        except (RemotingError, ValueError, struct.error) as error:
            # Another broker's store may hold what has no queue. It can't be committed, and is
            # discarded in the end.
            self._log.write("producer not asked", group=group, reason=str(error))
        else:
            self._state.counters.transaction_checks += 1

    def _producer(self, group: str, record: RecordView) -> Connection | None:
        """Return one of a group's connections that may see a half message, each in turn.

        Every account may call itself a producer of the group.
        """
        members, guard = self._state.producers.groups.get(group), self._guard
        if not members:
            return None
        self._round += 1
        start = self._round % len(members)
        needed = ((property_text(record, _REAL_TOPIC) or "", PUB),)
        for connection, channel in chain(islice(members.items(), start, None), members.items()):
            if guard is None or guard.lacking(channel.account, connection, needed) is None:
                return connection
        return None

    async def resume(self, command: Command, connection: Connection) -> Command:
        """Handle RESUME_CHECK_HALF_MESSAGE: check a half message again from the beginning.

        It is for messages of TRANS_CHECK_MAX_TIME_TOPIC, and for open half messages.
        """
        header = command.read(ResumeCheckHalfMessageRequestHeader)
        try:
            offset = ids.parse_offset_id(header.msg_id or "").physical_offset
        except ValueError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        topics = names.HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC
        record = await self._record(connection, offset, *topics)
        if record is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"no half message has the id {header.msg_id}: give the id of one in "
                f"{names.CHECK_MAX_TIME_TOPIC}",
            )
        self._state.transactions.resume(record)
        return command.reply()
