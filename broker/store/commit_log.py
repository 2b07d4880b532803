"""The commit log: the messages of all topics, in the order of arrival.

The log is one sequence of bytes, cut into files of equal length; each is named after the physical
offset of its first byte. Only the loop's thread appends. ``reserve`` returns the physical offset
for the next records: it rolls to the next file when this one is too short (and ends this one with a
blank record), and extends the watermark when it is reached. The caller builds the records for that
offset, and ``store`` writes them. Between the two nothing else may append; an unused reservation
costs nothing.

Small writes go through the map, into pages that the preallocator has filled with zeros. Large ones
go through ``pwrite``, into pages that are only allocated: that saves the zeros, the page faults and
the writeback of mapped pages. In SYNC mode all writes use ``pwrite``.

The preallocator creates the next file ahead. It is not in ``files`` until the appender rolls to it,
and a clean stop removes it, as in RocketMQ.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Final

from broker.store.limits import StoreLimits
from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.os_files import Files
from remoting.protocol.disk.files import name_of
from remoting.protocol.message.record import MIN_TAIL_BYTES, blank

_NOWHERE: Final = memoryview(b"")


class CommitLog:
    """The files of the commit log, with appending and random access.

    Attributes:
        end: physical offset behind the last record.
        opened_end: ``end`` when the store was opened.
        opened_tail: physical offset of the last record when the store was opened.
        appended: bytes stored since the store was opened.
        takes_large: whether the last ``store`` was of at least ``written_from_bytes``.
        room_end: physical offset up to which records may follow the last reservation.
        wanted: set to wake the preallocator: see ``want_from``.
    """

    def __init__(
        self,
        files: Files,
        maps: MappedFiles,
        directory: Path,
        file_size: int,
        limits: StoreLimits,
        *,
        writes_all: bool = False,
    ) -> None:
        """Create an empty log; see ``load``.

        Args:
            files: the disk.
            maps: bounds the number of mapped files.
            directory: of the log's files.
            file_size: length of each file in bytes.
            limits: of the store.
            writes_all: use ``pwrite`` for small writes too (SYNC mode). ``pwrite`` dirties only the
                pages written; a store through the map dirties the whole folio, which newer kernels
                make large, and each sync would write all of it.
        """
        self._files = files
        self._maps = maps
        self.directory = directory
        self.file_size = file_size
        self._all: list[MappedFile] = []
        self._active: MappedFile | None = None
        self._next: MappedFile | None = None
        self._roll_lock = threading.Lock()
        self.end = 0
        self.opened_end = 0
        self.opened_tail = 0
        self.appended = 0
        self.takes_large = False
        self._writes_all = writes_all
        self._hot_bytes = limits.hot_log_bytes
        self._step_bytes = limits.appender_step_bytes
        self._written_from = limits.written_from_bytes
        self.room_end = 0
        # Of the active file; ``reserve`` has checked that the file still has its full length.
        self._view = _NOWHERE
        self.wanted = threading.Event()
        self._wanted_from = math.inf

    # --- opening and closing

    def load(self, mapped: list[MappedFile], end: int, tail: int) -> None:
        """Set files and end to what recovery found; the last file becomes the active one.

        ``tail`` is the physical offset of the last record that recovery found.

        Raises:
            OSError: the last file can't be mapped.
        """
        self._all = mapped
        self.end = self.opened_end = end
        self.opened_tail = tail
        if mapped:
            self._active = mapped[-1]
            self._active.pin()

    def drop_before(self, position: int) -> list[MappedFile]:
        """Drop the files before ``position`` and return them, oldest first, for removal.

        Only files that end at or before ``position`` are dropped, and never the active one.
        """
        count = 0
        for file in self._all[:-1]:
            if file is self._active or file.start + file.size > position:
                break
            count += 1
        dropped = self._all[:count]
        del self._all[:count]
        return dropped

    def close(self) -> None:
        """Unmap all files. A file created ahead is dropped, but stays on the disk."""
        with self._roll_lock:
            for file in (*self._all, self._next):
                if file is not None:
                    file.unmap()
            self._active = self._next = None
            self._view = _NOWHERE

    def remove_prepared(self) -> None:
        """Remove the file created ahead, for a clean stop. Raises ``OSError``."""
        with self._roll_lock:
            prepared, self._next = self._next, None
            if prepared is not None:
                prepared.remove()

    # --- appending: the loop's thread only

    @property
    def longest_record(self) -> int:
        """Maximum bytes of records in one file."""
        return self.file_size - MIN_TAIL_BYTES

    def reserve(self, size: int) -> int:
        """Return the physical offset for the next ``size`` bytes of records, within one file.

        ``room_end`` is set to the end of the space that can be used without a new reservation.

        Args:
            size: at most ``longest_record``.

        Raises:
            OSError: the disk refuses. The log may have rolled; nothing else has changed.
        """
        active = self._active
        if active is None:
            active = self._roll(None)
        used = self.end - active.start
        # Behind the last record of a file there must be room for a blank record of 8 bytes.
        if used + size + MIN_TAIL_BYTES > active.size:
            active = self._roll(active)
            used = 0
        if used + size > active.watermark:
            active.extend(used + size, self._step_bytes, zeros=not self.takes_large)
        self._view = active.view
        self.room_end = active.start + min(active.size - MIN_TAIL_BYTES, active.watermark)
        return active.start + used

    def store(self, position: int, data: bytes | memoryview) -> None:
        """Write records at the reserved ``position`` and advance ``end``."""
        active = self._active
        assert active is not None
        assert position == self.end
        start = position - active.start
        stop = start + len(data)
        # Above the watermark, a store could raise SIGBUS, and would be overwritten with zeros.
        assert stop <= active.watermark
        length = stop - start
        self.takes_large = length >= self._written_from
        writes = self.takes_large or self._writes_all
        if not (writes and active.try_write(start, data)):
            self._view[start:stop] = data
        self.end = position + length
        self.appended += length
        if self.end >= self._wanted_from:
            self.wanted.set()

    def begin(self, position: int) -> None:
        """Let an empty log begin at a physical offset, where a file begins. Raises ``OSError``."""
        assert self._active is None
        # The preallocator may have created the file at 0.
        self.remove_prepared()
        self.end = self.opened_end = self.opened_tail = position

    def close_file(self, data: memoryview) -> None:
        """End the active file with a blank record, as a master has it, at ``end``.

        Raises:
            OSError: the disk refuses.
        """
        active = self._active
        assert active is not None
        start = self.end - active.start
        assert start + len(data) == active.size
        # Normally zeros follow the record; their pages need no blocks.
        used = MIN_TAIL_BYTES if not any(data[MIN_TAIL_BYTES:]) else len(data)
        active.extend(start + used, used)
        active.view[start : start + used] = data[:used]
        self.end += len(data)

    def _roll(self, active: MappedFile | None) -> MappedFile:
        """End the active file with a blank record and make the next file the active one."""
        with self._roll_lock:
            following = self._next or self._create_following()
            if active is not None:
                used = self.end - active.start
                if used < active.size:
                    if used + MIN_TAIL_BYTES > active.watermark:
                        active.extend(used + MIN_TAIL_BYTES, MIN_TAIL_BYTES)
                    active.view[used : used + MIN_TAIL_BYTES] = blank(active.size - used)
                active.unpin()
            self._next = None
            self._all.append(following)
            self._active = following
            self.end = following.start
        self.wanted.set()
        return following

    def _create_following(self) -> MappedFile:
        last = self._active
        start = self.end - self.end % self.file_size if last is None else last.start + last.size
        path = self.directory / name_of(start)
        file = MappedFile.create(self._files, self._maps, path, start, self.file_size, pinned=True)
        file.make_durable()
        return file

    # --- for the preallocator's thread

    def want_from(self, end: float) -> None:
        """Set ``wanted`` once the log has grown to physical offset ``end``."""
        self._wanted_from = end

    def ahead(self) -> tuple[MappedFile | None, MappedFile | None]:
        """Return the active file and the one created ahead."""
        with self._roll_lock:
            return self._active, self._next

    def prepare_next(self) -> MappedFile:
        """Return the next file, creating it if needed. Raises ``OSError``."""
        with self._roll_lock:
            if self._next is None:
                self._next = self._create_following()
            return self._next

    # --- reading

    @property
    def recent_from(self) -> int:
        """Physical offset from which records were appended recently, so they are in memory."""
        return max(self.opened_end, self.end - self._hot_bytes)

    @property
    def start(self) -> int:
        """Physical offset of the first byte that has not been deleted."""
        return self._all[0].start if self._all else self.end

    @property
    def files(self) -> list[MappedFile]:
        """A copy of the list of files, oldest first, without one created ahead."""
        return self._all.copy()

    def file_at(self, position: int) -> MappedFile | None:
        """Return the file that holds a physical offset; None if no file does."""
        if not self._all or position < self._all[0].start:
            return None
        index = (position - self._all[0].start) // self.file_size
        return self._all[index] if index < len(self._all) else None

    def slice(self, position: int, size: int) -> memoryview | None:
        """Return ``size`` bytes of the log; None when no file of the log has all of them."""
        if position + size > self.end:
            return None
        file = self.file_at(position)
        if file is None or position - file.start + size > file.size:
            return None
        try:
            view = file.view
        except OSError:
            return None
        return view[position - file.start : position - file.start + size]

    def files_between(self, start: int, end: int) -> list[MappedFile]:
        """Return the files that hold bytes of ``[start, end)``, oldest first."""
        return [file for file in self.files if file.start < end and file.start + file.size > start]
