"""The two ways a message comes in.

The short way is for messages that differ in nothing but body, properties and queue, which are most:
they are checked in passing and join a burst, without an object each. The long way is for all
others, for times without room or route, and for what is wrong: it prepares an ``Outgoing`` and
raises what has to be raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar, cast

from client.errors import PocketMQError, SendError, UsageError, as_send_error
from client.message import Message
from client.places import Duration
from client.producer.intake import Intake
from client.producer.outgoing import SHORT_PROPERTIES, Outgoing, tail_text
from client.producer.preparer import Preparer, check_batch
from client.receipt import Receipt
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")


class Acceptance(Generic[T]):
    """The door of one producer."""

    def __init__(self, preparer: Preparer[T], intake: Intake) -> None:
        self._preparer = preparer
        self._intake = intake
        self._plain_bytes = preparer.plain_bytes

    def plain(
        self,
        topic: str | Message[T],
        body: T | None,
        tag: str | None,
        keys: Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
    ) -> asyncio.Future[Receipt] | None:
        """Accept a message the short way; None: it has to go the long one."""
        if type(body) is not bytes or not 0 < len(body) < self._plain_bytes:
            others = (body, tag, keys, properties, sharding_key, queue)
            return None if isinstance(topic, str) or any(others) else self.plain_message(topic)
        if type(topic) is not str:
            return None
        tail = ""
        if tag or keys or properties:
            if isinstance(keys, Iterator):
                # It can be read once only, and the long way may have to.
                return None
            tail = tail_text(topic, tag=tag, keys=keys, own=properties)
            if len(tail) >= SHORT_PROPERTIES:
                return None
        return self._intake.add(topic, body, tail, queue, sharding_key)

    def plain_message(self, message: Message[T]) -> asyncio.Future[Receipt] | None:
        """The same for a ``Message``."""
        if message.delay_level or message.flag or not message.wait:
            return None
        return self.plain(
            message.topic,
            message.body,
            message.tag,
            message.keys,
            message.properties,
            message.sharding_key,
            message.queue,
        )

    def prepare(
        self,
        topic: str | Message[T],
        body: T | None,
        tag: str | None,
        keys: Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
        delay_level: int,
        timeout: Duration | None,
    ) -> Outgoing:
        """The beginning of the long way. Raises UsageError."""
        if isinstance(topic, str):
            return self._preparer.prepare(
                topic,
                cast(T, body),
                tag=tag,
                keys=keys,
                properties=properties,
                sharding_key=sharding_key,
                queue=queue,
                delay_level=delay_level,
                timeout=timeout,
            )
        if any((body, tag, keys, properties, sharding_key, queue, delay_level)):
            raise _twice(topic.topic)
        return self._preparer.message(topic, timeout)

    @staticmethod
    def message_of(
        topic: str | Message[T],
        body: T | None,
        tag: str | None,
        keys: Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
        delay_level: int,
    ) -> Message[T]:
        """What was given as one ``Message``. Raises UsageError."""
        if not isinstance(topic, str):
            if any((body, tag, keys, properties, sharding_key, queue, delay_level)):
                raise _twice(topic.topic)
            return topic
        return Message(
            topic,
            cast(T, body),
            tag,
            keys,
            properties,
            sharding_key,
            queue,
            delay_level=delay_level,
        )

    async def accept(self, item: Outgoing) -> asyncio.Future[Receipt]:
        """The rest of the long way, as soon as there is room. Raises SendError."""
        await self._intake.room.take((item,))
        self._intake.accept((item,))
        assert item.future is not None
        return item.future

    async def message(
        self, message: Message[T], timeout: Duration | None
    ) -> asyncio.Future[Receipt] | SendError:
        """Accept a message the long way; what is wrong with it comes as a result."""
        try:
            return await self.accept(self._preparer.message(message, timeout))
        except PocketMQError as error:
            return as_send_error(error)

    async def batch(
        self, messages: Iterable[Message[T]], timeout: Duration | None
    ) -> list[asyncio.Future[Receipt]]:
        """Accept messages that leave as one request. Raises UsageError, SendError."""
        items = [
            self._preparer.message(message, timeout, compressing=False) for message in messages
        ]
        check_batch(items)
        group = object()
        for item in items:
            item.group = group
            item.lane = items[0].lane
            item.sharding_key = items[0].sharding_key
        await self._intake.room.take(items)
        self._intake.accept(items)
        return [cast("asyncio.Future[Receipt]", item.future) for item in items]


def _twice(topic: str) -> UsageError:
    return UsageError(
        "a Message has its body and attributes itself",
        topic=topic,
        hint="give either a Message, or topic, body and attributes",
    )
