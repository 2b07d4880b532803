"""Rebuilding derived data: queues, index and checkpoints.

The store is locked as a broker locks it. The log is never written. New files are written and synced
in a directory of this repair, the old ones are moved into that directory, and the new ones are
renamed to their final paths. A repair that was killed can be started again: it rebuilds the missing
files.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.store.checkpoint import encode
from broker.store.index_files import IndexFileSet, Shape
from broker.store.index_keys import KeyBatch
from broker.store.log_walk import QueueKey, room_for_messages
from broker.store.os_files import Files
from broker.store.recovery import LOCK_TEXT
from broker.store.results import StoreError
from broker.storetools.queue_writer import QueueWriter
from broker.storetools.verify.check import CheckOptions, Report, check
from broker.storetools.verify.findings import UNUSABLE, Findings
from broker.storetools.verify.index_match import IndexMatch
from broker.storetools.verify.index_scan import (
    INDEX_BEGIN,
    NAME_DIGITS,
    NO_ENTRIES,
    load_index,
)
from broker.storetools.verify.log_part import LogPart, OnProgress, PartPlan
from broker.storetools.verify.metadata_files import read_own
from broker.storetools.verify.queue_walk import QueueWalk, StoredQueues, complete
from broker.storetools.view import OWN_CHECKPOINT, StoreView
from remoting.protocol.disk import timer
from remoting.protocol.disk.files import ENTRY_BYTES, Checkpoint
from remoting.protocol.disk.index_file import DEFAULT_ENTRIES, DEFAULT_SLOTS
from remoting.runtime.clock import SystemClock
from remoting.runtime.durable_file import sync_path

_QUEUE_FILE_BYTES: Final = 6_000_000
_INDEX_KINDS: Final = (
    "index-chain",
    "index-slot",
    "index-entry",
    "index-time",
    "index-missing",
    "index-header",
    "index-file",
)


class Repair(NamedTuple):
    """The result of a repair.

    Attributes:
        before: report of the check before the repair.
        after: report of the check after it.
        done: what was repaired, as texts for people.
        moved: the directory with the replaced files; None when there are none.
    """

    before: Report
    after: Report
    done: list[str]
    moved: Path | None


def repair(root: Path, options: CheckOptions, on_progress: OnProgress) -> Repair:
    """Check a store, rebuild what is wrong, and check it again.

    Raises:
        StoreError: a broker has the store open, or it can't be read or written.
    """
    if not root.is_dir():
        raise StoreError(f"there is no store at {root}: give its storePathRootDir")
    try:
        lock = Files().lock(root / "lock", LOCK_TEXT)
    except OSError as error:
        raise StoreError(f"{root} can't be locked ({error.strerror or error})") from error
    if lock is None:
        raise StoreError(f"a broker has the store {root} open: stop it first, then repair")
    options = options._replace(locked=True)
    try:
        before = check(root, options, on_progress)
        work = _Work(root, options, before)
        work.run()
        after = check(root, options) if work.done else before
    except OSError as error:
        raise StoreError(
            f"the repair of {root} failed ({error.filename or root}: {error.strerror or error}):"
            " check the disk, then start it again"
        ) from error
    finally:
        lock.release()
    return Repair(before, after, work.done, work.moved)


class _Work:
    def __init__(self, root: Path, options: CheckOptions, report: Report) -> None:
        self._root = root
        self._options = options
        self._report = report
        self._files = Files()
        name = f"pocketmq-repair-{datetime.now():%Y%m%d%H%M%S}"  # noqa: DTZ005 - as index files are
        path, number = root / name, 1
        while path.exists():
            path, number = root / f"{name}-{number}", number + 1
        self._away = path
        self.done: list[str] = []

    @property
    def moved(self) -> Path | None:
        """The directory with the replaced files; None when there are none."""
        return self._away if self._away.is_dir() else None

    def run(self) -> None:
        """Rebuild what the check found to be wrong. Raises ``OSError``, ``StoreError``."""
        report, kinds = self._report, self._report.findings.kinds
        index = any(kinds[kind] for kind in _INDEX_KINDS)
        if report.bad_queues or index or kinds["checkpoint"]:
            # The section of a clean stop is valid only for unchanged files.
            self._forget("stop")
        if report.bad_queues or index:
            self._build(index=index)
        unusable = [
            str(Path(finding.path).relative_to(self._root))
            for finding in report.findings.shown
            if finding.kind in UNUSABLE
        ]
        for name in [*unusable, *([timer.LOG_NAME] if timer.WHEEL_NAME in unusable else [])]:
            # The next start builds the timer files again, and needs none of the others.
            self._move(name)
            self.done.append(f"moved {name} away")
        if kinds["checkpoint"]:
            self._checkpoint()
        self._files.remove_directory(self._away / "new")
        if self._away.is_dir() and not any(self._away.iterdir()):
            self._away.rmdir()
        if self.done:
            self._files.sync_directory(self._root)

    # --- queues and index

    def _build(self, *, index: bool) -> None:
        root, report = self._root, self._report
        view = StoreView(root, commit_log=self._options.commit_log)
        old = StoredQueues(root / "consumequeue")
        sizes = Counter(
            file.size
            for key in view.all_queues()
            for file in old.row(key).files
            if file.size % ENTRY_BYTES == 0
        )
        size = sizes.most_common(1)[0][0] if sizes else _QUEUE_FILE_BYTES
        new = {key: QueueWriter(self._new_path(key), size) for key in report.bad_queues}
        queues = QueueWalk(old, new)
        files = load_index(root / "index", Findings())
        shape = files.shape or Shape(DEFAULT_SLOTS, DEFAULT_ENTRIES)
        building = IndexBuild(self._away / "new" / "index", shape) if index else None
        for file in view.log.files:
            if file.start < report.log_end:
                plan = PartPlan(
                    root=root,
                    commit_log=self._options.commit_log,
                    path=file.path,
                    begin=file.start,
                    end=min(file.end, report.log_end),
                    file_end=file.end,
                    levels_ms=self._options.levels_ms,
                    plain=self._options.plain,
                )
                part = LogPart(plan, view, lambda _: None, queues=queues, index=building)
                part.run()
        # The safe point may have queue offsets whose messages are lost; don't use them again,
        # unless they are impossible for the next message.
        safe, most = view.safe_point(), room_for_messages(report.log_end)
        for key in sorted(new):
            bounds = view.queue_range(*key)
            number = bounds.max_offset + (bounds.torn if report.clean else 0)
            if safe is not None and safe.end <= report.log_end:
                number = max(number, safe.numbers.get(key[0], {}).get(key[1], 0))
            complete(
                new[key],
                old,
                key,
                queues.states.get(key),
                log_start=report.log_start,
                number=min(number, most),
            )
            new[key].sync()
            self._take_place(key)
            self.done.append(f"rebuilt queue {key[1]} of topic {key[0]}")
        if building is not None:
            self._take_index(building, files.paths)

    def _new_path(self, key: QueueKey) -> Path:
        return self._away / "new" / "consumequeue" / key[0] / str(key[1])

    def _take_place(self, key: QueueKey) -> None:
        topic = self._root / "consumequeue" / key[0]
        place = topic / str(key[1])
        if place.exists():
            old = self._away / "consumequeue" / key[0]
            self._files.make_directory(old, durable=True)
            place.rename(old / str(key[1]))
            self._files.sync_directory(old)
        self._files.make_directory(topic, durable=True)
        self._new_path(key).rename(place)
        self._files.sync_directory(topic)

    def _take_index(self, building: IndexBuild, old: list[str]) -> None:
        directory = self._root / "index"
        self._files.make_directory(directory, durable=True)
        building.row.sync()
        self._forget("index")
        for name in old:
            self._move(f"index/{Path(name).name}")
        for path in sorted(building.directory.iterdir()) if building.directory.is_dir() else []:
            if len(path.name) == NAME_DIGITS:
                path.rename(directory / path.name)
        self._files.sync_directory(directory)
        self.done.append("rebuilt the index")

    # --- small files

    def _forget(self, section: str) -> None:
        """Remove a section of PocketMQ's checkpoint that is no longer valid."""
        view = StoreView(self._root, commit_log=self._options.commit_log)
        content = read_own(view, Findings())
        if content.pop(section, None) is not None:
            self._files.replace(self._root / OWN_CHECKPOINT, encode(content), backup=False)

    def _checkpoint(self) -> None:
        report = self._report
        self._move("checkpoint")
        checkpoint = Checkpoint()
        if report.clean:
            view = StoreView(self._root, commit_log=self._options.commit_log)
            for file in view.log.files:
                sync_path(file.path)
            checkpoint = Checkpoint(report.last_ms, report.last_ms, 0)
        self._files.replace(self._root / "checkpoint", checkpoint.encode(), backup=False)
        self.done.append("rewrote the checkpoint")

    def _move(self, name: str) -> None:
        path = self._root / name
        if path.exists():
            target = self._away / name
            self._files.make_directory(target.parent, durable=True)
            path.rename(target)
            self._files.sync_directory(target.parent)


class IndexBuild(IndexMatch):
    """Writes the keys of the log to new index files, instead of comparing them."""

    def __init__(self, directory: Path, shape: Shape) -> None:
        super().__init__((), INDEX_BEGIN, None, NO_ENTRIES, Findings(), None)
        self.directory = directory
        self.row = IndexFileSet(Files(), directory, shape, SystemClock())

    def fits(self, hashes: Any, offsets: Any, times_ms: Any) -> bool:
        """Write keys, given as columns; return True."""
        self.row.add(KeyBatch(hashes, offsets, times_ms))
        return True

    def compare(self, keys: Any, end: int) -> None:  # noqa: ARG002 - signature of the base class
        """Write keys."""
        hashes, offsets = [key.hash for key in keys], [key.offset for key in keys]
        self.row.add(KeyBatch(hashes, offsets, [key.stored_ms for key in keys]))

    def finish(self) -> None:
        """Do nothing at the end of a file of the log."""
