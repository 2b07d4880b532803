"""Walk the commit log read-only: running or stopped, whole or damaged.

A walk goes from head to head: a record's size leads to the next one (``chain``). Lengths within a
record and CRCs are left to the decoder. Where there is no head, the bytes up to the next sound
record (lengths and CRC included) are reported as ``Damage``: nothing is skipped silently. A record
whose size leads to such a place, although its lengths don't add up to it, is damage too, and the
records that it would have hidden are found. A blank record ends a file; the bytes behind it are not
part of the log.

``find_end`` gives the end that recovery would choose, with one exception: of records that fail
their CRC only those at the very end count as torn. Old records may lie behind a truncated tail, at
the offsets that they claim, and yet are not part of the log. So in the last file a gap is passed
only to a record that a queue points at, or to one that is not older than the one before the gap and
was synced according to the checkpoint (cf. ``log_walk``).

A broker may append meanwhile. It writes in order, but a large read is not atomic: a place is read
again before it counts as damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from broker.store.results import StoreError
from broker.storetools.view_files import FileRow, ViewFile
from remoting.protocol.message.record import (
    FIXED_BYTES_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_TAIL_BYTES,
    Blank,
    End,
    FoundRecord,
    Invalid,
    Scan,
    chain,
    examine,
    find_heads,
)
from remoting.protocol.message.view import RecordView

# Size, magic and physical offset.
_HEAD: Final = Struct(">II20xq")
_START: Final = Struct(">II")
_NOTHING: Final = memoryview(b"")

Accept = Callable[[memoryview], bool]
"""Whether a sound record may follow a gap."""


class Damage(NamedTuple):
    """Bytes ``[begin, end)`` of the log that contain no sound record."""

    begin: int
    end: int
    reason: str


class LogChunk(NamedTuple):
    """Consecutive records.

    ``starts`` are positions in ``data``, whose first byte lies at ``position`` of the log; the last
    record ends where ``data`` ends.
    """

    position: int
    data: memoryview
    starts: list[int]


class LogEnd(NamedTuple):
    """The end of the log, and what is wrong with the bytes behind it; None when they are zeros."""

    position: int
    torn: str | None


class LogView:
    """The commit log's files.

    Args:
        row: the files.
        synced_ms: store time up to which, by the checkpoint, all records had reached the disk.
    """

    def __init__(self, row: FileRow, *, synced_ms: int) -> None:
        self._row = row
        self._limits = row.limits
        self._synced_ms = synced_ms

    @property
    def files(self) -> list[ViewFile]:
        """The files, oldest first, as listed last."""
        return self._row.files

    @property
    def start(self) -> int:
        """Physical offset of the first byte."""
        return self._row.start

    def file_name(self, position: int) -> str:
        """Path of the file that holds a physical offset. Raises ``StoreError``."""
        return self._row.file_of(position).path

    def read_into(self, position: int, target: memoryview) -> None:
        """Fill ``target`` with bytes of one file.

        Raises:
            StoreChanged: retention took them, or the file was shortened.
            StoreError: they are not there.
        """
        self._row.read_into(position, target)

    def record_at(self, position: int) -> RecordView | None:
        """The record that begins at a physical offset; None when no sound one does.

        Raises:
            StoreError: no file holds the offset, or it can't be read.
        """
        file = self._row.file_of(position)
        record, scan = self._look(file, position, check_crc=True)
        return RecordView(record) if isinstance(scan, FoundRecord) else None

    def stored_ms(self, position: int) -> int | None:
        """When the record at a physical offset was stored; None when no sound one can be read."""
        try:
            record = self.record_at(position)
        except StoreError:
            return None
        return None if record is None else record.store_timestamp_ms

    def look(self, position: int) -> tuple[memoryview, Scan]:
        """The bytes of the record at a physical offset, its CRC unchecked, and what is there.

        Without a record the bytes are empty. Raises ``StoreError``.
        """
        return self._look(self._row.file_of(position), position, check_crc=False)

    def next_sound(self, position: int, stop: int) -> int | None:
        """Where the first sound record of a file begins in ``[position, stop)``.

        Raises:
            StoreError: no file holds ``position``, or it can't be read.
        """
        if position >= stop:
            return None
        return self._next_sound(self._row.file_of(position), position, stop)

    # --- walking

    def walk(
        self, begin: int, end: int, *, chunk_bytes: int | None = None
    ) -> Iterator[LogChunk | Damage]:
        """The records and the damage that begin in ``[begin, end)``, in order.

        Args:
            begin: where a record or a file begins; see ``first_start``.
            end: at most the log's end; a record or a file begins there.
            chunk_bytes: of one chunk at most, unless a single record is larger; the limits' when
                absent.

        Raises:
            StoreError: a file can't be read.
        """
        chunk_bytes = chunk_bytes or self._limits.chunk_bytes
        position = begin
        while position < end:
            index = self._row.index_of(position)
            file = self.files[index]
            yield from self._walk_file(file, position, end, chunk_bytes)
            position = file.end
            following = self.files[index + 1].start if index + 1 < len(self.files) else position
            if position < min(following, end):
                missing = f"the files of [{position}, {following}) are missing or too short"
                yield Damage(position, min(following, end), missing)
                position = following

    def _walk_file(
        self, file: ViewFile, position: int, end: int, chunk_bytes: int
    ) -> Iterator[LogChunk | Damage]:
        stop = min(end, file.end)
        while position < stop:
            data, starts, used = self._chain(
                file, position, min(chunk_bytes, stop - position), stop
            )
            if starts:
                yield LogChunk(position, data[:used], starts)
                position += used
                continue
            record, scan = self._look(file, position, check_crc=False)
            if isinstance(scan, FoundRecord):
                yield LogChunk(position, record, [0])
                position += len(record)
            elif isinstance(scan, Blank):
                return
            else:
                following = self._next_sound(file, position + 1, stop) or stop
                yield Damage(position, following, _why(scan, position))
                position = following

    def first_start(self, position: int, end: int) -> int:
        """The start of the first record, gap or file at or behind ``position``.

        The search begins far enough before it to find a record that reaches beyond ``position``:
        its body may contain copies of records, which must not be taken for records of the log.

        Args:
            position: any.
            end: the log's end, which is returned when nothing begins before it.

        Raises:
            StoreError: a file can't be read.
        """
        if position <= self.start or position >= end:
            return max(min(position, end), self.start)
        file = self._row.file_of(position)
        if position == file.start:
            return position
        stop = min(file.end, end)
        before = position - self._limits.overlap_bytes
        at = file.start if before <= file.start else self._next_sound(file, before, stop)
        while at is not None and at < position:
            at = self._behind(file, at, position, stop)
        return stop if at is None else at

    def _behind(self, file: ViewFile, at: int, position: int, stop: int) -> int | None:
        """The end of what begins at ``at``: a gap, a record, or all records before ``position``."""
        length = min(self._limits.chunk_bytes, file.end - at)
        _, starts, used = self._chain(file, at, length, position)
        if starts:
            return at + used
        record, scan = self._look(file, at, check_crc=False)
        if isinstance(scan, FoundRecord):
            return at + len(record)
        return None if isinstance(scan, Blank) else self._next_sound(file, at + 1, stop)

    # --- the end

    def find_end(self, hint: int = 0) -> LogEnd:
        """The end of the log; all records before it have been appended completely.

        Args:
            hint: physical offset of the last record that a queue points at.

        Raises:
            StoreError: a file can't be read.
        """
        files = self.files
        while files and self._row.used_end(files[-1]) == files[-1].start:
            # Made ahead, or emptied: nothing in it.
            files = files[:-1]
        if not files:
            return LogEnd(self.start, None)
        file = files[-1]
        inside = file.start < hint < file.end and self._is_sound(file, hint)
        return self._end_in(file, hint if inside else file.start)

    def _end_in(self, file: ViewFile, position: int) -> LogEnd:
        last: list[int] = []
        while True:
            length = min(self._limits.chunk_bytes, file.end - position)
            data = self._row.read(position, length)
            starts, used = chain(data, position, file.end)
            record, scan = self._look(file, position, check_crc=False)
            if starts or isinstance(scan, FoundRecord):
                last = [position + start for start in starts] or [position]
                position += used or len(record)
                continue
            if isinstance(scan, Blank):
                return LogEnd(file.end, None)
            while last and not self._is_sound(file, last[-1]):
                # Torn records at the end are not part of the log.
                position = last.pop()
            following = self._synced_behind(file, position, last[-1] if last else None)
            if following is None:
                _, scan = self._look(file, position, check_crc=True)
                return LogEnd(position, scan.reason if isinstance(scan, Invalid) else None)
            position = following

    def _synced_behind(self, file: ViewFile, position: int, last: int | None) -> int | None:
        """The first record behind a gap of the last file that belongs to the log; None for none."""
        if not self._synced_ms:
            return None
        oldest = 0
        if last is not None and (record := self.record_at(last)) is not None:
            oldest = record.store_timestamp_ms

        def accept(found: memoryview) -> bool:
            return oldest <= RecordView(found).store_timestamp_ms <= self._synced_ms

        return self._next_sound(file, position + 1, self._row.used_end(file), accept)

    # --- single places

    def _chain(
        self, file: ViewFile, position: int, length: int, stop: int
    ) -> tuple[memoryview, list[int], int]:
        """Read bytes, and ``chain`` them, without a last record whose size is wrong."""
        data = self._row.read(position, length)
        starts, used = chain(data, position, stop)
        if (
            starts
            and position + used < file.end
            and isinstance(self._look(file, position + used, check_crc=False)[1], Invalid | End)
            and isinstance(self._look(file, position + starts[-1], check_crc=False)[1], Invalid)
        ):
            used = starts.pop()
        return data, starts, used

    def _look(self, file: ViewFile, position: int, *, check_crc: bool) -> tuple[memoryview, Scan]:
        """Read a place again: the bytes of the record, if there is one, and what was found."""
        remaining = file.end - position
        if remaining < MIN_TAIL_BYTES:
            return _NOTHING, Blank(remaining)
        head = self._row.read(position, min(remaining, FIXED_BYTES_V4))
        size, magic = _START.unpack_from(head)
        if size == 0:
            return _NOTHING, End()
        if magic == MAGIC_BLANK and MIN_TAIL_BYTES <= size <= remaining:
            return _NOTHING, Blank(size)
        if magic not in {MAGIC_V1, MAGIC_V2}:
            return _NOTHING, Invalid(f"no record begins at {position}: its magic is {magic:#010x}")
        if not FIXED_BYTES_V4 <= size <= min(remaining, self._limits.longest_bytes):
            reason = f"the record at {position} says {size} bytes, {remaining} are left in its file"
            return _NOTHING, Invalid(reason)
        physical = _HEAD.unpack_from(head)[2]
        if physical != position:
            reason = f"the record at {position} says that it lies at {physical}"
            return _NOTHING, Invalid(reason)
        record = self._row.read(position, size)
        return record, _validator(record, position, check_crc=check_crc)

    def _is_sound(self, file: ViewFile, position: int) -> bool:
        return isinstance(self._look(file, position, check_crc=True)[1], FoundRecord)

    def _next_sound(
        self, file: ViewFile, position: int, stop: int, accept: Accept | None = None
    ) -> int | None:
        """The first sound record that begins in ``[position, stop)`` of a file."""
        step = self._limits.search_bytes
        for head in find_heads(self._row.read, position, stop, end=file.end, step=step):
            record, scan = self._look(file, head, check_crc=True)
            if isinstance(scan, FoundRecord) and (accept is None or accept(record)):
                return head
        return None


def _validator(record: memoryview, position: int, *, check_crc: bool) -> Scan:
    if isinstance(examine(record, 0, check_crc=check_crc), FoundRecord):
        return FoundRecord(len(record))
    if check_crc and isinstance(examine(record, 0, check_crc=False), FoundRecord):
        return Invalid(f"the body of the record at {position} fails its CRC")
    reason = f"the lengths in the record at {position} don't make up its {len(record)} bytes"
    return Invalid(reason)


def _why(scan: Scan, position: int) -> str:
    return scan.reason if isinstance(scan, Invalid) else f"nothing has been written at {position}"
