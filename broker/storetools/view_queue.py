"""One consume queue, for one who only reads it: which messages it has, and where they lie.

Files are pre-allocated, so a queue ends behind the last entry that has a size; its first entries
may be fillers, or of messages whose log is gone. A broker may be writing the last entry, or have
died before its message reached the disk: entries at the end whose record is not there are ``torn``,
and not counted in.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from broker.store.consume_queue import FILLER_SIZE
from broker.store.results import StoreError
from broker.storetools.view_files import FileRow, StoreChanged, ViewFile
from broker.storetools.view_log import LogView
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES

# Size and physical offset of a record.
_HEAD: Final = Struct(">I24xq")
_NO_MESSAGE: Final = frozenset({0, FILLER_SIZE})


class QueueRange(NamedTuple):
    """A queue has the messages ``[min_offset, max_offset)``.

    The ``torn`` entries behind them have no record in the log.
    """

    min_offset: int
    max_offset: int
    torn: int


class ViewedRun(NamedTuple):
    """Entries of 20 bytes, one behind the other; the first is that of message ``offset``."""

    offset: int
    entries: memoryview


class QueueView:
    """The entries of one queue of one topic."""

    def __init__(self, row: FileRow, log: LogView, topic: str, queue_id: int) -> None:
        self._row = row
        self._log = log
        self.topic = topic
        self.queue_id = queue_id

    def range(self) -> QueueRange:
        """Which messages it has now. Raises ``StoreError``."""
        if not self._log.files:
            return QueueRange(0, 0, 0)
        written = self._written_end()
        end = written
        while end * ENTRY_BYTES > self._row.start and self._is_torn(end - 1):
            end -= 1
        return QueueRange(min(self._find_min(end), end), end, written - end)

    def last_position(self, end: int) -> int:
        """Physical offset of message ``end - 1``; 0 when it has none. Raises ``StoreError``."""
        if end * ENTRY_BYTES <= self._row.start:
            return 0
        position, size, _ = self._entry(end - 1)
        return 0 if size in _NO_MESSAGE else position

    def entries(
        self, begin: int, end: int, *, max_entries: int | None = None
    ) -> Iterator[ViewedRun]:
        """The entries of messages ``[begin, end)``, at most ``max_entries`` in one piece.

        An entry may be a filler (``FILLER``), which says that its message was lost or removed.

        Raises:
            StoreChanged: retention took them meanwhile.
            StoreError: they are not there, or can't be read.
        """
        most = max_entries or self._row.limits.entries
        while begin < end:
            file = self._row.file_of(begin * ENTRY_BYTES)
            count = min(end - begin, file.end // ENTRY_BYTES - begin, most)
            length = max(count, 1) * ENTRY_BYTES
            yield ViewedRun(begin, self._row.read(begin * ENTRY_BYTES, length))
            begin += count

    def offset_of_time(self, timestamp_ms: int) -> int:
        """The first message stored at or after a time; behind the last when there is none.

        Messages whose store times go back, after a clock did, may be missed. Raises ``StoreError``.
        """
        low, high, _ = self.range()
        while low < high:
            middle = (low + high) // 2
            at, stored_ms = middle, self._store_time(middle)
            while stored_ms is None and at + 1 < high:
                at += 1
                stored_ms = self._store_time(at)
            if stored_ms is None or stored_ms >= timestamp_ms:
                high = middle
            else:
                low = at + 1
        return low

    # --- where it begins and ends

    def _written_end(self) -> int:
        for file in reversed(self._row.files):
            used = self._row.used_end(file) - file.start
            count = min(-(-used // ENTRY_BYTES), file.size // ENTRY_BYTES)
            first = file.start // ENTRY_BYTES
            # The broker may be writing it: the offset is there, the size is not yet.
            if count and self._entry(first + count - 1)[1] <= 0:
                count -= 1
            if count:
                return first + count
        return self._row.start // ENTRY_BYTES

    def _is_torn(self, offset: int) -> bool:
        position, size, _ = self._entry(offset)
        if size == FILLER_SIZE or position < self._log.start:
            return False
        head = memoryview(bytearray(_HEAD.size))
        try:
            self._log.read_into(position, head)
        except StoreChanged:
            return False
        except StoreError:
            return True
        return _HEAD.unpack(head) != (size, position)

    def _find_min(self, end: int) -> int:
        log_start = self._log.start
        for file in self._row.files:
            first = file.start // ENTRY_BYTES
            count = min(file.size // ENTRY_BYTES, end - first)
            if count <= 0:
                break
            if _is_alive(self._entry(first), log_start):
                return first
            position, size, _ = self._entry(first + count - 1)
            if size not in _NO_MESSAGE and position < log_start:
                continue
            _, found = first_from(self._load(file, count), log_start)
            if found < count:
                return first + found
        return end

    def _load(self, file: ViewFile, count: int) -> memoryview:
        return self._row.read(file.start, count * ENTRY_BYTES)

    def _entry(self, offset: int) -> tuple[int, int, int]:
        position, size, tags_code = ENTRY.unpack(self._row.read(offset * ENTRY_BYTES, ENTRY_BYTES))
        return position, size, tags_code

    def _store_time(self, offset: int) -> int | None:
        position, size, _ = self._entry(offset)
        return None if size in _NO_MESSAGE else self._log.stored_ms(position)


def _is_alive(entry: tuple[int, int, int], log_start: int) -> bool:
    return entry[1] not in _NO_MESSAGE and entry[0] >= log_start


def first_from(entries: memoryview, place: int) -> tuple[int, int]:
    """Where the messages at or behind a physical offset begin.

    Returns:
        Index behind the last entry with a message before it, and of the first one with a message
        from there on; the number of entries where there is none.
    """
    count = len(entries) // ENTRY_BYTES

    def next_real(index: int) -> int:
        while index < count and ENTRY.unpack_from(entries, index * ENTRY_BYTES)[1] in _NO_MESSAGE:
            index += 1
        return index

    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        at = next_real(middle)
        if at == count or ENTRY.unpack_from(entries, at * ENTRY_BYTES)[0] >= place:
            high = middle
        else:
            low = at + 1
    return low, next_real(low)
