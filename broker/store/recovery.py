"""Putting a store right when it is opened. It works through the ``Files`` seam alone.

After a clean stop that left word of it (``clean_stop``) only the log's last records are looked at.
After another one the last three files are walked and the log ends behind their last good record
(cf. CommitLog.recoverNormally); queues keep their entries, those that point behind the end are
cut, and records that no queue has heard of are dispatched. After an unclean stop the whole log is
walked and every entry of every queue is compared with it and put right: the log is the truth.
In both cases what stands behind the end is overwritten with zeros, so that it can't come back when
the log has grown to where it stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.store.clean_stop import CleanStop
from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.dispatch import entry_of
from broker.store.limits import FILES_OF_A_CLEAN_START
from broker.store.log_walk import LogRecord, LogWalk
from broker.store.mapped_file import MappedFile
from broker.store.queue_table import QueueTable
from broker.store.results import RecoveryReport
from remoting.protocol.disk.checkpoint import Checkpoint


class Recovery:
    """One opening of a store.

    Args:
        log: not loaded yet.
        mapped: the commit-log files on the disk.
        queues: not loaded yet.
        checkpoint: what the last run had synced.
        delay_levels_ms: of ``messageDelayLevel``.
        check_crc: compare the CRC of bodies.
    """

    def __init__(
        self,
        log: CommitLog,
        mapped: list[MappedFile],
        queues: QueueTable,
        checkpoint: Checkpoint,
        *,
        delay_levels_ms: Sequence[int],
        check_crc: bool,
    ) -> None:
        self._log = log
        self._mapped = mapped
        self._queues = queues
        self._delay_levels_ms = delay_levels_ms
        self._check_crc = check_crc
        self._synced_ms = checkpoint.physic_ms
        self._walk = self._new_walk()
        self._report = RecoveryReport()
        # Of each queue the number of its first message in the log, and behind its last one.
        self._seen: dict[ConsumeQueue, tuple[int, int]] = {}
        self.last_store_ms = 0

    def _new_walk(self) -> LogWalk:
        return LogWalk(self._mapped, check_crc=self._check_crc, synced_ms=self._synced_ms)

    def run(self, *, clean: bool, stop: CleanStop | None) -> RecoveryReport:
        """Load log and queues; what was found and done.

        Args:
            clean: the store was closed properly.
            stop: what that left, if it can be believed.

        Raises:
            StoreError: a file does not fit the configuration.
            OSError: the disk fails, or is too full to put a queue right.
        """
        self._report.clean = clean
        if not self._mapped:
            # Entries of messages that are gone would take the place of new ones.
            self._queues.destroy()
        elif stop is not None and self._take_over(stop):
            self._report.quick = True
        else:
            self._walk = self._new_walk()
            self._queues.load()
            if clean:
                self._after_clean_stop()
            else:
                self._after_crash()
        return self._finish()

    def _take_over(self, stop: CleanStop) -> bool:
        """Go on from a clean stop, if the log ends where it says."""
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
        # What stands behind it are zeros, as that stop knew.
        last.watermark = stop.log_end - last.start
        self._queues.restore(stop.queues)
        return True

    def _after_clean_stop(self) -> None:
        dispatched = max((queue.last_physical_end() for queue in self._queues.all()), default=0)
        first = max(0, len(self._mapped) - FILES_OF_A_CLEAN_START)
        while first and self._mapped[first].start > dispatched:
            first -= 1
        self._replay(
            record for record in self._walk.run(first) if record.physical_offset >= dispatched
        )
        self._cut_log()
        end, start = self._walk.end, self._mapped[0].start
        for queue in self._queues.all():
            self._report.cut_entries += queue.cut(end)
            queue.correct_min(start)

    def _after_crash(self) -> None:
        self._replay(self._walk.run())
        self._cut_log()
        # Readers will see what may be in the page cache alone so far.
        for file in self._mapped:
            file.sync()
        end, start = self._walk.end, self._mapped[0].start
        for queue in self._queues.all():
            self._report.cut_entries += queue.settle(
                self._seen.get(queue), start, end, damaged=self._walk.damaged > 0
            )

    def _replay(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            entry = entry_of(record, self._delay_levels_ms)
            if entry is None:
                continue
            try:
                queue = self._queues.get_or_create(entry.topic, entry.queue_id)
            except ValueError as error:
                self._report.note(f"the record at {entry.physical_offset} has no queue: {error}")
                continue
            offset = entry.queue_offset
            if queue.replay(offset, entry.physical_offset, entry.size, entry.tags_code):
                self._report.rebuilt_entries += 1
            first, behind = self._seen.get(queue, (offset, offset))
            queue.replay_gap(behind, offset)
            # A queue whose topic was deleted and made again begins anew in the same log.
            self._seen[queue] = (first if offset >= behind else min(first, offset), offset + 1)

    def _cut_log(self) -> None:
        end = self._walk.end
        while len(self._mapped) > 1 and self._mapped[-1].start > end:
            file = self._mapped.pop()
            self._report.cut_bytes += file.clear_from(0)
            file.remove()
        last = self._mapped[-1]
        self._report.cut_bytes += last.clear_from(min(end - last.start, last.size))

    def _finish(self) -> RecoveryReport:
        report, walk = self._report, self._walk
        self._log.load(self._mapped, walk.end, walk.last)
        self.last_store_ms = walk.last_store_ms
        report.scanned_records = walk.records
        report.damaged_records = walk.damaged
        report.end_offset = walk.end
        report.queues = len(self._queues)
        return report
