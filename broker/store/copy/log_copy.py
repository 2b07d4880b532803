"""Copying the log up to an offset, and looking at every record of the copy.

Retention may take the first files before they were copied. Then the copy begins where the log does
now, and what was copied before goes. What is damaged is copied as it is, and told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final

from broker.store.copy.file_copy import Tell, copy_beginning
from broker.store.copy.limits import MAX_FAULTS, MAX_STARTS
from broker.store.copy.moment import Moment
from broker.store.copy.target import Target
from broker.store.errors import StoreError
from broker.store.view_files import FileRow, StoreChanged, ViewFile
from broker.store.view_log import Damage, LogChunk, LogView
from remoting.protocol.accelerated import crc32
from remoting.protocol.disk.files import name_of
from remoting.protocol.message.record import (
    FIXED_BYTES_V4,
    HEAD_BYTES_V4,
    HOSTS_V6_MASK,
    MAGIC_V1,
    Invalid,
    examine,
)
from remoting.protocol.message.view import RecordView

# Size, magic, CRC, system flag and body length of a record with IPv4 hosts.
_SHAPE: Final = Struct(">III24xi44xI")
_LENGTH: Final = Struct(">H")
_CRC_MASK: Final = 0x7FFFFFFF


@dataclass(slots=True)
class Faults:
    """Places of the log that are damaged; of more than ``MAX_FAULTS`` only the number."""

    shown: list[Damage] = field(default_factory=list)
    count: int = 0

    def add(self, damage: Damage) -> None:
        """One more."""
        self.count += 1
        if len(self.shown) < MAX_FAULTS:
            self.shown.append(damage)


@dataclass(slots=True)
class LogCopy:
    """The copied log.

    Attributes:
        view: of the copy.
        end: where it ends.
        file_bytes: length of its files; 0 when there are none.
        records: whole ones in it.
        last: physical offset of the last of them; -1 for none.
        last_ms: its store time.
        faults: what is no whole record.
    """

    view: LogView
    end: int
    file_bytes: int = 0
    records: int = 0
    last: int = -1
    last_ms: int = 0
    faults: Faults = field(default_factory=Faults)

    @property
    def start(self) -> int:
        """Where it begins."""
        return self.view.start


def copy_log(moment: Moment, target: Target, tell: Tell) -> LogCopy:
    """Copy the files that begin before the moment's end; ``check_log`` looks at what is in them.

    Raises:
        StoreError: the source can't be read, or retention takes it faster than it is copied.
        OSError: the target can't be written.
    """
    directory = target.directory("commitlog")
    files = _copy_files(moment, directory, tell)
    view = LogView(FileRow([directory], "the copied log"), synced_ms=moment.checkpoint.physic_ms)
    return LogCopy(view, moment.end, files[0].size if files else 0)


def _copy_files(moment: Moment, directory: Path, tell: Tell) -> list[ViewFile]:
    starts = 0
    while True:
        try:
            files = _wanted(moment)
            _drop_before(directory, files)
            for file in files:
                _copy_file(file, directory, moment.end, tell)
        except StoreChanged:
            starts += 1
            if starts == MAX_STARTS:
                raise
        else:
            return files


def _wanted(moment: Moment) -> list[ViewFile]:
    files = moment.log_files()
    if not files and moment.end == 0:
        return []
    # An empty log may have a file all the same, which tells where it goes on.
    wanted = [file for file in files if file.start < moment.end or file is files[0]]
    if not wanted or wanted[0].start > moment.end:
        raise StoreError(
            f"the log in {moment.view.root} had a message before {moment.end} when the copy began,"
            " and nothing of that is left: the files were taken away or deleted; start again"
        )
    return wanted


def _drop_before(directory: Path, files: list[ViewFile]) -> None:
    start = files[0].start if files else 0
    for path in directory.iterdir():
        if path.name < name_of(start):
            path.unlink()


def _copy_file(file: ViewFile, directory: Path, end: int, tell: Tell) -> None:
    path = directory / name_of(file.start)
    if path.exists():
        return
    used = max(0, min(end - file.start, file.size))
    try:
        copy_beginning(file.path, path, end=used, size=file.size, tell=tell)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def check_log(copied: LogCopy, tell: Tell) -> None:
    """Look at every record of the copy, and count. Raises ``StoreError``."""
    if not copied.view.files:
        return
    for found in copied.view.walk(copied.start, copied.end):
        if isinstance(found, Damage):
            copied.faults.add(found)
            tell(found.end - found.begin)
        else:
            _check_chunk(copied, found)
            tell(len(found.data))


def _check_chunk(copied: LogCopy, chunk: LogChunk) -> None:
    data, base = chunk.data, chunk.position
    for start in chunk.starts:
        if not _is_whole(data, start) and (reason := _fault(data, start)):
            size = int.from_bytes(data[start : start + 4])
            copied.faults.add(Damage(base + start, base + start + size, reason))
            continue
        copied.records += 1
        copied.last = base + start
    if copied.last >= base:
        copied.last_ms = RecordView(data, copied.last - base).store_timestamp_ms


def _is_whole(data: memoryview, start: int) -> bool:
    """Whether a usual record is one beyond doubt: lengths and CRC."""
    size, magic, crc, sys_flag, length = _SHAPE.unpack_from(data, start)
    body_at = start + HEAD_BYTES_V4
    body_end = body_at + length
    end = start + size
    if magic != MAGIC_V1 or sys_flag & HOSTS_V6_MASK or body_end + 3 > end:
        return False
    topic_end = body_end + 1 + data[body_end]
    if topic_end + 2 > end or topic_end + 2 + _LENGTH.unpack_from(data, topic_end)[0] != end:
        return False
    return bool(crc32(data[body_at:body_end]) & _CRC_MASK == crc)


def _fault(data: memoryview, start: int) -> str:
    """What is wrong with a record; nothing for one that is only unusual."""
    size = max(FIXED_BYTES_V4, int.from_bytes(data[start : start + 4]))
    scan = examine(data[start : start + size], 0)
    if not isinstance(scan, Invalid):
        return ""
    return scan.reason.replace(" at 0 ", " ")
