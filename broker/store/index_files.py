"""The index files: ``IndexFile``, one file; ``IndexFileSet``, those of a store (cf. IndexService).

A file has its full length from the start, and blocks only where something was written. Entries and
header are written with ``write``. Slots, which are scattered, are stored through the map, into
pages that ``write`` has allocated: on a full disk, a store into a page without blocks is SIGBUS
instead of an error, and on a full tmpfs a read of it, too. Bytes are fetched before they are read
through the map, so that no thread holds the GIL while it waits for the disk.

Files are named after the local time of their creation, and later files have greater names. Only the
last one takes entries. When it is full it is synced, and the next one starts with its end offset
and end time. A file is removed if its header is invalid, if it has messages that the log does not
have, or if the broker crashed before the file was full: it can be written again from the log. Files
of another length are neither used nor removed.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from broker.store.index_keys import KeyBatch
from broker.store.limits import PAGE_BYTES
from broker.store.os_files import Files, Region
from remoting.protocol.disk.index_file import (
    ENTRY,
    HEADER,
    SLOT,
    IndexHeader,
    IndexTable,
    file_bytes,
    index_key,
    key_hash,
)
from remoting.runtime.clock import Clock


class Shape(NamedTuple):
    """The size of index files: ``maxHashSlotNum`` and ``maxIndexNum``."""

    slots: int
    entries: int

    @property
    def bytes(self) -> int:
        """Length of a file in bytes."""
        return file_bytes(self.slots, self.entries)


class IndexFile:
    """One index file, to add entries to or to search.

    Attributes:
        path: of the file.
        header: as last read or written.
    """

    def __init__(self, files: Files, path: Path, shape: Shape, *, create: bool = False) -> None:
        """Map the file. Raises ``OSError``, also when it has another length."""
        self.path = path
        self._entries = shape.entries
        self._region: Region = files.open_mapped(path, shape.bytes, create=create)
        view, slots, entries = self._region.view, shape.slots, shape.entries
        self._table = IndexTable(view, slots=slots, entries=entries)
        self._searched = IndexTable(view, slots=slots, entries=entries, touch=self._region.fetch)
        self.header = IndexHeader(0, 0, 0, 0, 0, 1)
        if not self._is_hole(0):
            self._region.fetch(0, HEADER.size)
            self.header = self._table.header
        # For each page that has slots, 2 if it has no blocks yet, 1 if it lacks some.
        self._bare: bytearray | None = None

    def _is_hole(self, position: int) -> bool:
        return next(self._region.extents(position), (position + 1, 0))[0] > position

    @property
    def room(self) -> int:
        """Number of entries that can still be added."""
        return max(self._entries - self.header.next_entry, 0)

    def is_sane(self, log_end: int) -> bool:
        """Return whether the header is possible for a log that ends at ``log_end``."""
        header = self.header
        if header.next_entry == 1:
            return header.used_slots == 0
        return (
            header.next_entry <= self._entries
            and 0 <= header.used_slots < header.next_entry
            and 0 <= header.begin_offset <= header.end_offset < log_end
        )

    def date_from(self, before: IndexHeader) -> None:
        """Give an empty file the end time and offset of the file before it. Raises ``OSError``."""
        self._write_header(
            self.header._replace(
                begin_ms=before.end_ms,
                end_ms=before.end_ms,
                begin_offset=before.end_offset,
                end_offset=before.end_offset,
            )
        )

    def add(self, batch: KeyBatch, start: int) -> int:
        """Add as many entries of a batch, from ``start`` on, as fit; return their number.

        Raises:
            OSError: the disk refuses; the header, and so the content, is unchanged.
        """
        count = min(len(batch) - start, self.room)
        if not count:
            return 0
        bare = self._touch_slots()
        is_sparse = bare.count(0) < len(bare)
        hashes = batch.hashes[start : start + count] if is_sparse else ()
        # The first page has the header.
        for page in {0, *(self._slot_at(hashed) // PAGE_BYTES for hashed in hashes)}:
            if bare[page]:
                begin = page * PAGE_BYTES
                behind = min(begin + PAGE_BYTES, self._table.entries_at)
                content = b"" if bare[page] == 2 else bytes(self._region.view[begin:behind])
                self._region.write(begin, content.ljust(behind - begin, b"\0"))
                bare[page] = 0
        links = batch.link(self._table, start, start + count)
        at = self._table.entries_at + self.header.next_entry * ENTRY.size
        self._region.write(at, links.entries)
        links.set_slots()
        self._write_header(links.header)
        return count

    def _slot_at(self, hashed: int) -> int:
        return HEADER.size + hashed % self._table.slots * SLOT.size

    def _touch_slots(self) -> bytearray:
        """Read the slots into memory and find the pages without blocks, once per file."""
        if self._bare is not None:
            return self._bare
        end = self._table.entries_at
        bare = bytearray(b"\2" * -(-end // PAGE_BYTES))
        for start, stop in self._region.extents(0):
            if start < end:
                behind = min(stop, end)
                self._region.fetch(start, behind - start)
                for page in range(start // PAGE_BYTES, -(-behind // PAGE_BYTES)):
                    whole = start <= page * PAGE_BYTES and (page + 1) * PAGE_BYTES <= behind
                    bare[page] = not whole
        self._bare = bare
        return bare

    def _write_header(self, header: IndexHeader) -> None:
        self._region.write(0, HEADER.pack(*header))
        self.header = header

    def select(self, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """See ``IndexTable.select``. Raises ``OSError``."""
        if self._is_hole(self._slot_at(key_hash(key))):
            return []
        return self._searched.select(key, max_count, begin_ms, end_ms)

    def sync(self) -> None:
        """Sync the file. Raises ``OSError``."""
        self._region.sync()


_log = structlog.get_logger("store")

_NAME: Final = re.compile(r"\d{17}")


def name_at(now_ms: int) -> str:
    """Return the name of a file created now: ``yyyyMMddHHmmssSSS``, local time."""
    now = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006 - local, as RocketMQ's are
    return f"{now:%Y%m%d%H%M%S}{now_ms % 1000:03}"


class IndexFileSet:
    """The index files of a store, oldest first. Callers hold the index's lock.

    Attributes:
        full_ms: end time of the last full file, which is synced, ms since the epoch; 0 for none.
    """

    def __init__(self, files: Files, directory: Path, shape: Shape, clock: Clock) -> None:
        self._disk = files
        self._directory = directory
        self._shape = shape
        self._clock = clock
        self._files: list[IndexFile] = []
        self.full_ms = 0

    @property
    def last(self) -> IndexFile | None:
        """The file that takes entries; None when there is none."""
        return self._files[-1] if self._files else None

    def is_whole(self) -> bool:
        """Return whether each file still exists in its full length. Raises ``OSError``.

        Reading the map of a shortened file would kill the process with SIGBUS.
        """
        return all(self._disk.size(file.path) == self._shape.bytes for file in self._files)

    def load(self, log_end: int, *, safe_ms: int | None) -> None:
        """Load the files.

        Args:
            log_end: physical offset behind the last record.
            safe_ms: after a crash, the index time in RocketMQ's checkpoint: files that end later,
                or are not full, are removed. Otherwise None.

        Raises:
            OSError: a file can't be read or removed.
        """
        self._files = []
        for name in self._disk.list(self._directory):
            if not _NAME.fullmatch(name):
                continue
            path = self._directory / name
            if (size := self._disk.size(path)) != self._shape.bytes:
                _log.warning(
                    "an index file is not used: it was made with another maxHashSlotNum or"
                    " maxIndexNum, or is damaged; its messages are indexed again",
                    file=str(path),
                    bytes=size,
                    expected_bytes=self._shape.bytes,
                )
                continue
            file = IndexFile(self._disk, path, self._shape)
            safe = safe_ms is None or (not file.room and file.header.end_ms <= safe_ms)
            if not safe or not file.is_sane(log_end):
                self._disk.remove(path)
            else:
                self._files.append(file)
        full = [file.header.end_ms for file in self._files if not file.room]
        self.full_ms = max(full, default=0)

    def add(self, batch: KeyBatch) -> None:
        """Add entries. Raises ``OSError``, after which some of them may have been added."""
        start = 0
        while start < len(batch):
            start += self._writable().add(batch, start)

    def _writable(self) -> IndexFile:
        last = self.last
        if last is not None and last.room:
            return last
        if last is not None:
            last.sync()
            self.full_ms = last.header.end_ms
        file = self._create()
        if last is not None:
            file.date_from(last.header)
        self._files.append(file)
        return file

    def _create(self) -> IndexFile:
        self._disk.make_directory(self._directory, durable=True)
        now_ms = self._clock.now_ms()
        taken = {*self._disk.list(self._directory)}
        newest = max((name for name in taken if _NAME.fullmatch(name)), default="")
        name = name_at(now_ms)
        if name <= newest:
            # The clock or local time was set back: count on from the greatest name, so that names
            # stay in order.
            name = f"{int(newest) + 1:017}"
        file = IndexFile(self._disk, self._directory / name, self._shape, create=True)
        self._disk.sync_directory(self._directory)
        return file

    def find(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return the physical offsets of messages that may have a key, newest file first.

        Raises:
            OSError: a file can't be read.
        """
        hashed = index_key(topic, key)
        offsets: dict[int, None] = {}
        for file in reversed(self._files):
            header = file.header
            if header.begin_ms <= end_ms and begin_ms <= header.end_ms:
                count = max_count - len(offsets)
                offsets.update(dict.fromkeys(file.select(hashed, count, begin_ms, end_ms)))
            if header.begin_ms < begin_ms or len(offsets) >= max_count:
                break
        return list(offsets)

    def sync(self) -> None:
        """Sync the last file; the others are synced already. Raises ``OSError``."""
        if self._files:
            self._files[-1].sync()

    def drop_before(self, physical_offset: int) -> int:
        """Remove the files that have only messages before an offset; return their number.

        The last file stays.

        Raises:
            OSError: a file can't be removed.
        """
        dropped = 0
        while len(self._files) > 1 and self._files[0].header.end_offset < physical_offset:
            self._disk.remove(self._files[0].path)
            del self._files[0]
            dropped += 1
        if dropped:
            self._disk.sync_directory(self._directory)
        return dropped
