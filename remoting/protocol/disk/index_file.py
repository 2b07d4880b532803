"""The index file: message keys to physical offsets, a hash table with chains in one buffer.

===========  =============  =================================================================
part         bytes          content
===========  =============  =================================================================
header       40             int64 begin and end time (ms), int64 begin and end physical offset,
                            int32 slots in use, int32 number of the next entry, from 1
slots        4 each         int32 number of the newest entry of the chain, 0 for none
entries      20 each        int32 key hash, int64 physical offset, int32 seconds since the begin
                            time, int32 number of the entry before it in the chain
===========  =============  =================================================================

Entry 0 is never used. The hash of a key is the absolute Java hash of ``topic#key``; the key itself
is not kept, so whoever asks has to compare it with the message (cf. IndexFile).
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

from remoting.protocol.message.tags import java_hash

HEADER: Final = Struct(">qqqqii")
SLOT: Final = Struct(">i")
ENTRY: Final = Struct(">iqii")
DEFAULT_SLOTS: Final = 5_000_000
DEFAULT_ENTRIES: Final = 20_000_000

_MAX_SECONDS: Final = 0x7FFFFFFF


class IndexHeader(NamedTuple):
    """The file's first 40 bytes; times in ms."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int


def file_bytes(slots: int = DEFAULT_SLOTS, entries: int = DEFAULT_ENTRIES) -> int:
    """The size of an index file."""
    return HEADER.size + slots * SLOT.size + entries * ENTRY.size


def index_key(topic: str, key: str) -> str:
    """What is hashed for one key of a message."""
    return f"{topic}#{key}"


def key_hash(key: str) -> int:
    """The absolute Java hash; 0 where there is none (-2^31)."""
    value = abs(java_hash(key))
    return 0 if value == 1 << 31 else value


class IndexTable:
    """The table in a buffer that has the size of the file; zeros are an empty one."""

    __slots__ = ("_buffer", "_entries", "_entries_at", "_slots")

    def __init__(self, buffer: bytearray | memoryview | mmap, *, slots: int, entries: int) -> None:
        """Look at a buffer.

        Raises:
            ValueError: the buffer is too small for so many slots and entries.
        """
        if len(buffer) < file_bytes(slots, entries):
            raise ValueError(
                f"an index of {slots} slots and {entries} entries takes "
                f"{file_bytes(slots, entries)} bytes, not {len(buffer)}"
            )
        self._buffer = buffer
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER.size + slots * SLOT.size

    @property
    def header(self) -> IndexHeader:
        """The header; the next entry of an empty file is 1."""
        header = IndexHeader(*HEADER.unpack_from(self._buffer))
        return header if header.next_entry > 0 else header._replace(next_entry=1)

    @property
    def is_full(self) -> bool:
        """Whether ``put`` would refuse."""
        return self.header.next_entry >= self._entries

    def put(self, key: str, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Add a key (see ``index_key``); False if the file is full."""
        header = self.header
        number = header.next_entry
        if number >= self._entries:
            return False
        hashed = key_hash(key)
        slot_at = HEADER.size + hashed % self._slots * SLOT.size
        newest = self._newest(slot_at, number)
        seconds = 0
        if header.begin_ms > 0:
            seconds = (store_timestamp_ms - header.begin_ms) // 1000
        ENTRY.pack_into(
            self._buffer,
            self._entries_at + number * ENTRY.size,
            hashed,
            physical_offset,
            min(max(seconds, 0), _MAX_SECONDS),
            newest,
        )
        SLOT.pack_into(self._buffer, slot_at, number)
        first = number == 1
        HEADER.pack_into(
            self._buffer,
            0,
            store_timestamp_ms if first else header.begin_ms,
            store_timestamp_ms,
            physical_offset if first else header.begin_offset,
            physical_offset,
            header.used_slots + (newest == 0),
            number + 1,
        )
        return True

    def select(self, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets under a key's hash, the newest first.

        Times are compared in whole seconds since the file's begin time, as RocketMQ does: a
        message stored at .500 is not found from its own time on.
        """
        header = self.header
        hashed = key_hash(key)
        slot_at = HEADER.size + hashed % self._slots * SLOT.size
        number = self._newest(slot_at, header.next_entry)
        offsets: list[int] = []
        while number > 0 and len(offsets) < max_count:
            entry_at = self._entries_at + number * ENTRY.size
            found, offset, seconds, previous = ENTRY.unpack_from(self._buffer, entry_at)
            stored_ms = header.begin_ms + seconds * 1000
            if seconds < 0 or stored_ms < begin_ms:
                break
            if found == hashed and stored_ms <= end_ms:
                offsets.append(offset)
            # A chain only ever leads to older entries; a damaged one must not lead in circles.
            if previous >= number:
                break
            number = previous
        return offsets

    def _newest(self, slot_at: int, next_entry: int) -> int:
        (number,) = SLOT.unpack_from(self._buffer, slot_at)
        return int(number) if 0 < number < min(next_entry, self._entries) else 0
