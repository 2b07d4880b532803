"""Sending failed messages back to the broker, for a retry or to the dead-letter topic.

(cf. ConsumeMessageConcurrentlyService.sendMessageBack)

For a retry, the message's broker is requested to deliver it to the group again
(CONSUMER_SEND_MSG_BACK); it counts the retries and chooses the delay. If that request fails, the
message is sent as a new one to the group's retry topic at any broker.

A dead letter is first sent as a new message to the retry topic with its retries exhausted, because
only a new message can carry the reason as properties; brokers of all versions store it in the
group's dead-letter topic. If that fails, CONSUMER_SEND_MSG_BACK is tried.

If both fail, the message stays unsettled and is handled again. Broadcasting has no retries: a
failed message is logged and skipped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

from client.consumer.outcome import (
    BROKER_CHOOSES,
    FIRST_RETRY_LEVEL,
    TO_DEAD_LETTERS,
    MessageOutcome,
)
from client.consumer.received import ReceivedMessage
from client.errors import NoRoute, PocketMQError
from client.events import EventHandler, MessageDeadLettered
from client.limits import DEFAULT_TOPIC_QUEUES, MAX_DEAD_REASON, REQUEST_TIMEOUT, SEND_TIMEOUT
from client.network.context import ClientContext
from client.wire.send_verdict import STORED_CODES
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeaderV2,
)
from remoting.protocol.limits import MAX_PROPERTIES_BYTES
from remoting.protocol.message import properties
from remoting.protocol.message.record import COMPRESSED, COMPRESSION_MASK
from remoting.protocol.names import AUTO_CREATE_TOPIC, CLIENT_INNER_PRODUCER_GROUP, retry_topic
from remoting.runtime.log import Log

_log = Log("client")

UNLIMITED_RETRIES: Final = 2**31 - 1
"""The maximum of retries of a message that is never dead-lettered."""

BROKERS_SHARE: Final = 1024
"""Bytes of the properties limit reserved for properties that the broker adds."""


CarryOut: TypeAlias = Callable[[ReceivedMessage[Any], MessageOutcome], Awaitable[bool]]
"""Retries or dead-letters a failed message. Returns False if that failed: keep the message."""


class SendBack:
    """Sends failed messages of one group back.

    Args:
        max_retries: number of retries after which a message is dead-lettered.
        tell: passes events to the application.
    """

    def __init__(
        self, context: ClientContext, group: str, max_retries: int, tell: EventHandler
    ) -> None:
        self._context = context
        self._group = group
        self._max_retries = max_retries
        self._tell = tell

    async def carry_out(self, message: ReceivedMessage[Any], outcome: MessageOutcome) -> bool:
        """See ``CarryOut``."""
        level = outcome.delay_level
        dead_lettered = level == TO_DEAD_LETTERS or message.reconsume_times >= self._max_retries
        _log.warning(
            "message is dead-lettered" if dead_lettered else "message is retried",
            group=self._group,
            queue=str(message.queue),
            offset=message.offset,
            id=message.id,
            times=message.retries,
            why=outcome.reason,
            exc_info=outcome.error,
        )
        why = self._why(outcome) if dead_lettered else None
        ask = partial(self._ask_broker, message, level)
        anew = partial(self._send_anew, message, level, why)
        # Only a new message can carry the reason; only the broker has the group's retry policy.
        first, second = (anew, ask) if dead_lettered else (ask, anew)
        try:
            await first()
        except PocketMQError as error:
            _log.warning("message not sent back", group=self._group, error=str(error))
            try:
                await second()
            except PocketMQError as again:
                _log.warning(
                    "message is kept and handled again", group=self._group, error=str(again)
                )
                return False
        if dead_lettered:
            self._tell(
                MessageDeadLettered(
                    message.queue, message.offset, message.id, self._group, outcome.reason
                )
            )
        return True

    async def _ask_broker(self, message: ReceivedMessage[Any], level: int) -> None:
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_retries,
            bname=message.queue.broker_name,
        )
        route = await self._context.routes.to_read(message.queue.topic)
        address = route.master(message.queue.broker_name)
        if address is None:
            raise NoRoute("the message's broker has no master", queue=message.queue)
        await self._context.remote.call(
            address,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header,
            timeout=REQUEST_TIMEOUT,
            queue=message.queue,
            group=self._group,
        )

    def _why(self, outcome: MessageOutcome) -> dict[str, str]:
        """Return the properties that tell why a message was dead-lettered."""
        why = {
            properties.DEAD_REASON: outcome.reason[:MAX_DEAD_REASON],
            properties.DEAD_EXCEPTION: type(outcome.error).__name__ if outcome.error else "",
            properties.DEAD_CONSUMER: self._context.client_id,
            properties.DEAD_TIME: str(self._context.clock.now_ms()),
        }
        plain = {ord("\x01"): " ", ord("\x02"): " "}
        return {
            name: text.translate(plain).encode(errors="replace").decode()
            for name, text in why.items()
            if text
        }

    async def _send_anew(
        self, message: ReceivedMessage[Any], level: int, why: dict[str, str] | None
    ) -> None:
        """Send a copy of a message to the retry topic; with ``why`` it is dead-lettered."""
        topic = retry_topic(self._group)
        route = await self._context.routes.to_write(topic, DEFAULT_TOPIC_QUEUES, SEND_TIMEOUT)
        # Use queue 0 only: a retry topic that doesn't exist yet has the route of the default topic,
        # which has more queues than the retry topic will have.
        brokers = {q.broker_name: q for q in route.writable if q.queue_id == 0}
        own = message.queue.broker_name
        failure: PocketMQError = NoRoute("no broker takes the message back", topic=topic)
        for name in sorted(brokers, key=lambda name: ((name == own) is (why is None), name)):
            address = route.master(name)
            if address is None:
                continue
            queue = brokers[name]
            header = self._header(message, level, name, why)
            try:
                await self._context.remote.call(
                    address,
                    RequestCode.SEND_MESSAGE_V2,
                    header,
                    body=bytes(message.stored_body),
                    timeout=SEND_TIMEOUT,
                    accept=STORED_CODES,
                    queue=queue,
                    group=self._group,
                )
            except PocketMQError as error:
                failure = error
            else:
                return
        raise failure

    def _header(
        self,
        message: ReceivedMessage[Any],
        level: int,
        broker: str,
        why: dict[str, str] | None,
    ) -> SendMessageRequestHeaderV2:
        times = message.reconsume_times
        text = dict(message.properties)
        text.pop(properties.TRAN_MSG, None)
        text[properties.RETRY_TOPIC] = message.topic
        text.setdefault(properties.ORIGIN_MESSAGE_ID, message.offset_id)
        if why is None:
            chosen = level if level != BROKER_CHOOSES else FIRST_RETRY_LEVEL + times
            text[properties.DELAY] = str(chosen)
        else:
            text.pop(properties.DELAY, None)
            if len(properties.encode(text | why)) <= MAX_PROPERTIES_BYTES - BROKERS_SHARE:
                text |= why
        return SendMessageRequestHeaderV2(
            producer_group=CLIENT_INNER_PRODUCER_GROUP,
            topic=retry_topic(self._group),
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUES,
            queue_id=0,
            sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            born_timestamp=message.born_timestamp_ms,
            flag=message.flag,
            properties=properties.encode(text).decode(),
            reconsume_times=times + 1,
            # To be dead-lettered, reconsume_times must exceed the maximum at 5.x brokers, and
            # reach it at 4.9.
            max_reconsume_times=self._max_retries if why is None else 0,
            bname=broker,
        )


async def skip_failed(group: str, message: ReceivedMessage[Any], outcome: MessageOutcome) -> bool:
    """Log a failed message and skip it: the ``CarryOut`` of broadcasting."""
    _log.warning(
        "message failed and is skipped: broadcasting has no retries",
        group=group,
        queue=str(message.queue),
        offset=message.offset,
        id=message.id,
        why=outcome.reason,
        exc_info=outcome.error,
    )
    return True
