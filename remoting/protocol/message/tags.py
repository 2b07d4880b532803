"""Tags, their hash codes, and tag expressions.

A broker filters by the tag's hash code, which is in the consume queue; a consumer compares the tag
itself, because hash codes collide. The hash code is that of a Java string: ``h = 31 * h + unit``
over UTF-16 code units, wrapped to 32 signed bits.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import ClassVar, Final

from remoting.protocol.message import properties

SUBSCRIBE_ALL: Final = "*"
"""The expression that matches every message (cf. SubscriptionData.SUB_ALL)."""

_CHUNK: Final = 256
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_CHUNK - 1, -1, -1))
_LONGEST_CACHED: Final = 128
_TAGS: Final = properties.TAGS.encode()

# Java's String.trim() removes control characters and spaces, but no other Unicode white space.
JAVA_BLANKS: Final = "".join(map(chr, range(33)))


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: a signed 32-bit number."""
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode()
    else:
        encoded = text.encode("utf-16-le", "surrogatepass")
        units = struct.unpack(f"<{len(encoded) // 2}H", encoded)
    count = len(units)
    value: int
    if count <= _CHUNK:
        value = sum(map(mul, units, _POWERS[_CHUNK - count :]))
    else:
        value = 0
        for start in range(0, count, _CHUNK):
            chunk = units[start : start + _CHUNK]
            value = value * pow(31, len(chunk), 1 << 32)
            value = (value + sum(map(mul, chunk, _POWERS[_CHUNK - len(chunk) :]))) & 0xFFFFFFFF
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


_cached_hash = lru_cache(maxsize=4096)(java_hash)
_cached_utf8_hash = lru_cache(maxsize=4096)(lambda tag: java_hash(tag.decode("utf-8", "replace")))


def tags_code(tag: str | None) -> int:
    """Return the tags code of a consume queue entry: the tag's hash code, 0 without a tag."""
    if not tag:
        return 0
    return _cached_hash(tag) if len(tag) <= _LONGEST_CACHED else java_hash(tag)


def tags_code_of(properties_text: bytes) -> int:
    """Return the tags code of a message, given its properties text."""
    tag = properties.find(properties_text, _TAGS)
    if tag is None:
        return 0
    if len(tag) <= _LONGEST_CACHED:
        return _cached_utf8_hash(tag)
    return java_hash(tag.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class TagExpression:
    """The tags that a subscription selects (cf. FilterAPI.buildSubscriptionData).

    Attributes:
        text: the expression as given; ``*`` for None and empty.
        tags: the selected tags; empty for all messages.
        codes: their hash codes.
    """

    kind: ClassVar[str] = "TAG"
    """How requests name this kind of expression (cf. ExpressionType)."""

    text: str
    tags: frozenset[str]
    codes: frozenset[int]

    @classmethod
    def parse(cls, text: str | None) -> TagExpression:
        """Parse ``*`` or ``TagA || TagB``.

        Only ``*`` itself, None and the empty text select all messages: in `` * `` and ``A || *``
        the ``*`` is an ordinary tag, as in RocketMQ.

        Raises:
            ValueError: the text contains no tag.
        """
        if not text or text == SUBSCRIBE_ALL:
            return cls(SUBSCRIBE_ALL, frozenset(), frozenset())
        tags = frozenset(tag for part in text.split("||") if (tag := part.strip(JAVA_BLANKS)))
        if not tags:
            raise ValueError(f"the subscription {text!r} names no tag; for all tags write '*'")
        return cls(text, tags, frozenset(map(tags_code, tags)))

    @property
    def is_all(self) -> bool:
        """Whether all messages are selected, with or without a tag."""
        return self.text == SUBSCRIBE_ALL

    def matches(self, tag: str | None) -> bool:
        """Return whether a message with this tag is selected, by comparing the tag itself."""
        return not self.tags or tag in self.tags


class SqlExpression(TagExpression):
    """An SQL92 expression, which selects messages by their properties; only brokers evaluate it."""

    __slots__ = ()

    kind = "SQL92"

    @classmethod
    def of(cls, text: str) -> SqlExpression:
        """Return the expression with this text, which is not parsed."""
        return cls(text, frozenset(), frozenset())

    @property
    def is_all(self) -> bool:
        """False: the broker leaves messages out."""
        return False
