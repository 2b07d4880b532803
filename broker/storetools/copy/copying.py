"""Copying a store, running or stopped, PocketMQ's or Apache RocketMQ's: an online backup.

Nothing is locked and nothing is written to the source. The steps, in this order:

1.  read the state that must not be ahead of the log (``rest``);
2.  determine the end of the log: the copy shows the store at this moment;
3.  copy the queues before the log, since retention deletes files meanwhile: queue entries of
    deleted messages are normal, messages without queue entries are not (``queues``);
4.  copy the log, and check every record of the copy (``files``);
5.  add the queue entries that were not written yet (``queues``);
6.  copy the index and everything else (``rest``), and write a checkpoint and a safe point: by then
    the copied files are synced.

The copy is like a store whose broker was stopped cleanly: RocketMQ opens it as such, and PocketMQ
finds a safe point at the end of the log.

All messages before the end were appended completely when the end was determined, so the copy has
all messages acknowledged before. Before ``CopyPoint.settled``, each message has its queue entry in
the files. A running broker writes an entry after its message, with SYNC_FLUSH only after the sync,
so entries from ``settled`` on are derived from the log.

The copy is written to ``TARGET.part``, synced, and renamed at the end. A failed copy is removed; a
killed process leaves the ``.part`` directory.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.store.checkpoint import SafePoint, StoreCheckpoint
from broker.store.config import DEFAULT_DELAY_LEVELS_MS, StoreConfig, StorePaths
from broker.store.os_files import Files
from broker.store.results import StoreError
from broker.storetools.copy import rest
from broker.storetools.copy.files import (
    Faults,
    LogCopy,
    check_log,
    copy_log,
)
from broker.storetools.copy.queues import Queues, complete, copy_queues
from broker.storetools.copy.target import (
    DEFAULT_QUEUE_FILE_BYTES,
    CopyPoint,
    Target,
    moment_of,
    until_unchanged,
)
from broker.storetools.view import log_directories

_HEAD_BYTES: Final = 64


ShowProgress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Starts to show the progress of a step, by its name and its amount of work; yields what adds to
the work done."""


@dataclass(slots=True, kw_only=True)
class CopyReport:
    """The result of a copy.

    Attributes:
        source: the store.
        target: the copy.
        begin: physical offset where the copied log begins.
        end: physical offset where it ends: the copy has the messages before it, and no others.
        records: number of good records in it.
        queues: number of queues.
        topics: number of topics that have a queue.
        index_files: number of index files copied.
        faults: damaged parts of the log; they were copied as they are.
        notes: further remarks for the user.
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
        """Whether every copied record is good."""
        return self.faults.count == 0


def copy_store(
    root: Path,
    target: Path,
    *,
    show: ShowProgress,
    commit_log: str | None = None,
    until: int | None = None,
    levels_ms: Sequence[int] = DEFAULT_DELAY_LEVELS_MS,
) -> CopyReport:
    """Copy a store into a new directory.

    Args:
        root: the store's directory.
        target: the directory to create; it may exist if it is empty.
        show: shows the progress.
        commit_log: ``storePathCommitLog``, if the log is elsewhere. In the copy it is in
            ``commitlog``.
        until: copy only messages before this physical offset, rounded up to a record; None for all.
        levels_ms: ``messageDelayLevel`` of its broker.

    Raises:
        StoreError: the store can't be copied; nothing is left at the target.
    """
    try:
        early = rest.read_early(root)
        moment = until_unchanged(lambda: moment_of(root, commit_log, until))
        place = Target(target, [root, *log_directories(root, commit_log)])
        try:
            report = _copy(moment, place, early, show, levels_ms)
            place.finish()
        except BaseException:
            place.abandon()
            raise
    except OSError as error:
        what = f"the store {root} can't be copied to {target} ({error.strerror or error})"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreError(
                f"{what}: make room there, or give a target on another disk"
            ) from error
        raise StoreError(f"{what}: check both disks, and that this user may write there") from error
    return report


def _copy(
    moment: CopyPoint,
    target: Target,
    early: rest.StateFiles,
    show: ShowProgress,
    levels_ms: Sequence[int],
) -> CopyReport:
    """Run steps 3 to 6 of the module's docstring. Raises ``StoreError``, ``OSError``."""
    view = moment.view
    with show("copying queues", sum(1 for _ in view.all_queues())) as advance:
        queues = copy_queues(moment, target, advance)
    deleted = rest.read_deleted(view.root)
    with show("copying the log", max(0, moment.end - view.log.start)) as advance:
        log = copy_log(moment, target, advance)
    with show("checking the copy", log.end - log.start) as advance:
        check_log(log, advance)
    notes = complete(moment, queues, log, target, levels_ms)
    rest.drop_deleted(deleted, moment.end, queues)
    notes += rest.hold_back(early, queues, past_ms=log.last_ms if moment.is_past else None)
    late = rest.read_late(view.root, early, queues)
    rest.write(early | deleted | late, target)
    checkpoint, index_files = rest.copy_index(moment, log, target)
    target.write(target.part / "checkpoint", checkpoint.encode())
    if left_out := rest.copy_others(moment, target):
        notes.append(
            f"left out, because it is consistent only while no broker has the store open:"
            f" {', '.join(left_out)}"
        )
    _write_safe_point(target, queues, log)
    return CopyReport(
        source=view.root,
        target=target.path,
        begin=log.start,
        end=log.end,
        records=log.records,
        queues=len(queues),
        topics=len({topic for topic, _ in queues}),
        index_files=index_files,
        faults=log.faults,
        notes=notes,
    )


def _write_safe_point(target: Target, queues: Queues, log: LogCopy) -> None:
    """Write a safe point, so that PocketMQ opens the copy quickly; the copy is synced already."""
    if log.last < 0 or any(queue.number == queue.first > 0 for queue in queues.values()):
        # A queue without entries has its next queue offset only in the name of its file, which a
        # start from a safe point does not accept.
        return
    numbers: dict[str, dict[int, int]] = {}
    for (topic, queue_id), queue in queues.items():
        if queue.number:
            numbers.setdefault(topic, {})[queue_id] = queue.number
    head = memoryview(bytearray(min(_HEAD_BYTES, log.end - log.last)))
    log.view.read_into(log.last, head)
    point = SafePoint(log.last, head.hex(), log.end, log.end, numbers)
    queue_bytes = next((queue.file_bytes for queue in queues.values()), DEFAULT_QUEUE_FILE_BYTES)
    config = StoreConfig(
        root=target.part,
        mapped_file_size_commit_log=log.file_bytes,
        mapped_file_size_consume_queue=queue_bytes,
    )
    StoreCheckpoint(Files(), StorePaths.of(config), config).write(point)
