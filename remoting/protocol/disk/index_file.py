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
"""What an entry can say of the time since the begin time."""

KEY_SEPARATOR: Final = "#"
"""Between topic and key in what is hashed."""


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
    return f"{topic}{KEY_SEPARATOR}{key}"


def key_hash(key: str) -> int:
    """The absolute Java hash; 0 where there is none (-2^31)."""
    value = abs(java_hash(key))
    return 0 if value == 1 << 31 else value


class Links(Protocol):
    """What entries change in a file: they are written first, the slots next, the header last."""

    @property
    def entries(self) -> bytes:
        """The entries, from ``header.next_entry`` of the file as it is on."""
        ...

    @property
    def header(self) -> IndexHeader:
        """The file's header afterwards."""
        ...

    def pages(self, marked: bytearray, page_bytes: int) -> set[int]:
        """Those pages of the file that hold slots that change, of the ones that are marked with 1.

        Args:
            marked: a byte for each page, by its number.
            page_bytes: how long a page is.
        """
        ...

    def set_slots(self) -> None:
        """Have the slots lead to the entries."""
        ...


class SlotLinks(NamedTuple):
    """``Links`` of entries that were looked at one by one.

    Attributes:
        buffer: the file.
        newest: slot -> number of its newest entry.
    """

    entries: bytes
    header: IndexHeader
    buffer: bytearray | memoryview | mmap
    newest: dict[int, int]

    def pages(self, marked: bytearray, page_bytes: int) -> set[int]:
        """See ``Links``."""
        pages = {(HEADER.size + slot * SLOT.size) // page_bytes for slot in self.newest}
        return {page for page in pages if marked[page]}

    def set_slots(self) -> None:
        """See ``Links``."""
        for slot, number in self.newest.items():
            SLOT.pack_into(self.buffer, HEADER.size + slot * SLOT.size, number)


def entry_seconds(header: IndexHeader, store_timestamp_ms: int) -> int:
    """What an entry says of its message's store time."""
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
    """The header when there are ``count`` more entries.

    Args:
        first: physical offset and store time of the message of the first of them.
        last: the same for the last of them.
        used_slots: how many slots they are the first to use.
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
    """The buffer is in memory."""


class IndexTable:
    """The table in a buffer that has the size of the file; zeros are an empty one.

    Attributes:
        buffer, slots, entries: as given.
        entries_at: where entry 0 would be.
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
        """Look at a buffer.

        Args:
            buffer: the file.
            slots: its slots.
            entries: its entries, the one that is never used among them.
            touch: told position and length of a slot or entry before it is looked at, so that it
                can be brought into memory.

        Raises:
            ValueError: the buffer is too small for so many slots and entries.
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
        """The header; the next entry of an empty file is 1."""
        header = IndexHeader(*HEADER.unpack_from(self.buffer))
        return header if header.next_entry > 0 else header._replace(next_entry=1)

    @property
    def is_full(self) -> bool:
        """Whether ``put`` would refuse."""
        return self.header.next_entry >= self.entries

    def link(self, hashes: Sequence[int], offsets: Sequence[int], times_ms: Sequence[int]) -> Links:
        """What has to be written to add entries; nothing is, and there must be room for them.

        Args:
            hashes: of the keys, see ``key_hash``; at least one.
            offsets: physical offset of the message of each.
            times_ms: store time of the message of each.
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
        """Write into the buffer what ``link`` gave."""
        at = self.entries_at + self.header.next_entry * ENTRY.size
        self.buffer[at : at + len(links.entries)] = links.entries
        links.set_slots()
        HEADER.pack_into(self.buffer, 0, *links.header)

    def put(self, key: str, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Add a key (see ``index_key``); False if the file is full."""
        if self.is_full:
            return False
        self.store(self.link([key_hash(key)], [physical_offset], [store_timestamp_ms]))
        return True

    def select(self, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets under a key's hash, the newest first.

        Times are compared in whole seconds since the file's begin time, as RocketMQ does: a
        message stored at .500 is not found from its own time on.
        """
        header = self.header
        hashed = key_hash(key)
        number = self._newest(self._slot_at(hashed % self.slots), header.next_entry)
        offsets: list[int] = []
        while number > 0 and len(offsets) < max_count:
            entry_at = self._entry_at(number)
            found, offset, seconds, previous = ENTRY.unpack_from(self.buffer, entry_at)
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

    def _slot_at(self, slot: int) -> int:
        at = HEADER.size + slot * SLOT.size
        self._touch(at, SLOT.size)
        return at

    def _entry_at(self, number: int) -> int:
        at = self.entries_at + number * ENTRY.size
        self._touch(at, ENTRY.size)
        return at

    def _newest(self, slot_at: int, next_entry: int) -> int:
        (number,) = SLOT.unpack_from(self.buffer, slot_at)
        return int(number) if 0 < number < min(next_entry, self.entries) else 0
