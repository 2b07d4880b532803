"""Messages with a time of delivery: which brokers have timers, and recalls.

The brokers of a topic are asked before the first such message, once each; see
``client.wire.timers``.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Final, TypeVar

from client.config import ProducerOptions
from client.errors import (
    NoRoute,
    PocketMQError,
    SendError,
    Unavailable,
    UsageError,
    as_send_error,
)
from client.limits import DELAY_LEVELS, MAX_BROKERS_KNOWN
from client.message import Message
from client.network.context import ClientContext
from client.network.remote import read_header
from client.network.routes import Route, address_of
from client.positions import Duration, seconds
from client.producer.columns import is_timed, timer_property
from client.wire.timers import has_timers, timer_probe
from remoting.protocol.codes import RequestCode
from remoting.protocol.headers.send import RecallMessageRequestHeader, RecallMessageResponseHeader
from remoting.protocol.message import properties, recall_handle
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")

_ANY_ANSWER: Final = range(2**31)

SILENT_TIMEOUT: Final = 0.1
"""Seconds for which a broker is asked that didn't answer lately."""


class TimedSends:
    """Remembers which brokers of a producer have timers, and sends recalls."""

    def __init__(self, context: ClientContext, group: str, options: ProducerOptions) -> None:
        self._context = context
        self._group = group
        self._options = options
        self._timers: dict[str, bool] = {}
        """By broker address, whether it has timers."""

    async def require_timers(self, message: Message[T], timeout: Duration | None) -> Message[T]:
        """Return the message to send, after checking all brokers that may get it.

        It is the same one, one with a delay level for brokers without timers, or one for a broker
        that has answered if another one doesn't within half of the send's ``timeout``.

        Raises:
            UsageError: the time is invalid.
            SendError: a broker has no timers, and the producer doesn't use delay levels instead;
                or a broker could not be asked.
        """
        if not is_timed(message):
            return message
        timer_property(message)
        try:
            limit = self._options.timeout if timeout is None else seconds(timeout)
            return await self._checked(message, limit)
        except UsageError:
            raise
        except PocketMQError as error:
            raise as_send_error(error) from error.__cause__

    async def _checked(self, message: Message[T], limit: float) -> Message[T]:
        topic = message.topic
        route = await self._context.routes.to_write(topic, self._options.default_queues, limit)
        queues = route.writable if message.queue is None else (message.queue,)
        brokers = {queue.broker_name: queue for queue in queues}
        found = await asyncio.gather(
            *(self._has_timers(route, queue, limit / 2) for queue in brokers.values()),
            return_exceptions=True,
        )
        for name, has in zip(brokers, found, strict=True):
            if has is not False:
                continue
            if self._options.without_timers == "refuse":
                raise SendError(
                    "the message was not sent: this broker has no timers and would deliver it at "
                    "once",
                    topic=topic,
                    queue=brokers[name],
                    group=self._group,
                    broker=name,
                    hint="use delay_level=, or a producer with without_timers='delay_level'",
                )
            return self._with_level(message)
        having = {name for name, has in zip(brokers, found, strict=True) if has is True}
        for error in found:
            if isinstance(error, BaseException):
                is_fault = not isinstance(error, Unavailable)
                if is_fault or not having or message.sharding_key is not None:
                    raise error
                # A broker that doesn't answer may have no timers, so it must not get the message.
                usable = [queue for queue in queues if queue.broker_name in having]
                return replace(message, queue=random.choice(usable))  # noqa: S311 - spreads load
        return message

    async def _has_timers(self, route: Route, queue: MessageQueue, timeout: float) -> bool:
        address = address_of(route, queue)
        if address not in self._timers:
            faults, now = self._context.faults, asyncio.get_running_loop().time
            if not faults.available(queue.broker_name, now()):
                timeout = min(timeout, SILENT_TIMEOUT)
            try:
                answer = await self._context.remote.call(
                    address,
                    RequestCode.RECALL_MESSAGE,
                    timer_probe(queue.topic, self._group),
                    timeout=timeout,
                    accept=_ANY_ANSWER,
                    queue=queue,
                    group=self._group,
                )
            except Unavailable:
                faults.failed(queue.broker_name, now())
                raise
            if len(self._timers) >= MAX_BROKERS_KNOWN:
                self._timers.clear()
            self._timers[address] = has_timers(answer)
        return self._timers[address]

    def _with_level(self, message: Message[T]) -> Message[T]:
        """Return the message with the next delay level. Raises UsageError if there is none."""
        name, value = timer_property(message)
        wait_ms = value
        if name == properties.TIMER_DELIVER_MS:
            wait_ms = value - self._context.clock.now_ms()
        levels = enumerate(DELAY_LEVELS, 1)
        level = next((level for level, seconds in levels if seconds * 1000 >= wait_ms), None)
        if level is None:
            raise UsageError(
                f"the message is due in {wait_ms // 1000} s, and the longest delay level is "
                f"{DELAY_LEVELS[-1]} s",
                topic=message.topic,
                hint="send it later, or to a broker that has timers",
            )
        return replace(
            message, delay=None, deliver_at=None, delay_level=level if wait_ms > 0 else 0
        )

    async def recall(self, handle: str) -> str:
        """Recall a message; see ``Producer.recall``."""
        try:
            recalled = recall_handle.decode(handle)
        except ValueError as error:
            raise UsageError(
                str(error), hint="give the recall_handle of the message's receipt"
            ) from None
        route = await self._context.routes.to_write(
            recalled.topic, self._options.default_queues, self._options.timeout
        )
        queue = MessageQueue(recalled.topic, recalled.broker_name, 0)
        address = route.master(recalled.broker_name)
        if address is None:
            raise NoRoute(
                "the broker of the message is not in the route",
                topic=recalled.topic,
                broker=recalled.broker_name,
                hint="start it, or recall the message later",
            )
        answer = await self._context.remote.call(
            address,
            RequestCode.RECALL_MESSAGE,
            RecallMessageRequestHeader(
                producer_group=self._group, topic=recalled.topic, recall_handle=handle
            ),
            queue=queue,
            group=self._group,
        )
        return read_header(answer, RecallMessageResponseHeader, queue).msg_id
