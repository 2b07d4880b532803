"""Deleting old messages: by age and hour, and when the disk fills; and what a queue then begins with."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import structlog

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import FILLER_SIZE, NO_MESSAGE, ConsumeQueue, QueueFiles
from broker.store.disk_state import DiskState
from broker.store.limits import MAX_RECORD_BYTES
from broker.store.mapped_file import MappedFile
from broker.store.os_files import DiskUse, Files, Region
from broker.store.queue_table import QueueTable
from broker.store.sync import Worker
from remoting.clock import Clock
from remoting.protocol.disk.files import ENTRY, ENTRY_BYTES
from remoting.protocol.message.record import BORN_HOST_V6, Found, examine

_AT_ONCE: Final = 512
"""Entries read in one step where fillers are stepped over."""

_NO_MESSAGE: Final = NO_MESSAGE[:2]


def first_alive(queue: QueueFiles, log_start: int) -> int:
    """A queue's first message in the log from ``log_start`` on; its end if there is none.

    Raises:
        OSError: an entry can't be read.
    """
    low, high = queue.min_offset, queue.max_offset
    if low >= high:
        return low
    search = _Search(queue.files, high, log_start)
    if search.is_alive(low):
        return low
    # Dead at ``low``; alive at ``high``, if only in that messages to come will be.
    while high - low > 1:
        middle = (low + high) // 2
        if search.is_alive(middle):
            high = middle
        else:
            low = middle
    return search.next_message(high)


class _Search:
    """A look at the entries of one queue below ``end``."""

    __slots__ = ("_end", "_files", "_log_start", "_regions")

    def __init__(self, files: list[MappedFile], end: int, log_start: int) -> None:
        self._files = files
        self._end = end
        self._log_start = log_start
        # Held so that a file without a map of its own is not mapped for each entry.
        self._regions: dict[MappedFile, Region] = {}

    def is_alive(self, offset: int) -> bool:
        """Whether the log has this message or, for a filler, the next one there was, if any."""
        for physical_offset, size in self._entries(offset, 1):
            if _is_real(physical_offset, size):
                return physical_offset >= self._log_start
        for _, physical_offset in self._real(offset):
            return physical_offset >= self._log_start
        return True

    def next_message(self, offset: int) -> int:
        """The first entry from ``offset`` on that is, damaged or not, that of a message."""
        while entries := self._entries(offset, _AT_ONCE):
            for number, entry in enumerate(entries, offset):
                if entry != _NO_MESSAGE:
                    return number
            offset += len(entries)
        return self._end

    def _real(self, offset: int) -> Iterator[tuple[int, int]]:
        """Number and physical offset of the entries that are no fillers."""
        while offset < self._end:
            entries = self._entries(offset, _AT_ONCE)
            if not entries:
                return
            for number, (physical_offset, size) in enumerate(entries, offset):
                if _is_real(physical_offset, size):
                    yield number, physical_offset
            offset += len(entries)

    def _entries(self, offset: int, most: int) -> list[tuple[int, int]]:
        """Physical offset and size of entries of one file, at least one."""
        file = self._file_of(offset)
        if offset >= self._end or file is None:
            return []
        begin = offset * ENTRY_BYTES - file.start
        end = min(begin + most * ENTRY_BYTES, file.size, self._end * ENTRY_BYTES - file.start)
        region = self._regions.get(file)
        if region is None:
            region = self._regions[file] = file.hold()
        region.fetch(begin, end - begin)
        return [entry[:2] for entry in ENTRY.iter_unpack(region.view[begin:end])]

    def _file_of(self, offset: int) -> MappedFile | None:
        at = offset * ENTRY_BYTES
        return next((file for file in self._files if 0 <= at - file.start < file.size), None)


def _is_real(physical_offset: int, size: int) -> bool:
    return physical_offset >= 0 and 0 < size < FILLER_SIZE


_HOUR_MS: Final = 3_600_000
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """What is kept for how long, and what a full disk is.

    Attributes:
        reserved_ms: for so long messages are kept; ``fileReservedTime``, there in hours.
        delete_hours: of the day, local time, in which what is older goes; ``deleteWhen``.
        max_used_percent: beyond it what is older goes at any hour; ``diskMaxUsedSpaceRatio``.
        forced_used_percent: beyond it younger files go too; ``diskSpaceCleanForciblyRatio``.
        full_used_percent: beyond it nothing is stored; ``diskSpaceWarningLevelRatio``.
        forced_free_bytes: if not 0, takes the place of ``forced_used_percent``: below it.
        full_free_bytes: likewise of ``full_used_percent``.
        forcibly: whether younger files may go at all; ``cleanFileForciblyEnable``.
        batch: files that go in one run; ``deleteFileBatchMax``.
        first_delay_ms: nothing goes so soon after the start: there is time to notice a mistake.
        interval_ms: from run to run; ``cleanResourceInterval``.
        log_pause_ms: between two log files; ``deleteCommitLogFilesInterval``.
        hold_ms: for so long the space of a file that a reader holds counts as made;
            ``destroyMapedFileIntervalForcibly``.
        retry_ms: after it a file that could not be removed is tried again;
            ``redeleteHangedFileInterval``.
    """

    reserved_ms: int = 72 * _HOUR_MS
    delete_hours: frozenset[int] = frozenset({4})
    max_used_percent: int = 75
    forced_used_percent: int = 85
    full_used_percent: int = 90
    forced_free_bytes: int = 0
    full_free_bytes: int = 0
    forcibly: bool = True
    batch: int = 10
    first_delay_ms: int = 60_000
    interval_ms: int = 10_000
    log_pause_ms: int = 100
    hold_ms: int = 120_000
    retry_ms: int = 120_000


class Place(NamedTuple):
    """A directory of the store and the disk it is on."""

    path: Path
    use: DiskUse


class LogFile(NamedTuple):
    """A file of the log, oldest first.

    Attributes:
        size: bytes.
        behind_ms: store time of the first message behind it; None when that can't be told.
    """

    size: int
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class Moment:
    """What a decision goes by beside the files.

    Attributes:
        places: the store's directories.
        now_ms: the time.
        hour: of the day, local time.
        asked: whether somebody wants files past their time to go now.
        coming_bytes: space that deleted files still take, soon to be free.
    """

    places: Sequence[Place]
    now_ms: int
    hour: int
    asked: bool = False
    coming_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done.

    Attributes:
        files: so many of the oldest files go.
        young: so many of these are not past their time.
        full: why nothing is stored meanwhile, in one sentence; None when messages are taken.
        pressed: whether the disk is beyond a bound, so that it should be looked at again soon.
    """

    files: int
    young: int
    full: str | None
    pressed: bool


def decide(config: RetentionConfig, moment: Moment, files: Iterable[LogFile]) -> Plan:
    """What to do now.

    Args:
        config: the rules.
        moment: disk and time.
        files: those that may go, oldest first; only as many are looked at as are needed.
    """
    missing = max((missing_bytes(config, place.use) for place in moment.places), default=0)
    wanted = missing if config.forcibly else 0
    due = is_due(config, moment)
    count = young = 0
    freed = moment.coming_bytes
    if due or freed < wanted:
        for file in files:
            is_old = file.behind_ms is not None and (
                file.behind_ms + config.reserved_ms <= moment.now_ms
            )
            if count >= config.batch or not ((due and is_old) or freed < wanted):
                break
            count += 1
            young += not is_old
            freed += file.size
    full = next(filter(None, (full_sentence(config, place) for place in moment.places)), None)
    return Plan(count, young, full, pressed=missing > 0)


def is_due(config: RetentionConfig, moment: Moment) -> bool:
    """Whether files past their time go now."""
    return (
        moment.asked
        or moment.hour in config.delete_hours
        or any(place.use.ratio * _PERCENT > config.max_used_percent for place in moment.places)
    )


def missing_bytes(config: RetentionConfig, use: DiskUse) -> int:
    """How much has to go, old or young, for a disk to be within its bounds."""
    return max(
        _missing(use, config.forced_used_percent, config.forced_free_bytes),
        _missing(use, config.full_used_percent, config.full_free_bytes),
    )


def _missing(use: DiskUse, used_percent: int, free_bytes: int) -> int:
    if free_bytes:
        return max(0, free_bytes - use.free)
    allowed = (use.used + use.free) * used_percent / _PERCENT
    return max(0, math.ceil(use.used - allowed))


def full_sentence(config: RetentionConfig, place: Place) -> str | None:
    """Why a disk is too full to store anything; None when it is not."""
    use, least = place.use, config.full_free_bytes
    if not _missing(use, config.full_used_percent, least):
        return None
    bound = (
        f"less than the {least} of pocketmqDiskFullFreeBytes"
        if least
        else f"more than the {config.full_used_percent} % of diskSpaceWarningLevelRatio"
    )
    return (
        f"the disk of {place.path} is {use.percent}% full with {use.free} bytes free, {bound}, so"
        " the store takes no messages: free some space and it goes on by itself"
    )


# Size; system flag; store time behind an IPv4 and behind an IPv6 born host.
_HEAD: Final = Struct(">I32xi16xq4xq")


class Ages:
    """The store times of the first messages of files: they never change, so each is read once.

    Only the thread that deletes comes here.
    """

    def __init__(self) -> None:
        self._first_ms: dict[int, int] = {}

    def of(self, files: Sequence[MappedFile], log_end: int) -> Iterator[LogFile]:
        """The files that may go, all but the last; each is looked at when it is asked for."""
        self._forget_before(files[0].start if files else 0)
        files = [file for file in files if file.start < log_end]
        for index, file in enumerate(files[:-1]):
            yield LogFile(file.size, self._first_of(files[index + 1 :]))

    def _first_of(self, files: Sequence[MappedFile]) -> int | None:
        """Store time of the first message; of a later one when the first ones can't be read."""
        for file in files:
            first_ms = self._first_ms.get(file.start)
            if first_ms is None:
                with contextlib.suppress(OSError):
                    first_ms = first_store_ms(file)
            if first_ms is not None:
                self._first_ms[file.start] = first_ms
                return first_ms
        return None

    def _forget_before(self, start: int) -> None:
        for known in [known for known in self._first_ms if known < start]:
            del self._first_ms[known]


def first_store_ms(file: MappedFile) -> int | None:
    """Store time of a file's first record; None when there is no good one.

    Raises:
        OSError: the file can't be read.
    """
    region = file.hold()
    region.fetch(0, _HEAD.size)
    (size, *_) = _HEAD.unpack_from(region.view)
    if size <= MAX_RECORD_BYTES:
        # All of it that is looked at, so that no page fault holds the GIL.
        region.fetch(0, min(size, file.size))
    scan = examine(region.view, 0, check_crc=False)
    if not isinstance(scan, Found):
        return None
    _, sys_flag, behind_v4, behind_v6 = _HEAD.unpack_from(region.view)
    return int(behind_v6 if sys_flag & BORN_HOST_V6 else behind_v4)


_log = structlog.get_logger("store")

_QUEUE_PAUSE_SECONDS = 0.001


class _Held(NamedTuple):
    """A removed file that may still take space."""

    size: int
    is_held: Callable[[], bool]
    until: float


class Removals:
    """What is to be removed, and what has been.

    Attributes:
        failures: how often a file could not be removed.
    """

    def __init__(
        self, files: Files, config: RetentionConfig, clock: Clock, stopping: threading.Event
    ) -> None:
        """``stopping`` ends all pauses."""
        self._files = files
        self._config = config
        self._clock = clock
        self._stopping = stopping
        self._logs: deque[tuple[MappedFile, Callable[[], bool]]] = deque()
        self._queues: deque[MappedFile] = deque()
        self._held: list[_Held] = []
        self._retry_at = 0.0
        self.failures = 0

    def add(self, logs: Iterable[MappedFile], queues: Iterable[MappedFile]) -> None:
        """Files of the log and of queues that are in nobody's list any more; the loop's thread."""
        for file in logs:
            self._logs.append((file, file.give_up()))
        for file in queues:
            file.give_up()
            self._queues.append(file)

    def work(self, *, hurry: bool) -> None:
        """Remove what there is.

        Args:
            hurry: without the pause between two files of the log.
        """
        if self._clock.monotonic() < self._retry_at and not self._stopping.is_set():
            return
        while self._logs and self._remove(self._logs[0][0], durably=True):
            file, is_held = self._logs.popleft()
            until = self._clock.monotonic() + self._config.hold_ms / 1000
            self._held.append(_Held(file.size, is_held, until))
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
        """Space of removed files that readers still hold."""
        return sum(held.size for held in self._held.copy() if held.is_held())

    def coming_bytes(self) -> int:
        """Space that will be free without anything more being deleted."""
        now = self._clock.monotonic()
        self._held = [held for held in self._held if held.is_held() and now < held.until]
        waiting = sum(file.size for file, _ in self._logs.copy())
        return waiting + sum(held.size for held in self._held)


T = TypeVar("T")

PRESSED_SECONDS: Final = 1.0
"""How soon a disk that is too full is looked at again, and the shortest pause there is."""

QUEUES_A_TURN: Final = 256
"""Queues whose beginning the loop moves at once: well below a millisecond."""

QUEUES_A_BREATH: Final = 64
"""After so many queues looked at the thread leaves the GIL to others."""


class _Stopping(Exception):
    """The store is closing."""


@dataclass(slots=True)
class RetentionStats:
    """What has been deleted since the store was opened.

    Attributes:
        log_files: of the commit log.
        log_bytes: of these.
        young_files: of these were not past their time: the disk was too full.
        queue_files: of consume queues.
        places: the store's directories and how full their disks were when last looked at.
    """

    log_files: int = 0
    log_bytes: int = 0
    young_files: int = 0
    queue_files: int = 0
    places: Sequence[Place] = ()


class Retention:
    """Deletes old messages of one store.

    Args:
        log, queues: of the store.
        disk: is told whether the disk is too full.
        files: the disk.
        config: the rules.
        clock: the time.
        directories: whose disks are looked at.
        safe_end: tells up to where log and queues are on the disk; see ``safe_point``.

    Attributes:
        stats: what was deleted.
        followers: told in the thread where the log begins, after files were deleted; may raise
            ``OSError``.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        disk: DiskState,
        files: Files,
        config: RetentionConfig,
        clock: Clock,
        *,
        directories: Sequence[Path],
        safe_end: Callable[[], int],
    ) -> None:
        self._log = log
        self._queues = queues
        self._disk = disk
        self._files = files
        self._config = config
        self._clock = clock
        self._directories = directories
        self._safe_end = safe_end
        self._ages = Ages()
        self._asked = False
        self._tidied = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: Future[object] | None = None
        self._lock = Lock()
        self._delete_from = clock.monotonic() + config.first_delay_ms / 1000
        self._worker = Worker("store-retention", self._run, disk)
        self._removals = Removals(files, config, clock, self._worker.stopping)
        self.stats = RetentionStats()
        self.followers: list[Callable[[int], object]] = []

    # --- life

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; queues and log are changed on ``loop``."""
        self._loop = loop
        self._disk.on_no_space = self._worker.wake.set
        self._worker.start()

    def stop(self) -> bool:
        """End the thread, on the loop's; False when a call of the disk does not end."""
        self._worker.stopping.set()
        with self._lock:
            if self._pending is not None:
                self._pending.cancel()
        return self._worker.stop()

    def ask(self) -> None:
        """Have what is past its time, or was left over, deleted soon, whatever the hour is."""
        self._asked = True
        self._worker.wake.set()

    @property
    def held_bytes(self) -> int:
        """Space of deleted files that readers still hold."""
        return self._removals.held_bytes

    @property
    def failures(self) -> int:
        """How often a file could not be removed."""
        return self._removals.failures

    def _run(self) -> None:
        wake, stopping = self._worker.wake, self._worker.stopping
        with contextlib.suppress(_Stopping):
            while not stopping.is_set():
                started = self._clock.monotonic() >= self._delete_from
                pause = self.step(may_delete=started or self._asked)
                # Whoever wakes it, never more often than that.
                stopping.wait(min(pause, PRESSED_SECONDS))
                wake.wait(max(0.0, pause - PRESSED_SECONDS))
                wake.clear()
        self._removals.work(hurry=True)

    # --- one run

    def step(self, *, may_delete: bool = True) -> float:
        """Look, and delete what is to be deleted; seconds until the next look."""
        asked = self._asked
        plan = self._look(asked=asked)
        deleted = 0
        if may_delete:
            if plan.files:
                deleted = self._delete(plan)
            if asked or not self._tidied:
                self._tidy()
                self._tidied = True
            # What an earlier run left over too.
            self._removals.work(hurry=plan.pressed)
            if asked and not plan.files:
                self._asked = False
        if deleted and plan.full is not None:
            # Perhaps there is room already.
            self._look(asked=False)
        interval = self._config.interval_ms / 1000
        return min(interval, PRESSED_SECONDS) if plan.pressed or deleted else interval

    def _look(self, *, asked: bool) -> Plan:
        """What is to be done; whoever stores is told whether the disk is too full for that."""
        self.stats.places = tuple(self._measure())
        now_ms = self._clock.now_ms()
        moment = Moment(
            places=self.stats.places,
            now_ms=now_ms,
            hour=time.localtime(now_ms / 1000).tm_hour,
            asked=asked,
            coming_bytes=self._removals.coming_bytes(),
        )
        plan = decide(self._config, moment, self._ages.of(self._log.files, self._log.end))
        self._disk.measured(plan.full)
        return plan

    def _measure(self) -> list[Place]:
        found = []
        for directory in self._directories:
            # A disk that can't be asked is not too full; what ails it, the next write tells.
            with contextlib.suppress(OSError):
                found.append(Place(directory, self._files.disk_use(directory)))
        return found

    def _delete(self, plan: Plan) -> int:
        """Delete the oldest files; how many of the log went."""
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
        self._removals.work(hurry=plan.pressed)
        self._tell_followers()
        return len(dropped)

    def _tell_followers(self) -> None:
        for follower in self.followers:
            try:
                follower(self._log.start)
            except OSError as error:
                # What is derived from the log may know more than there is.
                _log.warning("files that follow the log can't be deleted now", reason=str(error))

    def _find_minima(self, position: int) -> list[tuple[ConsumeQueue, int]]:
        """The queues that change when the log begins at ``position``, and where they begin then."""
        begins = []
        for number, queue in enumerate(self._queues.all()):
            if number % QUEUES_A_BREATH == 0:
                self._worker.stopping.wait(PRESSED_SECONDS / 1000)
            # One that can't be read keeps its beginning: readers skip what the log has not.
            with contextlib.suppress(OSError):
                begin = first_alive(queue, position)
                if begin != queue.min_offset or queue.has_files_before(begin):
                    begins.append((queue, begin))
        return begins

    def _tidy(self) -> None:
        """Remove what a crash, between the log's files and the queues', has left."""
        queues = [(queue, queue.min_offset) for queue in self._queues.all()]
        left = [(queue, begin) for queue, begin in queues if queue.has_files_before(begin)]
        self.stats.queue_files += self._move_queues(left)

    def _move_queues(self, begins: Sequence[tuple[ConsumeQueue, int]]) -> int:
        """Let queues begin elsewhere; how many of their files that makes superfluous."""
        files = 0
        for at in range(0, len(begins), QUEUES_A_TURN):
            some = begins[at : at + QUEUES_A_TURN]
            files += self._in_loop(partial(self._begin_queues, some))
        return files

    def _begin_queues(self, begins: Sequence[tuple[ConsumeQueue, int]]) -> int:
        files: list[MappedFile] = []
        for queue, begin in begins:
            files += queue.drop_before(begin)
        self._removals.add((), files)
        return len(files)

    def _begin_log(self, position: int) -> list[MappedFile]:
        files = self._log.drop_before(position)
        self._removals.add(files, ())
        return files

    def _count(self, plan: Plan, dropped: Sequence[MappedFile], queue_files: int) -> None:
        stats = self.stats
        stats.log_files += len(dropped)
        stats.log_bytes += sum(file.size for file in dropped)
        stats.young_files += min(plan.young, len(dropped))
        stats.queue_files += queue_files
        tell = _log.warning if plan.young else _log.info
        tell(
            "messages deleted to make room" if plan.young else "old messages deleted",
            log_files=len(dropped),
            not_past_their_time=min(plan.young, len(dropped)),
            queue_files=queue_files,
            log_begins_at=self._log.start,
        )

    def _in_loop(self, act: Callable[[], T]) -> T:
        """What ``act`` gives on the loop's thread. Raises ``_Stopping`` when that closes."""
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
