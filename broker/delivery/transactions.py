"""Transactions: which half messages are open, and the checks of those that nobody ends.

A half message whose producer sends no END_TRANSACTION within ``transactionTimeOut`` is stored
again, and its producer group is asked: once in each ``transactionCheckInterval``, and
``transactionCheckMax`` times at most. After that the message goes to TRANS_CHECK_MAX_TIME_TOPIC
(cf. TransactionalMessageServiceImpl).

The offsets of the internal group in the half topic and in the op topic, in consumerOffset.json,
are where a start begins. Two things differ from RocketMQ, so that one transaction becomes one
message, whatever is killed when: an ended transaction can't be ended again, and a half message that
a check stored again can be ended at its former offset, too. That offset gets an op message.
The copy or the committed message, and the op message, are stored in one iteration of the event
loop. So if a kill falls between the two, the first is the last record of the log, and a start
stores the op message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from broker.delivery import half_messages
from broker.delivery.deliverer import FOR_GOOD, whole_records
from broker.delivery.half_messages import QUEUE, HalfMessages
from broker.delivery.redelivery import is_void
from broker.errors import LimitReached, RequestRefused
from broker.groups.offsets import ConsumerOffsets
from broker.store.results import PendingMessage, PutResult, PutStatus, StoreError
from broker.traffic.counts import BrokerCounters
from remoting.protocol import names
from remoting.protocol.codes import ResponseCode
from remoting.protocol.message import properties
from remoting.protocol.message.view import RecordView, property_text
from remoting.runtime.clock import Clock
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.engine import MessageStore

_log = structlog.get_logger("broker")

GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Internal group: below its offsets in the half topic and the op topic, everything has ended."""

_IMMUNITY: Final = properties.CHECK_IMMUNITY_TIME_IN_SECONDS.encode()

_HOUR_MS: Final = 3_600_000
_RECORDS_AT_ONCE: Final = 1024
"""Messages that a start reads in one iteration of the event loop: 2 ms."""

_CHECKED_AT_ONCE: Final = 32
"""Half messages checked in one iteration of the event loop."""

Ask = Callable[[RecordView, bytes, PutResult], None]
"""Asks a producer: the half message as it was, its properties now, and where it is stored now."""


class TransactionEngine:
    """The transactions of one broker.

    Args:
        store: the open store.
        clock: the time.
        counters: counts what becomes of half messages.
        offsets: keeps the internal group's offsets.
        config: returns the present settings.
        create_topic: creates one of the broker's topics unless it exists; raises ``LimitReached``.

    Attributes:
        oldest_ms: when the oldest half message was born that was open at the last check; 0: none.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        counters: BrokerCounters,
        offsets: ConsumerOffsets,
        config: Callable[[], BrokerConfig],
        create_topic: Callable[[str], object],
    ) -> None:
        self._store = store
        self._clock = clock
        self._counters = counters
        self._offsets = offsets
        self._config = config
        self._create_topic = create_topic
        self._half = HalfMessages(0, 0, max_moved=config().limits.moved_half_messages)
        # Closed half messages for which the full disk took no op message yet.
        self._late_ops: deque[int] = deque()
        self._unsaved = False
        # Progress that waits until its op messages are safe: end of the log, and both offsets.
        self._waiting: tuple[int, int, int] | None = None
        self._log = RateLimitedLog(clock, _log.warning)
        self._checking = asyncio.Lock()
        self._reconfigured = asyncio.Event()
        self._checked_ms = clock.now_ms()
        self.oldest_ms = 0

    @property
    def open_count(self) -> int:
        """How many half messages are open."""
        return self._half.count_open(self._store.queries.max_offset(names.HALF_TOPIC, QUEUE))

    # --- start

    async def load(self) -> None:
        """Read which half messages are open; call once, before anything is served.

        Raises:
            StoreError: the op messages can't be read.
        """
        store = self._store
        begin = self._saved_offset(names.HALF_TOPIC)
        op_begin = self._saved_offset(names.OP_HALF_TOPIC)
        max_moved = self._config().limits.moved_half_messages
        self._half = half = HalfMessages(begin, op_begin, max_moved=max_moved)
        offset, end = op_begin, store.queries.max_offset(names.OP_HALF_TOPIC, QUEUE)
        # Ignore offsets beyond the half topic: it may have been lost.
        stored = range(store.queries.max_offset(names.HALF_TOPIC, QUEUE))
        while offset < end:
            records, next_offset = await self._read(names.OP_HALF_TOPIC, offset, _RECORDS_AT_ONCE)
            ops: dict[int, memoryview] = {
                record.queue_offset: record.stored_body for record in records
            }
            for op_offset in range(offset, next_offset):
                # An unreadable one closes nothing: its half message is checked once more.
                closed = half_messages.op_offsets(ops.get(op_offset, b""))
                half.op_stored(closed_offset for closed_offset in closed if closed_offset in stored)
            offset = next_offset
            await asyncio.sleep(0)
        half.advance(store.queries.min_offset(names.HALF_TOPIC, QUEUE))
        await self._finish_last()

    async def _finish_last(self) -> None:
        """Store the op message that a kill has prevented: the log ends before it."""
        store, half = self._store, self._half
        tail = await store.cold_reads.record_at(self, store.log.opened_tail)
        if tail is None or not half_messages.may_replace_half(last := RecordView(tail)):
            return
        offset, end = half.begin, store.queries.max_offset(names.HALF_TOPIC, QUEUE)
        while (offset := half.next_open(offset)) < end:
            records, offset = await self._read(names.HALF_TOPIC, offset, _RECORDS_AT_ONCE)
            for record in records:
                former = record.queue_offset
                if half.is_open(former) and half_messages.replaces_half_message(last, record):
                    if last.topic == names.HALF_TOPIC:
                        half.moved(former, last.queue_offset)
                    self._close(former)
                    return
            await asyncio.sleep(0)

    def _saved_offset(self, topic: str) -> int:
        """Return the internal group's offset in a topic, within what the store has.

        After a loss of power the log may end before it.
        """
        low, high = (
            self._store.queries.min_offset(topic, QUEUE),
            self._store.queries.max_offset(topic, QUEUE),
        )
        return min(max(self._offsets.query(GROUP, topic, QUEUE), low), high)

    # --- for requests

    def prepare(self, message: PendingMessage) -> None:
        """Turn a message that is sent into the half message of its transaction, in place.

        Raises:
            LimitReached: the half topic can't be created.
        """
        self._create_topic(names.HALF_TOPIC)
        self._create_topic(names.OP_HALF_TOPIC)
        half_messages.to_half(message)

    def end(self, record: RecordView, *, commit: bool) -> None:
        """Commit or roll back the transaction of a half message.

        Raises:
            RequestRefused: it has ended, or what ends it can't be stored.
        """
        offset = self._half.open_offset(record.queue_offset)
        if offset is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction of half message {record.queue_offset} has ended already, or a "
                "check has stored it again: if it is still open, its producer is asked once more",
            )
        if not commit:
            self._put_op(offset)
            self._counters.transactions_rolled_back += 1
            return
        try:
            message = half_messages.committed(record)
        except ValueError as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"half message {record.queue_offset}: {error}"
            ) from None
        # Before the op message: a crash in between repeats the message and never loses it.
        self._put(message)
        self._close(offset)
        self._counters.transactions_committed += 1

    def resume(self, record: RecordView) -> None:
        """Have a half message, open or discarded, checked from the beginning.

        Raises:
            RequestRefused: its transaction has ended, or it can't be stored.
        """
        message = half_messages.recheck_copy(record, 0)
        if record.topic == names.CHECK_MAX_TIME_TOPIC:
            self._put(message)
            return
        offset = self._half.open_offset(record.queue_offset)
        if offset is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction of half message {record.queue_offset} has ended already",
            )
        self._move(offset, message)

    # --- what is stored

    def _put(self, message: PendingMessage) -> PutResult:
        result = self._store.put(message)
        if result.status is not PutStatus.OK:
            is_final = result.status in FOR_GOOD
            code = ResponseCode.MESSAGE_ILLEGAL if is_final else ResponseCode.SYSTEM_ERROR
            raise RequestRefused(code, result.message)
        return result

    def _put_op(self, offset: int) -> None:
        self._put(half_messages.op_message(offset, self._clock.now_ms()))
        self._half.op_stored((offset,))

    def _close(self, offset: int) -> None:
        """Close a half message whose successor is stored, even if the op message can't be."""
        try:
            self._put_op(offset)
        except RequestRefused:
            self._half.end(offset)
            self._late_ops.append(offset)

    def _move(self, offset: int, message: PendingMessage) -> PutResult:
        """Store a half message again, and close it where it was."""
        result = self._put(message)
        self._half.moved(offset, result.queue_offset)
        self._close(offset)
        return result

    async def _read(self, topic: str, offset: int, count: int) -> tuple[Sequence[RecordView], int]:
        """Return the readable messages of a topic's queue, and the offset after all of them."""
        max_bytes = self._config().limits.delivered_bytes
        result = await self._store.cold_reads.get(
            self, topic, QUEUE, offset, count, max_bytes=max_bytes
        )
        return whole_records(result), max(result.next_offset, offset + 1)

    # --- checks

    async def run(self, ask: Ask) -> None:
        """Check until cancelled."""
        while True:
            await self._pause()
            await self.check(ask)

    async def _pause(self) -> None:
        begun = asyncio.get_running_loop().time()
        while True:
            self._reconfigured.clear()
            interval_ms = self._config().transaction_check_interval_ms
            try:
                async with asyncio.timeout_at(begun + interval_ms / 1000):
                    await self._reconfigured.wait()
            except TimeoutError:
                return

    def configure(self) -> None:
        """Use changed settings at once, also in the pause between two checks."""
        self._reconfigured.set()

    async def catch_up(self, ask: Ask) -> None:
        """Check if the next check is due, after the clock was set forward."""
        since_ms = self._clock.now_ms() - self._checked_ms
        if since_ms >= self._config().transaction_check_interval_ms:
            await self.check(ask)

    async def check(self, ask: Ask) -> None:
        """Look at the half messages that are open, and ask producers about the late ones."""
        async with self._checking:
            self._checked_ms = self._clock.now_ms()
            await self._check(ask)

    async def _check(self, ask: Ask) -> None:
        store, half = self._store, self._half
        try:
            while self._late_ops:
                self._put_op(self._late_ops[0])
                self._late_ops.popleft()
            self._unsaved |= half.advance(store.queries.min_offset(names.HALF_TOPIC, QUEUE))
            await self._check_open(ask)
        except (RequestRefused, LimitReached, StoreError, OSError) as error:
            self._log.write(
                "transactions can't be checked now; they are at the next check", reason=str(error)
            )
        self._unsaved |= half.advance(store.queries.min_offset(names.HALF_TOPIC, QUEUE))
        if self._unsaved and self._waiting is None:
            self._waiting = store.log.end, half.begin, half.op_begin
            self._unsaved = False
        # Before, what has ended may be cut from the log, and then it must be found open again.
        if self._waiting is not None and self._waiting[0] <= store.syncer.confirmed:
            _, begin, op_begin = self._waiting
            try:
                self._offsets.commit(GROUP, names.HALF_TOPIC, QUEUE, begin)
                self._offsets.commit(GROUP, names.OP_HALF_TOPIC, QUEUE, op_begin)
                self._waiting = None
            except LimitReached as error:
                self._log.write("a start will check transactions again", reason=str(error))

    async def _check_open(self, ask: Ask) -> None:
        half, checked = self._half, 0
        self.oldest_ms = 0
        end = self._store.queries.max_offset(names.HALF_TOPIC, QUEUE)
        offset = half.begin - 1
        # After an open one, hundreds of thousands may have ended.
        while (offset := half.next_open(offset + 1)) < end:
            records, _ = await self._read(names.HALF_TOPIC, offset, 1)
            # The producer may have ended it meanwhile.
            if not half.is_open(offset):
                continue
            if not records:
                _log.error("a half message can't be read and is passed over", offset=offset)
                half.end(offset)
            elif not self._check_one(offset, records[0], ask):
                self.oldest_ms = self.oldest_ms or records[0].born_timestamp_ms
                return
            checked += 1
            if checked % _CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _check_one(self, offset: int, record: RecordView, ask: Ask) -> bool:
        """Check one half message; return False if neither it nor the ones after it are late."""
        if is_void(record, self._store):
            self._put_op(offset)
            return True
        config = self._config()
        times = half_messages.check_times_of(record)
        age_ms = self._clock.now_ms() - record.born_timestamp_ms
        if times >= config.transaction_check_max or (
            age_ms > config.file_reserved_time_hours * _HOUR_MS
        ):
            self._discard(offset, record)
            return True
        immunity = properties.find(record.properties_text, _IMMUNITY)
        if immunity is None:
            if 0 <= age_ms < config.transaction_timeout_ms:
                return False
        elif self._half.window < config.limits.half_window:
            # A text that is no number of seconds stands for the timeout (cf. getImmunityTime).
            is_number = immunity.isdigit() and len(immunity) < half_messages.MAX_DIGITS
            immunity_ms = int(immunity) * 1000 if is_number else config.transaction_timeout_ms
            if age_ms < immunity_ms:
                # It stays open where it is. RocketMQ stores it again for each check.
                return True
        # When it was born: a check stores it anew.
        self.oldest_ms = self.oldest_ms or record.born_timestamp_ms
        message = half_messages.recheck_copy(record, times + 1)
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
        ask(record, message.properties, stored)
        return True

    def _discard(self, offset: int, record: RecordView) -> None:
        self._create_topic(names.CHECK_MAX_TIME_TOPIC)
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
        self._close(offset)
        self._counters.transactions_discarded += 1
        self._log.write(
            "nobody has answered for a half message: it is in TRANS_CHECK_MAX_TIME_TOPIC; "
            "see that the producer group has a checker, then have it checked again with "
            "RESUME_CHECK_HALF_MESSAGE",
            id=record.offset_id,
            group=property_text(record, half_messages.PGROUP),
            message=record.unique_id,
            checks=half_messages.check_times_of(record),
        )
