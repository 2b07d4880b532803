"""Checking a whole store: its files, the log, the queues and the index.

Nothing is written and no lock is taken. The report on a running store describes the moment when the
check began: the log up to its end at that time. If retention deletes files meanwhile, the check
starts again.

The small files and the index are read first, because they lag behind the log; then the end of the
log is determined. Each file of the log is a part that a separate process can walk. The results of
the parts are merged in the log's order; then the queues are checked.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.checkpoint import SafePoint
from broker.store.config import DEFAULT_DELAY_LEVELS_MS, StoreConfig, StorePaths
from broker.store.deleted_topics import DeletedTopics
from broker.store.log_view import LogEnd
from broker.store.log_walk import QueueKey
from broker.store.os_files import Files
from broker.store.raw_files import StoreChanged, ViewFile
from broker.storetools.verify import metadata_files
from broker.storetools.verify.findings import MAX_FINDINGS, Findings, Ranges, is_open
from broker.storetools.verify.index_scan import (
    IndexFiles,
    IndexPlace,
    IndexScan,
    load_compiled,
    load_index,
)
from broker.storetools.verify.log_part import LogPart, OnProgress, PartPlan, PartResult
from broker.storetools.verify.queue_checker import Evidence, QueueChecker
from broker.storetools.verify.queue_walk import QueueWalk, StoredQueues
from broker.storetools.view import StoreView

MAX_TRIES: Final = 4
"""Attempts to check a running store. Retention may delete files meanwhile, and a read during a
write may return a mixture of old and new bytes; real damage is found by every attempt."""

_PAUSE_SECONDS: Final = 0.1


class CheckOptions(NamedTuple):
    """Options of a check.

    Attributes:
        commit_log: ``storePathCommitLog``, if the log is elsewhere.
        levels_ms: ``messageDelayLevel``.
        jobs: number of processes that walk the log.
        plain: use the Python code instead of the compiled core.
        locked: the caller holds the store's lock.
        max_shown: maximum number of findings to keep; further ones are only counted.
        worth_processes: bytes of the log below which starting processes takes longer than walking
            it in one.
    """

    commit_log: str | None = None
    levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS
    jobs: int = 1
    plain: bool = False
    locked: bool = False
    max_shown: int = MAX_FINDINGS
    worth_processes: int = 2 * 1024 * 1024 * 1024


class Report(NamedTuple):
    """The result of a check.

    Attributes:
        findings: what is wrong.
        log_start, log_end: physical offsets.
        records, queues, entries, keys, index_entries: numbers of those checked.
        running: a broker has the store open.
        clean: the store was closed properly.
        bad_queues: queues that ``repair`` has to rebuild.
        last_ms: the greatest store time, ms since the epoch.
        seconds: duration of the check.
    """

    findings: Findings
    log_start: int
    log_end: int
    records: int
    queues: int
    entries: int
    keys: int
    index_entries: int
    running: bool
    clean: bool
    bad_queues: frozenset[QueueKey]
    last_ms: int
    seconds: float


def _no_progress(_: int) -> None:
    """Show no progress."""


def check(root: Path, options: CheckOptions, on_progress: OnProgress = _no_progress) -> Report:
    """Check a store.

    Args:
        root: the store's directory.
        options: of the check.
        on_progress: called with the bytes walked since the last call; with a negative number when
            the check starts again.

    Raises:
        StoreError: there is no store, or it can't be read.
    """
    for _ in range(MAX_TRIES - 1):
        done = Counter[str]()

        def count(walked: int, done: Counter[str] = done) -> None:
            done["bytes"] += walked
            on_progress(walked)

        try:
            report = Check(root, options, count).run()
        except StoreChanged:
            if options.locked or not is_open(root):
                raise
        else:
            if not report.running or report.findings.is_sound:
                return report
        on_progress(-done["bytes"])
    return Check(root, options, on_progress).run()


class Check:
    """Runs one attempt of a check."""

    def __init__(self, root: Path, options: CheckOptions, on_progress: OnProgress) -> None:
        self._root = root
        self._options = options
        self._on_progress = on_progress
        self._findings = Findings(options.max_shown)
        self._damaged = Ranges()

    def run(self) -> Report:
        """Run the check. Raises ``StoreError``."""
        begun = time.monotonic()
        root, findings = self._root, self._findings
        running = not self._options.locked and is_open(root)
        clean = not running and not (root / "abort").exists()
        if not clean and not running:
            why = "the broker did not stop cleanly, or runs elsewhere: its next start recovers"
            findings.note("abort", str(root / "abort"), None, why)
        tables = metadata_files.read_tables(root, findings)
        checkpoint = metadata_files.read_checkpoint(root)
        # The index before the list of log files: otherwise it could be ahead of them.
        index = load_index(root / "index", findings)
        view = StoreView(root, commit_log=self._options.commit_log)
        end = view.log_end()
        own = metadata_files.read_own(view, findings)
        safe = view.safe_point()
        if safe is not None and safe.end > end.position:
            safe = None
        lost_until = self._lost_until(view, end, safe, clean=clean)
        files = self._used(view, end.position)
        index.check_headers(view, max(end.position, lost_until), findings)
        scan = IndexScan(
            findings,
            [file.start for file in files],
            None if self._options.plain else load_compiled(),
        )
        scan.run(index.parts)
        queues, results = self._walk(view, files, end.position, lost_until, index, scan.places)
        unindexed = (sum(r.unindexed[0] for r in results), sum(r.unindexed[1] for r in results))
        keys = sum(result.keys for result in results)
        index.judge(own, keys, unindexed, findings, clean=clean)
        # Retention may have deleted messages since, whose queue entries are not needed any more.
        now = StoreView(root, commit_log=self._options.commit_log) if running else view
        evidence = Evidence(
            log_start=now.log.start,
            log_end=end.position,
            running=running,
            clean=clean,
            topics=tables.topics_with(topic for topic, _ in queues.states),
            safe=safe,
            deleted=DeletedTopics(
                Files(), StorePaths.of(StoreConfig(root=root)).deleted_topics
            ).ends,
        )
        checker = QueueChecker(
            *(view, root / "consumequeue", evidence, self._damaged, findings),
            partial(time.sleep, _PAUSE_SECONDS),
        )
        checker.run(queues.states)
        last_ms = max((result.last_ms for result in results), default=0)
        if not lost_until:
            metadata_files.check_checkpoint(root, checkpoint, last_ms, findings, clean=clean)
        metadata_files.check_offsets(root, view, tables, findings, last_ms=last_ms)
        if not running:
            metadata_files.check_progress(root, view, end.position, findings, clean=clean)
        return Report(
            findings,
            view.log.start,
            end.position,
            sum(result.records for result in results),
            checker.queues,
            sum(result.entries for result in results),
            keys,
            scan.entries,
            running,
            clean,
            frozenset(checker.bad),
            last_ms,
            time.monotonic() - begun,
        )

    # --- the log

    def _lost_until(
        self, view: StoreView, end: LogEnd, safe: SafePoint | None, *, clean: bool
    ) -> int:
        """Return up to where messages behind the log's end must have existed; 0 for none."""
        files = view.log.files
        if not files:
            return 0
        path = view.log.file_name(min(end.position, files[-1].end - 1))
        usual = _usual_size(files)
        behind = end.position // usual * usual + usual
        if end.torn is not None and not clean:
            sentence = f"the log is torn at its end, which the next start cuts off: {end.torn}"
            self._findings.note("torn-tail", path, end.position, sentence)
        if not clean:
            return 0
        if end.torn is not None:
            self._findings.damage("log", path, end.position, f"{end.torn}, and the log ends there")
        # Number of entries that point behind the log's end, and the offset in the last of them.
        torn, last = 0, 0
        for key in view.all_queues():
            queue = view.queue(*key)
            found = queue.range()
            if found.torn:
                torn += found.torn
                last = max(last, queue.last_position(found.max_offset + found.torn))
        known = max(safe.synced if safe is not None else 0, last + 1 if torn > 1 else 0)
        if known <= end.position:
            return behind if end.torn is not None else 0
        if end.torn is None:
            sentence = f"the log ends at {end.position}, but there were messages up to {known - 1}"
            self._findings.damage("log-short", path, end.position, sentence)
        return max(known, last + 1, behind)

    def _used(self, view: StoreView, end: int) -> list[ViewFile]:
        """Return the files with records; report lengths and names that are not consistent."""
        files = [file for file in view.log.files if file.start < end or file is view.log.files[0]]
        if not files:
            return []
        usual = _usual_size(view.log.files)
        for file, following in zip(files, [*files[1:], None], strict=True):
            if file.size != usual:
                self._findings.damage(
                    "file-size",
                    file.path,
                    None,
                    f"the file has {file.size} bytes, the others have {usual}",
                )
            elif following is not None and following.start > file.end:
                missing = Path(file.path).with_name(f"{file.end:020d}")
                self._findings.damage(
                    "file-missing",
                    str(missing),
                    file.end,
                    f"the log has nothing from {file.end} to {following.start}",
                )
            elif following is not None and following.start < file.end:
                self._findings.damage(
                    "file-name", following.path, None, "the file before it has the same offsets"
                )
        return files

    def _walk(
        self,
        view: StoreView,
        files: Sequence[ViewFile],
        end: int,
        lost_until: int,
        index: IndexFiles,
        places: Sequence[IndexPlace],
    ) -> tuple[QueueWalk, list[PartResult]]:
        behind = [*(file.start for file in files[1:]), lost_until]
        plans = [
            PartPlan(
                root=self._root,
                commit_log=self._options.commit_log,
                path=file.path,
                begin=file.start,
                end=min(file.end, end),
                file_end=file.end,
                closed=number + 1 < len(files) and files[number + 1].start < end,
                lost_until=behind[number],
                levels_ms=self._options.levels_ms,
                index_parts=tuple(index.parts),
                index_begin=places[number],
                index_end=places[number + 1] if number + 1 < len(places) else None,
                claims=index.claims,
                plain=self._options.plain,
            )
            for number, file in enumerate(files)
        ]
        queues = QueueWalk(StoredQueues(self._root / "consumequeue"))
        results = []
        for result in self._results(view, plans):
            queues.merge(result.queues)
            self._damaged.merge(result.damaged)
            self._findings.merge(result.findings)
            results.append(result._replace(queues={}, findings=Findings()))
        return queues, results

    def _results(self, view: StoreView, plans: Sequence[PartPlan]) -> Iterator[PartResult]:
        work = sum(plan.end - plan.begin for plan in plans)
        jobs = min(self._options.jobs, len(plans))
        if jobs < 2 or work < self._options.worth_processes:
            for plan in plans:
                yield LogPart(plan, view, self._on_progress).run()
            return
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            for plan, result in zip(plans, pool.map(walk_part, plans), strict=True):
                self._on_progress(plan.end - plan.begin)
                yield result


def _usual_size(files: Sequence[ViewFile]) -> int:
    return Counter(file.size for file in files).most_common(1)[0][0]


def walk_part(plan: PartPlan) -> PartResult:
    """Walk a part, in a separate process. Raises ``StoreError``."""
    return LogPart(plan, StoreView(plan.root, commit_log=plan.commit_log), _no_progress).run()
