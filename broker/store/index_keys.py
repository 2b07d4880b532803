"""Extracting the keys of messages from the log, as entries for an index file.

A message has an entry for its unique id, then one for each key in KEYS (cf.
IndexService.buildIndex). An entry has the key's hash, and the message's physical offset and store
time. ``walk`` extracts them in Python; ``compiled_walk``, of the compiled core, returns identical
results.
"""

from __future__ import annotations

import contextlib
from array import array
from functools import lru_cache
from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

from remoting.protocol.disk.index_file import (
    KEY_SEPARATOR,
    IndexHeader,
    IndexTable,
    Links,
    header_after,
    key_hash,
)
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

with contextlib.suppress(ImportError):  # a build without the compiled core
    from remoting.protocol.core import index_entries, record

KEY_END: Final = b" "
"""Separates the keys in KEYS (cf. MessageConst.KEY_SEPARATOR)."""

_UNIQ_KEY: Final = properties.UNIQ_KEY.encode()
_KEYS: Final = properties.KEYS.encode()

# Size, physical offset, store time behind an IPv4 and behind an IPv6 born host.
_FIELDS: Final = Struct(">I24xq20xq4xq")


class CompiledLinks(NamedTuple):
    """``index_file.Links`` of the compiled core."""

    entries: bytes
    header: IndexHeader
    buffer: bytearray | memoryview | mmap
    slots: array[int]
    numbers: array[int]

    def set_slots(self) -> None:
        """See ``Links``."""
        index_entries.set_slots(self.buffer, self.slots, self.numbers)


class KeyBatch:
    """Index entries as columns, in the order in which they are added to files.

    The columns are lists, or arrays of 64-bit numbers from the compiled core, which also links
    them.
    """

    __slots__ = ("hashes", "offsets", "times_ms")

    def __init__(
        self,
        hashes: list[int] | array[int],
        offsets: list[int] | array[int],
        times_ms: list[int] | array[int],
    ) -> None:
        self.hashes = hashes
        self.offsets = offsets
        self.times_ms = times_ms

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.hashes)

    def link(self, table: IndexTable, start: int, stop: int) -> Links:
        """Return the changes that add entries ``[start, stop)`` to a file: ``IndexTable.link``."""
        hashes, offsets = self.hashes[start:stop], self.offsets[start:stop]
        times_ms, header = self.times_ms[start:stop], table.header
        if not isinstance(hashes, array):
            return table.link(hashes, offsets, times_ms)
        assert isinstance(offsets, array)
        assert isinstance(times_ms, array)
        entries, slots, numbers, used = index_entries.link(
            hashes,
            offsets,
            times_ms,
            table.buffer,
            table.slots,
            table.entries,
            header.next_entry,
            header.begin_ms,
        )
        after = header_after(
            header,
            len(hashes),
            first=(offsets[0], times_ms[0]),
            last=(offsets[-1], times_ms[-1]),
            used_slots=used,
        )
        return CompiledLinks(entries, after, table.buffer, slots, numbers)


class Walked(NamedTuple):
    """The keys found in a piece of the log.

    Attributes:
        batch: the keys.
        used: bytes of the complete records at its beginning; 0 when none begins there.
    """

    batch: KeyBatch
    used: int


def walk(data: Buffer, base: int) -> Walked:
    """Return the keys of the records at the beginning of ``data``.

    ``base`` is the physical offset of ``data``.
    """
    hashes: list[int] = []
    offsets: list[int] = []
    times_ms: list[int] = []
    at, length = 0, len(data)
    while length - at >= FIXED_BYTES_V4:
        size, physical, behind_v4, behind_v6 = _FIELDS.unpack_from(data, at)
        if physical != base + at or not FIXED_BYTES_V4 <= size <= length - at:
            break
        try:
            sys_flag, found = hashes_of(data, at, at + size)
        except RecordError:
            break
        hashes += found
        offsets += [physical] * len(found)
        times_ms += [behind_v6 if sys_flag & BORN_HOST_V6 else behind_v4] * len(found)
        at += size
    return Walked(KeyBatch(hashes, offsets, times_ms), at)


def compiled_walk(data: memoryview, base: int) -> Walked:
    """Return the same as ``walk``, computed by the compiled core."""
    used, hashes, offsets, times_ms = record.walk_keys(data, base)
    return Walked(KeyBatch(hashes, offsets, times_ms), used)


def hashes_of(data: Buffer, position: int, limit: int) -> tuple[int, list[int]]:
    """Return the system flag of the record at ``position``, and the hashes of its keys.

    Raises:
        RecordError: there is no complete record with consistent lengths.
    """
    sys_flag, _, _, topic_at, topic_end, end = locate(data, position, limit)
    if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return sys_flag, []
    text = bytes(data[topic_end + 2 : end])
    prefix = topic_prefix(bytes(data[topic_at:topic_end]))
    return sys_flag, [key_hash(prefix + key.decode("utf-8", "replace")) for key in keys_in(text)]


@lru_cache(maxsize=256)
def topic_prefix(topic: bytes) -> str:
    """Return the prefix of a topic's keys in the hashed text."""
    return topic.decode("utf-8", "replace") + KEY_SEPARATOR


def keys_in(text: bytes) -> list[bytes]:
    """Return the keys in a message's encoded properties."""
    keys = []
    unique = properties.find(text, _UNIQ_KEY)
    if unique:
        keys.append(unique)
    own = properties.find(text, _KEYS)
    if own:
        keys += [key for key in own.split(KEY_END) if key]
    return keys
