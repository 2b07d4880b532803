"""Walking the commit log from record to record; what is good in it, and where it ends.

It decides by the bytes alone. A bad record ends the log, as a torn write does; what stands behind
it was never acknowledged in SYNC mode. Only one that the checkpoint says had reached the disk, and
that a good record follows which had reached it too, is damage in the middle and stepped over: one
flipped bit must not cost all that came later.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from broker.store.mapped_file import MappedFile
from remoting.protocol.message.record import FIXED_BYTES_V4, Blank, Found, Invalid, examine
from remoting.protocol.message.sys_flag import BORN_HOST_V6

# Queue id, queue offset, physical offset, system flag, store time; the last for IPv4 born hosts.
_FIELDS: Final = Struct(">12xi4xqqi16xq")
_TIME: Final = Struct(">q")
_TIME_AT_V6: Final = 68
_SIZE: Final = Struct(">I")


class LogRecord(NamedTuple):
    """A good record; its bytes begin at ``position`` of ``view``, a whole file."""

    view: memoryview
    position: int
    physical_offset: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int


class LogWalk:
    """A walk over commit-log files, oldest first.

    Attributes:
        end: physical offset behind the last good record so far.
        last: physical offset of that record; of where the walk began when there is none.
        last_store_ms: store time of that record.
        records: good records so far.
        damaged: places stepped over.
    """

    def __init__(self, mapped: Sequence[MappedFile], *, check_crc: bool, synced_ms: int) -> None:
        """``synced_ms``: store time up to which all records had reached the disk."""
        self._mapped = mapped
        self._check_crc = check_crc
        self._synced_ms = synced_ms
        self.end = 0
        self.last = 0
        self.last_store_ms = 0
        self.records = 0
        self.damaged = 0

    def run(self, first: int = 0, position: int = 0) -> Iterator[LogRecord]:
        """The good records from ``position`` in the file with index ``first`` on.

        Raises:
            OSError: a file can't be mapped.
        """
        for index in range(first, len(self._mapped)):
            file = self._mapped[index]
            self.end = self.last = file.start + position
            closed = yield from self._run_file(file, position)
            position = 0
            if not closed:
                if not self._goes_on_in(index + 1):
                    return
                self.damaged += 1
            # A blank record closes the file: nothing else of it belongs to the log.
            self.end = file.start + file.size

    def _run_file(self, file: MappedFile, position: int) -> Generator[LogRecord, None, bool]:
        """Whether the file is closed by a blank record."""
        while True:
            scan, record = self._look(file, position)
            if record is not None:
                self.last = record.physical_offset
                position += record.size
                self.end = file.start + position
                self.last_store_ms = record.store_timestamp_ms
                self.records += 1
                yield record
            elif isinstance(scan, Blank):
                return True
            elif isinstance(scan, Invalid) and (size := self._damage(file, position)):
                self.damaged += 1
                position += size
            else:
                return False

    def _look(self, file: MappedFile, position: int) -> tuple[object, LogRecord | None]:
        view = file.view
        scan = examine(view, position, check_crc=self._check_crc)
        if not isinstance(scan, Found):
            return scan, None
        queue_id, queue_offset, physical_offset, sys_flag, store_ms = _FIELDS.unpack_from(
            view, position
        )
        if sys_flag & BORN_HOST_V6:
            (store_ms,) = _TIME.unpack_from(view, position + _TIME_AT_V6)
        # Neither number is covered by the CRC. A message comes after all earlier ones of its queue.
        if physical_offset != file.start + position or not (
            0 <= queue_offset <= physical_offset // FIXED_BYTES_V4
        ):
            return Invalid(f"the record at {physical_offset} is not of this place"), None
        return scan, LogRecord(
            view,
            position,
            physical_offset,
            scan.size,
            queue_id,
            queue_offset,
            sys_flag,
            store_ms,
        )

    def _damage(self, file: MappedFile, position: int) -> int:
        """Size of a damaged record in the middle of what had reached the disk; 0 if it is none."""
        (size,) = _SIZE.unpack_from(file.view, position)
        following = position + size
        if size < FIXED_BYTES_V4 or following + FIXED_BYTES_V4 > file.size:
            return 0
        return int(size) if self._is_synced(file, following) else 0

    def _goes_on_in(self, index: int) -> bool:
        return index < len(self._mapped) and self._is_synced(self._mapped[index], 0)

    def _is_synced(self, file: MappedFile, position: int) -> bool:
        _, record = self._look(file, position)
        return record is not None and record.store_timestamp_ms <= self._synced_ms
