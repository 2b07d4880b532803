"""Keys of messages on their way into an index file: taken from records one by one, or many at once.

A batch has an entry for each key: its hash, and position and store time of its message. First comes
the message's unique id, then each part of its KEYS (cf. IndexService.buildIndex). ``walk`` is the
Python path; ``compiled`` gives identical results.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, Protocol

from remoting.protocol.disk.index_file import KEY_SEPARATOR, IndexTable, Links, key_hash
from remoting.protocol.errors import RecordError
from remoting.protocol.message import properties
from remoting.protocol.message.record import (
    BORN_HOST_V6,
    FIXED_BYTES_V4,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    Buffer,
    locate,
)

KEY_END: Final = b" "
"""Between the keys of KEYS (cf. MessageConst.KEY_SEPARATOR)."""

_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()
_KEYS: Final = properties.KEYS.encode()

# Size, physical offset, store time behind an IPv4 and behind an IPv6 born host.
_FIELDS: Final = Struct(">I24xq20xq4xq")


class Batch(Protocol):
    """Entries in the order in which they go into files."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def link(self, table: IndexTable, start: int, stop: int) -> Links:
        """What it takes to have some of them in a file: see ``IndexTable.link``."""
        ...


class Walked(NamedTuple):
    """What a piece of the log gave.

    Attributes:
        batch: its keys.
        used: bytes of the whole records at its beginning; 0 when none begins there.
    """

    batch: Batch
    used: int


class PlainBatch:
    """Entries as lists."""

    __slots__ = ("hashes", "offsets", "times_ms")

    def __init__(self) -> None:
        self.hashes: list[int] = []
        self.offsets: list[int] = []
        self.times_ms: list[int] = []

    def __len__(self) -> int:
        """How many there are."""
        return len(self.hashes)

    def link(self, table: IndexTable, start: int, stop: int) -> Links:
        """See ``Batch``."""
        return table.link(
            self.hashes[start:stop], self.offsets[start:stop], self.times_ms[start:stop]
        )


def walk(data: Buffer, base: int) -> Walked:
    """The keys of the records at the beginning of ``data``, which lies at ``base`` of the log."""
    batch = PlainBatch()
    at, length = 0, len(data)
    while length - at >= FIXED_BYTES_V4:
        size, physical, behind_v4, behind_v6 = _FIELDS.unpack_from(data, at)
        if physical != base + at or not FIXED_BYTES_V4 <= size <= length - at:
            break
        try:
            sys_flag, hashes = hashes_of(data, at, at + size)
        except RecordError:
            break
        batch.hashes += hashes
        batch.offsets += [physical] * len(hashes)
        batch.times_ms += [behind_v6 if sys_flag & BORN_HOST_V6 else behind_v4] * len(hashes)
        at += size
    return Walked(batch, at)


def hashes_of(data: Buffer, position: int, limit: int) -> tuple[int, list[int]]:
    """System flag of the record at ``position``, and the hashes of its keys.

    Raises:
        RecordError: there is no whole record whose lengths agree.
    """
    sys_flag, _, _, topic_at, topic_end, end = locate(data, position, limit)
    if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return sys_flag, []
    text = bytes(data[topic_end + 2 : end])
    prefix = topic_prefix(bytes(data[topic_at:topic_end]))
    return sys_flag, [key_hash(prefix + key.decode("utf-8", "replace")) for key in keys_in(text)]


@lru_cache(maxsize=256)
def topic_prefix(topic: bytes) -> str:
    """What stands before a key of a topic in what is hashed."""
    return topic.decode("utf-8", "replace") + KEY_SEPARATOR


def keys_in(text: bytes) -> list[bytes]:
    """The keys that a properties text gives its message."""
    keys = []
    unique = properties.find(text, _UNIQ_KEY)
    if unique:
        keys.append(unique)
    own = properties.find(text, _KEYS)
    if own:
        keys += [key for key in own.split(KEY_END) if key]
    return keys
