"""Bringing the store to the disk, and what follows a sync.

``LogSync`` owns how far the commit log is on the disk, ``QueueSync`` how far the consume queues
are, and with them the checkpoint and the safe point. ``Syncer`` has the threads: one syncs the log,
on request and, in ASYNC mode, periodically; one syncs the queues at its own pace, since nobody
waits for them. All requests made during a sync of the log share the next one, without any timer:
that is group commit. Before and after a sync of the log, in this order:

1.  the safe point is marked, if one is due (``Syncer._sync_log``);
2.  the log is synced (``LogSync.sync``);
3.  the queues' thread makes the marked point safe (``QueueSync.turn``);
4.  on the loop's thread, entries of messages become visible, and whoever waits for them is told
    (``Syncer._show``).

``GroupCommit`` has the callers that wait until a message is on the disk (SYNC mode).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from broker.store.append import EntryDispatcher
from broker.store.checkpoint import Numbers, SafePoint, StoreCheckpoint
from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.disk_state import StoreContext, StoreThread
from broker.store.limits import PAGE_BYTES
from broker.store.os_files import is_no_space
from broker.store.results import StoreStats
from remoting.protocol.disk.files import ENTRY_BYTES

_HEAD_BYTES: Final = 64
"""Of the record at a safe point's ``tail``: its sizes, place, CRC, and when it was born and stored.
"""

_ASKED_FOR_THEIR_LAST: Final = 64
"""Queues whose last message may be the tail; from there to the end the log is walked once more."""

Callback = Callable[[bool], None]


class LogSync:
    """How far the commit log is on the disk, and bringing it there.

    Only ``fdatasync`` is used, which releases the GIL. A sync that failed is never repeated, and
    nothing is stored any more: see ``disk_state``.

    Attributes:
        log: the commit log.
        flushed: physical offset up to which the log is on the disk.
        tail: physical offset from which on it was brought there last; a record begins there.
        flushed_store_ms: store time up to which its messages are.
    """

    def __init__(
        self, context: StoreContext, log: CommitLog, *, synced: int, store_ms: Callable[[], int]
    ) -> None:
        """Syncs a log.

        Args:
            context: of the store.
            log: just opened.
            synced: physical offset up to which the log is on the disk.
            store_ms: returns the store time of the last record.
        """
        self.log = log
        self._disk = context.disk
        self._config = context.config
        self._clock = context.clock
        self._stats = context.stats
        self._store_ms = store_ms
        self._syncing = threading.Lock()
        self._flushed_at = context.clock.monotonic()
        self._found_end = log.end
        self.flushed = synced
        self.tail = log.opened_tail
        self.flushed_store_ms = 0

    def sync(self) -> bool:
        """Bring all of the log to the disk, in any thread; False when the disk failed."""
        # One at a time: two would count the same pages, and report ends out of order.
        with self._syncing:
            if self._disk.final:
                return False
            # The time is read before the end: all messages stored up to then lie before that end.
            store_ms = self._store_ms()
            end = self.log.end
            if end > self.flushed:
                if not self._sync_files(end):
                    return False
                # A start does not begin before what another one has walked over.
                self.tail = max(self.flushed, self.tail)
            self.flushed = end
            self.flushed_store_ms = store_ms
            self._flushed_at = self._clock.monotonic()
            return True

    def _sync_files(self, end: int) -> bool:
        for file in self.log.files_between(self.flushed, end):
            begun = self._clock.monotonic()
            try:
                # What a start found behind the last sync may be in the page cache alone, marked
                # as written by a sync that failed: only a write brings it to the disk for sure.
                file.rewrite(self.flushed - file.start, self._found_end - file.start)
            except OSError as error:
                if not is_no_space(error):
                    self._disk.sync_failed(file.path, error)
                else:
                    self._disk.refused(file.path, error)
                return False
            try:
                file.sync()
            except OSError as error:
                self._disk.sync_failed(file.path, error)
                return False
            self._stats.count_sync(self._clock.monotonic() - begun)
        return True

    def is_due(self) -> bool:
        """Whether the interval sync has enough to do, or has waited long enough."""
        dirty = self.log.end - self.flushed
        if dirty <= 0:
            return False
        thorough = self._config.flush_commit_log_thorough_interval_ms / 1000
        return (
            dirty >= self._config.least_flush_bytes
            or self._clock.monotonic() - self._flushed_at >= thorough
        )


class Waiter(NamedTuple):
    """A caller that wants to know when the log is on the disk up to ``end_offset``."""

    end_offset: int
    deadline: float
    callback: Callback


class GroupCommit:
    """The callers that wait until a message is on the disk. Only the loop's thread uses it.

    All that arrives in one turn of the loop is one request for a sync; all that arrives during a
    sync is the next one. An answer that waited longer than ``syncFlushTimeout`` goes out as
    "stored, less durable"; the message still becomes visible when the disk has it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        request_sync: Callable[[], None],
        timeout_ms: int,
        stats: StoreStats,
    ) -> None:
        """``request_sync`` has the log synced soon."""
        self._loop = loop
        self._request_sync = request_sync
        self._timeout = timeout_ms / 1000
        self._stats = stats
        self._waiters: list[Waiter] = []
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def ask(self) -> None:
        """Have the log synced at the end of this turn of the loop."""
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._asked = False
        self._request_sync()

    def add(self, end_offset: int, callback: Callback) -> None:
        """Tell ``callback`` True when the disk has the log up to here, False if it never comes."""
        deadline = self._loop.time() + self._timeout
        self._waiters.append(Waiter(end_offset, deadline, callback))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        self.ask()

    def reached(self, durable_end: int) -> None:
        """The log is on the disk up to here."""
        waiters = self._waiters
        # They wait in the order of the log; one that does not waits for the next sync.
        ready = 0
        while ready < len(waiters) and waiters[ready].end_offset <= durable_end:
            ready += 1
        self._waiters = waiters[ready:]
        for waiter in waiters[:ready]:
            waiter.callback(True)

    def fail(self) -> None:
        """Fail all waiters: the disk has failed, or the store closes."""
        waiters, self._waiters = self._waiters, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in waiters:
            waiter.callback(False)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        late = 0
        while late < len(self._waiters) and self._waiters[late].deadline <= now:
            late += 1
        expired, self._waiters = self._waiters[:late], self._waiters[late:]
        if self._waiters:
            self._timer = self._loop.call_at(self._waiters[0].deadline, self._expire)
        self._stats.sync_timeouts += len(expired)
        for waiter in expired:
            waiter.callback(False)


class Mark(NamedTuple):
    """A moment of the store, which becomes a safe point when the disk has all of it.

    Attributes:
        deletions: of topics, until then.
    """

    tail: int
    head: str
    end: int
    numbers: dict[ConsumeQueue, int]
    deletions: int


class QueueSync:
    """How far the consume queues are on the disk; writes both checkpoints.

    A safe point takes two steps: first the loop's thread takes a mark; when the disk has the log up
    to there it gets the queues. A log that grows fast is marked just before each of its syncs, so
    that a start after a crash walks over little more than what the disk did not have. When a sync
    of a queue has failed, nobody knows what of it is on the disk: the last safe point stays, and so
    does the ``abort`` file, so that the next start rebuilds what came later.
    """

    def __init__(
        self,
        context: StoreContext,
        queues: QueueTable,
        log_sync: LogSync,
        dispatcher: EntryDispatcher,
        checkpoint: StoreCheckpoint,
        *,
        store_ms: Callable[[], int],
        index_ms: Callable[[], int | None],
    ) -> None:
        """Syncs queues.

        Args:
            context: of the store.
            queues: to be synced.
            log_sync: of the log they are about.
            dispatcher: has the messages that have no entry yet.
            checkpoint: of the store.
            store_ms: returns the store time of the last record.
            index_ms: returns the time up to which the index is on the disk; None: unknown.
        """
        self._context = context
        self._config = context.config
        self._now = context.clock.monotonic
        self._queues = queues
        self._log = log_sync.log
        self._log_sync = log_sync
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._times = checkpoint.times
        self._store_ms = store_ms
        self._index_ms = index_ms
        self._mark: Mark | None = None
        self._tail = self._log.opened_tail
        self._numbers: dict[ConsumeQueue, int] = {}
        self._deletions = 0
        self._named = {q for q in queues.all() if q.opened_offset and checkpoint.has_name(q)}
        self._guard = threading.Lock()
        self._failed: OSError | None = None
        self._thorough_at = self._next_at = self._now()

    # --- the thread that appends

    def take_mark(self) -> None:
        """Mark the present state of the store."""
        end = min(self._log.end, self._dispatcher.first_waiting())
        numbers = {queue: queue.max_offset for queue in self._queues.all()}
        grown = (queue for queue, number in numbers.items() if number > self._numbers.get(queue, 0))
        for queue in islice(grown, _ASKED_FOR_THEIR_LAST):
            entry = queue.entry(queue.max_offset - 1)
            if entry is not None and self._tail < entry[0] < end:
                self._tail = entry[0]
        self._numbers = numbers
        head = b""
        file = self._log.file_at(self._tail)
        if file is not None and self._tail < end:
            head_end = min(self._tail + _HEAD_BYTES, end, file.start + file.size)
            head = bytes(self._log.slice(self._tail, head_end - self._tail) or b"")
        self._mark = Mark(self._tail, head.hex(), end, numbers, self._deletions)

    def make_safe(self) -> None:
        """Make everything safe; the log is on the disk.

        Raises:
            OSError: the disk refuses.
        """
        self.take_mark()
        self._make_safe()
        self.write_times()

    def forget(self, topic: str) -> None:
        """A topic is about to be deleted. Raises ``OSError``."""
        with self._guard:
            # With a mark that was taken before, its queues would look like lost ones.
            self._deletions += 1
            self._mark = None
            self._checkpoint.forget(topic)

    # --- any thread, one at a time

    @property
    def has_mark(self) -> bool:
        """Whether a mark waits until the disk has the log up to there."""
        return self._mark is not None

    @property
    def may_become_safe(self) -> bool:
        """Whether there is a mark, and the disk has the log up to there."""
        mark = self._mark
        return mark is not None and self._log_sync.flushed >= mark.end

    def is_due(self) -> bool:
        """Whether a new safe point is worth its syncs."""
        now = self._now()
        grown = self._log.end - self._checkpoint.safe_end
        if now < self._next_at or not grown:
            return False
        pause = self._config.flush_consume_queue_thorough_interval_ms / 1000
        return grown >= self._config.limits.safe_point_bytes or now - self._thorough_at >= pause

    def turn(self) -> None:
        """Sync queues that have much to sync, or all for a safe point. Raises ``OSError``."""
        if self.may_become_safe:
            self._make_safe()
        else:
            self._sync(thorough=False)
        self.write_times()

    def _make_safe(self) -> None:
        mark, self._mark = self._mark, None
        queues = self._queues.all()
        limits = self._config.limits
        pause = limits.safe_point_queue_seconds * sum(map(bool, map(_dirty_bytes, queues)))
        pause += limits.mark_queue_seconds * len(queues)
        self._sync(thorough=True)
        with self._guard:
            if mark is not None and mark.deletions == self._deletions:
                self._write_point(mark)
        self._next_at = self._now() + pause

    def _write_point(self, mark: Mark) -> None:
        numbers: Numbers = {}
        for queue, number in mark.numbers.items():
            numbers.setdefault(queue.topic, {})[queue.queue_id] = number
        point = SafePoint(mark.tail, mark.head, mark.end, self._log_sync.flushed, numbers)
        if point != self._checkpoint.safe:
            try:
                self._checkpoint.write(point)
            except OSError:
                # The last safe point is still true.
                self._context.stats.queue_sync_failures += 1

    def _sync(self, *, thorough: bool) -> None:
        """Bring the queues to the disk, all or those with much to bring. Raises ``OSError``."""
        if self._failed is not None:
            raise self._failed
        # Read before the queues: their entries are at least as new. While messages wait for the
        # disk, their queues lag behind the log.
        waits = len(self._dispatcher)
        dispatched_ms = self._log_sync.flushed_store_ms if waits else self._store_ms()
        least = 1 if thorough else self._config.flush_consume_queue_least_pages * PAGE_BYTES
        queues = self._queues.all()
        try:
            for queue in queues:
                if _dirty_bytes(queue) >= least:
                    queue.sync()
        except OSError as error:
            self._failed = error
            raise
        if thorough:
            self._sync_names(queues)
            self._thorough_at = self._now()
            self._times = replace(self._times, logics_ms=dispatched_ms)

    def _sync_names(self, queues: list[ConsumeQueue]) -> None:
        """Bring the directories of queues to the disk, once for each."""
        fresh = [queue for queue in queues if queue not in self._named and queue.max_offset]
        if not fresh:
            return
        # A new queue's files were synced with their names; one found at the start may lack its own.
        directories = {queue.directory for queue in fresh if queue.opened_offset}
        directories |= {queue.directory.parent for queue in fresh}
        directories.add(self._context.paths.consume_queues)
        for directory in sorted(directories, reverse=True):
            try:
                self._context.files.sync_directory(directory)
            except FileNotFoundError:
                # Its topic is being deleted; if not, the next start finds out.
                self._named.clear()
                return
        self._named = {queue for queue in queues if queue.max_offset}

    def write_times(self) -> None:
        """Write RocketMQ's checkpoint if it has changed. Raises ``OSError``."""
        flushed_ms = self._log_sync.flushed_store_ms
        if flushed_ms:
            self._times = replace(self._times, physic_ms=flushed_ms)
        index_ms = self._index_ms()
        if index_ms is not None:
            self._times = replace(self._times, index_ms=index_ms)
        self._checkpoint.write_times(self._times)


def _dirty_bytes(queue: ConsumeQueue) -> int:
    return (queue.max_offset - queue.flushed_offset) * ENTRY_BYTES


class Syncer:
    """The threads that sync a store, and what follows their syncs.

    Without a loop (tests, tools) there are no threads: ``turn_log`` and ``turn_queues`` do their
    work.

    Attributes:
        log: how far the log is on the disk.
        queues: how far the queues are.
    """

    def __init__(
        self, context: StoreContext, log: LogSync, queues: QueueSync, dispatcher: EntryDispatcher
    ) -> None:
        self.log = log
        self.queues = queues
        self._dispatcher = dispatcher
        self._context = context
        self._disk = disk = context.disk
        self._config = context.config
        self._waits = context.config.flush_disk_type == "SYNC_FLUSH"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commit: GroupCommit | None = None
        self._marked = threading.Event()
        self._log_thread = StoreThread(
            "store-flush-log", self._sync_log, disk, self._config.limits, on_death=self._show_soon
        )
        self._queue_thread = StoreThread(
            "store-flush-queues", self._sync_queues, disk, self._config.limits
        )

    # --- the loop's thread

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads; ``loop``'s thread is the one that appends."""
        self._loop = loop
        if self._waits:
            self._commit = GroupCommit(
                loop, self.request, self._config.sync_flush_timeout_ms, self._context.stats
            )
        self._log_thread.start()
        self._queue_thread.start()

    def stop(self) -> bool:
        """End the threads; False when a sync that runs does not end within bounds."""
        ended = [self._log_thread.stop(), self._queue_thread.stop()]
        return all(ended)

    def close(self) -> None:
        """Fail those who wait; the store is closed."""
        if self._commit is not None:
            self._commit.fail()
            self._commit = None
        self._loop = None

    def request(self) -> None:
        """Have the log synced soon; all requests made during a sync share the next one."""
        self._log_thread.wake.set()

    def ask(self) -> None:
        """In SYNC mode, have what was stored in this turn of the loop synced at its end."""
        if self._commit is not None:
            self._commit.ask()

    def when_durable(self, end_offset: int, callback: Callback) -> None:
        """See ``MessageStore.when_durable``."""
        if self._disk.final:
            callback(False)
        elif end_offset <= self.log.flushed:
            callback(True)
        elif self._commit is not None:
            self._commit.add(end_offset, callback)
        else:
            callback(self.flush())

    def flush(self) -> bool:
        """Bring everything to the disk now; blocks. False when the disk failed.

        Raises:
            OSError: the queues or the checkpoint could not be written; the log is on the disk.
        """
        done = self.turn_log()
        if done:
            self.queues.make_safe()
        return done

    def turn_log(self) -> bool:
        """Sync the log and show what the disk has; False when the disk failed."""
        done = self.log.sync()
        self._show()
        return done

    def _show(self) -> None:
        """Make synced messages visible, then call back those who wait: they must find them."""
        durable_end = self.log.flushed
        try:
            self._dispatcher.release(durable_end)
        except OSError as error:
            self._disk.refused(self._context.paths.consume_queues, error)
            if self._loop is not None:
                self._loop.call_later(self._config.limits.no_space_retry_seconds, self._show)
        if self._commit is not None:
            self._commit.reached(durable_end)
            if self._disk.final:
                self._commit.fail()

    def _take_mark(self) -> None:
        self.queues.take_mark()
        self._marked.set()

    # --- the log's thread

    def _sync_log(self) -> None:
        interval = self._config.flush_interval_commit_log_ms / 1000
        wake, stopping = self._log_thread.wake, self._log_thread.stopping
        while not stopping.is_set():
            requested = wake.wait(interval)
            if requested:
                # Not else: a request that comes just when the wait has ended is the next turn's.
                wake.clear()
            if stopping.is_set() or not (requested or self.log.is_due()):
                continue
            if not requested and self.queues.is_due():
                # A mark taken now can become safe right after this sync. It delays no requested
                # sync, for which somebody waits.
                self._marked.clear()
                self._ask_for_mark()
                self._marked.wait(self._config.limits.mark_seconds)
            if self.log.sync() and self.queues.may_become_safe:
                self._queue_thread.wake.set()
            self._show_soon()

    def _show_soon(self) -> None:
        """In SYNC mode messages wait for the sync; else the loop need not be disturbed."""
        if self._waits:
            self._on_loop(self._show)

    # --- the queues' thread

    def _sync_queues(self) -> None:
        interval = self._config.flush_interval_consume_queue_ms / 1000
        wake, stopping = self._queue_thread.wake, self._queue_thread.stopping
        # A start must not repeat the walk of the one before, over ever more of the log, when one
        # life after the other ends before an interval does.
        for _ in range(self._config.limits.first_turns):
            first = min(self._config.limits.first_turn_seconds, interval)
            if not self.queues.is_due() or stopping.wait(first):
                break
            self.turn_queues()
        while not stopping.is_set():
            wake.wait(interval)
            wake.clear()
            if not stopping.is_set():
                self.turn_queues()

    def turn_queues(self) -> None:
        """Sync the queues, then have what the next safe point waits for done."""
        had_mark = self.queues.has_mark
        try:
            self.queues.turn()
        except OSError:
            # Queues are derived: the next start finds out what they lack. Only the log's syncs
            # decide over what is acknowledged.
            self._context.stats.queue_sync_failures += 1
            return
        if not had_mark and self.queues.is_due():
            self._ask_for_mark()
        elif self.queues.has_mark:
            # It becomes safe once the disk has the log up to there.
            self.request()

    def _ask_for_mark(self) -> None:
        if self._loop is None:
            self._take_mark()
        else:
            self._on_loop(self._take_mark)

    def _on_loop(self, act: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(act)
