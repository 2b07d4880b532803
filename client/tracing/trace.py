"""Message trace: records of what producers and consumers did with each message.

The records have RocketMQ's format and go to a topic of the brokers, where ``Admin.trace``,
``pocketmq message trace`` and ``mqadmin queryMsgTraceById`` find them (cf. AsyncTraceDispatcher,
SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl, EndTransactionTraceHookImpl).

Records are sent in the background. A message never waits for its trace and never fails because of
it: what can't be sent is dropped, counted and logged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

from client.consumer.outcome import OutcomeKind
from client.consumer.push import PushConsumer
from client.errors import (
    DeadLetter,
    NoRoute,
    NotDurable,
    PocketMQError,
    RetryLater,
    TopicNotFound,
)
from client.interceptors import InterceptedPart, Interceptor, Received, Send
from client.limits import (
    MAX_TRACE_BATCH,
    MAX_TRACE_RECORDS,
    REPORT_PERIOD,
    TRACE_CLOSE_TIMEOUT,
    TRACE_LINGER,
    TRACE_SEND_TIMEOUT,
)
from client.message import Message, OpenTransaction, Receipt, SendStatus, TransactionState
from client.network.context import ClientContext, ClientPart, context_of
from client.positions import check_topic_name
from client.producer.columns import is_timed
from client.producer.producer import Producer, serde_of, shared_producer
from client.serde import Serde, raw
from remoting.protocol.message import ids, properties
from remoting.protocol.message.trace import (
    ConsumeResult,
    TracedMessageType,
    TraceRecord,
    messages_of,
)
from remoting.protocol.names import TRACE_TOPIC
from remoting.protocol.queue import MessageQueue
from remoting.runtime.clock import SystemClock
from remoting.runtime.log import Log, RateLimitedLog
from remoting.runtime.tasks import Supervisor, wait_at_most

if TYPE_CHECKING:
    from client.consumer.received import ReceivedMessage

_log = Log("client")

DEFAULT_REGION: Final = "DefaultRegion"
"""The region of brokers that report none (cf. MixAll.DEFAULT_TRACE_REGION_ID)."""

STATE_NAMES: Final = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
"""As in LocalTransactionState."""

MAX_GROUP_IN_NAME: Final = 200
"""Characters of a group in the group name of its trace producer, which may have 255."""

_numbers = count(1)


class MessageTrace(Interceptor):
    """Writes the trace of each message, for producers and consumers: ``interceptors=[trace]``.

    One object may be given to several. Among other interceptors it comes last, where messages are
    as they are sent. A message that is not stored has no id and leaves no record; nor do one-way
    sends, and brokers with ``traceOn=false``.

    Args:
        topic: the brokers' trace topic (``msgTraceTopicName``).

    Attributes:
        dropped: records that were not sent.

    Raises:
        UsageError: ``topic`` is not a valid topic name.
    """

    def __init__(self, topic: str = TRACE_TOPIC) -> None:
        check_topic_name(topic)
        self.topic = topic
        self.dropped = 0
        self._log = RateLimitedLog(SystemClock(), _log.warning, interval=REPORT_PERIOD, burst=1)

    def bind(self, part: InterceptedPart) -> Interceptor:
        """See ``Interceptor``."""
        assert isinstance(part, ClientPart)
        return _BoundTrace(part, part.group, self.topic, self._lost)

    def _lost(self, count: int, why: str) -> None:
        self.dropped += count
        self._log.write(
            "message trace is dropped; the messages themselves are not affected",
            topic=self.topic,
            dropped=self.dropped,
            why=why,
        )


class _BoundTrace(Interceptor):
    """The trace of one producer or consumer."""

    def __init__(
        self, part: ClientPart, group: str, topic: str, lost: Callable[[int, str], None]
    ) -> None:
        context = self._context = context_of(part)
        self._group = group
        self._topic = topic
        self._now_ms = context.clock.now_ms
        self._has_outcomes = isinstance(part, PushConsumer)
        self._taken: dict[tuple[MessageQueue, int], tuple[int, str]] = {}
        """Messages without an outcome yet: when each was taken, and its request id."""
        self._serde: Serde[Any] = raw
        kind = "CONSUME"
        if isinstance(part, Producer):
            self._serde = serde_of(part)
            kind = "PRODUCE"
        name = f"_INNER_TRACE_PRODUCER-{group[:MAX_GROUP_IN_NAME]}-{kind}-{next(_numbers)}"
        self._sender = TraceSender(context, name, topic, lost)

    async def close(self) -> None:
        await self._sender.close()

    # Producers

    async def send(self, message: Message[Any], proceed: Send[Receipt]) -> Receipt:
        delayed = message.delay_level or is_timed(message)
        kind = TracedMessageType.DELAYED if delayed else TracedMessageType.NORMAL
        return await self._send(message, proceed, kind)

    async def send_half(self, message: Message[Any], proceed: Send[Receipt]) -> Receipt:
        return await self._send(message, proceed, TracedMessageType.HALF)

    async def _send(
        self, message: Message[Any], proceed: Send[Receipt], kind: TracedMessageType
    ) -> Receipt:
        if not isinstance(message.keys, Collection):
            # An iterator can be read once.
            message = replace(message, keys=tuple(message.keys))
        began_ms = self._now_ms()
        try:
            receipt = await proceed(message)
        except NotDurable as error:
            self._sent(message, error.receipt, kind, began_ms)
            raise
        self._sent(message, receipt, kind, began_ms)
        return receipt

    def _sent(
        self, message: Message[Any], receipt: Receipt, kind: TracedMessageType, began_ms: int
    ) -> None:
        answer = dict(self._context.send_answers.get(receipt.queue.broker_name, ()))
        if message.topic == self._topic or answer.get(properties.TRACE_ON) == "false":
            return
        try:
            body_bytes = len(self._serde.dumps(message.body))
        except Exception:  # noqa: BLE001 - the message is sent: its trace must not fail it
            body_bytes = 0
        record = self._record("Pub", message, receipt.id, receipt.offset_id)
        self._sender.append(
            replace(
                record,
                time_ms=began_ms,
                region=answer.get(properties.MSG_REGION) or DEFAULT_REGION,
                body_bytes=body_bytes,
                cost_ms=record.time_ms - began_ms,
                message_type=kind,
                offset_id=receipt.offset_id,
                success=receipt.status is SendStatus.OK,
            )
        )

    def _record(
        self, kind: str, message: Message[Any], message_id: str, offset_id: str
    ) -> TraceRecord:
        """Return what the records of a producer have in common."""
        try:
            broker = ids.parse_offset_id(offset_id)
            store_host = f"{broker.ip}:{broker.port}"
        except ValueError:
            store_host = ""  # an interceptor's own receipt
        return TraceRecord(
            kind=kind,
            time_ms=self._now_ms(),
            region=DEFAULT_REGION,
            group=self._group,
            topic=message.topic,
            message_id=message_id,
            tags=message.tag or "",
            keys=" ".join(message.keys),
            store_host=store_host,
        )

    async def end_transaction(
        self,
        transaction: OpenTransaction[Any],
        state: TransactionState,
        proceed: Callable[[], Awaitable[bool]],
    ) -> bool:
        message, message_id = transaction.message, transaction.id
        if message.topic != self._topic:
            self._sender.append(
                replace(
                    self._record("EndTransaction", message, message_id, transaction.offset_id),
                    message_type=TracedMessageType.COMMIT,
                    transaction_id=message_id,
                    state=STATE_NAMES[state],
                    from_check=transaction.checks > 0,
                )
            )
        return await proceed()

    # Consumers

    async def handle(self, messages: Received, proceed: Callable[[], Awaitable[None]]) -> None:
        began_ms = self._now_ms()
        request_id = self._before(messages, began_ms)
        result = ConsumeResult.EXCEPTION
        try:
            await proceed()
            result = ConsumeResult.SUCCESS
        except (RetryLater, DeadLetter):
            result = ConsumeResult.FAILED
            raise
        except asyncio.CancelledError:
            # By consume_timeout, or because the queue was lost to another member.
            result = ConsumeResult.TIME_OUT
            raise
        finally:
            self._after(messages, began_ms, request_id, result)

    def receive(self, messages: Received) -> None:
        now_ms = self._now_ms()
        request_id = self._before(messages, now_ms)
        if not self._has_outcomes:
            self._after(messages, now_ms, request_id, ConsumeResult.SUCCESS)
            return
        for message in messages:
            if len(self._taken) >= MAX_TRACE_RECORDS:
                del self._taken[next(iter(self._taken))]
            self._taken[message.queue, message.offset] = now_ms, request_id

    def settled(self, message: ReceivedMessage[Any]) -> None:
        taken = self._taken.pop((message.queue, message.offset), None)
        if taken is not None:
            self._after([message], *taken, ConsumeResult.SUCCESS)

    def _before(self, messages: Received, now_ms: int) -> str:
        """Record a call for these messages. Returns its request id."""
        request_id = self._context.ids.next()
        for message in messages:
            if self._is_traced(message):
                self._sender.append(
                    TraceRecord(
                        kind="SubBefore",
                        time_ms=now_ms,
                        region=message.properties.get(properties.MSG_REGION) or DEFAULT_REGION,
                        group=self._group,
                        request_id=request_id,
                        message_id=message.id,
                        retries=message.retries,
                        keys=" ".join(message.keys),
                    )
                )
        return request_id

    def _after(
        self, messages: Received, began_ms: int, request_id: str, result: ConsumeResult
    ) -> None:
        now_ms = self._now_ms()
        for message in messages:
            if not self._is_traced(message):
                continue
            own, outcome = result, message.outcome
            if outcome is not None and own is ConsumeResult.SUCCESS:
                done = outcome.verdict is OutcomeKind.DONE
                own = ConsumeResult.SUCCESS if done else ConsumeResult.FAILED
            self._sender.append(
                TraceRecord(
                    kind="SubAfter",
                    request_id=request_id,
                    message_id=message.id,
                    cost_ms=(now_ms - began_ms) // len(messages),
                    success=own is ConsumeResult.SUCCESS,
                    keys=" ".join(message.keys),
                    result=own,
                    time_ms=now_ms,
                    group=self._group,
                )
            )

    def _is_traced(self, message: ReceivedMessage[Any]) -> bool:
        return (
            message.topic != self._topic and message.properties.get(properties.TRACE_ON) != "false"
        )


class TraceSender:
    """Sends the trace records of one producer or consumer with a separate producer.

    Args:
        context: its connections are shared.
        group: the group of the separate producer.
        lost: called with the number of records that are dropped, and why.
    """

    def __init__(
        self, context: ClientContext, group: str, topic: str, lost: Callable[[int, str], None]
    ) -> None:
        self._context = context
        self._group = group
        self._topic = topic
        self._lost = lost
        self._records: deque[TraceRecord] = deque()
        self._tasks = Supervisor(f"trace {group}")
        self._producer: Producer[bytes] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()

    def append(self, record: TraceRecord) -> None:
        """Accept a record, or drop it."""
        if self._tasks.closed:
            self._lost(1, "the client is closed")
            return
        if len(self._records) >= MAX_TRACE_RECORDS:
            self._lost(1, f"{MAX_TRACE_RECORDS} records wait to be sent already")
            return
        self._records.append(record)
        if len(self._records) >= MAX_TRACE_BATCH:
            self._soon.set()
        if self._sending is None or self._sending.done():
            self._sending = self._tasks.spawn(self._send_all(), "sending")

    async def _send_all(self) -> None:
        await wait_at_most(TRACE_LINGER, self._soon)
        if self._producer is None:
            self._producer = shared_producer(self._context, self._group, raw, {})
        records = self._records
        while records:
            for body, keys, number in messages_of(list(islice(records, MAX_TRACE_BATCH))):
                message = Message(self._topic, body, keys=keys)
                try:
                    await self._producer.send(message, timeout=TRACE_SEND_TIMEOUT)
                except (NoRoute, TopicNotFound) as error:
                    # RocketMQ refuses to create its trace topic on request.
                    create = f"run `pocketmq topic create {self._topic}`"
                    if self._topic == TRACE_TOPIC:
                        create = "start the brokers with traceTopicEnable=true"
                    self._lost(number, f"{error}; {create}")
                except PocketMQError as error:
                    self._lost(number, str(error))
                for _ in range(number):
                    records.popleft()
        self._soon.clear()

    async def close(self) -> None:
        """Send the waiting records, for a limited time, and close the producer."""
        self._soon.set()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=TRACE_CLOSE_TIMEOUT)
        await self._tasks.close()
        if self._records:
            self._lost(len(self._records), "they could not be sent before the end")
        if self._producer is not None:
            await self._producer.close(0)
