"""The index file: a hash table with chains, from message keys to physical offsets.

===========  =============  =================================================================
part         bytes          content
===========  =============  =================================================================
header       40             int64 begin and end time (ms), int64 begin and end physical offset,
                            int32 slots in use, int32 number of the next entry, from 1
slots        4 each         int32 number of the newest entry of the slot's chain, 0 for none
entries      20 each        int32 key hash, int64 physical offset, int32 seconds since the begin
                            time, int32 number of the previous entry of the chain
===========  =============  =================================================================

Entry 0 is never used. A key's hash is the absolute value of Java's hash code of ``topic#key``; the
key itself is not stored, so a query has to compare it with the keys of the message (cf. IndexFile).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple, Protocol

from remoting.protocol.message.tags import java_hash

HEADER: Final = Struct(">qqqqii")
SLOT: Final = Struct(">i")
ENTRY: Final = Struct(">iqii")
DEFAULT_SLOTS: Final = 5_000_000
DEFAULT_ENTRIES: Final = 20_000_000

MAX_SECONDS: Final = 0x7FFFFFFF
"""The largest time since the begin time that an entry can hold."""

KEY_SEPARATOR: Final = "#"
"""The separator of topic and key in the text that is hashed."""


class IndexHeader(NamedTuple):
    """The file's first 40 bytes; times are in ms since 1970."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int


def file_bytes(slots: int = DEFAULT_SLOTS, entries: int = DEFAULT_ENTRIES) -> int:
    """Return the size of an index file in bytes."""
    return HEADER.size + slots * SLOT.size + entries * ENTRY.size


def index_key(topic: str, key: str) -> str:
    """Return the text that is hashed for one key of a message."""
    return f"{topic}{KEY_SEPARATOR}{key}"


def key_hash(key: str) -> int:
    """Return the absolute value of Java's hash code; 0 for -2^31, which has none."""
    value = abs(java_hash(key))
    return 0 if value == 1 << 31 else value


class Links(Protocol):
    """The changes that add entries to a file: write first entries, then slots, then the header."""

    @property
    def entries(self) -> bytes:
        """The packed entries, whose first number is ``next_entry`` of the file's present header."""
        ...

    @property
    def header(self) -> IndexHeader:
        """The file's new header."""
        ...

    def set_slots(self) -> None:
        """Write the numbers of the new entries into the slots."""
        ...


class SlotLinks(NamedTuple):
    """``Links`` computed in Python, one entry at a time.

    Attributes:
        buffer: the file.
        newest: slot -> number of its newest entry.
    """

    entries: bytes
    header: IndexHeader
    buffer: bytearray | memoryview | mmap
    newest: dict[int, int]

    def set_slots(self) -> None:
        """See ``Links``."""
        for slot, number in self.newest.items():
            SLOT.pack_into(self.buffer, HEADER.size + slot * SLOT.size, number)


def entry_seconds(header: IndexHeader, store_timestamp_ms: int) -> int:
    """Return the seconds that an entry holds for a store time in ms."""
    if header.begin_ms <= 0:
        return 0
    return min(max((store_timestamp_ms - header.begin_ms) // 1000, 0), MAX_SECONDS)


def header_after(
    header: IndexHeader,
    count: int,
    *,
    first: tuple[int, int],
    last: tuple[int, int],
    used_slots: int,
) -> IndexHeader:
    """Return the header after ``count`` entries have been added.

    Args:
        header: the header before.
        count: the number of new entries.
        first: physical offset and store time (ms) of the first one's message.
        last: the same for the last one.
        used_slots: the number of slots that were empty before.
    """
    begin_offset, begin_ms = header.begin_offset, header.begin_ms
    if header.next_entry == 1:
        begin_offset, begin_ms = first
    return IndexHeader(
        begin_ms,
        last[1],
        begin_offset,
        last[0],
        header.used_slots + used_slots,
        header.next_entry + count,
    )


def _nothing(_position: int, _length: int) -> None:
    """Do nothing: the default for a buffer that is in memory."""


class IndexTable:
    """The hash table, in a buffer of the file's size; all zeros is an empty table.

    Attributes:
        buffer, slots, entries: as given.
        entries_at: the position of entry 0.
    """

    __slots__ = ("_touch", "buffer", "entries", "entries_at", "slots")

    def __init__(
        self,
        buffer: bytearray | memoryview | mmap,
        *,
        slots: int,
        entries: int,
        touch: Callable[[int, int], object] = _nothing,
    ) -> None:
        """Create a table that uses ``buffer``.

        Args:
            buffer: the file's bytes.
            slots: the number of slots.
            entries: the number of entries, including entry 0, which is never used.
            touch: called with position and length of a slot or entry before it is read, so that
                its page can be loaded.

        Raises:
            ValueError: the buffer is too small for the slots and entries.
        """
        if len(buffer) < file_bytes(slots, entries):
            raise ValueError(
                f"an index of {slots} slots and {entries} entries takes "
                f"{file_bytes(slots, entries)} bytes, not {len(buffer)}"
            )
        self.buffer = buffer
        self.slots = slots
        self.entries = entries
        self.entries_at = HEADER.size + slots * SLOT.size
        self._touch = touch

    @property
    def header(self) -> IndexHeader:
        """The header; in an empty file, ``next_entry`` is 1."""
        header = IndexHeader(*HEADER.unpack_from(self.buffer))
        return header if header.next_entry > 0 else header._replace(next_entry=1)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry."""
        return self.header.next_entry >= self.entries

    def link(self, hashes: Sequence[int], offsets: Sequence[int], times_ms: Sequence[int]) -> Links:
        """Compute the changes that add entries, without making them. There must be room for them.

        Args:
            hashes: the hashes of the keys, see ``key_hash``; at least one.
            offsets: the physical offset of each key's message.
            times_ms: the store time of each key's message.
        """
        header = self.header
        data = bytearray(len(hashes) * ENTRY.size)
        newest: dict[int, int] = {}
        used = 0
        dated = header
        for index, (hashed, offset, time_ms) in enumerate(
            zip(hashes, offsets, times_ms, strict=True)
        ):
            slot = hashed % self.slots
            before = newest.get(slot)
            if before is None:
                before = self._newest(self._slot_at(slot), header.next_entry)
                used += before == 0
            seconds = entry_seconds(dated, time_ms)
            ENTRY.pack_into(data, index * ENTRY.size, hashed, offset, seconds, before)
            newest[slot] = header.next_entry + index
            if index == 0 and header.next_entry == 1:
                dated = header._replace(begin_ms=time_ms)
        after = header_after(
            header,
            len(hashes),
            first=(offsets[0], times_ms[0]),
            last=(offsets[-1], times_ms[-1]),
            used_slots=used,
        )
        return SlotLinks(bytes(data), after, self.buffer, newest)

    def store(self, links: Links) -> None:
        """Write the changes computed by ``link`` into the buffer."""
        at = self.entries_at + self.header.next_entry * ENTRY.size
        self.buffer[at : at + len(links.entries)] = links.entries
        links.set_slots()
        HEADER.pack_into(self.buffer, 0, *links.header)

    def put(self, key: str, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Add a key (see ``index_key``). False if the file is full."""
        if self.is_full:
            return False
        self.store(self.link([key_hash(key)], [physical_offset], [store_timestamp_ms]))
        return True

    def select(self, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return at most ``max_count`` physical offsets for a key's hash, newest first.

        Times are compared in whole seconds since the file's begin time, as in RocketMQ. So a
        message stored half a second after a full one is not found if ``begin_ms`` is its exact
        store time.
        """
        header = self.header
        hashed = key_hash(key)
        number = self._newest(self._slot_at(hashed % self.slots), header.next_entry)
        offsets: list[int] = []
        while number > 0 and len(offsets) < max_count:
            entry_at = self.entries_at + number * ENTRY.size
            self._touch(entry_at, ENTRY.size)
            found, offset, seconds, previous = ENTRY.unpack_from(self.buffer, entry_at)
            stored_ms = header.begin_ms + seconds * 1000
            if seconds < 0 or stored_ms < begin_ms:
                break
            if found == hashed and stored_ms <= end_ms:
                offsets.append(offset)
            # Each previous entry of a chain is older. Stop a damaged chain, which may be a cycle.
            if previous >= number:
                break
            number = previous
        return offsets

    def _slot_at(self, slot: int) -> int:
        at = HEADER.size + slot * SLOT.size
        self._touch(at, SLOT.size)
        return at

    def _newest(self, slot_at: int, next_entry: int) -> int:
        (number,) = SLOT.unpack_from(self.buffer, slot_at)
        return int(number) if 0 < number < min(next_entry, self.entries) else 0
