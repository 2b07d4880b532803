"""Timer messages: which of them may wait, and RECALL_MESSAGE (370), which cancels one.

The checks are RocketMQ's (cf. HookUtils.handleScheduleMessage, RecallMessageProcessor). A recall
is itself a timer message of the same slot, see ``broker.delivery.timers``. The broker
acknowledges it without checking that the message is still pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.delivery import timer_rules as rules
from broker.errors import RequestRefused
from broker.state import BrokerState
from broker.store.results import PendingMessage, PutStatus
from remoting.protocol import names
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.disk.timer import encode_check
from remoting.protocol.headers.send import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)
from remoting.protocol.message import properties, recall_handle
from remoting.protocol.message.recall_handle import RecallHandle
from remoting.protocol.message.record import host_bytes
from remoting.protocol.message.tags import tags_code

if TYPE_CHECKING:
    from remoting.connection import Connection

_TAG: Final = "_RECALL_TAG_"
_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()
_MAX_DIGITS: Final = 18


class TimerProcessor:
    """Validates timer messages and handles RECALL_MESSAGE."""

    __slots__ = ("_most_ms", "_state")

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._most_ms = state.config.timer_max_delay_sec * 1000

    def check_point(self, command: Command, _: Connection) -> Command:
        """Handle GET_TIMER_CHECK_POINT: return ``timercheck`` as it is by now, for slaves."""
        timers = self._state.timers
        if timers is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        now_ms = self._state.clock.now_ms()
        return command.reply(body=encode_check(timers.check_point(), now_ms, 0))

    def due_ms(self, topic: str, text: bytes) -> int | None:
        """Return when a message is due; None if it has no timer or is due already.

        Args:
            topic: its topic, for the error.
            text: its properties; it has no delay level.

        Raises:
            RequestRefused: it may not wait here.
        """
        if not rules.asks_for_timer(text):
            return None
        if not self._state.config.timer_wheel_enable:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false: a message to "
                f"topic {topic} has a time of delivery; take it out, or ask for a delay level",
            )
        now_ms = self._state.clock.now_ms()
        try:
            due_ms = rules.asked_ms(text, now_ms)
        except ValueError as error:
            raise self._illegal(topic, str(error)) from None
        if due_ms - now_ms > self._most_ms:
            raise self._illegal(topic, f"it is due in {(due_ms - now_ms) // 1000} s")
        if due_ms <= now_ms:
            if rules.recalled(text) is not None:
                raise self._illegal(topic, "it recalls a message whose time is over")
            return None
        timers = self._state.timers
        if timers is not None and timers.congested(rules.slot_of(due_ms)):
            limit = self._state.config.limits.timers_per_second
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {limit} in the same "
                f"second: a message to topic {topic} may be due at another time",
            )
        return due_ms

    def _illegal(self, topic: str, reason: str) -> RequestRefused:
        return RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self._most_ms}ms; or if set del msg, the delay time should be bigger than the "
            f"current time: a message to topic {topic}: {reason}",
        )

    def handle_of(self, message: PendingMessage, due_ms: int) -> str | None:
        """Return the recall handle of a message in the timer topic; None if it can't have one."""
        topic = rules.real_topic(message.properties).decode("utf-8", "replace")
        unique_id = properties.find(message.properties, _UNIQ_KEY)
        if unique_id is None or topic.startswith(names.RETRY_PREFIX):
            return None
        time = str(rules.slot_of(due_ms) + 1)
        broker_name = self._state.config.broker_name
        return RecallHandle(topic, broker_name, time, unique_id.decode("utf-8", "replace")).encode()

    async def recall(self, command: Command, connection: Connection) -> Command:
        """Handle RECALL_MESSAGE."""
        state, config = self._state, self._state.config
        region = (("MSG_REGION", config.region_id),)
        try:
            message, handle = self._recall(command, connection)
        except RequestRefused as refused:
            return command.reply(refused.code, refused.remark, extra=region)
        result = state.store.put(message)
        if result.status is not PutStatus.OK:
            return command.reply(
                ResponseCode.SYSTEM_ERROR,
                f"recall failed, execute error: {result.message}",
                extra=region,
            )
        reply = command.reply(
            header=RecallMessageResponseHeader(msg_id=handle.unique_id), extra=region
        )
        if state.store.config.waits:
            # Like RocketMQ, acknowledge even if the flush timed out.
            await state.acked(result.end_offset)
        return reply

    def _recall(
        self, command: Command, connection: Connection
    ) -> tuple[PendingMessage, RecallHandle]:
        """Return the message that recalls another one. Raises ``RequestRefused``."""
        state, config = self._state, self._state.config
        header = command.read(RecallMessageRequestHeader)
        now_ms = state.clock.now_ms()
        # The order of these checks is RocketMQ's (cf. RecallMessageProcessor.processRequest).
        if not config.recall_message_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: recallMessageEnable is false",
            )
        if now_ms < config.start_accept_send_request_timestamp_ms:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
            )
        if state.topics.get(header.topic) is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"recall failed, the topic[{header.topic}] not exist",
            )
        try:
            handle = recall_handle.decode(header.recall_handle)
        except ValueError as error:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != header.topic:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                "recall failed, broker service not available: the handle is of broker "
                f"{handle.broker_name}",
            )
        time = handle.time
        is_number = time.isascii() and time.isdigit() and len(time) <= _MAX_DIGITS
        if not (is_number and 0 < int(time) - now_ms < self._most_ms):
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        try:
            text = properties.encode(
                {
                    properties.TIMER_DEL_UNIQKEY: rules.recall_key(handle.topic, handle.unique_id),
                    properties.UNIQ_KEY: handle.unique_id,
                    properties.TIMER_DELIVER_MS: handle.time,
                    properties.TAGS: _TAG,
                    properties.PGROUP: header.producer_group,
                }
            )
        except ValueError:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"
            ) from None
        due_ms = self.due_ms(handle.topic, text)
        if due_ms is None:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        message = PendingMessage(
            topic=handle.topic,
            queue_id=0,
            body=b"0",
            properties=text,
            tags_code=tags_code(_TAG),
            born_timestamp_ms=now_ms,
            born_host=host_bytes(*connection.remote),
        )
        rules.to_timer(message, due_ms)
        return message, handle
