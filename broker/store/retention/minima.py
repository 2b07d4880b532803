"""Where a consume queue begins once the log has lost its oldest files (cf. correctMinOffset).

Asked in a thread, for each of perhaps ten thousand queues, most of which have lost nothing: then
one entry tells. The others are searched by halves. The queue itself is left alone and may grow
meanwhile; what is read is read into the page cache first, so that no page fault holds the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.store.files import Region
from broker.store.mapped_file import MappedFile
from broker.store.queue_files import FILLER_SIZE, NO_MESSAGE, QueueFiles
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES

_AT_ONCE: Final = 512
"""Entries read in one step where fillers are stepped over."""

_NO_MESSAGE: Final = NO_MESSAGE[:2]


def first_alive(queue: QueueFiles, log_start: int) -> int:
    """A queue's first message in the log from ``log_start`` on; its end if there is none.

    Raises:
        OSError: an entry can't be read.
    """
    low, high = queue.min_offset, queue.max_offset
    if low >= high:
        return low
    search = _Search(queue.files, high, log_start)
    if search.is_alive(low):
        return low
    # Dead at ``low``; alive at ``high``, if only in that messages to come will be.
    while high - low > 1:
        middle = (low + high) // 2
        if search.is_alive(middle):
            high = middle
        else:
            low = middle
    return search.next_message(high)


class _Search:
    """A look at the entries of one queue below ``end``."""

    __slots__ = ("_end", "_files", "_log_start", "_regions")

    def __init__(self, files: list[MappedFile], end: int, log_start: int) -> None:
        self._files = files
        self._end = end
        self._log_start = log_start
        # Held so that a file without a map of its own is not mapped for each entry.
        self._regions: dict[MappedFile, Region] = {}

    def is_alive(self, offset: int) -> bool:
        """Whether the log has this message or, for a filler, the next one there was, if any."""
        for physical_offset, size in self._entries(offset, 1):
            if _is_real(physical_offset, size):
                return physical_offset >= self._log_start
        for _, physical_offset in self._real(offset):
            return physical_offset >= self._log_start
        return True

    def next_message(self, offset: int) -> int:
        """The first entry from ``offset`` on that is, damaged or not, that of a message."""
        while entries := self._entries(offset, _AT_ONCE):
            for number, entry in enumerate(entries, offset):
                if entry != _NO_MESSAGE:
                    return number
            offset += len(entries)
        return self._end

    def _real(self, offset: int) -> Iterator[tuple[int, int]]:
        """Number and physical offset of the entries that are no fillers."""
        while offset < self._end:
            entries = self._entries(offset, _AT_ONCE)
            if not entries:
                return
            for number, (physical_offset, size) in enumerate(entries, offset):
                if _is_real(physical_offset, size):
                    yield number, physical_offset
            offset += len(entries)

    def _entries(self, offset: int, most: int) -> list[tuple[int, int]]:
        """Physical offset and size of entries of one file, at least one."""
        file = self._file_of(offset)
        if offset >= self._end or file is None:
            return []
        begin = offset * ENTRY_BYTES - file.start
        end = min(begin + most * ENTRY_BYTES, file.size, self._end * ENTRY_BYTES - file.start)
        region = self._regions.get(file)
        if region is None:
            region = self._regions[file] = file.hold()
        region.fetch(begin, end - begin)
        return [entry[:2] for entry in ENTRY.iter_unpack(region.view[begin:end])]

    def _file_of(self, offset: int) -> MappedFile | None:
        at = offset * ENTRY_BYTES
        return next((file for file in self._files if 0 <= at - file.start < file.size), None)


def _is_real(physical_offset: int, size: int) -> bool:
    return physical_offset >= 0 and 0 < size < FILLER_SIZE
