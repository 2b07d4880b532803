"""From an application's message to one that is ready for the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from client.config import ProducerOptions
from client.errors import UsageError
from client.message import Message
from client.places import Duration, seconds
from client.producer.outgoing import (
    ELEMENT_BYTES,
    Outgoing,
    check_body,
    check_topic,
    properties_text,
)
from client.serde import Serde, raw
from remoting.protocol.limits import MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES
from remoting.protocol.message.compression import compress
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")


class Preparer(Generic[T]):
    """Checks, serializes and compresses the messages of one producer.

    Args:
        next_id: gives the unique id of a message.
        now_ms: the wall clock.
        monotonic: the clock of deadlines.
    """

    def __init__(
        self,
        options: ProducerOptions,
        serde: Serde[T],
        next_id: Callable[[], str],
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._options = options
        self._serde: Serde[Any] = serde
        self._next_id = next_id
        self._now_ms = now_ms
        self._monotonic = monotonic

    @property
    def plain_bytes(self) -> int:
        """Bodies that are smaller, and bytes, leave as they are."""
        return self._options.plain_bytes if self._serde is raw else 0

    def message(
        self, message: Message[T], timeout: Duration | None, *, compressing: bool = True
    ) -> Outgoing:
        """The same for a ``Message``."""
        return self.prepare(
            message.topic,
            message.body,
            tag=message.tag,
            keys=message.keys,
            properties=message.properties,
            sharding_key=message.sharding_key,
            queue=message.queue,
            delay_level=message.delay_level,
            flag=message.flag,
            wait=message.wait,
            timeout=timeout,
            compressing=compressing,
        )

    def prepare(
        self,
        topic: str,
        body: T,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        flag: int = 0,
        wait: bool = True,
        timeout: Duration | None = None,
        compressing: bool = True,
    ) -> Outgoing:
        """Make a message ready. Raises UsageError for what can't be sent."""
        check_topic(topic)
        data = self._body(topic, body)
        unique_id = self._next_id()
        text = properties_text(
            topic,
            unique_id,
            tag=tag,
            keys=keys,
            own=properties,
            delay_level=delay_level,
            max_delay_level=self._options.max_delay_level,
            wait=wait,
        )
        sys_flag = 0
        if compressing and len(data) >= self._options.compress_over_bytes:
            data, sys_flag = self._compressed(data)
        alone = bool(
            sys_flag
            or delay_level
            or not wait
            or timeout is not None
            or topic.startswith(RETRY_PREFIX)
        )
        item = Outgoing(topic, data, text, unique_id, flag=flag, sys_flag=sys_flag, alone=alone)
        if queue is not None or sharding_key is not None:
            _aim(item, queue, sharding_key)
        if flag and not -(2**31) <= flag < 2**31:
            raise UsageError(f"flag can't be {flag}", topic=topic, hint="use 32 signed bits")
        item.delayed = delay_level > 0
        item.born_ms = self._now_ms()
        item.timeout = None if timeout is None else seconds(timeout)
        limit = self._options.timeout if item.timeout is None else item.timeout
        item.deadline = self._monotonic() + limit
        return item

    def _body(self, topic: str, body: T) -> bytes:
        if self._serde is raw:
            return check_body(topic, body)
        try:
            data = self._serde.dumps(body)
        except Exception as error:
            raise UsageError(
                f"{self._serde!r} can't write this body: {error}", topic=topic
            ) from error
        return check_body(topic, data)

    def _compressed(self, data: bytes) -> tuple[bytes, int]:
        kind = self._options.compress
        if kind is None:
            return data, 0
        packed, sys_flag = compress(data, kind)
        # What doesn't shrink costs every reader time and saves nobody space.
        return (packed, sys_flag) if len(packed) < len(data) else (data, 0)


def _aim(item: Outgoing, queue: MessageQueue | None, sharding_key: str | None) -> None:
    if queue is None:
        if not isinstance(sharding_key, str):
            raise UsageError(f"sharding_key has to be text: {sharding_key!r}", topic=item.topic)
        item.sharding_key = sharding_key
        return
    if sharding_key is not None:
        raise UsageError(
            "a message has either a queue or a sharding_key", topic=item.topic, queue=queue
        )
    if queue.topic != item.topic:
        raise UsageError(f"the queue belongs to another topic than {item.topic}", queue=queue)
    item.lane = queue


def check_batch(items: Sequence[Outgoing]) -> None:
    """Whether messages can leave as one batch. Raises UsageError."""
    if not items:
        raise UsageError("a batch needs at least one message")
    topic = items[0].topic
    if any(item.topic != topic for item in items):
        raise UsageError("a batch has messages of one topic only", topic=topic)
    if len(items) > MAX_BATCH_MESSAGES:
        raise UsageError(
            f"a batch of {len(items)} messages is too large, {MAX_BATCH_MESSAGES} are allowed",
            topic=topic,
            hint="use send_many",
        )
    size = sum(ELEMENT_BYTES + len(item.body) + len(item.properties.encode()) for item in items)
    if size > MAX_MESSAGE_BYTES:
        raise UsageError(
            f"a batch of {size} bytes is too large, {MAX_MESSAGE_BYTES} are allowed",
            topic=topic,
            hint="use send_many, which splits",
        )
    if len(items) > 1 and (topic.startswith(RETRY_PREFIX) or any(item.delayed for item in items)):
        raise UsageError(
            "delayed messages and retry topics can't be sent as a batch",
            topic=topic,
            hint="send them one by one",
        )
