"""Copying the beginning of one file, whatever is written behind it meanwhile.

What the file system has no blocks for stays without blocks, so a file that was made at full length
costs what is in it. Where the file system can share blocks (``copy_file_range``) it does, and
where it can't the system copies by itself.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from broker.store.copy.limits import PLAIN_STEP_BYTES, STEP_BYTES
from broker.store.view_files import StoreChanged, unreadable

Tell = Callable[[int], None]
"""Is told of so many more bytes."""

_NOT_SERVED: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


def open_source(path: str | Path) -> int:
    """A descriptor to read a file. Raises ``StoreChanged``, ``StoreError``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StoreChanged(
            f"the file {path} has been removed while the store was copied, by retention or by"
            " hand: start again"
        ) from None
    except OSError as error:
        raise unreadable(str(path), error) from error


def copy_beginning(source: Path | str, target: Path, *, end: int, size: int, tell: Tell) -> None:
    """Make ``target``, of ``size`` bytes: the first ``end`` of ``source``, then zeros. Synced.

    Raises:
        StoreChanged: the source is gone, or has become shorter than ``end``.
        StoreError: it can't be read.
        OSError: the target can't be written.
    """
    reading = open_source(source)
    try:
        writing = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(writing, size)
            for begin, stop in extents(reading, end):
                _copy_range(reading, writing, begin, stop, tell, source)
            if os.fstat(reading).st_size < end:
                raise _shortened(source, os.fstat(reading).st_size)
            os.fsync(writing)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def extents(descriptor: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges of ``[0, end)`` that may hold other than zeros."""
    at = 0
    while at < end:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
            stop = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                # The file system can't tell.
                yield at, end
            return
        if begin >= end:
            return
        yield begin, min(stop, end)
        at = stop


def _copy_range(
    reading: int, writing: int, begin: int, end: int, tell: Tell, source: Path | str
) -> None:
    while begin < end:
        done = _share(reading, writing, begin, min(end - begin, STEP_BYTES))
        if done is None:
            done = _pass_through(reading, writing, begin, min(end - begin, PLAIN_STEP_BYTES))
        if not done:
            raise _shortened(source, begin)
        begin += done
        tell(done)


def _share(reading: int, writing: int, at: int, length: int) -> int | None:
    """Have the system copy; how much it did, None if it does not do that here."""
    if not hasattr(os, "copy_file_range"):
        return None
    try:
        return os.copy_file_range(reading, writing, length, at, at)
    except OSError as error:
        if error.errno in _NOT_SERVED:
            return None
        raise


def _pass_through(reading: int, writing: int, at: int, length: int) -> int:
    data = os.pread(reading, length, at)
    done = 0
    while done < len(data):
        done += os.pwrite(writing, data[done:], at + done)
    return done


def _shortened(path: Path | str, size: int) -> StoreChanged:
    return StoreChanged(
        f"the file {path} ends at byte {size} now: it was shortened while it was copied; check the"
        " disk and its owner"
    )
