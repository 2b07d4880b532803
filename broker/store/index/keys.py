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


SLICE_KEYS: Final = 4096
"""Keys that are indexed at once where the compiled core does it."""

MIN_SLICE_BYTES: Final = 512 * 1024
"""The least of the log that is read for so many keys, and what is read first."""

MAX_SLICE_BYTES: Final = 4 * 1024 * 1024
"""The most, however large messages are."""

PLAIN_SLICE_BYTES: Final = 64 * 1024
"""What is read at once by the Python path: what takes longer keeps the loop from its thread."""

PAUSE_SECONDS: Final = 0.001
"""Between two slices, so that the thread never competes with the loop for long."""

SLICES_IN_A_ROW: Final = 8
"""While nothing is stored: some 5 ms. To begin anew after a pause takes a fifth more, for all that
was in the processor's caches has gone."""

LOOK_SECONDS: Final = 1.0
"""How often the thread looks whether there is something to do."""

BUSY_BYTES: Final = 8 * 1024 * 1024
"""A store that took more than this since the last look is busy: its index waits."""

MAX_BACKLOG_SLICES: Final = 1024
"""What may wait for its index while the store is busy, if memory has so much of the log
(``HOT_LOG_RATIO``): some four million keys. A query that has to index them first takes a second."""

HOT_LOG_RATIO: Final = 1 / 8
"""Part of the machine's memory: so much as was appended last is taken to be in memory; what lies
before it is fetched first, which takes as long as indexing it."""

RETRY_SECONDS: Final = 10.0
"""How long the thread rests when the disk has refused what it wrote."""

FINISH_SECONDS: Final = 10.0
"""What completing the index at a clean stop may take; the next start goes on with the rest."""

QUERY_WAIT_SECONDS: Final = 2.0
"""How long a query waits for the index of what came before it."""

MAX_QUERIES: Final = 64
"""Queries that wait for their turn; each is a client that looks for a message."""

MAX_CANDIDATES: Final = 1024
"""Entries that one query looks at: those of other keys with the same hash come out only later."""

MAX_KEYS_OF_QUERY: Final = 64
"""Messages that one query finds, whatever it asks for (cf. maxMsgsNumBatch)."""

PAGE_BYTES: Final = 4096
"""Slots are given room in pages, as they come to be used."""
