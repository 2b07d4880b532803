"""Sends: codes 10, 310 and 320 (cf. SendMessageProcessor).

``admit`` checks whether a send is allowed. The properties are stored as a 4.9 broker stores them:
CLUSTER is added, with ``traceTopicEnable`` also what 5.x adds for traces, and WAIT is removed from
single messages without a delay. The store copies the body directly from the receive buffer. With
ASYNC_FLUSH the answer is ready at once. With SYNC_FLUSH it waits until the message is on disk, and
as a SYNC_MASTER until a slave has it, unless the message has WAIT=false. The answer to a send to a
new topic also waits until the topic is on disk and registered.

Every answer has the fields MSG_REGION and TRACE_ON, refusals included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from broker.delivery import timer_rules
from broker.delivery.redelivery import (
    REDELIVERY_BYTES,
    postpone,
    retries_exhausted,
    without_delay,
)
from broker.delivery.schedule import level_of
from broker.errors import FAQ, LimitReached, RequestRefused, check_topic, topic_text
from broker.processors.groups import dead_letter_topic, retry_topic
from broker.processors.timers import TimerProcessor
from broker.state import BrokerState
from broker.store.results import Ack, BatchPutResult, PendingMessage, PutResult, PutStatus
from broker.topics.pace import NewTopics, TopicDelayed
from broker.traffic.quotas import Allowance, Quotas, take
from remoting.protocol import names
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError
from remoting.protocol.headers.send import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from remoting.protocol.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_LENGTH
from remoting.protocol.message import batch, ids, properties
from remoting.protocol.message.record import (
    MULTI_TAGS,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    host_bytes,
)
from remoting.protocol.message.tags import tags_code_of

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from remoting.connection import Connection

_log = structlog.get_logger("broker")

_MULTI_TAG: Final = "MULTI_TAG"
_WAIT: Final = properties.WAIT.encode()
_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()
_TRAN_MSG: Final = properties.TRAN_MSG.encode()

_CODES: Final = {
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}

REFUSALS: Final = (RequestRefused, LimitReached, BodyError)
"""The exceptions that refuse a send."""

Reply = Command | Awaitable[Command | None] | None
SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2


def read_header(command: Command) -> SendHeader:
    """Read the header of a send or a reply: the oldest code of each has long names."""
    if command.code in {RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE}:
        return command.read(SendMessageRequestHeader)
    return command.read(SendMessageRequestHeaderV2)


_packed_host = lru_cache(maxsize=4096)(host_bytes)


def answer_fields(config: BrokerConfig) -> tuple[tuple[str, str], ...]:
    """Return the fields that every answer to a send has in addition to its header."""
    return (
        ("MSG_REGION", config.region_id),
        ("TRACE_ON", "true" if config.trace_on else "false"),
    )


def added_properties(config: BrokerConfig) -> bytes:
    """Return the text of the properties that the broker adds to each message, as RocketMQ 5 does.

    Without MSG_REGION and TRACE_ON, Java's consumers of 5.x write no message trace.
    """
    return properties.encode(
        {properties.CLUSTER: config.cluster_name, **dict(answer_fields(config))}
    )


class SendTarget(NamedTuple):
    """Where an admitted message goes, whether it is a dead letter, and its quotas."""

    config: TopicConfig
    queue_id: int
    dead: bool
    allowance: Allowance


class SendProcessor:
    """Handles sends."""

    __slots__ = (
        "_added",
        "_extra",
        "_levels_ms",
        "_new_topics",
        "_quotas",
        "_state",
        "_timers",
    )

    def __init__(
        self,
        state: BrokerState,
        timers: TimerProcessor,
        quotas: Quotas,
    ) -> None:
        self._state = state
        self._quotas = quotas
        self._timers = timers
        self._added = added_properties(state.config)
        self._extra = answer_fields(state.config)
        self._levels_ms = state.config.delay_levels_ms
        self._new_topics = NewTopics(state.clock, state.config.limits)

    def send(self, command: Command, connection: Connection) -> Reply:
        """Handle SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        return self._serve(command, connection, read_header(command))

    def _serve(
        self, command: Command, connection: Connection, header: SendHeader, *, paced: bool = True
    ) -> Reply:
        try:
            target = self.admit(command, connection, header, paced=paced)
            if header.batch:
                return self._put_batch(command, connection, header, target)
            return self._put_one(command, connection, header, target)
        except TopicDelayed as wait:
            return self._serve_when_ready(command, connection, header, wait.ready)
        except REFUSALS as error:
            return self.refuse(command, error)

    async def _serve_when_ready(
        self,
        command: Command,
        connection: Connection,
        header: SendHeader,
        ready: asyncio.Future[None],
    ) -> Command | None:
        await self._new_topics.wait(connection, ready, len(command.body))
        answer = self._serve(command, connection, header, paced=False)
        return await answer if isinstance(answer, Awaitable) else answer

    # one message

    def _put_one(
        self, command: Command, connection: Connection, header: SendHeader, target: SendTarget
    ) -> Reply:
        text = (header.properties or "").encode("utf-8", "replace")
        wait = _waits(text)
        level = 0 if target.dead else self._level(header, text)
        half = self._is_half(header, text, target, level)
        due_ms = None
        if level > 0:
            text = timer_rules.without_timer(text)
        elif not target.dead and timer_rules.PREFIX in text:
            due_ms = self._timers.due_ms(header.topic, text)
        if level <= 0 and due_ms is None and not half:
            # What waits in a topic of the broker's keeps WAIT, as in RocketMQ.
            text = properties.remove(text, _WAIT)
        text = properties.join(text, self._added)
        _leave_room(target, text)
        if target.dead:
            text = without_delay(text)
        message = self.message(connection, header, target, command.body, text)
        if half:
            self._state.transactions.prepare(message)
        elif level > 0:
            postpone(message, level, self._levels_ms)
        elif due_ms is not None:
            timer_rules.to_timer(message, due_ms)
        result = self._state.store.put(message)
        if result.status is not PutStatus.OK:
            code = _CODES.get(result.status, ResponseCode.SYSTEM_ERROR)
            raise RequestRefused(code, result.message)
        self.count(message.topic, 1, len(command.body), result, target.allowance)
        self._state.counters.messages_delayed += level > 0 or due_ms is not None
        self._state.counters.transactions_prepared += half
        if target.dead:
            self._record_dead_letter(message, connection)
        if command.is_oneway:
            return None
        message_id = self._offset_id(result.physical_offset)
        handle = None if due_ms is None else self._timers.handle_of(message, due_ms)
        reply = self.answer(command, message_id, target.queue_id, result.queue_offset, text, handle)
        return self._when_safe(reply, target, result.end_offset, wait=wait)

    def message(
        self,
        connection: Connection,
        header: SendHeader,
        target: SendTarget,
        body: bytes | memoryview,
        text: bytes,
        flag: int | None = None,
    ) -> PendingMessage:
        """Return the message to store for a send; ``text`` are its properties."""
        flags = header.sys_flag
        if target.config.topic_filter_type == _MULTI_TAG:
            flags |= MULTI_TAGS
        return PendingMessage(
            topic=target.config.topic_name,
            queue_id=target.queue_id,
            body=body,
            properties=text,
            tags_code=tags_code_of(text),
            flag=header.flag if flag is None else flag,
            sys_flag=flags,
            born_timestamp_ms=header.born_timestamp,
            born_host=_packed_host(*connection.remote),
            reconsume_times=header.reconsume_times or 0,
        )

    # many messages

    def _put_batch(
        self, command: Command, connection: Connection, header: SendHeader, target: SendTarget
    ) -> Reply:
        text = (header.properties or "").encode("utf-8", "replace")
        if self._is_half(header, text, target, 0):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch to topic {header.topic} is transactional: send its messages singly",
            )
        if not target.dead and self._level(header, text) > 0:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch to topic {header.topic} asks for a delay level: send delayed messages "
                "singly",
            )
        wait = _waits(text)
        # As in 4.9, the batch's properties, WAIT included, are appended to each element's.
        text = properties.join(text, self._added)
        messages = []
        for element in batch.iter_elements(command.body):
            joined = properties.join(bytes(element.properties), text)
            if not target.dead and timer_rules.asks_for_timer(joined):
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"a batch to topic {header.topic} has a message with a time of delivery: send "
                    "such messages singly",
                )
            _leave_room(target, joined)
            messages.append(
                self.message(connection, header, target, element.body, joined, element.flag)
            )
        result = self._state.store.put_batch(messages)
        if result.status is not PutStatus.OK:
            code = _CODES.get(result.status, ResponseCode.SYSTEM_ERROR)
            raise RequestRefused(code, result.message)
        name, body_bytes = target.config.topic_name, len(command.body)
        self.count(name, len(messages), body_bytes, result, target.allowance)
        if target.dead:
            for message in messages:
                self._record_dead_letter(message, connection)
        if command.is_oneway:
            return None
        message_ids = ",".join(map(self._offset_id, result.physical_offsets))
        reply = self.answer(command, message_ids, target.queue_id, result.queue_offset, text)
        return self._when_safe(reply, target, result.end_offset, wait=wait)

    def _record_dead_letter(self, message: PendingMessage, connection: Connection) -> None:
        self._state.record_dead_letter(
            message, message.topic.removeprefix(names.DLQ_PREFIX), connection
        )

    # checks

    def admits(self, command: Command, connection: Connection, header: SendHeader) -> bool:
        """Return whether the fast path may store sends with such a header in its topic and queue.

        It may not if the topic must be created or saved, if the queue must be chosen, if the
        message is a retry, or if the send is refused. Those are checked one by one here.
        """
        topic = self._state.topics.get(header.topic)
        if (
            topic is None
            or topic.topic_filter_type == _MULTI_TAG
            or header.queue_id < 0
            or len(header.topic) > MAX_TOPIC_LENGTH
            or header.topic.startswith(names.RETRY_PREFIX)
            or self._state.changes.topic_pending(header.topic) is not None
        ):
            return False
        meter = self._quotas.meter_of_sends(command, connection, header.topic)
        if meter is not None and not meter.has_room():
            # The slow path refuses it, and counts the refusal.
            return False
        try:
            self.admit(command, connection, header, paced=False)
        except (RequestRefused, LimitReached):
            return False
        return True

    def admit(
        self, command: Command, connection: Connection, header: SendHeader, *, paced: bool
    ) -> SendTarget:
        """Check whether a message may be stored, create its topic if needed, return its target.

        Args:
            command: the request.
            connection: the connection of the producer.
            header: the request's header.
            paced: whether the limit on new topics applies; see ``NewTopics``.

        Raises:
            RequestRefused: the message may not be stored.
            LimitReached: its topic can't be created.
            TopicDelayed: its topic may not be created yet; only if ``paced``.
        """
        config = self._state.config
        opens_ms = config.start_accept_send_request_timestamp_ms
        if self._state.clock.now_ms() < opens_ms:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {opens_ms}"
            )
        # The order of these checks is RocketMQ's (cf. AbstractSendMessageProcessor.msgCheck).
        topic = self._state.topics.get(header.topic)
        if topic is not None and topic.order and not config.broker_permission & names.PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._state.host}] sending message is forbidden",
            )
        if topic is None:
            check_topic(header.topic)
        if header.topic in names.NOT_SENDABLE_TOPICS:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{header.topic}] is forbidden.",
            )
        # Before the topic is created: what is refused for now changes nothing.
        allowance = self._quotas.admit_send(command, connection, header.topic)
        if topic is None:
            is_retry = header.topic.startswith(names.RETRY_PREFIX)
            if paced and (is_retry or self._state.topics.template(header.default_topic)):
                self._new_topics.check(connection, header.topic)
            topic = self._make_topic(header)
        if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, {topic_text(topic)} "
                f"Producer: {connection.remote_text}",
            )
        if header.topic.startswith(names.RETRY_PREFIX) and self._is_dead(command, header):
            group = header.topic.removeprefix(names.RETRY_PREFIX)
            dead = dead_letter_topic(self._state, group)
            return SendTarget(dead, 0, dead=True, allowance=allowance)
        queue_id = self._queue(topic, header.queue_id)
        return SendTarget(topic, queue_id, dead=False, allowance=allowance)

    def _queue(self, topic: TopicConfig, queue_id: int) -> int:
        if queue_id >= 0:
            return queue_id
        if topic.write_queue_nums <= 0:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"topic {topic.topic_name} has no queue to write to; give it some with "
                f"`pocketmq topic update {topic.topic_name} --queues N`",
            )
        return self._state.random.randrange(topic.write_queue_nums)

    def _make_topic(self, header: SendHeader) -> TopicConfig:
        state = self._state
        topic = state.topics.create_by_send(
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            state.clock.now_ms(),
            unit=bool(header.unit_mode),
        )
        if topic is None and header.topic.startswith(names.RETRY_PREFIX):
            group = header.topic.removeprefix(names.RETRY_PREFIX)
            return retry_topic(state, group, 1, unit=header.unit_mode)
        if topic is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!{FAQ}",
            )
        state.changes.topics_changed([header.topic], paced=True)
        _report_made(topic, header.default_topic_queue_nums)
        return topic

    def _is_dead(self, command: Command, header: SendHeader) -> bool:
        """Return whether a message that a consumer sent to its retry topic is a dead letter."""
        group = header.topic.removeprefix(names.RETRY_PREFIX)
        settings = self._state.group_config(group)
        if settings is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group} {FAQ}",
            )
        return retries_exhausted(
            settings, header.reconsume_times or 0, header.max_reconsume_times, command.version
        )

    def _is_half(self, header: SendHeader, text: bytes, target: SendTarget, level: int) -> bool:
        """Return whether a message is a half message (cf. SendMessageProcessor).

        A dead letter and a retry may still have TRAN_MSG; they belong to no open transaction.

        Raises:
            RequestRefused: it may not be one here.
        """
        value = properties.find(text, _TRAN_MSG)
        bits = header.sys_flag & TRANSACTION_MASK
        if value is None or value.lower() != b"true":
            if bits in {TRANSACTION_PREPARED, TRANSACTION_ROLLBACK}:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"a message to topic {header.topic} has the system flag of a transaction, but "
                    "not the property TRAN_MSG=true: set both, or neither",
                )
            return False
        if target.dead or ((header.reconsume_times or 0) > 0 and level > 0):
            return False
        if self._state.config.reject_transaction_message:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._state.host}] sending transaction message is forbidden",
            )
        if level > 0 or timer_rules.has_timer(text):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a message to topic {header.topic} is transactional and has a time of delivery: "
                "it can have one of both",
            )
        return True

    def _level(self, header: SendHeader, text: bytes) -> int:
        """Return the delay level of a message; 0 or less means no delay."""
        try:
            return level_of(text)
        except ValueError as error:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"a message to topic {header.topic}: {error}"
            ) from None

    # answers

    def answer(
        self,
        command: Command,
        message_id: str,
        queue_id: int,
        queue_offset: int,
        text: bytes,
        recall_handle: str | None = None,
    ) -> Command:
        """Return the answer to a stored message with the properties ``text``."""
        unique_id = properties.find(text, _UNIQ_KEY)
        return command.reply(
            header=SendMessageResponseHeader(
                msg_id=message_id,
                queue_id=queue_id,
                queue_offset=queue_offset,
                transaction_id=None if unique_id is None else unique_id.decode("utf-8", "replace"),
                recall_handle=recall_handle,
            ),
            extra=self._extra,
        )

    def refuse(self, command: Command, error: Exception) -> Command:
        """Return the answer to a send that fails with one of ``REFUSALS``, and count it."""
        self._state.counters.sends_failed += 1
        if isinstance(error, RequestRefused):
            return command.reply(error.code, error.remark, extra=(*self._extra, *error.extra))
        is_illegal = isinstance(error, BodyError)
        code = ResponseCode.MESSAGE_ILLEGAL if is_illegal else ResponseCode.SYSTEM_ERROR
        return command.reply(code, str(error), extra=self._extra)

    def _when_safe(
        self, reply: Command, target: SendTarget, end_offset: int, *, wait: bool
    ) -> Reply:
        change = self._state.changes.topic_pending(target.config.topic_name)
        if not (wait and self._state.store.config.waits):
            return reply if change is None else _after(change, reply)
        flushed: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

        def durable(ack: Ack) -> None:
            reply.code = int(ack)
            if not flushed.done():
                flushed.set_result(reply)

        self._state.store.when_durable(end_offset, durable)
        return flushed if change is None else _after(change, flushed)

    def _offset_id(self, physical_offset: int) -> str:
        return ids.offset_id_of(self._state.packed_host, physical_offset)

    def count(
        self,
        topic: str,
        messages: int,
        body_bytes: int,
        result: PutResult | BatchPutResult,
        allowance: Allowance,
    ) -> None:
        """Count stored messages, and take them from the quotas."""
        counters = self._state.counters
        counters.messages_sent += messages
        counters.bytes_sent += body_bytes
        places = result[1]
        begin = places if isinstance(places, int) else places[0]
        size = result.end_offset - begin
        self._state.traffic.put(topic, messages, size)
        take(allowance, messages, size)


async def _after(change: Awaitable[bool], reply: Command | Awaitable[Command]) -> Command:
    await change
    return reply if isinstance(reply, Command) else await reply


def _waits(text: bytes) -> bool:
    value = properties.find(text, _WAIT)
    return value is None or value.lower() == b"true"


def _report_made(topic: TopicConfig, asked: int) -> None:
    if topic.write_queue_nums >= asked:
        _log.info("topic created by a send", topic=topic.topic_name, queues=topic.write_queue_nums)
        return
    _log.warning(
        "topic created by a send has fewer queues than its producer asked for; widen it with the "
        "command given",
        topic=topic.topic_name,
        queues=topic.write_queue_nums,
        asked=asked,
        command=f"pocketmq topic update {topic.topic_name} --queues {asked}",
    )


def _leave_room(target: SendTarget, text: bytes) -> None:
    """Refuse a message whose properties leave no room for the properties of a retry.

    Raises:
        RequestRefused: they leave none.
    """
    topic = target.config.topic_name
    max_bytes = MAX_PROPERTIES_BYTES - REDELIVERY_BYTES - len(topic)
    if len(text) > max_bytes and not target.dead and not topic.startswith(names.RETRY_PREFIX):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the properties of a message to topic {topic} take {len(text)} bytes, with those that "
            f"the broker adds: use at most {max_bytes}, which leave room for a retry and "
            "a dead letter",
        )
