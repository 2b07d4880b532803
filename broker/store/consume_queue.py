"""The consume queues, which hold the physical offset, size and tags code of each message.

An entry has 20 bytes. The entry of the message with queue offset ``n`` is at byte ``20 * n`` of the
queue's files taken together.

===================  ==========================================================
``min_offset``       first entry whose message the log still has
``max_offset``       behind the last entry; readers see the entries before it
``next_offset``      queue offset of the next message; ahead of ``max_offset``
                     while messages wait for a sync in SYNC mode
``flushed_offset``   behind the last entry that is on the disk
``opened_offset``    behind the last entry when the store was opened
===================  ==========================================================

Only the loop's thread uses a queue, apart from the methods marked otherwise. A put first makes room
(``prepare``, which may find the disk full), then stores its record in the log, then appends the
entry, which can't fail any more: so the log never has a message whose queue has no room for it.

A store may have ten thousand idle queues: each takes a few hundred bytes of memory, and is not
mapped until it is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.limits import PAGE_BYTES, StoreLimits
from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.os_files import Files
from broker.store.results import FileRange, OpeningProgress, StoreError
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, FILLER, name_of, offset_of
from remoting.protocol.names import validate_topic

NO_MESSAGE: Final = ENTRY.unpack(FILLER)
"""The unpacked filler: the entry of a message that the log does not have."""

_MAX_QUEUE_ID: Final = 2**31 - 1

FILLER_SIZE: Final[int] = NO_MESSAGE[1]


@dataclass(frozen=True, slots=True)
class QueueSpace:
    """What all queues of a store share; ``file_size`` is in bytes."""

    files: Files
    maps: MappedFiles
    file_size: int
    limits: StoreLimits


class QueueEnds(NamedTuple):
    """The state of a queue at a clean stop: its bounds and its files.

    It has ``files`` files without a gap; the first begins at byte ``first_start`` of the queue.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    first_start: int
    files: int


class ConsumeQueue:
    """The entries of one queue of one topic."""

    __slots__ = (
        "_active",
        "_all",
        "_directory",
        "_ready",
        "_space",
        "flushed_offset",
        "key",
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
        # A string: there may be very many queues, and a Path is large.
        self._directory = str(directory)
        self._all: list[MappedFile] = []
        self._active: MappedFile | None = None
        # Entries below this one have room.
        self._ready = 0
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.flushed_offset = 0
        self.opened_offset = 0

    @property
    def directory(self) -> Path:
        """The directory of the queue's files."""
        return Path(self._directory)

    @property
    def first_offset(self) -> int:
        """Queue offset of the first entry in a file."""
        return self._all[0].start // ENTRY_BYTES if self._all else self.max_offset

    @property
    def files(self) -> list[MappedFile]:
        """A copy of the list of files, oldest first."""
        return self._all.copy()

    def _file_of(self, offset: int) -> MappedFile:
        at = offset * ENTRY_BYTES - self._all[0].start
        assert at >= 0
        return self._all[at // self._space.file_size]

    # --- reading

    def is_recent(self, offset: int) -> bool:
        """Return whether an entry was appended recently, so that it is assumed to be in memory."""
        newest = self.max_offset - self._space.limits.hot_queue_entries
        return offset >= max(self.opened_offset, newest)

    def entries(self, offset: int, longest: int) -> memoryview | None:
        """Return the entries from ``offset`` on, of one file, at most ``longest`` bytes.

        Args:
            offset: at least ``min_offset``, less than ``max_offset``.
            longest: a multiple of an entry's 20 bytes.

        Returns:
            The packed entries; None when the file can't be read.
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
        """Return the file range of the entries that ``entries`` would return; None for no file."""
        try:
            file = self._file_of(offset)
        except IndexError:
            return None
        begin = offset * ENTRY_BYTES - file.start
        end = min(self.max_offset * ENTRY_BYTES - file.start, file.size, begin + longest)
        return FileRange(file, begin, end)

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return physical offset, size and tags code of a message; None when there is none."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        return self._raw(offset)

    def _raw(self, offset: int) -> tuple[int, int, int] | None:
        entry = self.stored(offset)
        if entry is None or entry[0] < 0 or not 0 < entry[1] < FILLER_SIZE:
            return None
        return entry

    def stored(self, offset: int) -> tuple[int, int, int] | None:
        """Return the stored entry unchecked, also a filler; None when it can't be read."""
        view = self.entries(offset, ENTRY_BYTES)
        if view is None:
            return None
        physical_offset, size, tags_code = ENTRY.unpack(view)
        return physical_offset, size, tags_code

    def next_file_offset(self, offset: int) -> int:
        """Return the first queue offset of the file behind the one that holds ``offset``."""
        units = self._space.file_size // ENTRY_BYTES
        return (offset // units + 1) * units

    # --- the disk

    def sync(self) -> None:
        """Wait until the entries are on the disk. Callable in any thread. Raises ``OSError``."""
        begin, end = self.flushed_offset * ENTRY_BYTES, self.max_offset * ENTRY_BYTES
        if begin == end:
            return
        for file in self._all.copy():
            if file.start < end and file.start + file.size > begin:
                file.sync()
        self.flushed_offset = end // ENTRY_BYTES

    def synced(self, offset: int) -> None:
        """Note that the entries before ``offset`` are on the disk."""
        self.flushed_offset = max(self.flushed_offset, offset)

    def rewrite(self, offset: int) -> None:
        """Write the entries from ``offset`` on again; see ``MappedFile.rewrite``."""
        begin, end = offset * ENTRY_BYTES, self.max_offset * ENTRY_BYTES
        for file in self._all:
            file.rewrite(begin - file.start, end - file.start)

    def has_files_before(self, offset: int) -> bool:
        """Return whether ``drop_before`` may drop files. Callable in any thread."""
        files = self._all.copy()
        return len(files) > 1 and files[0].start + files[0].size <= offset * ENTRY_BYTES

    def drop_before(self, offset: int) -> list[MappedFile]:
        """Move ``min_offset`` to ``offset``; drop the files before it and return them, for removal.

        The last file stays, because ``load`` derives the next queue offset from it.
        """
        self.min_offset = max(self.min_offset, min(offset, self.max_offset))
        behind = self.min_offset * ENTRY_BYTES
        dropped: list[MappedFile] = []
        for file in self._all[:-1]:
            if file is self._active or file.start + file.size > behind:
                break
            dropped.append(file)
        del self._all[: len(dropped)]
        return dropped

    def remove(self) -> None:
        """Remove the queue's files and directory. Raises ``OSError``."""
        for file in self._all:
            file.remove()
        self._all = []
        self._active = None
        self._space.files.remove_directory(self.directory)

    # --- from a clean stop to the next start

    @property
    def is_whole(self) -> bool:
        """Whether every message that was put has its entry, and the entries have files."""
        return self.next_offset == self.max_offset and (self.max_offset == 0 or bool(self._all))

    def last_position(self) -> int:
        """Return the physical offset of the last message; 0 if its file is not mapped."""
        last = self._all[-1] if self._all else None
        if last is None or not last.mapped or self.max_offset <= self.min_offset:
            return 0
        entry = self.entry(self.max_offset - 1)
        return 0 if entry is None else entry[0]

    def ends(self) -> QueueEnds | None:
        """Return the state for ``restore``; None for a queue without a file."""
        if not self._all:
            return None
        return QueueEnds(
            self.queue_id, self.min_offset, self.max_offset, self._all[0].start, len(self._all)
        )

    def restore(self, ends: QueueEnds) -> None:
        """Restore the state at a clean stop; files are mapped on their first use."""
        space, end = self._space, ends.max_offset
        for number in range(ends.files):
            start = ends.first_start + number * space.file_size
            if number and start >= end * ENTRY_BYTES:
                # An empty file, created when the disk refused its blocks; the next put opens it.
                break
            path = self.directory / name_of(start)
            used = min(space.file_size, end * ENTRY_BYTES - start)
            self._all.append(
                MappedFile(space.files, space.maps, path, start, space.file_size, used=max(0, used))
            )
        self._active = self._all[-1]
        self._ready = self.max_offset = self.next_offset = end
        self.opened_offset = self.flushed_offset = end
        self.min_offset = ends.min_offset

    # --- appending

    def prepare(self, count: int) -> None:
        """Make room for ``count`` more messages. Raises ``OSError``."""
        end = self.next_offset + count
        if end > self._ready:
            self._make_room(end)
        file = self._active
        assert file is not None
        file.keep_mapped()
        if end * ENTRY_BYTES > file.start + file.size:
            # The entries go to more than one file: map all of them.
            step = self._space.file_size // ENTRY_BYTES
            for first in range(self.next_offset, end, step):
                self._file_of(first).keep_mapped()
            self._file_of(end - 1).keep_mapped()

    def room(self, count: int) -> int:
        """Make room for ``count`` messages; return how many entries fit. Raises ``OSError``."""
        self.prepare(count)
        return self._ready - self.next_offset

    def place(self, count: int) -> memoryview:
        """Make room for ``count`` messages; return the mapped bytes for the next entries.

        These are of one file, so they may be fewer, or more, than ``count`` entries. Raises
        ``OSError``.
        """
        if self.next_offset + count > self._ready:
            self.prepare(count)
        file = self._active
        assert file is not None
        at = self.max_offset * ENTRY_BYTES - file.start
        if at >= file.size:
            file = self._active = self._file_of(self.max_offset)
            at = self.max_offset * ENTRY_BYTES - file.start
        return file.view[at : min(self._ready * ENTRY_BYTES - file.start, file.size)]

    def append_at(self, place: memoryview, entries: bytes) -> None:
        """Append packed entries at ``place``, which ``place()`` returned."""
        place[: len(entries)] = entries
        self.max_offset += len(entries) // ENTRY_BYTES

    def append_packed(self, entries: bytes) -> None:
        """Append packed entries, for which there must be room: all of them, or ``OSError``."""
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

    def _make_room(self, end_offset: int) -> None:
        while self._ready < end_offset:
            last = self._all[-1] if self._all else None
            if last is None or self._ready * ENTRY_BYTES >= last.start + last.size:
                last = self._add_file(self._ready)
            end = min(end_offset * ENTRY_BYTES - last.start, last.size)
            last.extend(
                end, max(PAGE_BYTES, min(last.watermark, self._space.limits.queue_step_bytes))
            )
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

    # --- recovery

    def load(self) -> None:
        """Find the queue's files and the end of its entries; entries are not checked.

        Raises:
            StoreError: a file does not have the configured length.
            OSError: a file can't be read.
        """
        self._all = self._find_files()
        used = 0
        while self._all:
            last = self._all[-1]
            used = _used_entries(last)
            if used or len(self._all) == 1:
                break
            # A later file without entries.
            last.remove()
            self._all.pop()
        if not self._all:
            return
        self._end_at(self._all[-1].start // ENTRY_BYTES + used)
        self.min_offset = self._all[0].start // ENTRY_BYTES

    def _find_files(self) -> list[MappedFile]:
        space = self._space
        files: list[MappedFile] = []
        names = [name for name in space.files.list(self.directory) if offset_of(name) is not None]
        for name in names:
            path = self.directory / name
            size = space.files.size(path)
            if size == 0:
                # Created just before a crash: it has a name, but no length yet.
                space.files.remove(path)
                continue
            if size != space.file_size:
                raise StoreError(
                    f"the consume-queue file {path} has {size} bytes but"
                    f" mappedFileSizeConsumeQueue is {space.file_size}: set"
                    f" mappedFileSizeConsumeQueue={size} to open this store, or remove the file if"
                    " it was cut off: it is rebuilt from the log"
                )
            if files and int(name) != files[-1].start + space.file_size:
                # A file is found by its index, which a gap would shift: ignore the files before it.
                # Recovery compares with the safe point, and rebuilds the queues if needed.
                files = []
            files.append(
                MappedFile(space.files, space.maps, path, int(name), size, used=space.file_size)
            )
        return files

    def _end_at(self, offset: int) -> None:
        """Set the end of the queue to ``offset``: zero the entries from there on."""
        while len(self._all) > 1 and self._all[-1].start >= offset * ENTRY_BYTES:
            self._all.pop().remove()
        last = self._all[-1]
        last.clear_from(max(0, offset * ENTRY_BYTES - last.start))
        self._ready = self.max_offset = self.next_offset = self.opened_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self._active = last

    def last_physical_end(self) -> int:
        """Return the physical offset behind the last entry's message; 0 when there is none."""
        first = self._all[0].start // ENTRY_BYTES if self._all else self.max_offset
        for offset in range(self.max_offset - 1, first - 1, -1):
            entry = self._raw(offset)
            if entry is not None:
                return entry[0] + entry[1]
        return 0

    def cut(self, log_end: int) -> int:
        """Drop the last entries whose messages lie behind ``log_end``; return their number."""
        offset = self._behind_those_before(log_end)
        dropped = self.max_offset - offset
        if dropped:
            self._end_at(offset)
        return dropped

    def withdraw(self, log_end: int) -> list[bytes]:
        """Hide the last messages, which lie behind ``log_end``; return their entries.

        They keep their queue offsets; ``append_packed`` shows them again.
        """
        offset = self._behind_those_before(log_end)
        entries = [
            bytes(self.entries(number, ENTRY_BYTES) or FILLER)
            for number in range(offset, self.max_offset)
        ]
        self.max_offset = offset
        return entries

    def keep(self, offset: int) -> int:
        """Drop the entries from ``offset`` on; return their number."""
        dropped = self.max_offset - offset
        if dropped > 0:
            self._end_at(offset)
        return max(0, dropped)

    def reach(self, offset: int) -> None:
        """Append fillers so that the next message gets at least ``offset``. Raises ``OSError``."""
        if offset > self.max_offset:
            is_empty = self.min_offset == self.max_offset
            self._fill_to(offset)
            if is_empty:
                self.min_offset = offset

    def _behind_those_before(self, log_end: int) -> int:
        """Return the offset behind the last entry whose message lies before ``log_end``."""
        offset = self.max_offset
        while self._all and offset * ENTRY_BYTES > self._all[0].start:
            entry = self.stored(offset - 1)
            # A filler stays: it has no message that could be missing.
            if entry and (entry[1] == FILLER_SIZE or entry[0] + entry[1] <= log_end):
                break
            offset -= 1
        return offset

    def replay(self, offset: int, entries: bytes | bytearray) -> int:
        """Write entries as derived from the log; return how many were new or different.

        Args:
            offset: queue offset of the first.
            entries: packed.

        Raises:
            OSError: the disk refuses.
        """
        if self._all and offset * ENTRY_BYTES < self._all[0].start:
            # Start over: the offsets in the log are before those of the files.
            for file in self._all:
                file.remove()
            self._all = []
            self._active = None
            self._ready = self.min_offset = self.max_offset = self.next_offset = 0
            self.flushed_offset = 0
        count = len(entries) // ENTRY_BYTES
        existing = max(0, min(count, self.max_offset - offset))
        written = self._correct(offset, entries[: existing * ENTRY_BYTES])
        if existing < count:
            self._fill_to(offset + existing)
            self.prepare(count - existing)
            self.append_packed(bytes(entries[existing * ENTRY_BYTES :]))
            self.next_offset = self.max_offset
        return written + count - existing

    def _correct(self, offset: int, entries: bytes | bytearray) -> int:
        """Overwrite existing entries where they differ; return how many did."""
        written = at = 0
        while at < len(entries):
            number = offset + at // ENTRY_BYTES
            file = self._file_of(number)
            place = number * ENTRY_BYTES - file.start
            derived = bytes(entries[at : at + file.size - place])
            stored = bytes(self.entries(number, len(derived)) or b"")
            if stored != derived:
                file.write(place, derived)
                written += sum(
                    stored[at_entry : at_entry + ENTRY_BYTES]
                    != derived[at_entry : at_entry + ENTRY_BYTES]
                    for at_entry in range(0, len(derived), ENTRY_BYTES)
                )
            at += len(derived)
        return written

    def replay_gap(self, begin: int, end: int) -> None:
        """Overwrite existing entries in ``[begin, end)`` with fillers: the log has no good records.

        Raises:
            OSError: the disk refuses.
        """
        for offset in range(begin, min(end, self.max_offset)):
            self.repair(offset, FILLER)

    def repair(self, offset: int, entry: bytes) -> None:
        """Overwrite an existing entry. Raises ``OSError``."""
        file = self._file_of(offset)
        file.write(offset * ENTRY_BYTES - file.start, entry)

    def _fill_to(self, offset: int) -> None:
        """Append fillers up to ``offset``."""
        if not self._all:
            units = self._space.file_size // ENTRY_BYTES
            first = offset // units * units
            self._ready = self.max_offset = self.next_offset = self.flushed_offset = first
        while self.next_offset < offset:
            self.prepare(1)
            count = min(self._ready, offset) - self.next_offset
            self.append_packed(FILLER * count)
            self.next_offset = self.max_offset

    def settle(
        self, seen: tuple[int, int] | None, log_start: int, log_end: int, *, damaged: bool
    ) -> int:
        """Drop entries without a message, after a replay of the whole log; return their number.

        Args:
            seen: queue offset of the first message that the log has of this queue, and behind the
                last one; None when it has none.
            log_start: physical offset where the log begins.
            log_end: physical offset where the log ends.
            damaged: the log has lost messages in its middle, perhaps the last ones of this queue;
                their queue offsets are not used again.
        """
        if seen is None:
            # All messages of the queue are deleted. The entries stay, as fillers, so that queue
            # offsets do not start at 0 again.
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
        """Set ``min_offset`` to the first message in the log (cf. correctMinOffset)."""
        if not self._all:
            return
        offset = self._all[0].start // ENTRY_BYTES
        # For most queues it is the first entry. Then don't bisect: damaged entries would mislead.
        if not self._is_alive(offset, log_start):
            first = offset
            offsets = range(first, self.max_offset)
            offset += bisect_left(offsets, True, key=lambda n: self._is_alive(n, log_start))
        # Skip fillers, but not damaged entries: these may be of a message, and readers handle them.
        while offset < self.max_offset and self.stored(offset) in {None, NO_MESSAGE}:
            offset += 1
        self.min_offset = offset

    def _is_alive(self, offset: int, log_start: int) -> bool:
        """Return whether the log has this message or, for a filler, the next message, if any."""
        for number in range(offset, self.max_offset):
            if (entry := self._raw(number)) is not None:
                return entry[0] >= log_start
        return True


def _used_entries(file: MappedFile) -> int:
    # Not behind ``data_end``: reading holes would take memory and time, for each of ten thousand
    # queues.
    allocated = min(file.data_end() + ENTRY_BYTES - 1, file.size) // ENTRY_BYTES
    view = file.view
    return bisect_left(
        range(allocated), True, key=lambda n: ENTRY.unpack_from(view, n * ENTRY_BYTES)[1] <= 0
    )


class QueueTable:
    """The queues of a store; reading never creates one.

    Only the loop's thread changes the table; other threads may call ``all()``.

    Attributes:
        removals: number of removed topics, by which caches of queues notice a removal.
    """

    def __init__(self, space: QueueSpace, directory: Path) -> None:
        self._space = space
        self._directory = directory
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._ends: dict[str, int] = {}
        self.get = self._queues.get
        self.removals = 0

    def __len__(self) -> int:
        return len(self._queues)

    def all(self) -> list[ConsumeQueue]:
        """Return a list of all queues."""
        return list(self._queues.values())

    def topics(self) -> list[str]:
        """Return the sorted names of the topics that have a queue."""
        return sorted({topic for topic, _ in self._queues.copy()})

    def queue_ids(self, topic: str) -> list[int]:
        """Return the sorted ids of a topic's queues."""
        return sorted(queue_id for name, queue_id in self._queues.copy() if name == topic)

    def beyond(self, topic: str, first: int) -> list[int]:
        """Return the ids from ``first`` on of a topic's queues that have messages."""
        end = self._ends.get(topic, 0)
        # A damaged record may have had any id.
        ids = range(first, end) if end <= len(self._queues) + first else self.queue_ids(topic)
        queues = ((queue_id, self._queues.get((topic, queue_id))) for queue_id in ids)
        return [
            queue_id
            for queue_id, queue in queues
            if queue_id >= first and queue is not None and queue.max_offset > queue.min_offset
        ]

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, creating it if needed; its files are created with its first message.

        Raises:
            ValueError: topic or queue id is not valid in a path, or there are too many queues.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            validate_topic(topic)
            if not 0 <= queue_id <= _MAX_QUEUE_ID:
                raise ValueError(f"topic {topic} can't have a queue {queue_id}: count from 0")
            max_queues = self._space.limits.max_queues
            if len(self._queues) >= max_queues:
                raise ValueError(
                    f"queue {queue_id} of topic {topic} would be one more than the {max_queues}"
                    " a store may have: delete unused topics or start another broker"
                )
            queue = self._add(topic, queue_id)
        return queue

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._directory / topic / str(queue_id)
        queue = ConsumeQueue(self._space, directory, topic, queue_id)
        self._queues[queue.key] = queue
        self._ends[topic] = max(self._ends.get(topic, 0), queue_id + 1)
        return queue

    def load(self, progress: OpeningProgress) -> None:
        """Find and load the queues on the disk.

        Raises:
            StoreError: a file does not fit the configuration.
            OpeningGivenUp: the opening was aborted.
            OSError: a file can't be read.
        """
        files = self._space.files
        for topic in files.list(self._directory):
            try:
                validate_topic(topic)
            except ValueError:
                continue
            for name in files.list(self._directory / topic):
                if name.isascii() and name.isdigit() and str(int(name)) == name:
                    progress.check()
                    queue = self._add(topic, int(name))
                    queue.load()

    def ends(self) -> dict[str, list[QueueEnds]] | None:
        """Return the state of all queues for ``restore``; None when a queue lacks entries."""
        found: dict[str, list[QueueEnds]] = {}
        for queue in self._queues.values():
            if not queue.is_whole:
                return None
            ends = queue.ends()
            if ends is not None:
                found.setdefault(queue.topic, []).append(ends)
        return found

    def last_position(self) -> int:
        """Return the physical offset of a message near the end of the log; 0 if unknown."""
        return max((queue.last_position() for queue in self._queues.values()), default=0)

    def restore(self, topics: Mapping[str, Iterable[QueueEnds]]) -> None:
        """Create the queues from the state at a clean stop, without reading their files."""
        for topic, all_ends in topics.items():
            for ends in all_ends:
                self._add(topic, ends.queue_id).restore(ends)

    def close(self) -> None:
        """Unmap all files."""
        self._space.maps.close()

    def destroy(self) -> None:
        """Remove all queues from the disk. Raises ``OSError``."""
        self._queues.clear()
        self._space.files.remove_directory(self._directory)

    def remove_deleted(self, ends: Mapping[str, int]) -> None:
        """Remove what a crash has left of deleted topics. Raises ``OSError``.

        Args:
            ends: see ``DeletedTopics.ends``.
        """
        for queue in self.all():
            if queue.topic in ends and queue.last_physical_end() <= ends[queue.topic]:
                del self._queues[queue.key]
                queue.remove()

    def remove_topic(self, topic: str, kept: Container[int] = ()) -> int:
        """Remove a topic's queues from the disk, except those ``kept``; return their number.

        Raises:
            StoreError: they can't be removed.
        """
        ids = self.queue_ids(topic)
        queues = [self._queues[topic, number] for number in ids if number not in kept]
        rest = len(ids) - len(queues)
        if not rest:
            self._ends.pop(topic, None)
        self.removals += 1
        try:
            for queue in queues:
                del self._queues[topic, queue.queue_id]
                queue.remove()
            if queues and not rest:
                self._space.files.remove_directory(self._directory / topic)
        except OSError as error:
            raise StoreError(
                f"the queues of topic {topic} in {self._directory / topic} can't be removed"
                f" ({error.strerror}): check the owner of the directory, then delete it again"
            ) from error
        return len(queues)
