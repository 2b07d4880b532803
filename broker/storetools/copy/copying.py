"""Copying a store, running or stopped, ours or Apache RocketMQ's: an online backup.

Nothing is locked and nothing is written to the source. The steps, in this order:

1.  read the state that must not be ahead of the log (``rest``);
2.  look up the log's end: the copy is true of this moment;
3.  copy the queues before the log: retention takes the log first, and a queue whose messages are
    gone is usual, while a message without its queue is not (``queues``);
4.  copy the log, and check every record of the copy (``files``);
5.  add the queue entries that were not written yet;
6.  copy index and the rest (``rest``), and write a checkpoint and a safe point, since by then all
    of it is on the disk.

So the copy looks as if its broker had been stopped cleanly: RocketMQ's opens it, and ours finds a
safe point at the end of the log.

Everything before the end was appended whole when it was looked up, so the copy has all that was
acknowledged before. Before ``settled`` each message has its queue entry in the files; a running
broker writes an entry after its message, and with SYNC_FLUSH only when the disk has the message, so
entries from there on are made from the log. ``clean`` tells whether the store is closed properly.

The copy is written to ``TARGET.part``, synced, and renamed at the end. A failed copy is removed; a
killed process leaves the ``.part``.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from broker.store.config import StoreConfig, StorePaths
from broker.store.os_files import OsFiles
from broker.store.results import StoreError
from broker.store.safe_point import Numbers, SafePoint, SafePointFile
from broker.storetools.copy import rest as rest_copy
from broker.storetools.copy import rest as state_copy
from broker.storetools.copy.files import (
    MAX_STARTS,
    SYNC_THREADS,
    Faults,
    LogCopy,
    check_log,
    copy_log,
)
from broker.storetools.copy.queues import Queues, complete, copy_queues
from broker.storetools.view import PATH_SEPARATOR, StoreChanged, StoreView, ViewFile
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.errors import RecordError

DEFAULT_QUEUE_FILE_BYTES = 6_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment, and how to look at what was there.

    Attributes:
        view: of the source.
        commit_log: where its log lies, if elsewhere.
        end: physical offset where the copy's log ends; a record ends there, or a file.
        is_past: whether the end was asked for and lies before the log's.
        settled: physical offset before which all entries are there.
        checkpoint: the source's.
        numbers: of each queue the number that the next message had some time before, as far as
            that is known.
    """

    view: StoreView
    commit_log: str | None
    end: int
    is_past: bool
    settled: int
    checkpoint: Checkpoint
    numbers: Numbers

    def log_files(self) -> list[ViewFile]:
        """The files of the log as they are now. Raises ``StoreError``."""
        return StoreView(self.view.root, commit_log=self.commit_log).log.files


def moment_of(root: Path, commit_log: str | None, until: int | None) -> Moment:
    """The end of the log now, or the place at or behind ``until`` where a record begins.

    Raises:
        StoreError: a file can't be read, or the log has no such place.
    """
    starts = 0
    while True:
        try:
            return _look_up(root, commit_log, until)
        except StoreChanged:
            # Retention took a file between its name and its first byte.
            starts += 1
            if starts == MAX_STARTS:
                raise


def _look_up(root: Path, commit_log: str | None, until: int | None) -> Moment:
    view = StoreView(root, commit_log=commit_log)
    log_end = view.log_end().position
    end = log_end if until is None else _place(view, until, log_end)
    checkpoint = read_checkpoint(root)
    point = _safe_point(view) if view.log.files else None
    settled = _settled(view, checkpoint) if point is None else point.end
    numbers = point.numbers if point is not None and point.end <= end else {}
    settled = min(max(settled, view.log.start), end)
    return Moment(view, commit_log, end, end < log_end, settled, checkpoint, numbers)


def is_clean(root: Path) -> bool:
    """Whether no broker has the store open, and the last one closed it properly."""
    return not (root / "abort").exists()


def read_checkpoint(root: Path) -> Checkpoint:
    """What the last flush left; nothing known when it can't be read."""
    try:
        return Checkpoint.decode((root / "checkpoint").read_bytes())
    except (OSError, RecordError):
        return Checkpoint()


def config_of(root: Path, log_file_bytes: int, queue_file_bytes: int) -> StoreConfig:
    """Settings under which a store of such files opens."""
    return StoreConfig(
        root=root,
        mapped_file_size_commit_log=log_file_bytes,
        mapped_file_size_consume_queue=queue_file_bytes,
    )


def _place(view: StoreView, until: int, log_end: int) -> int:
    if not view.log.start < until <= log_end:
        raise StoreError(
            f"the log in {view.root} goes from {view.log.start} to {log_end}, so it can't be copied"
            f" up to {until}: give an offset in between"
        )
    return view.log.first_start(until, log_end)


def _settled(view: StoreView, checkpoint: Checkpoint) -> int:
    """See ``Moment``; at any rate not too late."""
    if is_clean(view.root):
        # Entries are made in the order of the log.
        return _last_with_entry(view)
    for file in reversed(view.log.files):
        record = None
        if file.size:
            record = view.log.record_at(file.start)
        if record is not None and 0 < record.store_timestamp_ms <= checkpoint.recover_from_ms:
            return file.start
    return view.log.start


def _safe_point(view: StoreView) -> SafePoint | None:
    """What our broker left or leaves, if it is about this log (cf. ``Recovery``)."""
    queue_bytes = next(
        (
            path.stat().st_size
            for path in (view.root / "consumequeue").glob("*/*/*")
            if path.is_file()
        ),
        DEFAULT_QUEUE_FILE_BYTES,
    )
    config = config_of(view.root, view.log.files[0].size, queue_bytes)
    try:
        point = SafePointFile(OsFiles(), StorePaths.of(config), config).read()
    except OSError:
        return None
    if point is None or not view.log.start <= point.tail <= point.end:
        return None
    head = memoryview(bytearray(len(point.head) // 2))
    try:
        if point.head:
            view.log.read_into(point.tail, head)
    except StoreError:
        return None
    return point if head.hex() == point.head else None


def _last_with_entry(view: StoreView) -> int:
    last = 0
    for topic in view.topics():
        for queue_id in view.queues(topic):
            queue = view.queue(topic, queue_id)
            last = max(last, queue.last_position(queue.range().max_offset))
    return last


class Target:
    """A directory to be made.

    Args:
        path: its name.
        sources: directories it must not lie in.

    Attributes:
        part: where to write.

    Raises:
        StoreError: it can't be made there; the text says what to do.
    """

    def __init__(self, path: Path, sources: Sequence[Path]) -> None:
        self.path = _real(path)
        self.part = self.path.with_name(self.path.name + ".part")
        for source in map(_real, sources):
            if self.path == source or source in self.path.parents:
                raise StoreError(
                    f"the target {path} lies in what is to be copied, {source}: give a directory"
                    " elsewhere, best on another disk"
                )
        try:
            self._check_free(path)
            self.part.mkdir()
        except FileExistsError:
            raise StoreError(
                f"{self.part} is there: a copy that was broken off, or one that still runs; remove"
                " it, or give another target"
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
        """A directory of the copy, made if need be. Raises ``OSError``."""
        path = self.part.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, path: Path, data: bytes) -> None:
        """Make a small file, synced. Raises ``OSError``."""
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """All is written: give it its name, for good. Raises ``OSError``."""
        directories = [Path(root) for root, _, _ in os.walk(self.part)]
        with ThreadPoolExecutor(SYNC_THREADS) as pool:
            for _ in pool.map(sync_directory, reversed(directories)):
                pass
        self.part.rename(self.path)
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        """Leave nothing, if that can be done."""
        shutil.rmtree(self.part, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Wait until names in it are on the disk. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise StoreError(f"the path {path} leads nowhere ({error}): give another one") from error


_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_HEAD_BYTES: Final = 64


class Bar(Protocol):
    """Is told how far something is."""

    def advance(self, count: int) -> None:
        """So much more is done."""
        ...


ShowProgress = Callable[[str, int], AbstractContextManager[Bar]]
"""What goes on, and of how much; gives what is told of the progress."""


@dataclass(slots=True, kw_only=True)
class CopyReport:
    """What a copy comes to.

    Attributes:
        source: the store.
        target: the copy.
        begin: physical offset where the copy's log begins.
        end: where it ends: what lies before is in the copy, and nothing else.
        records: whole records of it.
        queues: how many it has.
        topics: how many have a queue.
        index_files: how many of the index could be copied.
        faults: what of the log is no whole record; it was copied as it is.
        notes: what else should be known, in sentences.
    """

    source: Path
    target: Path
    begin: int
    end: int
    records: int
    queues: int
    topics: int
    index_files: int
    faults: Faults
    notes: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether every record that was copied is whole."""
        return self.faults.count == 0


def copy_store(
    root: Path,
    target: Path,
    *,
    show: ShowProgress,
    commit_log: str | None = None,
    until: int | None = None,
) -> CopyReport:
    """Copy a store into a new directory.

    Args:
        root: the store's.
        target: is made; it may be there if it is empty.
        show: gets told how far it is.
        commit_log: ``storePathCommitLog``, if the log lies elsewhere. The copy has it inside.
        until: copy messages up to this physical offset only.

    Raises:
        StoreError: it can't be copied, and nothing was left at the target; the text says why.
    """
    try:
        early = state_copy.read_early(root)
        moment = moment_of(root, commit_log, until)
        place = Target(target, _directories(root, commit_log))
        try:
            report = _Copying(moment, place, show).run(early)
            place.finish()
        except BaseException:
            place.abandon()
            raise
    except OSError as error:
        raise _cannot_copy(root, target, error) from error
    return report


def _directories(root: Path, commit_log: str | None) -> list[Path]:
    names = (commit_log or "").split(PATH_SEPARATOR)
    return [root, *(Path(name.strip()) for name in names if name.strip())]


class _Copying:
    """One copy being made."""

    def __init__(self, moment: Moment, target: Target, show: ShowProgress) -> None:
        self._moment = moment
        self._target = target
        self._show = show
        self._notes: list[str] = []

    def run(self, early: state_copy.StateFiles) -> CopyReport:
        """Copy all of it. Raises ``StoreError``, ``OSError``."""
        moment, target = self._moment, self._target
        queues = self._copy_queues()
        log = self._copy_log()
        self._notes += complete(moment, queues, log, target)
        self._notes += state_copy.hold_back(
            early, queues, past_ms=log.last_ms if moment.is_past else None
        )
        state_copy.write(early | state_copy.read_late(moment.view.root), target)
        checkpoint = rest_copy.copy_index(moment, log, target)
        target.write(target.part / "checkpoint", checkpoint.encode())
        if left_out := rest_copy.copy_others(moment, target):
            self._notes.append(
                f"left out, because it is of one moment only while no broker has the store open:"
                f" {', '.join(left_out)}"
            )
        self._leave_safe_point(queues, log)
        return CopyReport(
            source=moment.view.root,
            target=target.path,
            begin=log.start,
            end=log.end,
            records=log.records,
            queues=len(queues),
            topics=len({topic for topic, _ in queues}),
            index_files=rest_copy.index_files(target),
            faults=log.faults,
            notes=self._notes,
        )

    def _copy_queues(self) -> Queues:
        view = self._moment.view
        count = sum(len(view.queues(topic)) for topic in view.topics())
        with self._show("copying queues", count) as bar:
            return copy_queues(self._moment, self._target, bar.advance)

    def _copy_log(self) -> LogCopy:
        view, end = self._moment.view, self._moment.end
        with self._show("copying the log", max(0, end - view.log.start)) as bar:
            log = copy_log(self._moment, self._target, bar.advance)
        with self._show("checking the copy", log.end - log.start) as bar:
            check_log(log, bar.advance)
        return log

    def _leave_safe_point(self, queues: Queues, log: LogCopy) -> None:
        if log.last < 0 or any(queue.number == queue.first > 0 for queue in queues.values()):
            # A queue that has nothing but its number is told by its file.
            return
        numbers: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in queues.items():
            if queue.number:
                numbers.setdefault(topic, {})[queue_id] = queue.number
        head = memoryview(bytearray(min(_HEAD_BYTES, log.end - log.last)))
        log.view.read_into(log.last, head)
        point = SafePoint(log.last, head.hex(), log.end, log.end, numbers)
        queue_bytes = next((one.file_bytes for one in queues.values()), DEFAULT_QUEUE_FILE_BYTES)
        config = config_of(self._target.part, log.file_bytes, queue_bytes)
        SafePointFile(OsFiles(), StorePaths.of(config), config).write(point)


def _cannot_copy(root: Path, target: Path, error: OSError) -> StoreError:
    what = f"the store {root} can't be copied to {target} ({error.strerror or error})"
    if error.errno in _NO_SPACE:
        return StoreError(f"{what}: make room there, or give a target on another disk")
    return StoreError(f"{what}: check both disks, and that this user may write there")
