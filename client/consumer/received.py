"""Received messages: views of a pull response's bytes whose fields are decoded on access.

A pull response may contain a thousand messages. ``messages_of`` passes over them once and checks
each record as ``RecordView`` does. For a common record (IPv4 hosts, not compressed, the queue's own
topic) it stores only the offset and the position of the body; the positions of other fields are
found on first access. The response isn't copied if it makes up most of the read buffer it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from struct import Struct
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from client.consumer.outcome import DONE, MessageOutcome, OutcomeKind, Settler, outcome_of
from client.errors import UnreadableMessage, UsageError
from client.positions import Duration, instant, seconds
from client.serde import Serde
from remoting.protocol import core
from remoting.protocol.command import UNKNOWN
from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_PROPERTIES_BYTES, MAX_TOPIC_LENGTH
from remoting.protocol.message import properties
from remoting.protocol.message.record import (
    COMPRESSED,
    FIXED_BYTES_V4,
    HEAD_BYTES_V4,
    HOSTS_V6_MASK,
    MAGIC_V1,
)
from remoting.protocol.message.view import RecordView, property_text
from remoting.protocol.names import RETRY_PREFIX
from remoting.protocol.queue import MessageQueue, QueueOffset

T = TypeVar("T")

COPY_BELOW: Final = 16 * 1024
"""If a response's first record is smaller, in bytes, the response is read from ``bytes``, copied if
necessary, because a copy costs less than a memoryview slice per field."""

_PIN_FACTOR: Final = 2
"""A response is copied out of a read buffer of more than this many times its size; otherwise
retained messages would keep the whole buffer alive."""

_OWN_ID: Final = b"UNIQ_KEY\x01"
_RETRY_TOPIC: Final = properties.RETRY_TOPIC.encode()
_UNUSUAL: Final = COMPRESSED | HOSTS_V6_MASK
_LEFT_OUT: Final = frozenset(
    {"_buffer", "_end", "_position", "_topic_at", "_topic_end", "sys_flag"}
)
_SIZE: Final = Struct(">I")
_LENGTH: Final = Struct(">h")

_USUAL_HEAD: Final = Struct(">II12xq8xi44xI")
"""The head of a record with IPv4 hosts: size, magic, queue offset, system flag, body length."""


class _Answer:
    """What the messages of one pull response share.

    Attributes:
        data: the bytes that body positions refer to; None: the messages are full ``RecordView``s.
        settler: records the outcomes of the messages; None: they have no outcomes.
    """

    __slots__ = ("buffer", "data", "queue", "serde", "settler")

    def __init__(
        self,
        buffer: bytes | memoryview,
        queue: MessageQueue,
        serde: Serde[Any],
        settler: Settler | None,
    ) -> None:
        self.buffer = buffer
        self.queue = queue
        self.serde = serde
        self.settler = settler
        self.data: bytes | None = None


class ReceivedMessage(RecordView, Generic[T]):
    """A message, as a consumer receives it.

    It keeps the bytes of the whole pull response in memory.

    Attributes:
        offset: its offset in its queue.
        topic: its topic; of a retried message its original topic, not the retry topic.
    """

    __slots__ = ("_answer", "offset", "topic")

    offset: QueueOffset
    topic: str
    _answer: _Answer

    def __init__(
        self,
        buffer: bytes | memoryview,
        position: int,
        queue: MessageQueue,
        serde: Serde[T],
        settler: Settler | None = None,
        *,
        limit: int | None = None,
    ) -> None:
        """Parse the record at ``position``; see ``RecordView``. Raises RecordError."""
        super().__init__(buffer, position, limit=limit)
        self._answer = _Answer(buffer, queue, serde, settler)
        self.offset = self.queue_offset

    def __getattr__(self, name: str) -> Any:
        """Compute a field that ``messages_of`` didn't set, on first access."""
        if name == "topic":
            topic = super().topic
            if self._answer.settler is not None and topic.startswith(RETRY_PREFIX):
                topic = property_text(self, _RETRY_TOPIC) or topic
            self.topic = topic
            return topic
        if name not in _LEFT_OUT:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        buffer = self._answer.buffer
        self._locate(buffer, self._body_at - HEAD_BYTES_V4, len(buffer))
        return getattr(self, name)

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.queue} offset {self.offset} id {self.id}>"

    @property
    def queue(self) -> MessageQueue:
        """The queue that the message was read from."""
        return self._answer.queue

    @property
    def body(self) -> bytes:
        """The body as it was sent, decompressed if necessary.

        Raises:
            UnreadableMessage: the body can't be decompressed, or is too large then.
        """
        data = self._answer.data
        if data is not None:
            return data[self._body_at : self._body_end]
        try:
            return super().body
        except BodyError as error:
            raise self._unreadable(error) from error

    @property
    def value(self) -> T:
        """The body deserialized by the consumer's serde, on each access.

        Raises:
            UnreadableMessage: the body can't be decompressed or deserialized.
        """
        body = self.body
        try:
            value: T = self._answer.serde.loads(body)
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    @property
    def tag(self) -> str | None:
        """The tag, by which consumers filter; None: the message has none."""
        return self.tags

    @property
    def id(self) -> str:
        """The unique id set by the producer; without one, the broker's offset id."""
        text = self.properties_text
        if text.startswith(_OWN_ID):
            # PocketMQ's producer writes the id first. A 5.x broker appends the same second id to
            # all messages of a batch; a lookup by name would return that one.
            return text[len(_OWN_ID) :].partition(b"\x02")[0].decode("utf-8", "replace")
        return self.message_id

    @property
    def retries(self) -> int:
        """How often the message was sent back, plus its earlier failures at this consumer."""
        settler = self._answer.settler
        return self.reconsume_times + (0 if settler is None else settler.failures(self))

    @property
    def born_at(self) -> datetime | None:
        """When the producer created the message, by the producer's clock; UTC.

        None: the producer sent a number that is no time.
        """
        return instant(self.born_timestamp_ms)

    @property
    def stored_at(self) -> datetime | None:
        """When the broker stored the message, by the broker's clock; UTC. None as ``born_at``."""
        return instant(self.store_timestamp_ms)

    # Outcomes

    @property
    def settled(self) -> bool:
        """Whether the message has an outcome; always True for a message of a pull consumer."""
        settler = self._answer.settler
        return settler is None or settler.settled(self)

    @property
    def outcome(self) -> MessageOutcome | None:
        """The outcome that one of the methods below has set; None: none, or it is carried out."""
        settler = self._answer.settler
        return None if settler is None else settler.outcome(self)

    def ack(self) -> None:
        """Mark the message as done.

        Raises:
            AlreadySettled: the message has an outcome already.
            UsageError: it is a message of a pull consumer, which commits positions instead.
        """
        self._settle(DONE)

    def retry_later(self, delay: Duration | None = None, reason: str = "") -> None:
        """Have the message delivered again, to this or another member of the group.

        Args:
            delay: seconds, rounded up to one of the default delay levels (in an orderly queue: how
                long the queue rests); None: the broker's increasing delays.
            reason: reason for the log, the event and the properties of a dead letter.

        Raises:
            AlreadySettled, UsageError: as ``ack``.
        """
        rest = None if delay is None else seconds(delay, "delay")
        self._settle(
            MessageOutcome(OutcomeKind.RETRY, rest, reason or "requested by the application")
        )

    def dead_letter(self, reason: str = "") -> None:
        """Send the message to the group's dead-letter topic.

        Args:
            reason: reason for the log, the event and the dead letter's properties.

        Raises:
            AlreadySettled, UsageError: as ``ack``.
        """
        self._settle(
            MessageOutcome(OutcomeKind.DEAD_LETTER, None, reason or "requested by the application")
        )

    def _settle(self, outcome: MessageOutcome) -> None:
        self._settler().settle(self, outcome)

    def _settler(self) -> Settler:
        settler = self._answer.settler
        if settler is None:
            raise UsageError(
                "a message of a pull consumer has no outcome",
                queue=self.queue,
                hint="commit positions with PullConsumer.commit",
            )
        return settler

    def __enter__(self) -> Self:
        """Settle the message when the block ends: done, or to be retried if the block raises."""
        self._settler().hold(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        settler = self._settler()
        ordinary = exc is None or isinstance(exc, Exception)
        if ordinary and not settler.settled(self):
            settler.settle(self, DONE if exc is None else outcome_of(exc))
        settler.end_hold(self)
        return exc is not None and ordinary

    async def __aenter__(self) -> Self:
        """Do the same as ``with``."""
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self.__exit__(exc_type, exc, traceback)

    def _unreadable(self, error: Exception) -> UnreadableMessage:
        return UnreadableMessage(
            f"the message at offset {self.offset} can't be read: {error}",
            queue=self.queue,
            hint="look at stored_body, or use the producer's serde",
        )


def messages_of(
    body: bytes | memoryview,
    queue: MessageQueue,
    serde: Serde[T],
    settler: Settler | None = None,
    *,
    body_at: int = UNKNOWN,
    tags: frozenset[str] | None = None,
) -> list[ReceivedMessage[T]]:
    """Parse the messages of a pull response.

    Args:
        body: body of the response.
        queue: the queue that was pulled.
        serde: deserializes the values.
        settler: records the outcomes of the messages; None: they have no outcomes.
        body_at: position of ``body`` in its read buffer, see ``Command``.
        tags: return only messages with one of these tags; None: all.

    Raises:
        RecordError: a record is damaged.
    """
    buffer, position = _place_of(body, body_at)
    limit = position + len(body)
    answer = _Answer(buffer, queue, serde, settler)
    # As encoded in the records; empty if each record's own topic must be read.
    topic = queue.topic.encode()
    was_sent_back = settler is not None and queue.topic.startswith(RETRY_PREFIX)
    has_own = was_sent_back or len(topic) > MAX_TOPIC_LENGTH
    topic = b"" if has_own else bytes((len(topic),)) + topic
    if topic and isinstance(buffer, bytes):
        answer.data = buffer
    messages: list[ReceivedMessage[T]] = []
    while position < limit:
        if answer.data is not None:
            position = _walk(
                answer, queue.topic, answer.data, topic, tags, position, limit, messages
            )
        if position < limit:
            message = ReceivedMessage(buffer, position, queue, serde, settler, limit=limit)
            if tags is None or message.tags in tags:
                messages.append(message)
            position += message.size
    return messages


def _walk_in_python(
    answer: _Answer,
    name: str,
    data: bytes,
    topic: bytes,
    tags: frozenset[str] | None,
    position: int,
    limit: int,
    messages: list[ReceivedMessage[Any]],
) -> int:
    """Append messages for as long as records are common ones; return the position reached.

    The compiled ``Maker.walk`` gives identical results.
    """
    append, new = messages.append, object.__new__
    made: type[ReceivedMessage[Any]] = ReceivedMessage
    head, has = _USUAL_HEAD.unpack_from, data.startswith
    last = limit - FIXED_BYTES_V4
    tail, tail_bytes = topic, -1
    while position <= last:
        size, magic, offset, sys_flag, body_length = head(data, position)
        end = position + size
        body_at = position + HEAD_BYTES_V4
        body_end = body_at + body_length
        if magic != MAGIC_V1 or sys_flag & _UNUSUAL or end > limit:
            break
        if end - body_end != tail_bytes or not has(tail, body_end):
            # ``tail``, topic and length of properties, is reused: most records have properties of
            # the same length as the previous one.
            tail_bytes = end - body_end
            properties_bytes = tail_bytes - len(topic) - _LENGTH.size
            if not 0 <= properties_bytes <= MAX_PROPERTIES_BYTES:
                break
            tail = topic + _LENGTH.pack(properties_bytes)
            if not has(tail, body_end):
                break
        message: ReceivedMessage[Any] = new(made)
        message._answer = answer
        message.offset = offset
        message.topic = name
        message._body_at = body_at
        message._body_end = body_end
        if tags is None or message.tags in tags:
            append(message)
        position = end
    return position


_walk: Callable[..., int] = _walk_in_python
if not core.WHY:
    # The compiled core is available if and only if ``WHY`` is empty.
    from remoting.protocol.core.messages import Maker

    _walk = Maker(ReceivedMessage).walk


def _place_of(body: bytes | memoryview, body_at: int) -> tuple[bytes | memoryview, int]:
    """Return the buffer to read a response's records from, and their position in it."""
    if len(body) < _SIZE.size or _SIZE.unpack_from(body)[0] >= COPY_BELOW:
        return body, 0
    if isinstance(body, memoryview) and body_at != UNKNOWN:
        read = body.obj
        if isinstance(read, bytes) and len(read) <= _PIN_FACTOR * len(body):
            return read, body_at
    return bytes(body), 0
