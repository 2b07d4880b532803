"""Tags, their hash, and the expressions that choose among them.

A broker filters by the hash of a tag alone, which is in the consume queue; a consumer compares the
tag itself, because hashes collide. The hash is that of a Java string: ``h = 31 * h + unit`` over
UTF-16 code units, wrapped to 32 signed bits.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Final

from remoting.protocol.message import properties

SUBSCRIBE_ALL: Final = "*"
"""The one text that means every message (cf. SubscriptionData.SUB_ALL)."""

_CHUNK: Final = 256
_POWERS: Final = tuple(pow(31, n, 1 << 32) for n in range(_CHUNK - 1, -1, -1))
_LONGEST_CACHED: Final = 128
_TAGS: Final = properties.TAGS.encode()

# String.trim() takes off control characters and the space, and nothing else of Unicode.
_JAVA_BLANKS: Final = "".join(map(chr, range(33)))


def java_hash(text: str) -> int:
    """``String.hashCode``: signed 32 bits."""
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
    """What a consume-queue entry holds for a tag: its hash, 0 for none."""
    if not tag:
        return 0
    return _cached_hash(tag) if len(tag) <= _LONGEST_CACHED else java_hash(tag)


def tags_code_of(properties_text: bytes) -> int:
    """The tags code of a message from its properties text, without decoding the text."""
    tag = properties.find(properties_text, _TAGS)
    if tag is None:
        return 0
    if len(tag) <= _LONGEST_CACHED:
        return _cached_utf8_hash(tag)
    return java_hash(tag.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class TagExpression:
    """Which tags a subscription wants (cf. FilterAPI.buildSubscriptionData).

    Attributes:
        text: as given, except that none and empty became ``*``.
        tags: the tags wanted; empty for all.
        codes: their hashes.
    """

    text: str
    tags: frozenset[str]
    codes: frozenset[int]

    @classmethod
    def parse(cls, text: str | None) -> TagExpression:
        """Read ``*`` or ``TagA || TagB``.

        Only the exact text ``*`` (or nothing) means all: `` * `` and ``A || *`` hold a tag that
        is called ``*``, as in RocketMQ.

        Raises:
            ValueError: the text names no tag.
        """
        if not text or text == SUBSCRIBE_ALL:
            return cls(SUBSCRIBE_ALL, frozenset(), frozenset())
        tags = frozenset(tag for part in text.split("||") if (tag := part.strip(_JAVA_BLANKS)))
        if not tags:
            raise ValueError(f"the subscription {text!r} names no tag; for all tags write '*'")
        return cls(text, tags, frozenset(map(tags_code, tags)))

    @property
    def is_all(self) -> bool:
        """Whether every message is wanted, tagged or not."""
        return self.text == SUBSCRIBE_ALL

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted: the consumer's exact check."""
        return self.text == SUBSCRIBE_ALL or tag in self.tags
