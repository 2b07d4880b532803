"""Columnar storage of outgoing messages, and the validation and encoding done when one is accepted.

The messages of one lane differ only in body, properties, flag and unique id. ``MessageColumns``
stores those as one list per attribute and everything else once, because lists are sliced, joined
and encoded in C, without Python code per message. Send attempts only read the columns. This module
does no I/O and uses no event loop, except that it stores futures.
"""

from __future__ import annotations

import math
import re
from asyncio import Future
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple, TypeVar

from client.config import ProducerOptions
from client.errors import UsageError
from client.message import Message, Receipt
from client.positions import Duration, milliseconds, seconds, utf8_size
from client.serde import Serde, raw
from remoting.protocol import names
from remoting.protocol.limits import MAX_BATCH_MESSAGES, MAX_MESSAGE_BYTES, MAX_PROPERTIES_BYTES
from remoting.protocol.message import batch as batches
from remoting.protocol.message import properties
from remoting.protocol.message.compression import compress
from remoting.protocol.message.record import TRANSACTION_PREPARED
from remoting.protocol.message.tags import JAVA_BLANKS
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue

T = TypeVar("T")

ELEMENT_BYTES: Final = 22
"""Size of a batch element without its body and properties, in bytes."""

ID_NAME: Final = "UNIQ_KEY\x01"
_NEXT_ID_NAME: Final = f"\n{ID_NAME}"


class Payload(NamedTuple):
    """The message-dependent part of a send request.

    ``properties`` is None for a batch: its body contains the properties of each message.
    """

    body: bytes
    properties: str | None
    born_ms: int
    flag: int = 0
    sys_flag: int = 0


class MessageColumns:
    """The messages of one lane, one list per attribute.

    Until ``seal``, callers append to ``bodies``, ``futures``, ``flags`` and ``tails`` and add to
    ``size``. After it, ``split``, ``join`` and ``payload`` may be used.

    Attributes:
        lane: the topic, or the queue that the messages are bound to.
        sharding_key: selects the queue once the route is known.
        deadline: send deadline of the last message, in seconds of the producer's clock.
        timeout: seconds given with ``send``; None: the producer's timeout applies.
        born_ms: creation time of the first message, in ms since the Unix epoch.
        epoch: number of flushes before these messages were accepted; see ``SendBuffer``.
        spread: number of queues over which the messages of an unordered lane may be distributed.
        fixed: whether the messages must be sent as exactly one request.
        sys_flag: the system flag of all the messages.
        flags: the user flag of each message; empty when all are 0.
        size: encoded size as batch elements, in bytes; also counts against
            ``max_in_flight_bytes``.
        tails: by index, the encoded properties that follow the unique id.
        ids, texts: unique id and encoded properties of each message; filled by ``seal``.
        futures: one per message; resolved with its receipt or error.
    """

    __slots__ = (
        *("bodies", "born_ms", "deadline", "epoch", "fixed", "flags", "futures", "ids", "lane"),
        *("sharding_key", "size", "spread", "sys_flag", "tails", "texts", "timeout", "topic"),
    )

    def __init__(
        self,
        topic: str,
        lane: str | MessageQueue,
        deadline: float,
        born_ms: int,
        *,
        epoch: int = 0,
        spread: int = 1,
        fixed: bool = False,
        sys_flag: int = 0,
    ) -> None:
        self.topic = topic
        self.lane = lane
        self.deadline = deadline
        self.born_ms = born_ms
        self.epoch = epoch
        self.spread = spread
        self.fixed = fixed
        self.sys_flag = sys_flag
        self.sharding_key: str | None = None
        self.timeout: float | None = None
        self.size = 0
        self.bodies: list[bytes] = []
        self.tails: dict[int, str] = {}
        self.flags: list[int] = []
        self.futures: list[Future[Receipt]] = []
        self.ids: list[str] = []
        self.texts: list[bytes] = []

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.bodies)

    @property
    def queue(self) -> MessageQueue | None:
        """The queue that the messages are bound to; None: any queue of the topic."""
        return self.lane if isinstance(self.lane, MessageQueue) else None

    def seal(self, take_ids: Callable[[int], list[str]]) -> None:
        """Assign the unique ids (``take_ids(n)`` returns n of them) and encode the properties."""
        ids = self.ids = take_ids(len(self.bodies))
        if self.tails:
            tail = self.tails.get
            self.texts = [
                f"{ID_NAME}{unique_id}{tail(index, '')}".encode()
                for index, unique_id in enumerate(ids)
            ]
        else:
            self.texts = (ID_NAME + _NEXT_ID_NAME.join(ids)).encode().split(b"\n")

    def fitting(self, messages: int, size: int) -> int:
        """Return how many leading messages fit into ``messages`` messages and ``size`` bytes."""
        if self.size <= size:
            return min(messages, len(self.bodies))
        ends = accumulate(
            len(body) + len(text) + ELEMENT_BYTES
            for body, text in zip(self.bodies[:messages], self.texts, strict=False)
        )
        return bisect_right(list(ends), size)

    def split(self, count: int) -> MessageColumns:
        """Remove the first ``count`` messages and return them as new columns."""
        first = MessageColumns(
            self.topic,
            self.lane,
            self.deadline,
            self.born_ms,
            epoch=self.epoch,
            spread=self.spread,
            sys_flag=self.sys_flag,
        )
        for name in ("bodies", "texts", "ids", "futures"):
            column = getattr(self, name)
            setattr(first, name, column[:count])
            del column[:count]
        first.size = ELEMENT_BYTES * count + sum(map(len, first.bodies + first.texts))
        self.size -= first.size
        return first

    def join(self, later: MessageColumns) -> None:
        """Append the sealed messages of ``later``, which has the same lane and epoch."""
        self.bodies += later.bodies
        self.texts += later.texts
        self.ids += later.ids
        self.futures += later.futures
        self.flags += later.flags
        self.size += later.size
        self.deadline = later.deadline

    def payload(self) -> Payload:
        """Return the message-dependent part of the request; every attempt sends the same one."""
        if len(self.bodies) == 1:
            flag = self.flags[0] if self.flags else 0
            text = self.texts[0].decode()
            return Payload(self.bodies[0], text, self.born_ms, flag, self.sys_flag)
        if any(self.flags):
            body = batches.encode(zip(self.flags, self.bodies, self.texts, strict=True))
        else:
            body = batches.encode_columns(self.bodies, self.texts)
        return Payload(body, None, self.born_ms, sys_flag=self.sys_flag)


RESERVED: Final = frozenset(
    {
        *(properties.KEYS, properties.TAGS, properties.WAIT, properties.DELAY),
        *(properties.RETRY_TOPIC, properties.REAL_TOPIC, properties.REAL_QID),
        *(properties.TRAN_MSG, properties.PGROUP, properties.MIN_OFFSET, properties.MAX_OFFSET),
        *(properties.BUYER_ID, properties.ORIGIN_MESSAGE_ID, properties.TRANSFER_FLAG),
        *(properties.CORRECTION_FLAG, properties.MQ2_FLAG, properties.RECONSUME_TIME),
        *(properties.MAX_RECONSUME_TIMES, properties.MSG_REGION, properties.TRACE_ON),
        *(properties.UNIQ_KEY, properties.CONSUME_START_TIME),
        *(properties.TRAN_PREPARED_QUEUE_OFFSET, properties.TRANSACTION_CHECK_TIMES),
        *(properties.CHECK_IMMUNITY_TIME_IN_SECONDS, properties.INSTANCE_ID),
        *(properties.CORRELATION_ID, properties.REPLY_TO_CLIENT, properties.TTL),
        *(properties.ARRIVE_TIME, properties.PUSH_REPLY_TIME, properties.CLUSTER),
        *(properties.MSG_TYPE, properties.SHARDING_KEY),
        *(properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS, properties.TIMER_DELIVER_MS),
        *(properties.TIMER_OUT_MS, properties.TIMER_ENQUEUE_MS, properties.TIMER_DEQUEUE_MS),
        *(properties.TIMER_ROLL_TIMES, properties.TIMER_DEL_UNIQKEY, properties.TIMER_DELAY_LEVEL),
    }
)
"""Property names that applications must not set (cf. MessageConst.STRING_HASH_SET)."""

SHORT_PROPERTIES: Final = MAX_PROPERTIES_BYTES // 4
"""A property text of fewer characters can't exceed the limit: UTF-8 takes at most 4 bytes each."""

_SEPARATORS: Final = re.compile("[\x01\x02]")
_NOT_IN_TAGS: Final = re.compile(r"[\x01\x02]|\|\|")


class Preparer(Generic[T]):
    """Validates, serializes and compresses the messages of one producer.

    Args:
        id_bytes: size of the unique id property, in bytes.
        now_ms: returns the wall-clock time in ms since the Unix epoch.
        monotonic: returns the producer's clock in seconds; deadlines refer to it.
    """

    def __init__(
        self,
        options: ProducerOptions,
        serde: Serde[T],
        id_bytes: int,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self.options = options
        self.serde = serde
        self._id_bytes = id_bytes
        self._now_ms = now_ms
        self._monotonic = monotonic

    def prepare(
        self,
        message: Message[T],
        timeout: Duration | None,
        *,
        compressing: bool = True,
        system: Mapping[str, str] | None = None,
    ) -> MessageColumns:
        """Return columns with this one message. Raises UsageError if it can't be sent.

        Args:
            system: properties that are not the application's; such a message is sent singly.
        """
        topic = message.topic
        check_topic(topic)
        data, sys_flag = self._body(topic, message.body), 0
        tail = self._tail(message, system or {})
        kind = self.options.compress
        if compressing and kind is not None and len(data) >= self.options.compress_over_bytes:
            packed, packed_flag = compress(data, kind)
            # If compression doesn't shrink the body, it would only cost the readers CPU time.
            if len(packed) < len(data):
                data, sys_flag = packed, packed_flag
        if message.flag and not -(2**31) <= message.flag < 2**31:
            raise UsageError(
                f"flag can't be {message.flag}", topic=topic, hint="use 32 signed bits"
            )
        half = TRANSACTION_PREPARED if properties.TRAN_MSG in (system or {}) else 0
        limit = self.options.timeout if timeout is None else seconds(timeout)
        columns = MessageColumns(
            topic,
            _lane(message),
            self._monotonic() + limit,
            self._now_ms(),
            # All messages of a request share its header, so a message that sets one of these
            # header fields can't be merged with others.
            fixed=bool(
                sys_flag
                or message.flag
                or message.delay_level
                or is_timed(message)
                or not message.wait
                or timeout is not None
                or topic.startswith(RETRY_PREFIX)
                or system
            ),
            sys_flag=sys_flag | half,
        )
        columns.sharding_key = message.sharding_key
        columns.timeout = None if timeout is None else limit
        columns.bodies.append(data)
        columns.flags.append(message.flag)
        if tail:
            columns.tails[0] = tail
        columns.size = ELEMENT_BYTES + self._id_bytes + len(data) + properties_size(topic, tail)
        return columns

    def prepare_batch(
        self, messages: Sequence[Message[T]], timeout: Duration | None
    ) -> MessageColumns:
        """Return columns that are sent as one request. Raises UsageError if they can't be."""
        if not messages:
            raise UsageError("a batch needs at least one message")
        made = [self.prepare(message, timeout, compressing=False) for message in messages]
        _check_batch(messages, made)
        batch = made[0]
        for columns in made[1:]:
            if columns.tails:
                batch.tails[batch.count] = columns.tails[0]
            batch.join(columns)
        batch.fixed = True
        return batch

    def _body(self, topic: str, body: T) -> bytes:
        serde: Serde[Any] = self.serde
        if serde is raw:
            return check_body(topic, body)
        try:
            data = serde.dumps(body)
        except Exception as error:
            raise UsageError(f"{serde!r} can't write this body: {error}", topic=topic) from error
        return check_body(topic, data)

    def _tail(self, message: Message[T], system: Mapping[str, str]) -> str:
        """Return all encoded properties except the unique id. Raises UsageError."""
        topic = message.topic
        tail = properties_after_id(
            topic, tag=message.tag, keys=message.keys, own=message.properties
        )
        if message.delay_level:
            if (
                type(message.delay_level) is not int
                or not 0 < message.delay_level <= self.options.max_delay_level
            ):
                raise UsageError(
                    f"delay_level can't be {message.delay_level!r}",
                    topic=topic,
                    hint=f"use 1 to {self.options.max_delay_level}; for brokers with more levels"
                    " give the producer max_delay_level=",
                )
            level = message.delay_level
            tail += f"\x02DELAY\x01{level}"
        if is_timed(message):
            timer, time_ms = timer_property(message)
            tail += f"\x02{timer}\x01{time_ms}"
        for name, value in system.items():
            tail += f"\x02{name}\x01{value}"
        if not message.wait:
            tail += "\x02WAIT\x01false"
        if len(tail) >= SHORT_PROPERTIES:
            size = self._id_bytes + properties_size(topic, tail)
            if size > MAX_PROPERTIES_BYTES:
                raise UsageError(
                    f"the properties take {size} bytes, {MAX_PROPERTIES_BYTES} are allowed",
                    topic=topic,
                    hint="move data into the body",
                )
        return tail


def is_timed(message: Message[Any]) -> bool:
    """Return whether a message has a time of delivery."""
    return message.delay is not None or message.deliver_at is not None


def timer_property(message: Message[Any]) -> tuple[str, int]:
    """Return the property that asks for a message's time of delivery.

    Raises:
        UsageError: the message has more than one time, or an invalid one.
    """
    topic = message.topic
    times = (message.delay is not None, message.deliver_at is not None, message.delay_level != 0)
    if sum(times) > 1:
        raise UsageError(
            "a message has one of deliver_at, delay and delay_level",
            topic=topic,
            hint="leave the others out",
        )
    if message.deliver_at is not None:
        return properties.TIMER_DELIVER_MS, milliseconds(message.deliver_at)
    assert message.delay is not None
    delay = seconds(message.delay, "delay")
    if math.isinf(delay):
        raise UsageError(f"delay can't be {delay}", topic=topic, hint="give a number of seconds")
    return properties.TIMER_DELAY_MS, math.ceil(delay * 1000)


def _lane(message: Message[Any]) -> str | MessageQueue:
    """Return a message's lane: its queue if it names one, else its topic. Raises UsageError."""
    queue, key = message.queue, message.sharding_key
    if queue is None:
        if key is not None and not isinstance(key, str):
            raise UsageError(f"sharding_key has to be text: {key!r}", topic=message.topic)
        return message.topic
    if key is not None:
        raise UsageError(
            "a message has either a queue or a sharding_key", topic=message.topic, queue=queue
        )
    if queue.topic != message.topic:
        raise UsageError(f"the queue belongs to another topic than {message.topic}", queue=queue)
    return queue


def _check_batch(messages: Sequence[Message[Any]], made: Sequence[MessageColumns]) -> None:
    topic = messages[0].topic
    if any(message.topic != topic for message in messages):
        raise UsageError("a batch has messages of one topic only", topic=topic)
    if len(messages) > MAX_BATCH_MESSAGES:
        raise UsageError(
            f"a batch of {len(messages)} messages is too large, {MAX_BATCH_MESSAGES} are allowed",
            topic=topic,
            hint="use send_many",
        )
    size = sum(columns.size for columns in made)
    if size > MAX_MESSAGE_BYTES:
        raise UsageError(
            f"a batch of {size} bytes is too large, {MAX_MESSAGE_BYTES} are allowed",
            topic=topic,
            hint="use send_many, which splits",
        )
    delayed = any(message.delay_level or is_timed(message) for message in messages)
    if len(messages) > 1 and (topic.startswith(RETRY_PREFIX) or delayed):
        raise UsageError(
            "delayed messages and retry topics can't be sent as a batch",
            topic=topic,
            hint="send them one by one",
        )


@lru_cache(maxsize=1024)
def check_topic(topic: str) -> None:
    """Raise UsageError if applications must not send to this topic."""
    try:
        names.validate_topic(topic)
    except ValueError as error:
        raise UsageError(str(error), topic=topic[:200]) from None
    if topic in names.NOT_SENDABLE_TOPICS:
        raise UsageError("only brokers write to this topic", topic=topic, hint="use one of yours")


def check_body(topic: str, body: object) -> bytes:
    """Return the body as bytes. Raises UsageError if it is not bytes, empty or too large."""
    if isinstance(body, bytearray | memoryview):
        body = bytes(body)
    if not isinstance(body, bytes):
        raise UsageError(
            f"a body has to be bytes, not {type(body).__name__}",
            topic=topic,
            hint="encode it, or give the producer a serde such as client.serde.json",
        )
    if not body:
        raise UsageError("a body can't be empty", topic=topic)
    if len(body) > MAX_MESSAGE_BYTES:
        raise UsageError(
            f"a body of {len(body)} bytes is too large, {MAX_MESSAGE_BYTES} are allowed",
            topic=topic,
            hint="split it, or send a reference to it",
        )
    return body


def properties_size(topic: str, text: str) -> int:
    """Return the bytes of a properties text. Raises UsageError if it can't be UTF-8."""
    if text.isascii():
        return len(text)
    return utf8_size(text, "the tag, a key or a property holds", topic=topic)


def properties_after_id(
    topic: str, *, tag: str | None, keys: Iterable[str], own: Mapping[str, str] | None
) -> str:
    """Encode the properties that the application set; the length isn't checked.

    Raises:
        UsageError: a tag, key or property is invalid.
    """
    text = ""
    try:
        if tag:
            if _NOT_IN_TAGS.search(tag):
                raise UsageError(
                    f"the tag {tag!r} holds ||, 0x01 or 0x02",
                    topic=topic,
                    hint="a message has one tag; consumers subscribe to several with ||",
                )
            # As in a subscription, where RocketMQ removes them: otherwise none could match.
            if tag := tag.strip(JAVA_BLANKS):
                text += f"\x02TAGS\x01{tag}"
        if keys:
            text += "\x02KEYS\x01" + _joined(topic, keys)
        if own:
            text += _custom_properties(topic, own)
    except (TypeError, AttributeError) as error:
        raise UsageError(
            f"the tag, a key or a property is not text: {error}",
            topic=topic,
            hint="a tag is a text, keys are texts, and properties a mapping of texts",
        ) from error
    return text


def _joined(topic: str, keys: Iterable[str]) -> str:
    if isinstance(keys, str):
        raise UsageError(f"keys is the text {keys!r}", topic=topic, hint=f"write [{keys!r}]")
    words = list(keys)
    for word in words:
        if not word or " " in word or _SEPARATORS.search(word):
            raise UsageError(
                f"the key {word!r} is empty or holds a blank, 0x01 or 0x02",
                topic=topic,
                hint="blanks separate keys: use another character",
            )
    return " ".join(words)


def _custom_properties(topic: str, own: Mapping[str, str]) -> str:
    text = ""
    for name, value in own.items():
        if type(name) is not str or type(value) is not str:
            raise UsageError(f"the property {name!r} is not text: {value!r}", topic=topic)
        if name in RESERVED:
            raise UsageError(
                f"the property name {name} is reserved",
                topic=topic,
                hint="use the argument for it (tag, keys, ...), or another name",
            )
        if not name or not value or _SEPARATORS.search(name) or _SEPARATORS.search(value):
            raise UsageError(
                f"the property {name!r}={value!r} is empty or holds 0x01 or 0x02", topic=topic
            )
        text += f"\x02{name}\x01{value}"
    return text
