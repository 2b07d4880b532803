"""The files of a consume queue: where they end, reading them, and bringing them to the disk.

Entries of 20 bytes, message ``n`` at byte ``20 * n`` of the queue's files taken together.

===================  ==========================================================
``min_offset``       first entry whose message the log still has
``max_offset``       behind the last entry: what a reader may see
``next_offset``      number of the next message; ahead of ``max_offset`` while
                     messages wait for the disk in SYNC mode
``flushed_offset``   behind the last entry that is on the disk
``opened_offset``    behind the last entry when the store was opened
``checked``          of which messages the records were found sound, and when:
                     epoch, first one, behind the last one; see ``soundness``
===================  ==========================================================

A store may have ten thousand queues that nobody asks for: each costs a few hundred bytes here, and
no map until somebody does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.files import Files
from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.results import FileRange
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES, FILLER, name_of

NO_MESSAGE: Final = ENTRY.unpack(FILLER)
"""What the entry of a message says that nobody has any more."""

FILLER_SIZE: Final[int] = NO_MESSAGE[1]
NEVER_CHECKED: Final = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class QueueSpace:
    """What all queues of a store share."""

    files: Files
    maps: MappedFiles
    file_size: int


class QueueEnds(NamedTuple):
    """What a queue of whole entries comes to: ``files`` files without a gap, and its numbers."""

    queue_id: int
    min_offset: int
    max_offset: int
    first_start: int
    files: int


class QueueFiles:
    """The files of one queue of one topic, and what stands in them."""

    __slots__ = (
        "_active",
        "_all",
        "_directory",
        "_ready",
        "_space",
        "checked",
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
        # As text: there may be very many queues, and a Path is large.
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
        self.checked = NEVER_CHECKED

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return Path(self._directory)

    @property
    def first_offset(self) -> int:
        """The first entry that has a file."""
        return self._all[0].start // ENTRY_BYTES if self._all else self.max_offset

    @property
    def files(self) -> list[MappedFile]:
        """Its files, oldest first; a copy."""
        return self._all.copy()

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
        entry = self.stored(offset)
        if entry is None or entry[0] < 0 or not 0 < entry[1] < FILLER_SIZE:
            return None
        return entry

    def stored(self, offset: int) -> tuple[int, int, int] | None:
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

    def rewrite(self, offset: int) -> None:
        """Write the entries from ``offset`` on once more; see ``MappedFile.rewrite``."""
        begin, end = offset * ENTRY_BYTES, self.max_offset * ENTRY_BYTES
        for file in self._all:
            file.rewrite(begin - file.start, end - file.start)

    def has_files_before(self, offset: int) -> bool:
        """Whether ``drop_before`` may give files; from any thread."""
        files = self._all.copy()
        return len(files) > 1 and files[0].start + files[0].size <= offset * ENTRY_BYTES

    def drop_before(self, offset: int) -> list[MappedFile]:
        """The queue begins at ``offset`` now; the files that it can do without, to be removed.

        The last one stays, for it tells the next message's number.
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
        """Take the queue off the disk. Raises ``OSError``."""
        for file in self._all:
            file.remove()
        self._all = []
        self._active = None
        self._space.files.remove_directory(self.directory)

    # --- from a clean stop to the next start

    @property
    def is_whole(self) -> bool:
        """Whether every message that was put has its entry, in a file."""
        return self.next_offset == self.max_offset and (self.max_offset == 0 or bool(self._all))

    def last_position(self) -> int:
        """Physical offset of the last message; 0 when it is not known without mapping a file."""
        last = self._all[-1] if self._all else None
        if last is None or not last.mapped or self.max_offset <= self.min_offset:
            return 0
        entry = self.entry(self.max_offset - 1)
        return 0 if entry is None else entry[0]

    def ends(self) -> QueueEnds | None:
        """What ``restore`` takes; None for a queue without a file."""
        if not self._all:
            return None
        return QueueEnds(
            self.queue_id, self.min_offset, self.max_offset, self._all[0].start, len(self._all)
        )

    def restore(self, ends: QueueEnds) -> None:
        """Go on where a clean stop ended; files are mapped when they are wanted."""
        space, end = self._space, ends.max_offset
        for number in range(ends.files):
            start = ends.first_start + number * space.file_size
            if number and start >= end * ENTRY_BYTES:
                # Made when the disk would not give it blocks. It is found again when it is wanted.
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
