"""Transactions: END_TRANSACTION (37), the checks of half messages that nobody ends (39), and 323.

A half message whose producer sends no END_TRANSACTION within ``transactionTimeOut`` is stored
again, and its producer group gets CHECK_TRANSACTION_STATE: once in each
``transactionCheckInterval``, ``transactionCheckMax`` times at most. After that the message goes to
TRANS_CHECK_MAX_TIME_TOPIC (cf. TransactionalMessageServiceImpl, EndTransactionProcessor).

The offsets of the internal group in the half topic and in the op topic, in consumerOffset.json,
are where a start begins. Two things differ from RocketMQ, so that one transaction becomes one
message, whatever is killed when: a half message that is done with can't be ended again, and one
that a check stored again can be ended at its former offset, too. That offset gets an op message.
What takes a half message's place and the op message are stored in one turn of the loop. So if a
kill falls between the two, what takes its place is the last record of the log, and a start stores
the op message.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import structlog

from broker.delivery import half_messages
from broker.delivery.deliverer import FOR_GOOD, whole_records
from broker.delivery.half_messages import QUEUE, HalfMessages
from broker.delivery.redelivery import is_void, replaced, target_of
from broker.errors import LimitReached, RequestRefused
from broker.state import BrokerState
from broker.store.results import PendingMessage, PutResult, PutStatus, StoreError
from broker.topics.table import READ_WRITE
from remoting.access.accounts import PUB
from remoting.access.guard import Guard
from remoting.errors import RemotingError
from remoting.protocol import names
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
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
from remoting.protocol.message.view import RecordView
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from remoting.connection import Connection

_log = structlog.get_logger("broker")

GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its offsets in half topic and op topic say what is done with."""

_PGROUP: Final = properties.PGROUP.encode()
_REAL_TOPIC: Final = properties.REAL_TOPIC.encode()
_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()
_WAIT: Final = properties.WAIT.encode()
_IMMUNITY: Final = properties.CHECK_IMMUNITY_TIME_IN_SECONDS.encode()

_NOT_FOUND: Final = "Find prepared transaction message failed"
_HOUR_MS: Final = 3_600_000
_RECORDS_AT_ONCE: Final = 1024
"""Messages that a start reads in one turn of the loop: 2 ms."""

_CHECKED_AT_ONCE: Final = 32
"""Half messages checked in one turn of the loop."""


class TransactionProcessor:
    """Ends transactions, and asks producers about those that are open.

    Attributes:
        oldest_ms: when the oldest half message was born that was open at the last check; 0: none.
    """

    __slots__ = (
        "_guard",
        "_half",
        "_late_ops",
        "_log",
        "_round",
        "_state",
        "_unsaved",
        "oldest_ms",
    )

    def __init__(self, state: BrokerState, guard: Guard | None = None) -> None:
        self._state = state
        self._guard = guard
        self._half = HalfMessages(0, 0, max_moved=state.config.limits.moved_half_messages)
        # Of half messages that are done with while the disk took no op message.
        self._late_ops: deque[int] = deque()
        self._round = 0
        self._unsaved = False
        self._log = RateLimitedLog(state.clock, _log.warning)
        self.oldest_ms = 0

    @property
    def open_count(self) -> int:
        """How many half messages are open."""
        return self._half.count_open(self._state.store.queries.max_offset(names.HALF_TOPIC, QUEUE))

    async def load(self) -> None:
        """Read which half messages are open; once, before anything is served.

        Raises:
            StoreError: the op messages can't be read.
        """
        begin, op_begin = self._stored(names.HALF_TOPIC), self._stored(names.OP_HALF_TOPIC)
        most = self._state.config.limits.moved_half_messages
        self._half = half = HalfMessages(begin, op_begin, max_moved=most)
        offset, end = op_begin, self._state.store.queries.max_offset(names.OP_HALF_TOPIC, QUEUE)
        # Others than these may come from a store that has lost its half topic.
        known = range(self._state.store.queries.max_offset(names.HALF_TOPIC, QUEUE))
        while offset < end:
            records, behind = await self._read(names.OP_HALF_TOPIC, offset, _RECORDS_AT_ONCE)
            found: dict[int, memoryview] = {one.queue_offset: one.stored_body for one in records}
            for at in range(offset, behind):
                # One that can't be read ends nothing: its half message is checked once more.
                named = half_messages.op_offsets(found[at]) if at in found else ()
                half.op_stored(one for one in named if one in known)
            offset = behind
            await asyncio.sleep(0)
        half.advance(self._state.store.queries.min_offset(names.HALF_TOPIC, QUEUE))
        await self._finish_last()

    async def _finish_last(self) -> None:
        """Store the op message that a kill has prevented: the log ends before it."""
        store, half = self._state.store, self._half
        found = await store.cold_reads.record_at(self, store.log.opened_tail)
        if found is None or not half_messages.takes_a_place(last := RecordView(found)):
            return
        offset, end = half.begin, store.queries.max_offset(names.HALF_TOPIC, QUEUE)
        while (offset := half.next_open(offset)) < end:
            records, offset = await self._read(names.HALF_TOPIC, offset, _RECORDS_AT_ONCE)
            for record in records:
                former = record.queue_offset
                if half.is_open(former) and half_messages.takes_place_of(last, record):
                    if last.topic == names.HALF_TOPIC:
                        half.moved(former, last.queue_offset)
                    self._done(former)
                    return
            await asyncio.sleep(0)

    def _stored(self, topic: str) -> int:
        """Return the internal group's offset in a topic, within what the store has.

        After a loss of power the log may end before it.
        """
        store = self._state.store
        low, high = store.queries.min_offset(topic, QUEUE), store.queries.max_offset(topic, QUEUE)
        return min(max(self._state.offsets.query(GROUP, topic, QUEUE), low), high)

    # half messages

    def prepare(self, message: PendingMessage) -> None:
        """Make a message that is sent the half message of its transaction; changed in place.

        Raises:
            RequestRefused: it is to go where only the broker writes.
            LimitReached: the half topic can't be made.
        """
        self._topic(names.HALF_TOPIC)
        self._topic(names.OP_HALF_TOPIC)
        half_messages.to_half(message)

    def _topic(self, name: str) -> None:
        state = self._state
        _, made = state.topics.create_fixed(name, 1, READ_WRITE, state.clock.now_ms())
        if made:
            state.changes.topics_changed([name], paced=True)

    # END_TRANSACTION

    async def end(self, command: Command, connection: Connection) -> Command:
        """END_TRANSACTION: commit or roll back."""
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
            self._end(record, commit=kind == TRANSACTION_COMMIT)
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
        found = await self._state.store.cold_reads.record_at(connection, header.commit_log_offset)
        record = None if found is None else RecordView(found)
        if record is None or record.topic != names.HALF_TOPIC or is_void(record, self._state.store):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        group = properties.find(record.properties_text, _PGROUP)
        if group is None or group.decode("utf-8", "replace") != header.producer_group:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != header.tran_state_table_offset:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"
            )
        return record

    def _end(self, record: RecordView, *, commit: bool) -> None:
        offset = self._half.open_offset(record.queue_offset)
        if offset is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction of half message {record.queue_offset} has ended already, or a "
                "check has stored it again: if it is still open, its producer is asked once more",
            )
        if commit:
            try:
                message = half_messages.committed(record)
            except ValueError as error:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"half message {record.queue_offset}: {error}"
                ) from None
            # Before the op message: a crash in between repeats the message and never loses it.
            self._put(message)
            self._done(offset)
            self._state.counters.transactions_committed += 1
        else:
            self._put_op(offset)
            self._state.counters.transactions_rolled_back += 1

    def _put(self, message: PendingMessage) -> PutResult:
        result = self._state.store.put(message)
        if result.status is not PutStatus.OK:
            is_final = result.status in FOR_GOOD
            code = ResponseCode.MESSAGE_ILLEGAL if is_final else ResponseCode.SYSTEM_ERROR
            raise RequestRefused(code, result.message)
        return result

    def _put_op(self, offset: int) -> None:
        now_ms = self._state.clock.now_ms()
        self._put(half_messages.op_message(offset, now_ms))
        self._half.op_stored((offset,))

    def _done(self, offset: int) -> None:
        """End a half message whose message has been stored, even if the op message can't be."""
        try:
            self._put_op(offset)
        except RequestRefused:
            self._half.end(offset)
            self._late_ops.append(offset)

    # checks

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(self._state.config.transaction_check_interval_ms / 1000)
            await self.check()

    async def check(self) -> None:
        """Look at the half messages that are open, and ask producers about those that are late."""
        store, half = self._state.store, self._half
        try:
            while self._late_ops:
                self._put_op(self._late_ops[0])
                self._late_ops.popleft()
            self._unsaved |= half.advance(store.queries.min_offset(names.HALF_TOPIC, QUEUE))
            await self._check_open()
        except (RequestRefused, LimitReached, StoreError, OSError) as error:
            self._log.write(
                "transactions can't be checked now; they are at the next check", reason=str(error)
            )
        if half.advance(store.queries.min_offset(names.HALF_TOPIC, QUEUE)) or self._unsaved:
            self._unsaved = True
            try:
                self._state.offsets.commit(GROUP, names.HALF_TOPIC, QUEUE, half.begin)
                self._state.offsets.commit(GROUP, names.OP_HALF_TOPIC, QUEUE, half.op_begin)
                self._unsaved = False
            except LimitReached as error:
                self._log.write("a start will check transactions again", reason=str(error))

    async def _check_open(self) -> None:
        half, checked = self._half, 0
        self.oldest_ms = 0
        end = self._state.store.queries.max_offset(names.HALF_TOPIC, QUEUE)
        offset = half.begin - 1
        # Behind one that is left open hundreds of thousands may be done with.
        while (offset := half.next_open(offset + 1)) < end:
            records, _ = await self._read(names.HALF_TOPIC, offset, 1)
            # The producer may have ended it meanwhile.
            if not half.is_open(offset):
                continue
            if not records:
                _log.error("a half message can't be read and is passed over", offset=offset)
                half.end(offset)
            elif not self._check_one(offset, records[0]):
                self.oldest_ms = self.oldest_ms or records[0].born_timestamp_ms
                return
            checked += 1
            if checked % _CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _check_one(self, offset: int, record: RecordView) -> bool:
        """Check one half message; False: neither it nor those behind it are late."""
        if is_void(record, self._state.store):
            self._put_op(offset)
            return True
        config, now_ms = self._state.config, self._state.clock.now_ms()
        times = half_messages.check_times_of(record)
        age_ms = now_ms - record.born_timestamp_ms
        if times >= config.transaction_check_max or (
            age_ms > config.file_reserved_time_hours * _HOUR_MS
        ):
            self._discard(offset, record)
            return True
        asked = properties.find(record.properties_text, _IMMUNITY)
        if asked is None:
            if 0 <= age_ms < config.transaction_timeout_ms:
                return False
        elif self._half.window < config.limits.half_window:
            # A text that is no number of seconds stands for the timeout (cf. getImmunityTime).
            is_number = asked.isdigit() and len(asked) < half_messages.MAX_DIGITS
            immunity_ms = int(asked) * 1000 if is_number else config.transaction_timeout_ms
            if age_ms < immunity_ms:
                # It stays open where it is. RocketMQ stores it again for each check.
                return True
        # When it was born: a check stores it anew.
        self.oldest_ms = self.oldest_ms or record.born_timestamp_ms
        message = half_messages.again(record, times + 1)
        try:
            stored = self._move(offset, message)
        except RequestRefused as refused:
            if refused.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # Its properties have no room for the number of checks, or ``maxMessageSize`` is lower
            # than it was. It stays where it is, and its producer is asked until it is too old.
            stored = PutResult(
                PutStatus.OK,
                record.physical_offset,
                record.queue_offset,
                record.store_timestamp_ms,
            )
        self._ask(record, message.properties, stored)
        return True

    def _move(self, offset: int, message: PendingMessage) -> PutResult:
        """Store a half message again, and end it where it was."""
        result = self._put(message)
        self._half.moved(offset, result.queue_offset)
        self._done(offset)
        return result

    def _discard(self, offset: int, record: RecordView) -> None:
        self._topic(names.CHECK_MAX_TIME_TOPIC)
        try:
            self._put(half_messages.discarded(record))
        except RequestRefused as refused:
            if refused.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            _log.error(
                "a half message can't be moved to TRANS_CHECK_MAX_TIME_TOPIC; its record stays in "
                "the half topic",
                id=record.offset_id,
                reason=refused.remark,
            )
        self._done(offset)
        self._state.counters.transactions_discarded += 1
        self._log.write(
            "nobody has answered for a half message: it is in TRANS_CHECK_MAX_TIME_TOPIC; "
            "see that the producer group has a checker, then have it checked again with "
            "RESUME_CHECK_HALF_MESSAGE",
            id=record.offset_id,
            group=_text(record, _PGROUP),
            message=_text(record, _UNIQ_KEY),
            checks=half_messages.check_times_of(record),
        )

    def _ask(self, record: RecordView, text: bytes, stored: PutResult) -> None:
        """Send CHECK_TRANSACTION_STATE to one of the producers.

        Args:
            record: the half message as it was.
            text: its properties now.
            stored: where it is now.
        """
        group = _text(record, _PGROUP) or ""
        connection = self._producer(group, record)
        if connection is None:
            self._state.counters.transaction_checks_without_producer += 1
            self._log.write(
                "a half message is open and no producer of its group is connected to be asked, "
                "or none whose account may publish to the topic",
                group=group,
                message=_text(record, _UNIQ_KEY),
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
        except (ValueError, struct.error) as error:
            # Of another broker's store. It can't be committed, and is discarded in the end.
            self._log.write("producer not asked", group=group, reason=str(error))
            return
        unique_id = _text(record, _UNIQ_KEY)
        request = Command.request(
            RequestCode.CHECK_TRANSACTION_STATE,
            CheckTransactionStateRequestHeader(
                tran_state_table_offset=stored.queue_offset,
                commit_log_offset=stored.physical_offset,
                msg_id=unique_id,
                transaction_id=unique_id,
                offset_msg_id=ids.offset_id_of(record.store_host_bytes, stored.physical_offset),
            ),
            body=body,
            oneway=True,
        )
        try:
            connection.send_oneway(request)
        except (RemotingError, ValueError) as error:
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
        needed = ((_text(record, _REAL_TOPIC) or "", PUB),)
        for at, channel in chain(islice(members.items(), start, None), members.items()):
            if guard is None or guard.lacking(channel.account, at, needed) is None:
                return at
        return None

    async def _read(self, topic: str, offset: int, count: int) -> tuple[Sequence[RecordView], int]:
        """Messages of a topic's queue that can be read, and the offset behind all of them."""
        most = self._state.config.limits.delivered_bytes
        result = await self._state.store.cold_reads.get(
            self, topic, QUEUE, offset, count, max_bytes=most
        )
        return whole_records(result), max(result.next_offset, offset + 1)

    # RESUME_CHECK_HALF_MESSAGE

    async def resume(self, command: Command, connection: Connection) -> Command:
        """RESUME_CHECK_HALF_MESSAGE: check a message that was discarded again, from the beginning.

        It is for messages of TRANS_CHECK_MAX_TIME_TOPIC, and for open half messages.
        """
        header = command.read(ResumeCheckHalfMessageRequestHeader)
        try:
            physical_offset = ids.parse_offset_id(header.msg_id or "").physical_offset
        except ValueError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        found = await self._state.store.cold_reads.record_at(connection, physical_offset)
        record = None if found is None else RecordView(found)
        if (
            record is None
            or record.topic not in {names.HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC}
            or is_void(record, self._state.store)
        ):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"no half message has the id {header.msg_id}: give the id of one in "
                f"{names.CHECK_MAX_TIME_TOPIC}",
            )
        if record.topic == names.CHECK_MAX_TIME_TOPIC:
            self._put(half_messages.again(record, 0))
            return command.reply()
        offset = self._half.open_offset(record.queue_offset)
        if offset is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction of half message {record.queue_offset} has ended already",
            )
        self._move(offset, half_messages.again(record, 0))
        return command.reply()


def _text(record: RecordView, name: bytes) -> str | None:
    value = properties.find(record.properties_text, name)
    return None if value is None else value.decode("utf-8", "replace")
