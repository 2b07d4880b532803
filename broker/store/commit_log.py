"""The commit log: every message of every topic, in the order of arrival.

One virtual array of bytes, cut into files of one length that are named after their first byte's
offset. One thread, the loop's, appends: ``reserve`` finds the place (rolling to the next file
behind a blank record when the space is not enough, extending the watermark when it is reached),
the caller builds its records for that place, and ``store`` puts all of them there at once. Between
the two nothing else may append; a reservation that is not used costs nothing.

Small stores go through the map, into pages that the preallocator has written. Large ones are
written with ``pwrite``, into pages that have only blocks: that saves the zeros, the page faults and
the cost of writing mapped pages back. In SYNC mode all stores are written.

The next file is made ahead by the preallocator. It stays out of ``files`` until the appender takes
it, and it is removed at a clean stop, as RocketMQ does.
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

NEVER: Final = math.inf
_NOWHERE: Final = memoryview(b"")


class CommitLog:
    """The log's files and where it ends.

    Attributes:
        end: physical offset behind the last record.
        opened_end: where it ended when the store was opened.
        opened_tail: of the last record when the store was opened.
        appended: bytes stored since the store was opened.
        takes_large: whether what was stored last was written, not stored through the map.
        room_end: physical offset up to which records may be stored instead of what was reserved.
        wanted: set when the preallocator should look: see ``want_from``.
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
        """An empty log.

        Args:
            files: the disk.
            maps: bounds what is mapped.
            directory: of the files.
            file_size: of each, in bytes.
            limits: of the store.
            writes_all: whether small stores are written, too. A write makes its page dirty; a store
                through the map all pages of its folio, which newer systems make large, and a sync
                brings them to the disk.
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
        # Of the file appended to, as it was found whole when the place was reserved.
        self._view = _NOWHERE
        self.wanted = threading.Event()
        self._wanted_from: float = NEVER

    # --- opening and closing

    def load(self, mapped: list[MappedFile], end: int, tail: int) -> None:
        """Take over what recovery found; the file that holds ``end`` is the one to append to.

        ``tail`` is where a record begins, the last one if there is any.

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
        """The log begins at ``position`` now, or before it: the files to be removed, oldest first.

        Only whole files go, and never the one that is appended to.
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
        """Let go of all maps and forget the file made ahead; it stays on the disk."""
        with self._roll_lock:
            for file in (*self._all, self._next):
                if file is not None:
                    file.unmap()
            self._active = self._next = None
            self._view = _NOWHERE

    def remove_prepared(self) -> None:
        """Remove the file made ahead, as a clean stop does. Raises ``OSError``."""
        with self._roll_lock:
            prepared, self._next = self._next, None
            if prepared is not None:
                prepared.remove()

    # --- appending: the loop's thread only

    @property
    def longest_record(self) -> int:
        """Bytes of records that fit into one file."""
        return self.file_size - MIN_TAIL_BYTES

    def reserve(self, size: int) -> int:
        """The physical offset where ``size`` bytes of records may be stored next, in one file.

        ``room_end`` says how many more.

        Args:
            size: at most ``longest_record``.

        Raises:
            OSError: no place could be made; nothing has changed but, perhaps, a file rolled.
        """
        active = self._active
        if active is None:
            active = self._roll(None)
        used = self.end - active.start
        # A blank record needs its 8 bytes behind whatever is the last record of a file.
        if used + size + MIN_TAIL_BYTES > active.size:
            active = self._roll(active)
            used = 0
        if used + size > active.watermark:
            active.extend(used + size, self._step_bytes, zeros=not self.takes_large)
        self._view = active.view
        self.room_end = active.start + min(active.size - MIN_TAIL_BYTES, active.watermark)
        return active.start + used

    def store(self, position: int, data: bytes | memoryview) -> None:
        """Store records at the reserved ``position``; from here on they are part of the log."""
        active = self._active
        assert active is not None
        assert position == self.end
        start = position - active.start
        stop = start + len(data)
        # A store above the watermark may be SIGBUS, and would be zeroed later.
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

    def _roll(self, active: MappedFile | None) -> MappedFile:
        """Go on in the next file, closing the active one with a blank record."""
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
        """Set ``wanted`` when the log has come to ``end``."""
        self._wanted_from = end

    def ahead(self) -> tuple[MappedFile | None, MappedFile | None]:
        """The file appended to and the one made ahead."""
        with self._roll_lock:
            return self._active, self._next

    def prepare_next(self) -> MappedFile:
        """Make the next file unless there is one. Raises ``OSError``."""
        with self._roll_lock:
            if self._next is None:
                self._next = self._create_following()
            return self._next

    # --- reading

    @property
    def recent_from(self) -> int:
        """Physical offset of the records that were appended not long ago: they are in memory."""
        return max(self.opened_end, self.end - self._hot_bytes)

    @property
    def start(self) -> int:
        """Physical offset of the first byte that is still there."""
        return self._all[0].start if self._all else self.end

    @property
    def files(self) -> list[MappedFile]:
        """The files that hold records, oldest first; a copy."""
        return self._all.copy()

    def file_at(self, position: int) -> MappedFile | None:
        """The file that holds a physical offset."""
        if not self._all or position < self._all[0].start:
            return None
        index = (position - self._all[0].start) // self.file_size
        return self._all[index] if index < len(self._all) else None

    def slice(self, position: int, size: int) -> memoryview | None:
        """``size`` bytes of the log; None when they are not, or no longer, in one file of it."""
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
        """The files that hold bytes of ``[start, end)``, oldest first."""
        return [file for file in self.files if file.start < end and file.start + file.size > start]
