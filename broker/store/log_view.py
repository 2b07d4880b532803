"""Reading the commit log without a broker: of a running or stopped broker, intact or damaged.

A walk follows the size in each record's header to the next record (``chain``). It does not check
the lengths within a record, nor CRCs; callers that decode records do. Where there is no valid
header, the bytes up to the next good record (lengths and CRC checked) are reported as ``Damage``:
nothing is skipped silently. If a record's size leads to such a position, and its lengths don't add
up to its size, the record is damage too, and the records behind it are found by searching. A blank
record ends a file; the bytes behind it are not part of the log.

``find_end`` returns the end that recovery would find, with one exception: of the records that fail
their CRC, only those at the very end count as torn. Behind a truncated tail there may be old
records at the right physical offsets that are not part of the log any more. So in the last file a
gap is passed only if a queue points to a record behind it, or if the record behind it is not older
than the one before it and was synced according to the checkpoint (cf. ``log_walk``).

A broker may append meanwhile. It writes in order, but a large read is not atomic, so a position is
read again before it counts as damaged. Recovery owns the files and has a walk of its own, see
``log_walk``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from broker.store.raw_files import FileRow, ViewFile
from broker.store.results import StoreError
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
"""Returns whether a good record may follow a gap."""


class Damage(NamedTuple):
    """Physical offsets ``[begin, end)`` of bytes that contain no good record."""

    begin: int
    end: int
    reason: str


class LogChunk(NamedTuple):
    """Consecutive records.

    ``position`` is the physical offset of ``data``; ``starts`` are positions of records in
    ``data``. The last record ends at the end of ``data``.
    """

    position: int
    data: memoryview
    starts: list[int]


class LogEnd(NamedTuple):
    """The end of the log.

    ``position`` is its physical offset; ``torn`` is what is wrong with the bytes behind it, None
    when they are zeros.
    """

    position: int
    torn: str | None


class LogView:
    """Reads the commit log.

    Args:
        row: its files.
        synced_ms: store time, ms since the epoch, up to which all records were synced according to
            the checkpoint.
    """

    def __init__(self, row: FileRow, *, synced_ms: int) -> None:
        self._row = row
        self._limits = row.limits
        self._synced_ms = synced_ms

    @property
    def files(self) -> list[ViewFile]:
        """The files as last listed, oldest first."""
        return self._row.files

    @property
    def start(self) -> int:
        """Physical offset of the log's first byte."""
        return self._row.start

    def file_name(self, position: int) -> str:
        """Return the path of the file that holds a physical offset. Raises ``StoreError``."""
        return self._row.file_of(position).path

    def read_into(self, position: int, target: memoryview) -> None:
        """Fill ``target`` with bytes of one file, from a physical offset on.

        Raises:
            StoreChanged: retention has deleted them, or the file was shortened.
            StoreError: the log does not have them.
        """
        self._row.read_into(position, target)

    def record_at(self, position: int) -> RecordView | None:
        """Return the record that begins at a physical offset; None when no good one does.

        Raises:
            StoreError: no file holds the offset, or it can't be read.
        """
        file = self._row.file_of(position)
        record, scan = self._look(file, position, check_crc=True)
        return RecordView(record) if isinstance(scan, FoundRecord) else None

    def stored_ms(self, position: int) -> int | None:
        """Return the store time of the record at a physical offset, ms since the epoch.

        It is None when there is no good record or it can't be read.
        """
        try:
            record = self.record_at(position)
        except StoreError:
            return None
        return None if record is None else record.store_timestamp_ms

    def look(self, position: int) -> tuple[memoryview, Scan]:
        """Return the bytes of the record at a physical offset, and what is there.

        The CRC is not checked. Without a record header the bytes are empty. Raises ``StoreError``.
        """
        return self._look(self._row.file_of(position), position, check_crc=False)

    def next_sound(self, position: int, stop: int) -> int | None:
        """Return the physical offset of the first good record of a file in ``[position, stop)``.

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
        """Yield the records and the damage that begin in ``[begin, end)``, in order.

        Args:
            begin: physical offset where a record or a file begins; see ``first_start``.
            end: physical offset where a record or a file begins, at most the log's end.
            chunk_bytes: maximum size of a chunk, unless a single record is larger;
                ``limits.chunk_bytes`` when absent.

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
                reason = f"nothing has been written at {position}"
                if isinstance(scan, Invalid):
                    reason = scan.reason
                yield Damage(position, following, reason)
                position = following

    def first_start(self, position: int, end: int) -> int:
        """Return the start of the first record, gap or file at or behind ``position``.

        The search begins far enough before ``position`` to find a record that reaches beyond it:
        its body may contain copies of records, which must not be taken for records of the log.

        Args:
            position: any physical offset.
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
        """Return the end of the gap, the record, or the records before ``position`` at ``at``."""
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
        """Return the end of the log; all records before it have been appended completely.

        Args:
            hint: physical offset of the last record that a queue points to.

        Raises:
            StoreError: a file can't be read.
        """
        files = self.files
        while files and self._row.used_end(files[-1]) == files[-1].start:
            # Created ahead, or emptied by recovery: no record in it.
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
        """Return where a record behind a gap of the last file continues the log; None for none."""
        if not self._synced_ms:
            return None
        oldest = 0
        if last is not None and (record := self.record_at(last)) is not None:
            oldest = record.store_timestamp_ms

        def accept(found: memoryview) -> bool:
            return oldest <= RecordView(found).store_timestamp_ms <= self._synced_ms

        return self._next_sound(file, position + 1, self._row.used_end(file), accept)

    # --- single positions

    def _chain(
        self, file: ViewFile, position: int, length: int, stop: int
    ) -> tuple[memoryview, list[int], int]:
        """Read bytes and ``chain`` their records, leaving out a last one with a wrong size."""
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
        """Read a position again; return the bytes of the record, if any, and what was found."""
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
            return _NOTHING, Invalid(f"no record begins at {position}: the magic is {magic:#010x}")
        if not FIXED_BYTES_V4 <= size <= min(remaining, self._limits.longest_bytes):
            reason = f"the record at {position} has size {size}, {remaining} are left in its file"
            return _NOTHING, Invalid(reason)
        physical = _HEAD.unpack_from(head)[2]
        if physical != position:
            reason = f"the record at {position} has physical offset {physical}"
            return _NOTHING, Invalid(reason)
        record = self._row.read(position, size)
        return record, _validator(record, position, check_crc=check_crc)

    def _is_sound(self, file: ViewFile, position: int) -> bool:
        return isinstance(self._look(file, position, check_crc=True)[1], FoundRecord)

    def _next_sound(
        self, file: ViewFile, position: int, stop: int, accept: Accept | None = None
    ) -> int | None:
        """Return where the first good, accepted record of a file begins in ``[position, stop)``."""
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
    reason = f"the lengths in the record at {position} don't add up to its {len(record)} bytes"
    return Invalid(reason)
