"""Walking the commit log record by record, to find its good records and its end.

Normally a bad record ends the log, as a torn write does: what is behind it was never acknowledged
in SYNC mode. But where the log had been synced, and a good, synced record follows, the bad one is
damage in the middle of the log, and is skipped: a flipped bit or a lost page must not cost all
later messages.

A crash loses whole sectors, which then read as zeros. If they held a part of the body, the CRC does
not match; if they held lengths, these do not add up. If they held only topic or properties, the
part of these in one sector is all zeros, which no valid text is: ``MessageWriter`` refuses such
properties. This last check is made only where the log may not have been synced.

There is a second walk, ``log_view``, for readers of files that may change meanwhile: it uses
``pread`` and reads a position again before it counts as damaged. This one is recovery's. It owns
the files, so it maps them, and it decides by what was synced where the log ends; that decision has
no place in a reader. What both need of single records is in ``remoting.protocol.message.record``.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from broker.store.limits import SECTOR_BYTES, StoreLimits
from broker.store.mapped_file import MappedFile
from broker.store.results import OpeningProgress, StoreError
from remoting.protocol import core
from remoting.protocol.disk.files import Checkpoint, name_of
from remoting.protocol.errors import RecordError
from remoting.protocol.message.record import (
    BORN_HOST_V6,
    FIXED_BYTES_V4,
    MAGIC_BLANK,
    MIN_TAIL_BYTES,
    Blank,
    End,
    FoundRecord,
    Invalid,
    Scan,
    body_crc,
    examine,
    find_heads,
    locate,
)

# CRC, queue id, queue offset, physical offset, system flag, store time behind an IPv4 born host.
_FIELDS: Final = Struct(">8xIi4xqqi16xq")
_TIME: Final = Struct(">q")
_TIME_AT_V6: Final = 68
_START: Final = Struct(">II")
_SEARCHED_AT_ONCE: Final = 64 * 1024
_FOREIGN_RECORDS: Final = 2
"""A single record with a wrong physical offset may be damaged; two wrong by the same amount mean
that the file belongs elsewhere."""

_LOOK_BYTES: Final = 1 << 20
"""Bytes walked between two updates of the progress: a hundredth of a second."""

QueueKey = tuple[str, int]
"""Topic and queue id."""


class EntryRun(NamedTuple):
    """Packed, consecutive entries of a queue; ``first`` is the queue offset of the first."""

    key: QueueKey
    first: int
    entries: bytearray


class Stretch(NamedTuple):
    """Contiguous good records of the log.

    Attributes:
        physical_offset: of the first record.
        size: bytes of all records.
        records: number of records.
        last: physical offset of the last record.
        last_store_ms: its store time, ms since the epoch.
        runs: the records' queue entries; those of one queue are in the log's order.
    """

    physical_offset: int
    size: int
    records: int
    last: int
    last_store_ms: int
    runs: Sequence[EntryRun]


class LogRecord(NamedTuple):
    """A good record.

    Attributes:
        view: the whole file.
        position: where in ``view`` the record begins.
        topic_at, topic_end: begin and end of its topic in ``view``.
    """

    view: memoryview
    position: int
    topic_at: int
    topic_end: int
    physical_offset: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int


def read_record(
    view: memoryview, at: int, limit: int, *, check_crc: bool = True
) -> tuple[LogRecord, bool]:
    """Return the record at a position of ``view``, and whether its body matches its CRC.

    Without ``check_crc`` every body does. Raises ``RecordError`` if no whole record is there.
    """
    sys_flag, body_at, body_end, topic_at, topic_end, end = locate(view, at, limit)
    crc, queue_id, queue_offset, physical_offset, _, store_ms = _FIELDS.unpack_from(view, at)
    if sys_flag & BORN_HOST_V6:
        (store_ms,) = _TIME.unpack_from(view, at + _TIME_AT_V6)
    record = LogRecord(
        *(view, at, topic_at, topic_end, physical_offset, end - at),
        *(queue_id, queue_offset, sys_flag, store_ms),
    )
    return record, not check_crc or body_crc(view[body_at:body_end]) == crc


def room_for_messages(physical_offset: int) -> int:
    """Return the most messages that the log may have before a physical offset."""
    return physical_offset // FIXED_BYTES_V4


def has_possible_number(queue_offset: int, physical_offset: int) -> bool:
    """Return whether the log before a record has room for its queue's earlier messages."""
    return 0 <= queue_offset <= room_for_messages(physical_offset)


class LogWalk:
    """A walk over commit-log files, oldest first.

    Attributes:
        end: physical offset behind the last good record so far.
        last: physical offset of that record; without one, of where the walk began.
        last_store_ms: store time of that record, ms since the epoch.
        records: number of good records so far.
        damaged: number of damaged parts skipped.
    """

    def __init__(
        self,
        mapped: Sequence[MappedFile],
        *,
        limits: StoreLimits,
        check_crc: bool,
        synced_ms: int,
        synced_end: int | None = None,
        progress: OpeningProgress | None = None,
        levels_ms: Sequence[int] | None = None,
    ) -> None:
        """Create a walk; see ``run`` and ``sweep``.

        Args:
            mapped: the files, oldest first.
            limits: of the store.
            check_crc: whether to check the CRC of bodies.
            synced_ms: store time, ms since the epoch, up to which all records were synced.
            synced_end: physical offset up to which all records were synced; if given, it is used
                instead of ``synced_ms``.
            progress: is updated, and may abort the walk.
            levels_ms: delay levels; with them, ``check_crc`` and the compiled core, a long walk
                examines many records at once.
        """
        self._mapped = mapped
        self._limits = limits
        self._check_crc = check_crc
        self._synced_ms = synced_ms
        self._synced_end = synced_end
        self._progress = progress or OpeningProgress()
        self._asked: MappedFile | None = None
        self._asked_end = 0
        self._levels_ms = levels_ms if check_crc and core.KIND == "compiled" else None
        self.end = 0
        self.last = 0
        self.last_store_ms = 0
        self.records = 0
        self.damaged = 0

    def run(self, first: int = 0, position: int = 0) -> Iterator[LogRecord]:
        """Yield the good records from ``position`` of the file with index ``first`` on.

        Raises:
            OSError: a file can't be mapped.
            OpeningGivenUp: the opening was aborted.
        """
        for record in self.sweep(first, position, sys.maxsize):
            assert isinstance(record, LogRecord)
            yield record

    def sweep(
        self, first: int = 0, position: int = 0, together_from: int = 0
    ) -> Iterator[LogRecord | Stretch]:
        """Yield the same records; from physical offset ``together_from`` on, also as stretches.

        Raises:
            OSError: a file can't be mapped.
            OpeningGivenUp: the opening was aborted.
        """
        for index in range(first, len(self._mapped)):
            file = self._mapped[index]
            self.end = file.start + position
            if index == first:
                self.last = self.end
            closed = yield from self._sweep_file(file, position, together_from)
            position = 0
            if not closed:
                following = self._mapped[index + 1 : index + 2]
                if not following or not self._is_synced(following[0], 0):
                    return
                self.damaged += 1
            # A blank record closes the file: nothing behind it belongs to the log.
            self.end = file.start + file.size

    def _sweep_file(
        self, file: MappedFile, position: int, together_from: int
    ) -> Generator[LogRecord | Stretch, None, bool]:
        """Yield the records of one file; return whether a blank record closes it."""
        look_at, alone_until = position, position + self._limits.alone_bytes
        view = file.view
        while True:
            if position >= look_at:
                self._report_progress(file, position)
                look_at, view = position + _LOOK_BYTES, file.view
            if position >= alone_until and file.start + position >= together_from:
                for stretch in self._stretches(file, position):
                    position += stretch.size
                    self._note_good(stretch, stretch.last, stretch.last_store_ms)
                    self.records += stretch.records
                    yield stretch
                alone_until = position + self._limits.alone_bytes
            scan, record = self._look(file, position, view)
            if record is not None:
                position += record.size
                self._note_good(record, record.physical_offset, record.store_timestamp_ms)
                self.records += 1
                yield record
            elif isinstance(scan, Blank):
                return True
            elif size := self._damage(file, position, is_zero=not isinstance(scan, Invalid)):
                self.damaged += 1
                position += size
            else:
                return False

    def _stretches(self, file: MappedFile, position: int) -> Iterator[Stretch]:
        """Yield stretches of good records, as long as they are long enough to be worth it."""
        if self._levels_ms is None:
            return
        # Imported here because the module exists only in the compiled core.
        from remoting.protocol.core.record import walk_records  # noqa: PLC0415

        behind = self._data_end(file)
        while position < behind:
            self._report_progress(file, position)
            data = file.view[position : min(position + self._limits.stretch_bytes, behind)]
            base = file.start + position
            size, records, last, last_ms, _, runs, *_ = walk_records(
                data, base, self._levels_ms, self._synced_ms, self._synced_end
            )
            if not records:
                return
            entries = list(map(EntryRun._make, runs))
            stretch = Stretch(base, size, records, last, last_ms, entries)
            position += size
            yield stretch
            if stretch.size < self._limits.stretch_bytes // 2:
                return

    def _note_good(self, piece: LogRecord | Stretch, last: int, store_ms: int) -> None:
        self.end = piece.physical_offset + piece.size
        self.last, self.last_store_ms = last, store_ms

    def _report_progress(self, file: MappedFile, position: int) -> None:
        last = self._mapped[-1]
        self._progress.position, self._progress.end = file.start + position, last.start + last.size
        self._progress.check()

    def _look(
        self, file: MappedFile, position: int, view: memoryview
    ) -> tuple[Scan | None, LogRecord | None]:
        """Return the good record at a position of a file with the map ``view``, or what is there.

        Exactly one of the two results is None.
        """
        try:
            record, is_intact = read_record(
                view, position, self._data_end(file), check_crc=self._check_crc
            )
        except RecordError:
            return self._examine(file, position), None
        if not is_intact:
            return self._examine(file, position), None
        # The CRC covers neither offset.
        physical_offset = record.physical_offset
        if physical_offset != file.start + position or not has_possible_number(
            record.queue_offset, physical_offset
        ):
            return Invalid(f"the record at {physical_offset} does not belong here"), None
        reached_disk = self._had_reached_disk(physical_offset, record.store_timestamp_ms)
        if not reached_disk and _lost_text(record):
            return Invalid(f"the record at {physical_offset} has lost its topic or text"), None
        return None, record

    def _examine(self, file: MappedFile, position: int) -> Scan:
        """Examine a position of a file, without reading the hole behind all of its data.

        On tmpfs, reading a hole allocates memory, and raises SIGBUS when the file system is full.
        """
        behind = self._data_end(file)
        if behind - position < MIN_TAIL_BYTES:
            return End()
        view = file.view
        _, magic = _START.unpack_from(view, position)
        # A blank record extends to the end of the file, also over a hole.
        limit = None if magic == MAGIC_BLANK else behind
        return examine(view, position, check_crc=self._check_crc, limit=limit)

    def _data_end(self, file: MappedFile) -> int:
        if self._asked is not file:
            self._asked, self._asked_end = file, file.data_end()
        return self._asked_end

    def _had_reached_disk(self, physical_offset: int, store_ms: int) -> bool:
        if self._synced_end is None:
            return store_ms <= self._synced_ms
        return physical_offset < self._synced_end

    def _damage(self, file: MappedFile, position: int, *, is_zero: bool) -> int:
        """Return the length of a damaged part of the synced log; 0 if the log ends here instead."""
        if self._synced_end is None:
            if is_zero:
                # Usually the log ends here: don't search a gigabyte of zeros.
                return 0
        elif file.start + position >= self._synced_end:
            return 0
        if position + FIXED_BYTES_V4 > self._data_end(file):
            return 0
        if position == 0:
            self._refuse_foreign(file)
        size, _ = _START.unpack_from(file.view, position)
        following = position + size
        if size < FIXED_BYTES_V4 or following + FIXED_BYTES_V4 > self._data_end(file):
            return self._search(file, position)
        return int(size) if self._is_synced(file, following) else self._search(file, position)

    def _search(self, file: MappedFile, position: int) -> int:
        """Return the distance from ``position`` to the next synced record; 0 for none."""
        limit = self._data_end(file)
        if self._synced_end is not None:
            limit = min(limit, self._synced_end - file.start)

        def read(physical: int, length: int) -> memoryview:
            at = physical - file.start
            self._report_progress(file, at)
            return file.view[at : at + length]

        begin, end = file.start + position + 1, file.start + limit
        for head in find_heads(read, begin, end, end=end, step=_SEARCHED_AT_ONCE):
            if self._is_synced(file, head - file.start):
                return head - file.start - position
        return 0

    def _is_synced(self, file: MappedFile, position: int) -> bool:
        _, record = self._look(file, position, file.view)
        return record is not None and self._had_reached_disk(
            record.physical_offset, record.store_timestamp_ms
        )

    def _refuse_foreign(self, file: MappedFile) -> None:
        """Raise ``StoreError`` if the file's records have the offsets of another file."""
        positions = [0]
        places: list[int] = []
        while len(places) < _FOREIGN_RECORDS:
            scan = self._examine(file, positions[-1])
            if not isinstance(scan, FoundRecord):
                return
            _, _, _, physical_offset, _, _ = _FIELDS.unpack_from(file.view, positions[-1])
            places.append(physical_offset - positions[-1])
            positions.append(positions[-1] + scan.size)
        if places[0] != file.start and len(set(places)) == 1:
            raise StoreError(
                f"the commit-log file {file.path} holds the records of"
                f" {name_of(max(0, places[0]))}: it was swapped or copied; put the right file back,"
                " or move this one and all later ones away to go on without them"
            )


def _lost_text(record: LogRecord) -> bool:
    """Return whether the topic or properties of a record have lost the part in some sector."""
    view, at, end = record.view, record.topic_at, record.position + record.size
    if b"\0" not in bytes(view[record.topic_end + 2 : end]) + bytes(view[at : record.topic_end]):
        return False
    while at < end:
        behind = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if not any(view[at:behind]):
            return True
        at = behind
    return False


def begins_by(mapped: Sequence[MappedFile], checkpoint: Checkpoint, limits: StoreLimits) -> int:
    """Return the index of the last file whose first record is not newer than a checkpoint.

    It is 0 when there is none (cf. CommitLog.isMappedFileMatchedRecover).
    """
    safe_ms = checkpoint.recover_from_ms
    walk = LogWalk(mapped, limits=limits, check_crc=False, synced_ms=safe_ms)
    for index in range(len(mapped) - 1, 0, -1):
        first = next(walk.run(index), None)
        if first is not None and first.position == 0 and 0 < first.store_timestamp_ms <= safe_ms:
            return index
    return 0
