"""``CopyPoint``, the moment of the store that a copy shows, and ``Target``, its new directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from broker.store.checkpoint import Numbers
from broker.store.raw_files import StoreChanged, ViewFile
from broker.store.results import StoreError
from broker.storetools.view import StoreView
from remoting.protocol.disk.files import Checkpoint
from remoting.runtime.durable_file import sync_path

T = TypeVar("T")

DEFAULT_QUEUE_FILE_BYTES: Final = 6_000_000

MAX_STARTS: Final = 10
"""Attempts if retention deletes files before they are copied."""


SYNC_THREADS: Final = 8
"""Threads that sync files at the same time, so that a file system's journal commits them together.
"""


@dataclass(frozen=True, slots=True)
class CopyPoint:
    """The moment that a copy shows, and the view of the source.

    Attributes:
        view: of the source.
        commit_log: ``storePathCommitLog`` of the source, if its log is not in ``root``.
        end: physical offset where the copied log ends; a record or a file ends there.
        is_past: whether the caller chose an end before the log's end.
        settled: physical offset before which every message has its queue entry in the files.
        checkpoint: of the source.
        numbers: each queue's next queue offset at the safe point; empty without a safe point.
    """

    view: StoreView
    commit_log: str | None
    end: int
    is_past: bool
    settled: int
    checkpoint: Checkpoint
    numbers: Numbers

    def log_files(self) -> list[ViewFile]:
        """List the files of the log again. Raises ``StoreError``."""
        return StoreView(self.view.root, commit_log=self.commit_log).log.files


def until_unchanged(action: Callable[[], T]) -> T:
    """Run an action; retry when retention has deleted files that it reads.

    Raises:
        StoreChanged: the last attempt failed too.
    """
    for _ in range(MAX_STARTS - 1):
        with suppress(StoreChanged):
            return action()
    return action()


def moment_of(root: Path, commit_log: str | None, until: int | None) -> CopyPoint:
    """Return the moment at the end of the log, or at the first record at or behind ``until``.

    Raises:
        StoreError: a file can't be read, or ``until`` is not in the log.
    """
    view = StoreView(root, commit_log=commit_log)
    log_end = view.log_end().position
    end = log_end
    if until is not None:
        if not view.log.start < until <= log_end:
            raise StoreError(
                f"the log in {view.root} goes from {view.log.start} to {log_end}, so it can't be"
                f" copied up to {until}: give an offset in between"
            )
        end = view.log.first_start(until, log_end)
    checkpoint = view.checkpoint()
    point = view.safe_point()
    if point is not None and point.tail < view.log.start:
        # Retention has deleted the record at the tail, so the safe point can't be verified.
        point = None
    settled = view.log.start
    if point is not None:
        settled = point.end
    elif is_clean(root):
        # Entries are written in the order of the log.
        settled = view.last_position()
    else:
        for file in view.log.files:
            record = view.log.record_at(file.start)
            if record is not None and 0 < record.store_timestamp_ms <= checkpoint.recover_from_ms:
                settled = file.start
    numbers = point.numbers if point is not None and point.end <= end else {}
    settled = min(max(settled, view.log.start), end)
    return CopyPoint(view, commit_log, end, end < log_end, settled, checkpoint, numbers)


def is_clean(root: Path) -> bool:
    """Return whether no broker has the store open, and the last one closed it properly."""
    return not (root / "abort").exists()


class Target:
    """The directory of the copy. It is written under another name and renamed when complete.

    Args:
        path: of the copy.
        sources: directories that it must not be in; the store's first.

    Attributes:
        part: the directory to write to.

    Raises:
        StoreError: it can't be created there; the message says what to do.
    """

    def __init__(self, path: Path, sources: Sequence[Path]) -> None:
        self.path = _real(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self._root = sources[0]
        for source in map(_real, sources):
            if self.path == source or source in self.path.parents:
                raise StoreError(
                    f"the target {path} is inside the store to be copied, {source}: give a"
                    " directory elsewhere, best on another disk"
                )
        try:
            self._check_free(path)
            self.part.mkdir(0o700)
        except FileExistsError:
            raise StoreError(
                f"{self.part} exists: a copy was interrupted, or is still running; remove it, or"
                " give another target"
            ) from None
        except OSError as error:
            raise StoreError(
                f"the target {path} can't be made ({error.strerror or error}): check that the"
                " directory above it exists and that this user may write there"
            ) from error

    def _check_free(self, path: Path) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise StoreError(f"the target {path} is a file: give the name of a new directory")
        if any(self.path.iterdir()):
            raise StoreError(
                f"the target {path} is not empty: give a new directory, or empty that one"
            )
        if self.path.is_mount():
            raise StoreError(
                f"the target {path} is where a disk is mounted, and can't be renamed: give a new"
                f" directory in it, such as {path / 'store'}"
            )

    def directory(self, *names: str) -> Path:
        """Return a directory of the copy, creating it if needed. Raises ``OSError``."""
        path = self.part.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, path: Path, data: bytes) -> None:
        """Create and sync a small file, with its mode in the store. Raises ``OSError``."""
        with path.open("xb") as file:
            os.fchmod(file.fileno(), self._mode(path, 0o600))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """Complete the directories, and rename the copy to ``path``. Raises ``OSError``."""
        directories = [Path(root) for root, _, _ in os.walk(self.part)]
        # The outermost is last: until then, nobody else sees what is in them.
        for directory in reversed(directories):
            directory.chmod(self._mode(directory, 0o700))
        with ThreadPoolExecutor(SYNC_THREADS) as pool:
            for _ in pool.map(sync_path, reversed(directories)):
                pass
        self.part.rename(self.path)
        sync_path(self.path.parent)

    def _mode(self, path: Path, needed: int) -> int:
        """Return the mode that a path of the copy has in the store, with what is needed."""
        try:
            return (self._root / path.relative_to(self.part)).stat().st_mode & 0o777 | needed
        except OSError:
            return needed

    def abandon(self) -> None:
        """Remove the incomplete copy, as far as possible."""
        shutil.rmtree(self.part, ignore_errors=True)


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise StoreError(f"the path {path} leads nowhere ({error}): give another one") from error
