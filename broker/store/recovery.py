"""Opening a store: lock it, find the end of the log, and repair the consume queues from the log.

Recovery starts from the first of these that is available:

=========================  =======================================================================
our clean stop             only the last records of the log are walked (``checkpoint``)
our safe point             the log is walked from there, and missing queue entries are written
                           (``checkpoint``)
a clean stop without ours  the last three files, or more, are walked, and records without a queue
                           entry are dispatched (cf. CommitLog.recoverNormally)
a crash without ours       the log is walked from the file that the times in RocketMQ's
                           ``checkpoint`` select (cf. CommitLog.recoverAbnormally)
=========================  =======================================================================

When a queue lacks entries of messages before that point, or the log is damaged there, the whole log
is walked, and every queue entry is compared with the log and corrected. The log ends behind the
last good record. The bytes behind it are overwritten with zeros, so that they can't be taken for
records when the log has grown up to them.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NoReturn

from broker.store.checkpoint import SafePoint, StoreCheckpoint
from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import ConsumeQueue, QueueSpace, QueueTable
from broker.store.deleted_topics import DeletedTopics
from broker.store.limits import open_maps
from broker.store.log_walk import LogRecord, LogWalk, Stretch, begins_by, room_for_messages
from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.os_files import Files, Lock
from broker.store.redispatch import QueueLacksEntries, Replay
from broker.store.results import OpeningProgress, RecoveryReport, StoreError
from remoting.protocol.disk.files import offset_of
from remoting.runtime.clock import Clock


class Recovery:
    """Recovers the log and the queues of one store; see ``run``.

    Args:
        log: not loaded yet.
        mapped: the commit-log files on the disk, oldest first.
        queues: not loaded yet.
        checkpoint: as read from the disk.
        deleted: as read from the disk.
        config: of the store.
        progress: is updated, and may abort the recovery.

    Attributes:
        synced: physical offset up to which the log is on the disk.
        last_store_ms: store time of its last record, ms since the epoch.
    """

    def __init__(
        self,
        log: CommitLog,
        mapped: list[MappedFile],
        queues: QueueTable,
        checkpoint: StoreCheckpoint,
        deleted: DeletedTopics,
        config: StoreConfig,
        progress: OpeningProgress,
    ) -> None:
        self._log = log
        self._mapped = mapped
        self._queues = queues
        self._checkpoint = checkpoint
        self._deleted = deleted
        self._safe = checkpoint.safe
        self._config = config
        self._delay_levels_ms = config.delay_levels_ms
        self._check_crc = config.check_crc_on_recover
        # In SYNC mode readers see only what is on the disk, so recovery syncs what it found.
        self._sync = config.flush_disk_type == "SYNC_FLUSH"
        self._progress = progress
        self._is_safe = True
        self._walk = self._new_walk()
        self._report = RecoveryReport()
        # See Replay.
        self._seen: dict[ConsumeQueue, tuple[int, int]] = {}
        self.synced = sys.maxsize
        self.last_store_ms = 0

    def _new_walk(self) -> LogWalk:
        return LogWalk(
            self._mapped,
            limits=self._config.limits,
            check_crc=self._check_crc,
            synced_ms=self._checkpoint.times.physic_ms,
            synced_end=None if self._safe is None else self._safe.synced,
            progress=self._progress,
            levels_ms=self._delay_levels_ms,
        )

    @property
    def safe_point_holds(self) -> bool:
        """Whether the safe point that was read holds for this log."""
        return self._safe is not None and self._is_safe and self._safe.end <= self._walk.end

    def run(self, *, clean: bool) -> RecoveryReport:
        """Load and repair log and queues; return what was found and repaired.

        Args:
            clean: the store was closed properly.

        Raises:
            StoreError: a file does not fit the configuration.
            OpeningGivenUp: the opening was aborted.
            OSError: the disk fails, or is too full to repair a queue.
        """
        self._report.clean = clean
        if not self._mapped:
            # Without a log, entries would point to new messages once it has grown.
            self._queues.destroy()
        elif clean and self._from_clean_stop():
            self._report.quick = True
        else:
            self._queues.load(self._progress)
            self._queues.remove_deleted(self._deleted.ends)
            self._walk_log(clean=clean)
        return self._finish()

    def _walk_log(self, *, clean: bool) -> None:
        try:
            if self._safe is not None and self._lacks_nothing(self._safe):
                self._from_safe_point(self._safe)
            elif self._safe is None and clean:
                self._after_clean_stop()
            elif self._safe is None and (
                first := begins_by(self._mapped, self._checkpoint.times, self._config.limits)
            ):
                self._from_file(first)
            else:
                self._whole()
        except QueueLacksEntries as error:
            self._report.note(str(error))
            self._whole()

    def _from_clean_stop(self) -> bool:
        """Load the state of our clean stop; return False if it does not match the log."""
        stop = self._checkpoint.clean_stop([file.start for file in self._mapped])
        if stop is None:
            return False
        index, position = divmod(stop.log_tail - self._mapped[0].start, self._mapped[0].size)
        if not 0 <= index < len(self._mapped):
            return False
        for _ in self._walk.run(index, position):
            pass
        last = self._mapped[-1]
        if self._walk.end != stop.log_end or self._walk.damaged or stop.log_end < last.start:
            return False
        if not self._walk.records:
            self._walk.last_store_ms = stop.last_store_ms
        # The bytes behind the end were zeros at the clean stop, and the file has not changed since.
        last.watermark = stop.log_end - last.start
        self._queues.restore(stop.queues)
        return True

    def _after_clean_stop(self) -> None:
        dispatched = max((queue.last_physical_end() for queue in self._queues.all()), default=0)
        first = max(0, len(self._mapped) - self._config.limits.files_of_a_clean_start)
        while first and self._mapped[first].start > dispatched:
            first -= 1
        self._walk = self._new_walk()
        pieces = self._walk.sweep(first, 0, dispatched)
        self._replay(
            (piece for piece in pieces if piece.physical_offset >= dispatched), partial=False
        )
        self._cut_log()
        end, start = self._walk.end, self._mapped[0].start
        for queue in self._all_queues():
            self._report.cut_entries += queue.cut(end)
            queue.correct_min(start)

    # --- from the safe point

    def _lacks_nothing(self, safe: SafePoint) -> bool:
        for topic, rows in safe.numbers.items():
            for queue_id, number in rows.items():
                queue = self._queues.get((topic, queue_id))
                # ``first_offset`` is greater than 0 when files before a gap were ignored.
                begin, end = (0, 0) if queue is None else (queue.first_offset, queue.max_offset)
                if number and not begin < number <= end:
                    self._report.note(
                        f"queue {queue_id} of topic {topic} has entries from {begin} to {end}, but"
                        f" there were {number}: the queues are rebuilt from the log"
                    )
                    return False
        return True

    def _from_safe_point(self, safe: SafePoint) -> None:
        start = self._mapped[0].start
        at = max(safe.tail, start)
        index, position = divmod(at - start, self._mapped[0].size)
        if index >= len(self._mapped):
            self._reject_safe_point()
        head = bytes.fromhex(safe.head)
        if at == safe.tail and self._mapped[index].view[position : position + len(head)] != head:
            self._reject_safe_point()
        self._walk = self._new_walk()
        pieces = self._behind(safe, self._walk.sweep(index, position, safe.end))
        self._replay(pieces, partial=True)
        if self._sync:
            self._end_log(index)
        else:
            # In ASYNC mode, readers may see records that are only in the page cache; the log's
            # thread syncs them later.
            self._cut_log()
            self.synced = safe.synced
        for queue in self._all_queues():
            number = safe.numbers.get(queue.topic, {}).get(queue.queue_id, 0)
            # From ``number`` on, a queue keeps only the entries whose records the walk found.
            first, end = self._seen.get(queue, (number, number))
            if first > number:
                queue.replay_gap(number, first)
            self._report.cut_entries += queue.keep(max(end, number) if first >= number else end)
            queue.rewrite(number)
            queue.correct_min(self._mapped[0].start)

    def _behind(
        self, safe: SafePoint, pieces: Iterator[LogRecord | Stretch]
    ) -> Iterator[LogRecord | Stretch]:
        """Skip the records before the safe point, which must lie between two records.

        Raises:
            QueueLacksEntries: it does not, or the log is damaged before it.
        """
        before = max(safe.tail, self._mapped[0].start)
        for piece in pieces:
            if piece.physical_offset >= safe.end:
                self._check_end(safe, before, piece.physical_offset)
                yield from chain((piece,), pieces)
                return
            before = piece.physical_offset + piece.size
        self._check_end(safe, before, self._walk.end)

    def _check_end(self, safe: SafePoint, before: int, behind: int) -> None:
        if self._walk.damaged:
            self._require_whole_walk()
        if safe.end not in {before, behind}:
            self._reject_safe_point()

    def _reject_safe_point(self) -> NoReturn:
        self._is_safe = False
        raise QueueLacksEntries(
            "the log is not what it was when the last safe point was made: the queues are rebuilt"
            " from all of it"
        )

    def _require_whole_walk(self) -> NoReturn:
        raise QueueLacksEntries(
            "the log is damaged where it had reached the disk: the queues are rebuilt from all of"
            " it"
        )

    # --- after a crash of another broker, or when entries are missing

    def _from_file(self, first: int) -> None:
        self._walk = self._new_walk()
        self._replay(self._walk.sweep(first), partial=True)
        if self._walk.damaged:
            self._require_whole_walk()
        self._end_log(first)
        start = self._mapped[0].start
        for queue in self._all_queues():
            if (seen := self._seen.get(queue)) is None:
                self._report.cut_entries += queue.cut(self._mapped[first].start)
            else:
                self._report.cut_entries += queue.keep(seen[1])
            queue.correct_min(start)

    def _whole(self) -> None:
        self._walk = self._new_walk()
        self._replay(self._walk.sweep(), partial=False)
        self._end_log(0)
        end, start = self._walk.end, self._mapped[0].start
        for queue in self._all_queues():
            self._report.cut_entries += queue.settle(
                self._seen.get(queue), start, end, damaged=self._walk.damaged > 0
            )
        if self._safe is None:
            return
        # Queue offsets of messages that the log has lost are not used again, unless it has lost so
        # much that the next message would have an impossible one.
        most = room_for_messages(end)
        for topic, rows in self._safe.numbers.items():
            for queue_id, number in rows.items():
                if number:
                    self._queues.get_or_create(topic, queue_id).reach(min(number, most))
        for queue in self._all_queues():
            queue.rewrite(queue.min_offset)

    def _end_log(self, first: int) -> None:
        self._cut_log()
        # The records found may be only in the page cache.
        for file in self._mapped[first:]:
            self._progress.check()
            if self._safe is not None:
                file.rewrite(self._safe.synced - file.start, self._walk.end - file.start)
            file.sync()

    def _replay(self, pieces: Iterable[LogRecord | Stretch], *, partial: bool) -> None:
        replay = Replay(
            *(self._walk, self._queues, self._report, self._delay_levels_ms, self._deleted.ends),
            partial=partial,
        )
        replay.run(pieces)
        self._seen = replay.seen

    def _all_queues(self) -> Iterator[ConsumeQueue]:
        for queue in self._queues.all():
            self._progress.check()
            yield queue

    def _cut_log(self) -> None:
        end = self._walk.end
        while len(self._mapped) > 1 and self._mapped[-1].start > end:
            file = self._mapped.pop()
            self._report.cut_bytes += file.clear_from(0)
            # Newest first, each removal synced before the next: otherwise a power cut could bring
            # back a later file alone, with a gap before it.
            file.remove_durably()
        last = self._mapped[-1]
        self._report.cut_bytes += last.clear_from(min(end - last.start, last.size))

    def _finish(self) -> RecoveryReport:
        report, walk = self._report, self._walk
        self._log.load(self._mapped, walk.end, walk.last)
        self.synced = min(self.synced, walk.end)
        self.last_store_ms = walk.last_store_ms
        report.scanned_records = walk.records
        report.damaged_records = walk.damaged
        report.end_offset = walk.end
        report.queues = len(self._queues)
        return report


LOCK_TEXT = b"lock"
_FILE_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR})


@dataclass(slots=True)
class RecoveredStore:
    """The components of a recovered store, which is locked and marked as open."""

    lock: Lock
    log: CommitLog
    queues: QueueTable
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
    last_store_ms: int
    synced: int
    report: RecoveryReport


def open_store(
    config: StoreConfig,
    paths: StorePaths,
    files: Files,
    clock: Clock,
    progress: OpeningProgress,
    *,
    cut: int | None = None,
) -> RecoveredStore:
    """Lock and recover a store, and mark it as open.

    With ``cut``, drop the log from this physical offset on before, where a record begins.

    Raises:
        StoreError: the store can't be opened; the message says why and what to do.
        OpeningGivenUp: ``progress`` was aborted; the next opening starts over.
    """
    begun = clock.monotonic()
    try:
        for directory in (paths.root, paths.commit_log, paths.consume_queues):
            files.make_directory(directory, durable=True)
        lock = files.lock(paths.lock, LOCK_TEXT)
    except OSError as error:
        raise _cannot_open(paths, error) from error
    if lock is None:
        raise StoreError(
            f"another broker has the store {paths.root} open: stop that one, or give this one"
            " another storePathRootDir"
        )
    try:
        opened = _recover(config, paths, files, lock, progress, cut)
        opened.report.seconds = clock.monotonic() - begun
    except OSError as error:
        lock.release()
        raise _cannot_open(paths, error) from error
    except BaseException:
        lock.release()
        raise
    return opened


def _recover(
    config: StoreConfig,
    paths: StorePaths,
    files: Files,
    lock: Lock,
    progress: OpeningProgress,
    cut: int | None,
) -> RecoveredStore:
    maps = MappedFiles(open_maps(config.max_open_files))
    space = QueueSpace(files, maps, config.queue_file_bytes, config.limits)
    queues = QueueTable(space, paths.consume_queues)
    log = CommitLog(
        files,
        maps,
        paths.commit_log,
        config.mapped_file_size_commit_log,
        config.limits,
        writes_all=config.flush_disk_type == "SYNC_FLUSH",
    )
    mapped = find_log_files(files, maps, paths.commit_log, config.mapped_file_size_commit_log)
    if cut is not None:
        _cut(mapped, files, paths, cut)
    checkpoint = StoreCheckpoint(files, paths, config)
    checkpoint.read()
    deleted = DeletedTopics(files, paths.deleted_topics)
    recovery = Recovery(log, mapped, queues, checkpoint, deleted, config, progress)
    report = recovery.run(clean=files.size(paths.abort) is None)
    deleted.fit(log.start, log.end)
    # Only now, so that a refused start leaves the store as it was. ``begin`` removes the sections
    # of a clean stop before the ``abort`` file marks the store as open.
    checkpoint.begin(log, synced=recovery.synced, safe_point_holds=recovery.safe_point_holds)
    files.sync_directory(paths.commit_log)
    files.write(paths.abort, b"")
    files.sync_directory(paths.root)
    return RecoveredStore(
        *(lock, log, queues, checkpoint, deleted),
        *(recovery.last_store_ms, recovery.synced, report),
    )


def _cut(mapped: list[MappedFile], files: Files, paths: StorePaths, end: int) -> None:
    """Drop the log from ``end`` on, durably; the queues follow with the recovery.

    A crash in the middle leaves a log that ends later, with the queue entries that belong to it.
    """
    # What our checkpoint says is not true any more: recover as after another broker.
    files.remove(paths.own_checkpoint)
    files.sync_directory(paths.root)
    while len(mapped) > 1 and mapped[-1].start > end:
        # Newest first, each removal synced, as in ``Recovery``.
        mapped.pop().remove_durably()
    if mapped and end < mapped[-1].start + mapped[-1].size:
        mapped[-1].clear_from(max(0, end - mapped[-1].start))
        mapped[-1].sync()


def _cannot_open(paths: StorePaths, error: OSError) -> StoreError:
    where = error.filename or paths.root
    hint = "check the owner and the free space of its directory"
    if error.errno in _FILE_IN_THE_WAY:
        hint = "a file stands where a directory should be: move it away, or give another path"
    return StoreError(
        f"the store {paths.root} can't be opened ({where}: {error.strerror or error}): {hint}"
    )


def find_log_files(
    files: Files, maps: MappedFiles, directory: Path, file_size: int
) -> list[MappedFile]:
    """Return the commit-log files on the disk, oldest first.

    Raises:
        StoreError: a file's length is not the configured one, or there is a gap between files.
    """
    mapped: list[MappedFile] = []
    names = [name for name in files.list(directory) if offset_of(name) is not None]
    for name in names:
        path = directory / name
        size = files.size(path)
        if size == 0 and name == names[-1]:
            # Created just before a crash: it has a name, but no length yet.
            files.remove(path)
            continue
        if size != file_size:
            raise _wrong_length(path, size, file_size, [files.size(directory / n) for n in names])
        if mapped and int(name) != mapped[-1].start + file_size:
            raise StoreError(
                f"the commit log has no file between {mapped[-1].path.name} and {name} in"
                f" {directory}: put the missing file back, or move the later ones away"
            )
        mapped.append(MappedFile(files, maps, path, int(name), file_size, used=0))
    return mapped


def _wrong_length(
    path: Path, size: int | None, file_size: int, sizes: Sequence[int | None]
) -> StoreError:
    if file_size in sizes:
        return StoreError(
            f"the commit-log file {path} has {size} bytes, but others have {file_size}: it was cut"
            f" off or is not all there; put it back from a copy, or make it as long as the others"
            f" (truncate -s {file_size}) to go on without the messages that it lost"
        )
    return StoreError(
        f"the commit-log file {path} has {size} bytes but mappedFileSizeCommitLog is"
        f" {file_size}: set mappedFileSizeCommitLog={size} to open this store"
    )
