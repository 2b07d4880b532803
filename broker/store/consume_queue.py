"""A consume queue: for each message of one queue, where it lies in the log.

Entries of 20 bytes, message ``n`` at byte ``20 * n`` of the queue's files taken together. Only the
loop's thread comes here, but for ``sync``. A put first makes room (``prepare``, which may find the
disk full), then stores its record in the log, then appends the entry, which can no longer fail;
so there is never a message in the log that its queue has no room for.

===============  ==============================================================
``min_offset``   first entry whose message the log still has
``max_offset``   behind the last entry: what a reader may see
``next_offset``  number of the next message; ahead of ``max_offset`` while
                 messages wait for the disk in SYNC mode
``opened_offset``  behind the last entry when the store was opened
===============  ==============================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.store.errors import StoreError
from broker.store.files import Files
from broker.store.limits import PAGE_BYTES, QUEUE_STEP_BYTES
from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.results import FileRange
from remoting.protocol.disk.consume_queue_entry import ENTRY, ENTRY_BYTES, FILLER
from remoting.protocol.disk.file_name import name_of, offset_of

_FILLER_SIZE = ENTRY.unpack(FILLER)[1]


@dataclass(frozen=True, slots=True)
class QueueSpace:
    """What all queues of a store share."""

    files: Files
    maps: MappedFiles
    file_size: int


class ConsumeQueue:
    """The entries of one queue of one topic."""

    __slots__ = (
        "_active",
        "_all",
        "_ready",
        "_space",
        "directory",
        "flushed_offset",
        "max_offset",
        "min_offset",
        "next_offset",
        "opened_offset",
        "queue_id",
        "topic",
        "topic_bytes",
    )

    def __init__(self, space: QueueSpace, directory: Path, topic: str, queue_id: int) -> None:
        self._space = space
        self.directory = directory
        self._all: list[MappedFile] = []
        self._active: MappedFile | None = None
        # Entries below this one have room.
        self._ready = 0
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.flushed_offset = 0
        self.opened_offset = 0

    # --- appending

    def prepare(self, count: int) -> None:
        """Make room for ``count`` more messages. Raises ``OSError``."""
        wanted = self.next_offset + count
        if wanted > self._ready:
            self._make_room(wanted)
        assert self._active is not None
        self._active.keep_mapped()

    def append(self, physical_offset: int, size: int, tags_code: int) -> None:
        """The next entry, for which there is room. Raises ``OSError`` if it can't be mapped."""
        file = self._active
        assert file is not None
        at = self.max_offset * ENTRY_BYTES - file.start
        if at >= file.size:
            file = self._active = self._file_of(self.max_offset)
            at = self.max_offset * ENTRY_BYTES - file.start
        ENTRY.pack_into(file.view, at, physical_offset, size, tags_code)
        self.max_offset += 1

    def room(self, count: int) -> int:
        """Make room for ``count`` more messages; for how many there is. Raises ``OSError``."""
        self.prepare(count)
        return self._ready - self.next_offset

    def place(self, count: int) -> memoryview:
        """Make room for ``count`` more messages; the bytes of the next entries that have room.

        It ends with its file, so it may be shorter than asked for. Raises ``OSError``.
        """
        self.prepare(count)
        file = self._active
        assert file is not None
        at = self.max_offset * ENTRY_BYTES - file.start
        if at >= file.size:
            file = self._active = self._file_of(self.max_offset)
            at = self.max_offset * ENTRY_BYTES - file.start
        return file.view[at : min(self._ready * ENTRY_BYTES - file.start, file.size)]

    def append_at(self, place: memoryview, entries: bytes) -> None:
        """The next entries, packed, at the ``place`` that was given out for them."""
        place[: len(entries)] = entries
        self.max_offset += len(entries) // ENTRY_BYTES

    def append_packed(self, entries: bytes) -> None:
        """The next entries, packed, for which there is room: all of them, or ``OSError``."""
        places: list[memoryview] = []
        end = self.max_offset * ENTRY_BYTES + len(entries)
        at = self.max_offset * ENTRY_BYTES
        file = self._active
        assert file is not None
        while at < end:
            file = self._file_of(at // ENTRY_BYTES)
            places.append(file.view[at - file.start : min(end - file.start, file.size)])
            at += len(places[-1])
        written = 0
        for place in places:
            place[:] = entries[written : written + len(place)]
            written += len(place)
        self._active = file
        self.max_offset = end // ENTRY_BYTES

    def _make_room(self, wanted: int) -> None:
        while self._ready < wanted:
            last = self._all[-1] if self._all else None
            if last is None or self._ready * ENTRY_BYTES >= last.start + last.size:
                last = self._add_file(self._ready)
            end = min(wanted * ENTRY_BYTES - last.start, last.size)
            last.extend(end, max(PAGE_BYTES, min(last.watermark, QUEUE_STEP_BYTES)))
            self._ready = (last.start + last.watermark) // ENTRY_BYTES
        if self._active is None:
            self._active = self._file_of(self.max_offset)

    def _add_file(self, offset: int) -> MappedFile:
        space = self._space
        if not self._all:
            space.files.make_directory(self.directory)
        start = offset * ENTRY_BYTES // space.file_size * space.file_size
        file = MappedFile.create(
            space.files,
            space.maps,
            self.directory / name_of(start),
            start,
            space.file_size,
            pinned=False,
        )
        self._all.append(file)
        return file

    def _file_of(self, offset: int) -> MappedFile:
        at = offset * ENTRY_BYTES - self._all[0].start
        assert at >= 0
        return self._all[at // self._space.file_size]

    # --- reading

    def entries(self, offset: int, longest: int) -> memoryview | None:
        """The entries from ``offset`` on, of one file, at most ``longest`` bytes.

        Args:
            offset: at least ``min_offset``, less than ``max_offset``.
            longest: a multiple of an entry's 20 bytes.

        Returns:
            None when the file can't be read.
        """
        try:
            file = self._file_of(offset)
            view = file.view
        except (OSError, IndexError):
            return None
        begin = offset * ENTRY_BYTES - file.start
        end = min(self.max_offset * ENTRY_BYTES - file.start, file.size, begin + longest)
        return view[begin:end]

    def range_of(self, offset: int, longest: int) -> FileRange | None:
        """Where the entries lie that ``entries`` would give; None when they can't be read."""
        try:
            file = self._file_of(offset)
        except IndexError:
            return None
        begin = offset * ENTRY_BYTES - file.start
        end = min(self.max_offset * ENTRY_BYTES - file.start, file.size, begin + longest)
        return FileRange(file, begin, end)

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Physical offset, size and tags code of one message; None when there is none."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        return self._raw(offset)

    def _raw(self, offset: int) -> tuple[int, int, int] | None:
        entry = self._stored(offset)
        return None if entry is None or entry[1] in {0, _FILLER_SIZE} else entry

    def _stored(self, offset: int) -> tuple[int, int, int] | None:
        """What stands at the place of an entry, be it a filler; None when it can't be read."""
        view = self.entries(offset, ENTRY_BYTES)
        if view is None:
            return None
        physical_offset, size, tags_code = ENTRY.unpack(view)
        return physical_offset, size, tags_code

    def next_file_offset(self, offset: int) -> int:
        """The first offset of the file behind the one that ``offset`` is in."""
        units = self._space.file_size // ENTRY_BYTES
        return (offset // units + 1) * units

    # --- the disk

    def sync(self) -> None:
        """Wait until the entries are on the disk; from any thread. Raises ``OSError``."""
        begin, end = self.flushed_offset * ENTRY_BYTES, self.max_offset * ENTRY_BYTES
        if begin == end:
            return
        for file in self._all.copy():
            if file.start < end and file.start + file.size > begin:
                file.sync()
        self.flushed_offset = end // ENTRY_BYTES

    def remove(self) -> None:
        """Take the queue off the disk. Raises ``OSError``."""
        for file in self._all:
            file.remove()
        self._all = []
        self._active = None
        self._space.files.remove_directory(self.directory)

    # --- recovery

    def load(self) -> None:
        """Find the queue's files and where its entries end; entries are not checked here.

        Raises:
            StoreError: a file has not the configured length, or one is missing in between.
            OSError: a file can't be read.
        """
        self._all = self._find_files()
        used = 0
        while self._all:
            last = self._all[-1]
            used = _used_entries(last)
            if used or len(self._all) == 1:
                break
            # Made ahead, or emptied: nothing in it.
            last.remove()
            self._all.pop()
        if not self._all:
            return
        self._end_at(self._all[-1].start // ENTRY_BYTES + used)
        self.min_offset = self._all[0].start // ENTRY_BYTES

    def _find_files(self) -> list[MappedFile]:
        space = self._space
        found: list[MappedFile] = []
        names = [name for name in space.files.list(self.directory) if offset_of(name) is not None]
        for name in names:
            path = self.directory / name
            size = space.files.size(path)
            if size == 0 and name == names[-1]:
                space.files.remove(path)
                continue
            if size != space.file_size:
                raise StoreError(
                    f"the consume-queue file {path} has {size} bytes but"
                    f" mappedFileSizeConsumeQueue is {space.file_size}: set"
                    f" mappedFileSizeConsumeQueue={size} to open this store"
                )
            if found and int(name) != found[-1].start + space.file_size:
                # What is older than a gap can't be reached by counting; it is derived anyway.
                found = []
            found.append(
                MappedFile(space.files, space.maps, path, int(name), size, used=space.file_size)
            )
        return found

    def _end_at(self, offset: int) -> None:
        """The queue ends before message ``offset``: entries behind it become zeros."""
        while len(self._all) > 1 and self._all[-1].start >= offset * ENTRY_BYTES:
            self._all.pop().remove()
        last = self._all[-1]
        last.clear_from(max(0, offset * ENTRY_BYTES - last.start))
        self._ready = self.max_offset = self.next_offset = self.opened_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self._active = last

    def last_physical_end(self) -> int:
        """Physical offset behind the message of the last entry; 0 when there is none."""
        first = self._all[0].start // ENTRY_BYTES if self._all else self.max_offset
        for offset in range(self.max_offset - 1, first - 1, -1):
            entry = self._raw(offset)
            if entry is not None:
                return entry[0] + entry[1]
        return 0

    def cut(self, log_end: int) -> int:
        """Drop the last entries while the log does not have their messages; how many."""
        offset = self._behind_those_before(log_end)
        dropped = self.max_offset - offset
        if dropped:
            self._end_at(offset)
        return dropped

    def _behind_those_before(self, log_end: int) -> int:
        """Behind the last entry whose message lies before ``log_end``."""
        offset = self.max_offset
        while self._all and offset * ENTRY_BYTES > self._all[0].start:
            if self._is_before(offset - 1, log_end):
                break
            offset -= 1
        return offset

    def _is_before(self, offset: int, log_end: int) -> bool:
        """Whether an entry is a filler or its message lies before ``log_end``."""
        entry = self._stored(offset)
        return entry is not None and (entry[1] == _FILLER_SIZE or entry[0] + entry[1] <= log_end)

    def replay(self, offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """What the log says about message ``offset``; whether the entry had to be written.

        Raises:
            OSError: there is no room for it.
        """
        packed = ENTRY.pack(physical_offset, size, tags_code)
        if self._all and offset * ENTRY_BYTES < self._all[0].start:
            self._forget_all()
        if offset < self.max_offset:
            entries = self.entries(offset, ENTRY_BYTES)
            if entries is not None and bytes(entries) == packed:
                return False
            file = self._file_of(offset)
            file.write(offset * ENTRY_BYTES - file.start, packed)
            return True
        self._fill_to(offset)
        self.prepare(1)
        self.append(physical_offset, size, tags_code)
        self.next_offset = self.max_offset
        return True

    def replay_gap(self, begin: int, end: int) -> None:
        """The log has no good record of the messages in ``[begin, end)``. Raises ``OSError``."""
        for offset in range(begin, min(end, self.max_offset)):
            file = self._file_of(offset)
            file.write(offset * ENTRY_BYTES - file.start, FILLER)

    def _forget_all(self) -> None:
        """Begin anew: the numbers on the disk do not go with those of the log."""
        for file in self._all:
            file.remove()
        self._all = []
        self._active = None
        self._ready = self.min_offset = self.max_offset = self.next_offset = 0
        self.flushed_offset = 0

    def _fill_to(self, offset: int) -> None:
        """Entries of messages that nobody has any more, up to ``offset``."""
        if not self._all:
            units = self._space.file_size // ENTRY_BYTES
            first = offset // units * units
            self._ready = self.max_offset = self.next_offset = self.flushed_offset = first
        while self.next_offset < offset:
            self.prepare(1)
            self.append(*ENTRY.unpack(FILLER))
            self.next_offset = self.max_offset

    def settle(
        self, seen: tuple[int, int] | None, log_start: int, log_end: int, *, damaged: bool
    ) -> int:
        """After a replay of the whole log: keep what it said; how many entries had to go.

        Args:
            seen: number of the first message that the log has of this queue and number behind the
                last one; None when it has none.
            log_start: physical offset where the log begins.
            log_end: physical offset where the log ends.
            damaged: the log has lost messages in its middle, perhaps the last ones of this queue;
                their numbers are not given again.
        """
        if seen is None:
            # All its messages have expired. Their entries keep the numbers from starting again.
            dropped = self.cut(log_end if damaged else log_start)
            self.replay_gap(self._behind_those_before(log_start), self.max_offset)
            self.min_offset = self.max_offset
            return dropped
        first, end = seen
        kept = max(end, self._behind_those_before(log_end)) if damaged else end
        self.replay_gap(end, kept)
        dropped = self.max_offset - kept
        if dropped:
            self._end_at(kept)
        self.min_offset = first
        return dropped

    def correct_min(self, log_start: int) -> None:
        """Find the first entry whose message the log still has (cf. correctMinOffset)."""
        if not self._all:
            return
        first = self._all[0].start // ENTRY_BYTES
        found = first + _first_true(
            self.max_offset - first, lambda n: self._is_alive(first + n, log_start)
        )
        self.min_offset = self._next_real(found)

    def _is_alive(self, offset: int, log_start: int) -> bool:
        """Whether the log has this message or, for a filler, the next one there was."""
        entry = self._raw(self._next_real(offset))
        return entry is not None and entry[0] >= log_start

    def _next_real(self, offset: int) -> int:
        while offset < self.max_offset and self._raw(offset) is None:
            offset += 1
        return offset


def _used_entries(file: MappedFile) -> int:
    view = file.view
    return _first_true(
        file.size // ENTRY_BYTES, lambda n: ENTRY.unpack_from(view, n * ENTRY_BYTES)[1] <= 0
    )


def _first_true(count: int, test: Callable[[int], bool]) -> int:
    """The first of ``count`` numbers that passes a test which all later ones pass too."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if test(middle):
            high = middle
        else:
            low = middle + 1
    return low
