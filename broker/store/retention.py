"""Deleting old messages: a thread removes expired files, and others when the disk is too full.

Every ten seconds the thread measures the disks, and ``retention_policy`` decides how many of the
log's oldest files to delete. So that readers always see a consistent store, a deletion has three
steps: the thread finds the new ``min_offset`` of each queue; the loop moves the queues'
``min_offset`` and drops their files, a few hundred queues per callback, then drops the log's files;
only then does the thread remove the files. A reader below ``min_offset`` gets OFFSET_TOO_SMALL;
slices in use stay valid.

Files of the log are removed one by one, oldest first, and the directory is synced after each, so
that a crash leaves a log without a gap. A file that can't be removed is retried later and delays
the others. A removed file takes space as long as a reader holds a slice of it.

Only messages before the safe point are deleted: up to there the queue entries are on the disk too,
and so are the queues' next offsets, which can't be derived once the log is deleted. A store without
a loop (tests, tools) calls ``step`` itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

import structlog

from broker.store.commit_log import CommitLog
from broker.store.config import RetentionConfig
from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.disk_state import StoreContext, StoreThread
from broker.store.mapped_file import MappedFile
from broker.store.os_files import Files
from broker.store.retention_policy import (
    Ages,
    DiskMoment,
    DiskUsage,
    RetentionPlan,
    decide,
    first_alive,
)
from remoting.runtime.clock import Clock

_QUEUE_PAUSE_SECONDS: Final = 0.001
"""Pause between removals of queue files, of which there may be thousands."""

_log = structlog.get_logger("store")

T = TypeVar("T")


class _HeldFile(NamedTuple):
    """A removed file whose space readers may still hold; ``until`` is a monotonic time."""

    size: int
    is_held: Callable[[], bool]
    until: float


class Removals:
    """The files to remove, and the removed files that still take space.

    Attributes:
        failures: number of removals that failed.
    """

    def __init__(
        self, files: Files, config: RetentionConfig, clock: Clock, stopping: threading.Event
    ) -> None:
        """Use ``stopping`` to end all pauses."""
        self._files = files
        self._config = config
        self._clock = clock
        self._stopping = stopping
        self._logs: deque[tuple[MappedFile, Callable[[], bool]]] = deque()
        self._queues: deque[MappedFile] = deque()
        self._held: list[_HeldFile] = []
        self._retry_at = 0.0
        self.failures = 0

    def add(self, logs: Iterable[MappedFile], queues: Iterable[MappedFile]) -> None:
        """Add files that log and queues have dropped. Call it on the loop's thread."""
        for file in logs:
            self._logs.append((file, file.give_up()))
        for file in queues:
            file.give_up()
            self._queues.append(file)

    def work(self, *, hurry: bool) -> None:
        """Remove the files added.

        Args:
            hurry: skip the pause between two files of the log.
        """
        if self._clock.monotonic() < self._retry_at and not self._stopping.is_set():
            return
        while self._logs and self._remove(self._logs[0][0], durably=True):
            file, is_held = self._logs.popleft()
            until = self._clock.monotonic() + self._config.hold_ms / 1000
            self._held.append(_HeldFile(file.size, is_held, until))
            if self._logs and not hurry:
                self._stopping.wait(self._config.log_pause_ms / 1000)
        while self._queues and self._remove(self._queues[0], durably=False):
            self._queues.popleft()
            self._stopping.wait(_QUEUE_PAUSE_SECONDS)

    def _remove(self, file: MappedFile, *, durably: bool) -> bool:
        try:
            file.remove()
            if durably:
                self._files.sync_directory(file.path.parent)
        except OSError as error:
            self.failures += 1
            self._retry_at = self._clock.monotonic() + self._config.retry_ms / 1000
            _log.error(
                "an old file can't be removed; it is tried again: check the owner of its directory",
                path=str(file.path),
                reason=error.strerror or str(error),
            )
            return False
        return True

    @property
    def held_bytes(self) -> int:
        """Bytes of removed files that readers still hold."""
        return sum(held.size for held in self._held.copy() if held.is_held())

    def coming_bytes(self) -> int:
        """Return the bytes that will become free without further deletions."""
        now = self._clock.monotonic()
        self._held = [held for held in self._held if held.is_held() and now < held.until]
        waiting = sum(file.size for file, _ in self._logs.copy())
        return waiting + sum(held.size for held in self._held)


class _Stopping(Exception):
    """The store is closing."""


@dataclass(slots=True)
class RetentionStats:
    """What has been deleted since the store was opened.

    Attributes:
        log_files: number of commit-log files.
        log_bytes: their bytes.
        unexpired_files: how many of them had not expired and were deleted to make room.
        queue_files: number of consume-queue files.
        places: the store's directories with the last measurement of their disks.
    """

    log_files: int = 0
    log_bytes: int = 0
    unexpired_files: int = 0
    queue_files: int = 0
    places: Sequence[DiskUsage] = ()


class Retention:
    """Deletes old messages of one store.

    Args:
        context: of the store.
        log, queues: whose files are deleted.
        safe_end: returns the physical offset up to which log and queues are on the disk.
        log_begins: called in the thread after a deletion, with the log's new first physical offset;
            may raise ``OSError``.

    Attributes:
        removals: the files to remove, and the removed files that still take space.
        stats: what was deleted.
    """

    def __init__(
        self,
        context: StoreContext,
        log: CommitLog,
        queues: QueueTable,
        *,
        safe_end: Callable[[], int],
        log_begins: Callable[[int], object],
    ) -> None:
        config, disk, clock = context.config, context.disk, context.clock
        self._log = log
        self._queues = queues
        self._disk = disk
        self._files = context.files
        self._config = config.retention
        self._limits = config.limits
        self._clock = clock
        self._directories = (context.paths.commit_log, context.paths.consume_queues)
        self._safe_end = safe_end
        self._log_begins = log_begins
        self._ages = Ages()
        self._asked = False
        self._tidied = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: Future[object] | None = None
        self._lock = threading.Lock()
        self._delete_from = clock.monotonic() + config.retention.first_delay_ms / 1000
        self._worker = StoreThread(
            "store-retention", self._run, disk, config.limits, wake=disk.no_space
        )
        self.removals = Removals(self._files, self._config, clock, self._worker.stopping)
        self.stats = RetentionStats()

    def configure(self, config: RetentionConfig) -> None:
        """Use changed settings at once, except the pauses between removals."""
        if config != self._config:
            self._config = config
            # The pause between two runs may have another length now.
            self._worker.wake.set()

    # --- the thread

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; it changes queues and log through ``loop``."""
        self._loop = loop
        self._worker.start()

    def stop(self) -> bool:
        """Stop the thread, called on the loop's; return False when it does not end in time."""
        self._worker.stopping.set()
        with self._lock:
            if self._pending is not None:
                self._pending.cancel()
        return self._worker.stop()

    def ask(self) -> None:
        """Delete expired and left-over files soon, at any hour."""
        self._asked = True
        self._worker.wake.set()

    def _run(self) -> None:
        wake, stopping = self._worker.wake, self._worker.stopping
        with contextlib.suppress(_Stopping):
            while not stopping.is_set():
                started = self._clock.monotonic() >= self._delete_from
                pause = self.step(may_delete=started or self._asked)
                # Not woken here: at least this long between two runs.
                stopping.wait(min(pause, self._limits.pressed_seconds))
                wake.wait(max(0.0, pause - self._limits.pressed_seconds))
                wake.clear()
        self.removals.work(hurry=True)

    # --- one run

    def step(self, *, may_delete: bool = True) -> float:
        """Measure the disk and delete files; return the seconds until the next step."""
        asked = self._asked
        if may_delete:
            # Before the clock is read: who asks from now on wants another run.
            self._asked = False
        plan = self._make_plan(asked=asked)
        deleted = 0
        if may_delete:
            if plan.files:
                deleted = self._delete(plan)
            if asked or not self._tidied:
                # Queue files that a crash left after their log files had been removed.
                queues = [(queue, queue.min_offset) for queue in self._queues.all()]
                left = [(queue, begin) for queue, begin in queues if queue.has_files_before(begin)]
                self.stats.queue_files += self._move_queues(left)
                self._tidied = True
            # Also what an earlier step could not remove.
            self.removals.work(hurry=plan.pressed)
            if asked and plan.files:
                self._asked = True  # until nothing is left to delete
        if deleted and plan.refusal is not None:
            # Accept messages again at once if there is room now.
            self._make_plan(asked=False)
        interval = self._config.interval_ms / 1000
        return min(interval, self._limits.pressed_seconds) if plan.pressed or deleted else interval

    def _make_plan(self, *, asked: bool) -> RetentionPlan:
        """Decide what to delete, and record whether the disk is too full to accept messages."""
        places = []
        for directory in self._directories:
            # A disk that can't be measured counts as not too full; the next write reports its
            # error.
            with contextlib.suppress(OSError):
                places.append(DiskUsage(directory, self._files.disk_use(directory)))
        self.stats.places = tuple(places)
        now_ms = self._clock.now_ms()
        moment = DiskMoment(
            places=self.stats.places,
            now_ms=now_ms,
            hour=time.localtime(now_ms / 1000).tm_hour,
            asked=asked,
            coming_bytes=self.removals.coming_bytes(),
        )
        plan = decide(self._config, moment, self._ages.of(self._log.files, self._log.end))
        self._disk.measured(plan.refusal)
        return plan

    def _delete(self, plan: RetentionPlan) -> int:
        """Delete the oldest files; return the number of commit-log files deleted."""
        safe_end = self._safe_end()
        files = [
            file for file in self._log.files[: plan.files] if file.start + file.size <= safe_end
        ]
        if not files:
            return 0
        position = files[-1].start + files[-1].size
        queue_files = self._move_queues(self._find_minima(position))
        dropped = self._in_loop(partial(self._begin_log, position))
        self._count(plan, dropped, queue_files)
        self.removals.work(hurry=plan.pressed)
        try:
            self._log_begins(self._log.start)
        except OSError as error:
            # Harmless: index entries of deleted messages find nothing.
            _log.warning("files that follow the log can't be deleted now", reason=str(error))
        return len(dropped)

    def _find_minima(self, position: int) -> list[tuple[ConsumeQueue, int]]:
        """Return the queues that change when the log begins at ``position``, with their minima."""
        begins = []
        for number, queue in enumerate(self._queues.all()):
            if number % self._limits.queues_per_pause == 0:
                self._worker.stopping.wait(self._limits.pressed_seconds / 1000)
            # A queue that can't be read keeps its ``min_offset``: readers skip entries whose
            # messages are not in the log.
            with contextlib.suppress(OSError):
                begin = first_alive(queue, position)
                if begin != queue.min_offset or queue.has_files_before(begin):
                    begins.append((queue, begin))
        return begins

    def _move_queues(self, begins: Sequence[tuple[ConsumeQueue, int]]) -> int:
        """Set ``min_offset`` of queues; return the number of their files dropped."""
        files = 0
        for at in range(0, len(begins), self._limits.queues_per_call):
            some = begins[at : at + self._limits.queues_per_call]
            files += self._in_loop(partial(self._begin_queues, some))
        return files

    def _begin_queues(self, begins: Sequence[tuple[ConsumeQueue, int]]) -> int:
        files: list[MappedFile] = []
        for queue, begin in begins:
            files += queue.drop_before(begin)
        self.removals.add((), files)
        return len(files)

    def _begin_log(self, position: int) -> list[MappedFile]:
        files = self._log.drop_before(position)
        self.removals.add(files, ())
        return files

    def _count(self, plan: RetentionPlan, dropped: Sequence[MappedFile], queue_files: int) -> None:
        stats = self.stats
        stats.log_files += len(dropped)
        stats.log_bytes += sum(file.size for file in dropped)
        stats.unexpired_files += min(plan.unexpired, len(dropped))
        stats.queue_files += queue_files
        log = _log.warning if plan.unexpired else _log.info
        log(
            "messages deleted to make room" if plan.unexpired else "old messages deleted",
            log_files=len(dropped),
            not_past_their_time=min(plan.unexpired, len(dropped)),
            queue_files=queue_files,
            log_begins_at=self._log.start,
        )

    def _in_loop(self, act: Callable[[], T]) -> T:
        """Call ``act`` on the loop's thread and return its result.

        Raises:
            _Stopping: the store or the loop is closing.
        """
        if self._loop is None:
            return act()
        future: Future[T] = Future()
        with self._lock:
            if self._worker.stopping.is_set():
                raise _Stopping
            self._pending = future  # type: ignore[assignment] # only ever cancelled
        try:
            self._loop.call_soon_threadsafe(_run_into, future, act)
        except RuntimeError as error:  # the loop has been closed
            raise _Stopping from error
        try:
            return future.result()
        except CancelledError as error:
            raise _Stopping from error


def _run_into(future: Future[T], act: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(act())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)
