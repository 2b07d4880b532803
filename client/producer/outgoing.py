"""A message ready for the wire: checked, its properties written, its body compressed.

All of this happens once, before the message is accepted; attempts and retries only look at it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from client.errors import UsageError
from client.producer.queue_selector import by_sharding_key
from remoting.protocol import names
from remoting.protocol.limits import MAX_MESSAGE_BYTES, MAX_PROPERTIES_BYTES
from remoting.protocol.message import properties
from remoting.protocol.queue import MessageQueue

if TYPE_CHECKING:
    from client.receipt import Receipt

ELEMENT_BYTES: Final = 22
"""Of a batch element besides body and properties (store: batches)."""

RESERVED: Final = frozenset(
    {
        properties.KEYS,
        properties.TAGS,
        properties.WAIT,
        properties.DELAY,
        properties.RETRY_TOPIC,
        properties.REAL_TOPIC,
        properties.REAL_QID,
        properties.TRAN_MSG,
        properties.PGROUP,
        properties.MIN_OFFSET,
        properties.MAX_OFFSET,
        properties.BUYER_ID,
        properties.ORIGIN_MESSAGE_ID,
        properties.TRANSFER_FLAG,
        properties.CORRECTION_FLAG,
        properties.MQ2_FLAG,
        properties.RECONSUME_TIME,
        properties.MAX_RECONSUME_TIMES,
        properties.MSG_REGION,
        properties.TRACE_ON,
        properties.UNIQ_KEY,
        properties.CONSUME_START_TIME,
        properties.TRAN_PREPARED_QUEUE_OFFSET,
        properties.TRANSACTION_CHECK_TIMES,
        properties.CHECK_IMMUNITY_TIME_IN_SECONDS,
        properties.INSTANCE_ID,
        properties.CORRELATION_ID,
        properties.REPLY_TO_CLIENT,
        properties.TTL,
        properties.ARRIVE_TIME,
        properties.PUSH_REPLY_TIME,
        properties.CLUSTER,
        properties.MSG_TYPE,
        properties.SHARDING_KEY,
    }
)
"""Property names with a meaning for brokers and clients (cf. MessageConst.STRING_HASH_SET)."""

SHORT_PROPERTIES: Final = MAX_PROPERTIES_BYTES // 4
"""Characters that can't be too many bytes, whatever they are."""

_SEPARATORS: Final = re.compile("[\x01\x02]")
_NOT_IN_TAGS: Final = re.compile(r"[\x01\x02]|\|\|")


class Outgoing:
    """One message on its way. ``future`` ends with its receipt or its error.

    Attributes:
        lane: what it is queued under: its queue, when that is fixed, else its topic.
        alone: it can't be part of an automatic batch.
        delayed: a broker delivers it later.
        group: messages with the same group leave as exactly one batch.
        sharding_key: what its queue is to be chosen by once the route is known.
        epoch: counts flushes; see ``Intake``.
        timeout: seconds given for it alone; None: the producer's.
        size: what it takes of a batch, and of the producer's bound of bytes.
    """

    __slots__ = (
        "alone",
        "body",
        "born_ms",
        "deadline",
        "delayed",
        "epoch",
        "flag",
        "future",
        "group",
        "id",
        "lane",
        "properties",
        "sharding_key",
        "size",
        "sys_flag",
        "timeout",
        "topic",
    )

    count: Final = 1
    """Messages; a burst has more."""

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties_text: str,
        unique_id: str,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        alone: bool = False,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties_text
        self.id = unique_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.alone = alone
        self.group: object | None = None
        self.lane: str | MessageQueue = topic
        self.born_ms = 0
        self.timeout: float | None = None
        self.deadline = 0.0
        self.delayed = False
        self.epoch = 0
        self.sharding_key: str | None = None
        self.future: asyncio.Future[Receipt] | None = None
        self.size = len(body) + len(properties_text) + ELEMENT_BYTES

    @property
    def futures(self) -> Sequence[asyncio.Future[Receipt]]:
        """``future``, if there is one."""
        return () if self.future is None else (self.future,)

    def queue(self, writable: Sequence[MessageQueue]) -> MessageQueue | None:
        """The queue it has to go to, if it is bound to one."""
        if self.sharding_key is not None:
            return by_sharding_key(writable, self.sharding_key)
        return self.lane if isinstance(self.lane, MessageQueue) else None


@lru_cache(maxsize=1024)
def check_topic(topic: str) -> None:
    """Whether an application may send to this topic. Raises UsageError."""
    try:
        names.validate_topic(topic)
    except ValueError as error:
        raise UsageError(str(error), topic=topic[:200]) from None
    if topic in names.NOT_SENDABLE_TOPICS:
        raise UsageError("only brokers write to this topic", topic=topic, hint="use one of yours")


def check_body(topic: str, body: object) -> bytes:
    """The body as bytes. Raises UsageError for none, an empty or a too large one."""
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


def properties_text(
    topic: str,
    unique_id: str,
    *,
    tag: str | None,
    keys: Iterable[str],
    own: Mapping[str, str] | None,
    delay_level: int,
    max_delay_level: int,
    wait: bool,
) -> str:
    """The text of all properties of a message. Raises UsageError for what can't be written."""
    text = f"UNIQ_KEY\x01{unique_id}" + tail_text(topic, tag=tag, keys=keys, own=own)
    if delay_level:
        text += f"\x02DELAY\x01{_checked_level(topic, delay_level, max_delay_level)}"
    if not wait:
        text += "\x02WAIT\x01false"
    if len(text) > SHORT_PROPERTIES and len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise UsageError(
            f"the properties take {len(text.encode())} bytes, {MAX_PROPERTIES_BYTES} are allowed",
            topic=topic,
            hint="move data into the body",
        )
    return text


def tail_text(
    topic: str, *, tag: str | None, keys: Iterable[str], own: Mapping[str, str] | None
) -> str:
    """The text of the properties an application gives, of any length. Raises UsageError."""
    text = ""
    if tag:
        if _NOT_IN_TAGS.search(tag):
            raise UsageError(
                f"the tag {tag!r} holds ||, 0x01 or 0x02",
                topic=topic,
                hint="a message has one tag; consumers subscribe to several with ||",
            )
        text += f"\x02TAGS\x01{tag}"
    if keys:
        text += "\x02KEYS\x01" + _joined(topic, keys)
    if own:
        text += _own(topic, own)
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


def _checked_level(topic: str, level: int, highest: int) -> int:
    if type(level) is not int or not 0 < level <= highest:
        raise UsageError(
            f"delay_level can't be {level!r}",
            topic=topic,
            hint=f"use 1 to {highest}; for brokers with more levels give the producer"
            " max_delay_level=",
        )
    return level


def _own(topic: str, own: Mapping[str, str]) -> str:
    text = ""
    for name, value in own.items():
        if type(name) is not str or type(value) is not str:
            raise UsageError(f"the property {name!r} is not text: {value!r}", topic=topic)
        if name in RESERVED:
            raise UsageError(
                f"the property name {name} has a meaning of its own",
                topic=topic,
                hint="use the argument for it (tag, keys, ...), or another name",
            )
        if not name or not value or _SEPARATORS.search(name) or _SEPARATORS.search(value):
            raise UsageError(
                f"the property {name!r}={value!r} is empty or holds 0x01 or 0x02", topic=topic
            )
        text += f"\x02{name}\x01{value}"
    return text
