"""Copying the log up to an offset, checking every copied record, and copying the start of a file.

Holes stay holes in the copy, so a preallocated file takes only the space of its content. File
systems that can share blocks do so (``copy_file_range``).

If retention removes the first files before they are copied, the copy begins with the next ones.
Damaged records are copied as they are, and reported.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.store.log_view import Damage, LogChunk, LogView
from broker.store.raw_files import FileRow, StoreChanged, ViewFile, extents, unreadable
from broker.store.results import StoreError
from broker.storetools.copy.target import CopyPoint, Target, until_unchanged
from remoting.protocol.disk.files import name_of
from remoting.protocol.message.record import (
    Invalid,
    examine,
)
from remoting.protocol.message.view import RecordView

STEP_BYTES: Final = 32 * 1024 * 1024
"""Bytes copied by one call: a tenth of a second, after which progress is shown and ^C takes effect.
"""

PLAIN_STEP_BYTES: Final = 1024 * 1024
"""The same where the kernel can't copy, and the bytes pass through this process."""


MAX_FAULTS: Final = 1000
"""Damaged parts listed in a report; further ones are only counted."""

MAX_STATE_READS: Final = 20
"""Attempts to read a state file that is missing or incomplete: the broker may be replacing it."""

STATE_PAUSE_SECONDS: Final = 0.02
"""Pause between these attempts."""


DELIVERY_SLACK_MS: Final = 60_000
"""In a copy with an end in the past, delayed messages due this long before it count as delivered.
"""


OnProgress = Callable[[int], None]
"""Called with the number of bytes done since the last call."""

_NOT_SERVED: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


def open_source(path: str | Path) -> int:
    """Open a file for reading; return its descriptor. Raises ``StoreChanged``, ``StoreError``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StoreChanged(
            f"the file {path} has been removed while the store was copied, by retention or by"
            " hand: start again"
        ) from None
    except OSError as error:
        raise unreadable(str(path), error) from error


def share_range(reading: int, writing: int, at: int, length: int) -> int | None:
    """Copy in the kernel; return the number of bytes copied, None if that is not supported."""
    if not hasattr(os, "copy_file_range"):
        return None
    try:
        return os.copy_file_range(reading, writing, length, at, at)
    except OSError as error:
        if error.errno in _NOT_SERVED:
            return None
        raise


def copy_beginning(
    source: Path | str,
    target: Path,
    *,
    end: int,
    size: int,
    on_progress: OnProgress,
    share: Callable[[int, int, int, int], int | None] = share_range,
) -> None:
    """Create and sync ``target``: the first ``end`` bytes of ``source``, then zeros to ``size``.

    It has the permissions of ``source``.
    If ``share`` returns None for a range, it is copied through this process.

    Raises:
        StoreChanged: the source was removed, or is shorter than ``end`` now.
        StoreError: it can't be read.
        OSError: the target can't be written.
    """
    reading = open_source(source)
    try:
        writing = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(writing, os.fstat(reading).st_mode & 0o777 | 0o600)
            os.ftruncate(writing, size)
            for begin, stop in extents(reading, end):
                at = begin
                while at < stop:
                    done = share(reading, writing, at, min(stop - at, STEP_BYTES))
                    if done is None:
                        data = os.pread(reading, min(stop - at, PLAIN_STEP_BYTES), at)
                        done = 0
                        while done < len(data):
                            done += os.pwrite(writing, data[done:], at + done)
                    if not done:
                        raise _shortened(source, at)
                    at += done
                    on_progress(done)
            if os.fstat(reading).st_size < end:
                raise _shortened(source, os.fstat(reading).st_size)
            os.fsync(writing)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _shortened(path: Path | str, size: int) -> StoreChanged:
    return StoreChanged(
        f"the file {path} ends at byte {size} now: it was shortened while it was copied; check the"
        " disk and its owner"
    )


@dataclass(slots=True)
class Faults:
    """Damaged parts of the log: their number, and the first ``MAX_FAULTS`` of them."""

    shown: list[Damage] = field(default_factory=list)
    count: int = 0

    def add(self, damage: Damage) -> None:
        """Count a damaged part."""
        self.count += 1
        if len(self.shown) < MAX_FAULTS:
            self.shown.append(damage)


@dataclass(slots=True)
class LogCopy:
    """The copied log.

    Attributes:
        view: of the copy.
        end: physical offset where it ends.
        file_bytes: length of its files; 0 when there are none.
        records: number of good records.
        last: physical offset of the last good record; -1 for none.
        last_ms: its store time, ms since the epoch.
        faults: the damaged parts.
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
        """Physical offset where the copied log begins."""
        return self.view.start


def copy_log(moment: CopyPoint, target: Target, on_progress: OnProgress) -> LogCopy:
    """Copy the files that begin before the moment's end; ``check_log`` checks their records.

    Raises:
        StoreError: the source can't be read, or retention deletes it faster than it is copied.
        OSError: the target can't be written.
    """
    directory = target.directory("commitlog")
    files = until_unchanged(lambda: _copy_files(moment, directory, on_progress))
    view = LogView(FileRow([directory], "the copied log"), synced_ms=moment.checkpoint.physic_ms)
    return LogCopy(view, moment.end, files[0].size if files else 0)


def _copy_files(moment: CopyPoint, directory: Path, on_progress: OnProgress) -> list[ViewFile]:
    files = _files_to_copy(moment)
    start = files[0].start if files else 0
    for path in directory.iterdir():
        if path.name < name_of(start):
            path.unlink()
    for file in files:
        _copy_file(file, directory, moment.end, on_progress)
    return files


def _files_to_copy(moment: CopyPoint) -> list[ViewFile]:
    files = moment.log_files()
    if not files and moment.end == 0:
        return []
    # Even an empty log may have a file, whose name determines the next physical offset.
    needed = [file for file in files if file.start < moment.end or file is files[0]]
    if not needed or needed[0].start > moment.end:
        raise StoreError(
            f"the log in {moment.view.root} had a message before {moment.end} when the copy began,"
            " but these files have been moved or deleted since: start again"
        )
    return needed


def _copy_file(file: ViewFile, directory: Path, end: int, on_progress: OnProgress) -> None:
    path = directory / name_of(file.start)
    if path.exists():
        return
    used = max(0, min(end - file.start, file.size))
    try:
        copy_beginning(file.path, path, end=used, size=file.size, on_progress=on_progress)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def check_log(copied: LogCopy, on_progress: OnProgress) -> None:
    """Check and count the records of the copy. Raises ``StoreError``."""
    if not copied.view.files:
        return
    for part in copied.view.walk(copied.start, copied.end):
        if isinstance(part, Damage):
            copied.faults.add(part)
            on_progress(part.end - part.begin)
        else:
            _check_chunk(copied, part)
            on_progress(len(part.data))


def _check_chunk(copied: LogCopy, chunk: LogChunk) -> None:
    data, base = chunk.data, chunk.position
    for start, end in zip(chunk.starts, [*chunk.starts[1:], len(data)], strict=True):
        scan = examine(data[start:end], 0)
        if isinstance(scan, Invalid):
            reason = scan.reason.replace(" at 0 ", " ")
            copied.faults.add(Damage(base + start, base + end, reason))
            continue
        copied.records += 1
        copied.last = base + start
    if copied.last >= base:
        copied.last_ms = RecordView(data, copied.last - base).store_timestamp_ms
