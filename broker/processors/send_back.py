"""CONSUMER_SEND_MSG_BACK: a consumer failed to process a message and asks for a retry.

The checks are in RocketMQ's order (cf. AbstractSendMessageProcessor.consumerSendMsgBack). After a
successful answer the consumer commits its offset past the message. Therefore, with SYNC_FLUSH, the
answer waits until the new record is on disk; RocketMQ doesn't wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.delivery.redelivery import is_void, postpone, retries_exhausted, retry_level, sent_back
from broker.errors import FAQ, RequestRefused, check_group
from broker.processors.groups import dead_letter_topic, retry_topic
from broker.state import BrokerState
from broker.store.results import PendingMessage, PutStatus
from broker.traffic.counts import SENT_BACK, add, key_of
from broker.traffic.quotas import Allowance, Quotas, take
from remoting.protocol import names
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message import properties
from remoting.protocol.message.view import RecordView

if TYPE_CHECKING:
    from remoting.connection import Connection


class SendBackProcessor:
    """Handles messages that consumers send back."""

    __slots__ = ("_levels_ms", "_quotas", "_state")

    def __init__(self, state: BrokerState, quotas: Quotas) -> None:
        self._state = state
        self._quotas = quotas
        self._levels_ms = state.config.delay_levels_ms

    async def send_back(self, command: Command, connection: Connection) -> Command:
        """Handle CONSUMER_SEND_MSG_BACK: store a message again, as a retry or a dead letter."""
        header = command.read(ConsumerSendMsgBackRequestHeader)
        settings = self._admit(header)
        if settings.retry_queue_nums <= 0:
            return command.reply()
        topic = retry_topic(
            self._state, header.group, settings.retry_queue_nums, unit=header.unit_mode
        )
        if not topic.perm & names.PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.topic_name}] sending message is forbidden",
            )
        allowance = self._quotas.admit_send(command, connection, topic.topic_name)
        record = await self._state.record_at(connection, header.offset)
        if record is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}"
            )
        if is_void(record, self._state.store):
            return command.reply()
        message = self._message(record, header, settings, command.version, topic.topic_name)
        await self._put(message, header.group, connection, allowance)
        # If the group's topics are new, wait until they are on disk.
        for name in (names.retry_topic(header.group), names.dlq_topic(header.group)):
            if (saved := self._state.changes.topic_pending(name)) is not None:
                await saved
        return command.reply()

    def _admit(self, header: ConsumerSendMsgBackRequestHeader) -> SubscriptionGroupConfig:
        check_group(header.group)
        settings = self._state.group_config(header.group)
        if settings is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group} {FAQ}",
            )
        if not self._state.config.broker_permission & names.PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._state.host}] sending message is forbidden",
            )
        return settings

    def _message(
        self,
        record: RecordView,
        header: ConsumerSendMsgBackRequestHeader,
        settings: SubscriptionGroupConfig,
        version: int,
        topic: str,
    ) -> PendingMessage:
        times = record.reconsume_times
        if header.delay_level >= 0 and not retries_exhausted(
            settings, times, header.max_reconsume_times, version
        ):
            policy = settings.group_retry_policy
            level = retry_level(header.delay_level, times, policy, self._levels_ms)
            queue_id = self._state.random.randrange(settings.retry_queue_nums)
            message = sent_back(record, topic, queue_id, level)
            postpone(message, level, self._levels_ms)
            # Otherwise a broker that leaves no room accepted it, and it can't be retried.
            if len(message.properties) <= MAX_PROPERTIES_BYTES:
                self._state.counters.messages_sent_back += 1
                return message
        dead = dead_letter_topic(self._state, header.group)
        return sent_back(record, dead.topic_name, 0, 0)

    async def _put(
        self, message: PendingMessage, group: str, connection: Connection, allowance: Allowance
    ) -> None:
        """Store a message; with SYNC_FLUSH, wait until it is on disk."""
        store = self._state.store
        result = store.put(message)
        if result.status is not PutStatus.OK:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, result.message)
        retry_of = properties.find(message.properties, properties.RETRY_TOPIC.encode()) or b""
        topic = retry_of.decode("utf-8", "replace")
        # The property is the client's text.
        key = key_of(topic if topic in self._state.topics else message.topic, group)
        size = result.end_offset - result.physical_offset
        add(self._state.traffic.count(SENT_BACK, key), 1, size)
        take(allowance, 1, size)
        if message.topic.startswith(names.DLQ_PREFIX):
            self._state.record_dead_letter(message, group, connection)
        if store.config.waits and (ack := await self._state.acked(result.end_offset)):
            raise RequestRefused(
                ack,
                "the message is stored, but wasn't flushed or replicated in time; it may be "
                "delivered twice",
            )
