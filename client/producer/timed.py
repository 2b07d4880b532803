"""Messages with a time of delivery: which brokers can hold them, and recalls.

A broker without timers ignores the property and delivers such a message at once. So the brokers of
a topic are asked first, once each: RocketMQ 5 reports its version, and PocketMQ serves
RECALL_MESSAGE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

from client.config import ProducerOptions
from client.errors import NoRoute, SendError, UsageError
from client.limits import MAX_BROKERS_KNOWN
from client.message import Message
from client.network.context import ClientContext
from client.network.remote import read_header
from client.network.routes import address_of
from client.producer.columns import is_timed, timer_property
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.headers.send import RecallMessageRequestHeader, RecallMessageResponseHeader
from remoting.protocol.message import properties, recall_handle
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")

LAST_VERSION_WITHOUT_TIMERS: Final = 411
"""V4_9_9 in RocketMQ's list of versions."""

DEFAULT_LEVELS_SECONDS: Final = (
    *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
)
"""RocketMQ's delay levels, from level 1 on."""

_ANY_ANSWER: Final = range(2**31)


class TimedSends:
    """What a producer knows of its brokers' timers."""

    def __init__(self, context: ClientContext, group: str, options: ProducerOptions) -> None:
        self._context = context
        self._group = group
        self._options = options
        self._known: dict[str, bool] = {}

    async def ready(self, message: Message[T]) -> Message[T]:
        """Return the message to send, once all brokers that may get it are known to have timers.

        Raises:
            UsageError: the time is invalid.
            SendError: a broker has no timers, and the producer doesn't use delay levels instead;
                or a broker could not be asked.
        """
        if not is_timed(message):
            return message
        timer_property(message)
        topic = message.topic
        route = await self._context.routes.to_write(
            topic, self._options.default_queues, self._options.timeout
        )
        queues = route.writable if message.queue is None else (message.queue,)
        for queue in {queue.broker_name: queue for queue in queues}.values():
            if await self._has_timers(address_of(route, queue), queue):
                continue
            if self._options.without_timers == "refuse":
                raise SendError(
                    "the message was not sent: this broker has no timers and would deliver it at "
                    "once",
                    topic=topic,
                    queue=queue,
                    group=self._group,
                    broker=queue.broker_name,
                    hint="use delay_level=, or a producer with without_timers='delay_level'",
                )
            return self._with_level(message)
        return message

    async def _has_timers(self, address: str, queue: MessageQueue) -> bool:
        known = self._known.get(address)
        if known is None:
            # A recall without a handle changes nothing.
            answer = await self._context.remote.call(
                address,
                RequestCode.RECALL_MESSAGE,
                RecallMessageRequestHeader(
                    producer_group=self._group, topic=queue.topic, recall_handle=""
                ),
                accept=_ANY_ANSWER,
                topic=queue.topic,
                queue=queue,
                group=self._group,
            )
            known = (
                answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                or answer.version > LAST_VERSION_WITHOUT_TIMERS
            )
            if len(self._known) >= MAX_BROKERS_KNOWN:
                self._known.clear()
            self._known[address] = known
        return known

    def _with_level(self, message: Message[T]) -> Message[T]:
        """Return the message with the next delay level. Raises UsageError if there is none."""
        name, value = timer_property(message)
        wait_ms = value
        if name == properties.TIMER_DELIVER_MS:
            wait_ms = value - self._context.clock.now_ms()
        levels = enumerate(DEFAULT_LEVELS_SECONDS, 1)
        level = next((number for number, each in levels if each * 1000 >= wait_ms), None)
        if level is None:
            raise UsageError(
                f"the message is due in {wait_ms // 1000} s, and the longest delay level is "
                f"{DEFAULT_LEVELS_SECONDS[-1]} s",
                topic=message.topic,
                hint="send it later, or to a broker that has timers",
            )
        return replace(
            message, delay=None, deliver_at=None, delay_level=level if wait_ms > 0 else 0
        )

    async def recall(self, handle: str) -> str:
        """Recall a message; see ``Producer.recall``."""
        try:
            found = recall_handle.decode(handle)
        except ValueError as error:
            raise UsageError(
                str(error), hint="give the recall_handle of the message's receipt"
            ) from None
        route = await self._context.routes.to_write(
            found.topic, self._options.default_queues, self._options.timeout
        )
        queue = MessageQueue(found.topic, found.broker_name, 0)
        if route.master(found.broker_name) is None:
            raise NoRoute(
                "the broker of the message is not in the route",
                topic=found.topic,
                broker=found.broker_name,
                hint="start it, or recall the message later",
            )
        answer = await self._context.remote.call(
            address_of(route, queue),
            RequestCode.RECALL_MESSAGE,
            RecallMessageRequestHeader(
                producer_group=self._group, topic=found.topic, recall_handle=handle
            ),
            topic=found.topic,
            queue=queue,
            group=self._group,
        )
        return read_header(answer, RecallMessageResponseHeader, queue).msg_id
