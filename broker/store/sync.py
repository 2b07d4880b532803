"""Syncing the commit log and the consume queues, and what follows a sync.

``LogSync`` syncs the commit log and tracks how far it is on the disk. ``QueueSync`` does so for the
consume queues, and writes the checkpoints and the safe point. ``Syncer`` runs the threads: one
syncs the log, on request and, in ASYNC mode, periodically; one syncs the queues periodically, since
no caller waits for them. All requests made during a sync of the log share the next one, without a
timer: this is group commit. Around a sync of the log, these steps happen in this order:

1.  a mark for the next safe point is taken, if one is due (``Syncer._run_log``);
2.  the log is synced (``LogSync.sync``);
3.  the queues' thread syncs the queues and turns the mark into a safe point (``QueueSync.sync``);
4.  in SYNC mode, on the loop's thread, synced messages become visible, then the waiting callers are
    called back (``Syncer._show``). This does not wait for step 3.

``AckGate`` holds the callers that wait until a message is on the disk (SYNC mode) or at a slave
(SYNC_MASTER). In controller mode they wait for the replicas in sync, and a message is visible only
once these have it, whatever the flush mode: see ``Syncer.confirmed``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from broker.store.append import EntryDispatcher
from broker.store.checkpoint import Numbers, SafePoint, StoreCheckpoint
from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig
from broker.store.consume_queue import ConsumeQueue, QueueTable
from broker.store.disk_state import StoreContext, StoreThread
from broker.store.limits import PAGE_BYTES
from broker.store.os_files import is_no_space
from broker.store.results import Ack, StoreStats
from remoting.protocol.disk.files import ENTRY_BYTES

_HEAD_BYTES: Final = 64
"""Bytes of the record at a safe point's ``tail`` that the safe point keeps: its size, CRC, offsets
and timestamps."""

_ASKED_FOR_THEIR_LAST: Final = 64
"""Queues whose last entry is read to find a record near the end of the log for ``tail``; a start
after a crash walks the log from there."""

Callback = Callable[[Ack], None]


class LogSync:
    """Syncs the commit log and tracks how far it is on the disk.

    It uses only ``fdatasync``, which releases the GIL. A failed sync is never repeated, and the
    store accepts no more messages: see ``disk_state``.

    Attributes:
        log: the commit log.
        flushed: physical offset up to which the log is on the disk.
        tail: physical offset where the last sync began; a record begins there.
        flushed_store_ms: messages stored up to this time, ms since the epoch, are on the disk.
    """

    def __init__(
        self, context: StoreContext, log: CommitLog, *, synced: int, store_ms: Callable[[], int]
    ) -> None:
        """Create the syncer of an open log.

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
        self._under_way: tuple[Path, float] | None = None  # a sync, and when it began
        self._found_end = log.end
        self.flushed = synced
        self.tail = log.opened_tail
        self.flushed_store_ms = 0

    def sync(self) -> bool:
        """Sync the whole log, in any thread; return False when the disk failed."""
        # One at a time: two would sync the same pages, and set ``flushed`` out of order.
        with self._syncing:
            if self._disk.final:
                return False
            # Read the time before the end, so that all messages up to that time lie before the end.
            store_ms = self._store_ms()
            end = self.log.end
            assert self.flushed <= end
            if end > self.flushed:
                done = self._sync_files(end)
                self._under_way = None
                if not done:
                    return False
                # Never before ``opened_tail``: the last start walked the log up to there already.
                self.tail = max(self.flushed, self.tail)
            self.flushed = end
            self.flushed_store_ms = store_ms
            self._flushed_at = self._clock.monotonic()
            return True

    def _sync_files(self, end: int) -> bool:
        for file in self.log.files_between(self.flushed, end):
            begun = self._clock.monotonic()
            self._under_way = file.path, begun
            try:
                # What the start found behind the last sync may be only in the page cache, in pages
                # that a failed sync marked clean. Rewriting them makes them dirty again.
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

    def hang(self) -> str | None:
        """Return that the disk hangs, as a sentence: a sync has been under way for too long."""
        if (under_way := self._under_way) is None:
            return None
        path, begun = under_way
        seconds = self._clock.monotonic() - begun
        if seconds < self._config.limits.hung_sync_seconds:
            return None
        return f"the disk hangs: the sync of {path} takes {seconds:.0f} s until now; check the disk"

    def is_due(self) -> bool:
        """Return whether the periodic sync has enough to do, or has waited long enough."""
        dirty = self.log.end - self.flushed
        if dirty <= 0:
            return False
        thorough = self._config.flush_commit_log_thorough_interval_ms / 1000
        return (
            dirty >= self._config.least_flush_bytes
            or self._clock.monotonic() - self._flushed_at >= thorough
        )


class Replicas(Protocol):
    """The slaves of a store, as an acknowledgement needs them."""

    @property
    def replicated(self) -> int:
        """Physical offset up to which at least one connected slave has the log."""
        ...

    def available(self, end_offset: int) -> bool:
        """Return whether a slave is connected, and lacks little of the log up to an offset."""
        ...

    def confirmed(self, end: int) -> int:
        """Return the confirm offset of a log that is safe here up to ``end`` (controller mode)."""
        ...


class Waiter(NamedTuple):
    """A caller that waits until the log is safe up to ``end_offset``.

    The deadlines, for the disk and for a slave, are times of the loop's clock, in seconds.
    """

    end_offset: int
    flush_deadline: float
    slave_deadline: float
    callback: Callback


class AckGate:
    """The callers that wait until a message is on the disk, at a slave, or both.

    Only the loop's thread uses it. Both waits run side by side, each with its own timeout; the
    message stays stored, and becomes visible, whatever the outcome. If both fail, the outcome is
    the slave's, as in RocketMQ.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: StoreConfig, stats: StoreStats
    ) -> None:
        self._loop = loop
        self._flush_timeout = config.sync_flush_timeout_ms / 1000 if config.syncs else math.inf
        self._slave_timeout = config.slave_timeout_ms / 1000 if config.waits_for_slave else math.inf
        self._stats = stats
        self._waiters: list[Waiter] = []
        self._flushed = self._replicated = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, end_offset: int, callback: Callback) -> None:
        """Call ``callback`` once the log is safe up to ``end_offset``, or a wait has failed."""
        now = self._loop.time()
        waiter = Waiter(end_offset, now + self._flush_timeout, now + self._slave_timeout, callback)
        self._waiters.append(waiter)
        if self._timer is None:
            self._arm()

    def reached(self, flushed: float, replicated: float) -> None:
        """Call back the waiters up to both offsets; infinite for what isn't waited for."""
        self._flushed, self._replicated = flushed, replicated
        waiters, safe = self._waiters, min(flushed, replicated)
        # Waiters are normally in the order of the log; one that is not waits for the next call.
        ready = 0
        while ready < len(waiters) and waiters[ready].end_offset <= safe:
            ready += 1
        self._waiters = waiters[ready:]
        for waiter in waiters[:ready]:
            waiter.callback(Ack.OK)

    def fail(self) -> None:
        """Fail all waiters: the disk has failed, or the store closes."""
        waiters, self._waiters = self._waiters, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in waiters:
            waiter.callback(Ack.FLUSH_DISK_TIMEOUT)

    def _arm(self) -> None:
        first = self._waiters[0]
        at = min(first.flush_deadline, first.slave_deadline)
        if at <= self._loop.time():
            # The one that is over didn't matter: only the later deadline is left.
            at = max(first.flush_deadline, first.slave_deadline)
        self._timer = self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        expired: list[tuple[Waiter, Ack]] = []
        for waiter in self._waiters:
            if min(waiter.flush_deadline, waiter.slave_deadline) > now:
                break
            if waiter.slave_deadline <= now and waiter.end_offset > self._replicated:
                expired.append((waiter, Ack.FLUSH_SLAVE_TIMEOUT))
            elif waiter.flush_deadline <= now and waiter.end_offset > self._flushed:
                expired.append((waiter, Ack.FLUSH_DISK_TIMEOUT))
        gone = {id(waiter) for waiter, _ in expired}
        self._waiters = [waiter for waiter in self._waiters if id(waiter) not in gone]
        if self._waiters:
            self._arm()
        self._stats.sync_timeouts += sum(ack is Ack.FLUSH_DISK_TIMEOUT for _, ack in expired)
        for waiter, ack in expired:
            waiter.callback(ack)


class Mark(NamedTuple):
    """A snapshot of the store's ends, which becomes a safe point once all of it is on the disk.

    Attributes:
        tail: physical offset, at most ``end``, where a record begins.
        head: the first bytes of that record, in hex.
        end: physical offset up to which every message has its queue entry.
        numbers: ``max_offset`` of each queue.
        deletions: number of topics deleted before the mark.
    """

    tail: int
    head: str
    end: int
    numbers: dict[ConsumeQueue, int]
    deletions: int


class QueueSync:
    """Syncs the consume queues and writes both checkpoints.

    A safe point takes two steps: the loop's thread takes a mark; once the log is synced up to the
    mark, the queues are synced too. A log that grows fast is marked just before each of its syncs,
    so that a start after a crash walks little more than the part that was not synced. After a
    failed sync of a queue, it is unknown which of its entries are on the disk: the last safe point
    stays, and so does the ``abort`` file, and the next start rebuilds all later entries.
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
        confirmed: Callable[[], int],
    ) -> None:
        """Create the syncer of a store's queues.

        Args:
            context: of the store.
            queues: the queues to sync.
            log_sync: syncs the log whose records the queues refer to.
            dispatcher: holds the messages that have no entry yet.
            checkpoint: of the store.
            store_ms: returns the store time of the last record.
            index_ms: returns the time up to which the index is on the disk; None: unknown.
            confirmed: returns the confirm offset; 0 outside of controller mode.
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
        self._confirmed = confirmed
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
        """Take a mark of the store's present state."""
        end = min(self._log.end, self._dispatcher.first_waiting())
        numbers = {queue: queue.max_offset for queue in self._queues.all()}
        grown = (queue for queue, number in numbers.items() if number > self._numbers.get(queue, 0))
        for queue in islice(grown, _ASKED_FOR_THEIR_LAST):
            entry = queue.entry(queue.max_offset - 1)
            if entry is not None and self._tail < entry[0] < end:
                self._tail = entry[0]
        self._numbers = numbers
        head = b""
        # The last record of a log that was just opened may wait, behind the first one that does.
        tail = min(self._tail, end)
        file = self._log.file_at(tail)
        if file is not None and tail < end:
            head_end = min(tail + _HEAD_BYTES, end, file.start + file.size)
            head = bytes(self._log.slice(tail, head_end - tail) or b"")
        self._mark = Mark(tail, head.hex(), end, numbers, self._deletions)

    def make_safe(self) -> None:
        """Sync the queues and write a safe point at the end of the log, which is synced already.

        Raises:
            OSError: a queue can't be synced, or RocketMQ's checkpoint can't be written.
        """
        self.take_mark()
        self._make_safe()
        self.write_times()

    def forget(self, topic: str) -> None:
        """Remove a topic, which is about to be deleted, from the safe point. Raises ``OSError``."""
        with self._guard:
            # A safe point from an earlier mark would list the topic's queues, and the next start
            # would take them for lost.
            self._deletions += 1
            self._mark = None
            self._checkpoint.forget(topic)

    # --- any thread, one at a time

    @property
    def has_mark(self) -> bool:
        """Whether there is a mark that has not become a safe point."""
        return self._mark is not None

    @property
    def may_become_safe(self) -> bool:
        """Whether there is a mark, and the log is synced up to it."""
        mark = self._mark
        return mark is not None and self._log_sync.flushed >= mark.end

    def is_due(self) -> bool:
        """Return whether a new safe point is worth its syncs."""
        now = self._now()
        grown = self._log.end - self._checkpoint.safe_end
        if now < self._next_at or not grown:
            return False
        pause = self._config.flush_consume_queue_thorough_interval_ms / 1000
        return grown >= self._config.limits.safe_point_bytes or now - self._thorough_at >= pause

    def sync(self) -> None:
        """Sync the queues with much to sync, or all queues for a safe point. Raises ``OSError``."""
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
        # A start after a crash trusts all of the log before the mark.
        assert mark.tail <= mark.end <= self._log_sync.flushed
        numbers: Numbers = {}
        for queue, number in mark.numbers.items():
            numbers.setdefault(queue.topic, {})[queue.queue_id] = number
        point = SafePoint(mark.tail, mark.head, mark.end, self._log_sync.flushed, numbers)
        if point != self._checkpoint.safe:
            try:
                self._checkpoint.write(point)
            except OSError:
                # The last safe point still holds.
                self._context.stats.queue_sync_failures += 1

    def _sync(self, *, thorough: bool) -> None:
        """Sync all queues with unsynced entries, or only those with many. Raises ``OSError``."""
        if self._failed is not None:
            raise self._failed
        # Read the time before syncing the queues, so that every message up to that time has its
        # entry synced. While messages wait for a sync of the log, their entries are not written.
        if not len(self._dispatcher):
            dispatched_ms = self._store_ms()
        elif self._config.controlled:
            dispatched_ms = self._times.logics_ms  # what is on the disk may wait for slaves
        else:
            dispatched_ms = self._log_sync.flushed_store_ms
        least = 1 if thorough else self._config.flush_consume_queue_least_pages * PAGE_BYTES
        queues = self._queues.all()
        ends = {q: q.max_offset for q in queues if _dirty_bytes(q) >= least}
        try:
            together = len(ends) >= self._config.limits.queues_synced_together
            if together and self._context.files.sync_filesystem(self._context.paths.consume_queues):
                for queue, end in ends.items():
                    queue.synced(end)
                self._named.update(ends)
            else:
                for queue in ends:
                    queue.sync()
        except OSError as error:
            self._failed = error
            raise
        if thorough:
            self._sync_names(queues)
            self._thorough_at = self._now()
            self._times = replace(self._times, logics_ms=dispatched_ms)

    def _sync_names(self, queues: list[ConsumeQueue]) -> None:
        """Sync the directories of queues that have not been synced yet."""
        fresh = [queue for queue in queues if queue not in self._named and queue.max_offset]
        if not fresh:
            return
        # Files created in this run were synced with their directory; those of a queue that was
        # found at the start may not have been.
        directories = {queue.directory for queue in fresh if queue.opened_offset}
        directories |= {queue.directory.parent for queue in fresh}
        directories.add(self._context.paths.consume_queues)
        for directory in sorted(directories, reverse=True):
            try:
                self._context.files.sync_directory(directory)
            except FileNotFoundError:
                # Its topic is being deleted. If not, the next start finds the entries missing.
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
        self._times = replace(self._times, confirm_offset=self._confirmed())
        self._checkpoint.write_times(self._times)


def _dirty_bytes(queue: ConsumeQueue) -> int:
    return (queue.max_offset - queue.flushed_offset) * ENTRY_BYTES


class Syncer:
    """Runs the threads that sync a store, and makes synced messages visible.

    Without a loop (tests, tools) there are no threads; ``sync_log`` and ``sync_queues`` do their
    work synchronously.

    Attributes:
        log: syncs the log.
        queues: syncs the queues.
        known: the confirm offset (controller mode), which may be beyond the end of the log.
    """

    def __init__(
        self,
        context: StoreContext,
        log: LogSync,
        queues: QueueSync,
        dispatcher: EntryDispatcher,
        *,
        known: int = 0,
    ) -> None:
        self.log = log
        self.queues = queues
        self.known = known
        self._on_grown: Callable[[], None] | None = None
        self._dispatcher = dispatcher
        self._context = context
        self._disk = disk = context.disk
        self._config = context.config
        self._defers = context.config.defers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gate: AckGate | None = None
        self._replicas: Replicas | None = None
        self._requested = False
        self._marked = threading.Event()
        self._log_thread = StoreThread(
            "store-flush-log", self._run_log, disk, self._config.limits, on_death=self.show_soon
        )
        self._queue_thread = StoreThread(
            "store-flush-queues", self._run_queues, disk, self._config.limits
        )

    @property
    def confirmed(self) -> int:
        """Physical offset up to which messages may be visible, if their visibility is deferred.

        Safe points use ``LogSync.flushed``: they are about this disk only.
        """
        return min(self.safe_end, self.known) if self._config.controlled else self.safe_end

    @property
    def safe_end(self) -> int:
        """Physical offset up to which the log is as safe here as the flush mode promises."""
        return self.log.flushed if self._config.syncs else self.log.log.end

    @property
    def visible_end(self) -> int:
        """Physical offset up to which readers may see messages: those that a crash can't take."""
        return self.confirmed if self._defers else self.log.log.end

    # --- the loop's thread

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads; ``loop``'s thread is the one that appends."""
        self._loop = loop
        if self._config.waits:
            self._gate = AckGate(loop, self._config, self._context.stats)
        self._log_thread.start()
        self._queue_thread.start()

    def stop(self) -> bool:
        """Stop the threads; return False when a running sync does not end in time."""
        ended = [self._log_thread.stop(), self._queue_thread.stop()]
        return all(ended)

    def close(self) -> None:
        """Fail all waiters; the store is closed."""
        if self._gate is not None:
            self._gate.fail()
            self._gate = None
        self._loop = None

    def watch(self, on_grown: Callable[[], None] | None) -> None:
        """Call ``on_grown`` on the loop's thread when readers of the log may find more of it."""
        self._on_grown = on_grown

    def confirm(self, offset: int) -> None:
        """Note that the master has confirmed the log up to an offset (controller mode)."""
        if offset > self.known:
            self.known = offset
            self._show()

    def fail_waiting(self) -> None:
        """Fail all waiters: this broker is not the master any more."""
        if self._gate is not None:
            self._gate.fail()

    def request(self) -> None:
        """Note that the log has grown: in SYNC mode, sync it at the end of this loop's iteration.

        All requests made during a sync share the next one.
        """
        if self._defers and self._loop is not None:
            if not self._requested:
                self._requested = True
                self._loop.call_soon(self._pass_requests)
        elif self._on_grown is not None:
            self._on_grown()

    def _pass_requests(self) -> None:
        self._requested = False
        if self._config.syncs:
            self.wake()
        else:
            self._show()

    def wake(self) -> None:
        """Sync the log as soon as its thread can. Callable in any thread."""
        self._log_thread.wake.set()

    def wait_for(self, replicas: Replicas) -> None:
        """Let acknowledgements wait for slaves from now on (SYNC_MASTER)."""
        self._replicas = replicas

    def replicated(self) -> None:
        """Note that slaves have acknowledged more, or that one has gone."""
        if self._config.controlled:
            self._show()
        elif self._gate is not None:
            self._gate.reached(*self._marks())

    def _marks(self) -> tuple[float, float]:
        replicated = math.inf
        if self._config.waits_for_slave:
            replicated = 0 if self._replicas is None else self._replicas.replicated
        return self.log.flushed if self._config.syncs else math.inf, replicated

    def when_durable(self, end_offset: int, callback: Callback) -> None:
        """See ``MessageStore.when_durable``."""
        flushed, replicated = self._marks()
        if self._disk.final:
            callback(Ack.FLUSH_DISK_TIMEOUT)
        elif self._gate is None:
            is_flushed = end_offset <= self.log.flushed or self.flush()
            callback(Ack.OK if is_flushed else Ack.FLUSH_DISK_TIMEOUT)
        elif end_offset > replicated and not (
            self._replicas and self._replicas.available(end_offset)
        ):
            callback(Ack.SLAVE_NOT_AVAILABLE)
        elif end_offset <= min(flushed, replicated):
            callback(Ack.OK)
        else:
            self._gate.add(end_offset, callback)
            self.request()

    def flush(self) -> bool:
        """Sync log, queues and checkpoint; blocks. Return False when syncing the log failed.

        Raises:
            OSError: the queues or the checkpoint could not be written; the log is on the disk.
        """
        done = self.sync_log()
        if done:
            self.queues.make_safe()
        return done

    def sync_log(self) -> bool:
        """Sync the log and make synced messages visible; return False when the disk failed."""
        done = self.log.sync()
        self._show()
        return done

    def _show(self) -> None:
        """Make confirmed messages visible, then call the waiters, who must find them visible."""
        if self._config.controlled and self._replicas is not None:
            self.known = max(self.known, self._replicas.confirmed(self.safe_end))
        try:
            self._dispatcher.release(self.confirmed)
        except OSError as error:
            self._disk.refused(self._context.paths.consume_queues, error)
            if self._loop is not None:
                self._loop.call_later(self._config.limits.no_space_retry_seconds, self._show)
        if self._on_grown is not None:
            self._on_grown()
        if self._gate is not None:
            self._gate.reached(*self._marks())
            if self._disk.final:
                self._gate.fail()

    def _take_mark(self) -> None:
        self.queues.take_mark()
        self._marked.set()

    # --- the log's thread

    def _run_log(self) -> None:
        interval = self._config.flush_interval_commit_log_ms / 1000
        wake, stopping = self._log_thread.wake, self._log_thread.stopping
        while not stopping.is_set():
            requested = wake.wait(interval)
            if requested:
                # Only if requested: a request made just after the wait timed out must not be lost.
                wake.clear()
            if stopping.is_set() or not (requested or self.log.is_due()):
                continue
            if not requested and self.queues.is_due():
                # A mark taken now can become safe right after this sync. Not before a requested
                # sync: a caller waits for that, and taking a mark would delay it.
                self._marked.clear()
                self._ask_for_mark()
                self._marked.wait(self._config.limits.mark_seconds)
            if self.log.sync() and self.queues.may_become_safe:
                self._queue_thread.wake.set()
            self.show_soon()

    def show_soon(self) -> None:
        """Make confirmed messages visible and call their waiters; callable in any thread.

        In ASYNC mode no message waits.
        """
        if self._defers:
            self._on_loop(self._show)

    # --- the queues' thread

    def _run_queues(self) -> None:
        interval = self._config.flush_interval_consume_queue_ms / 1000
        wake, stopping = self._queue_thread.wake, self._queue_thread.stopping
        # Make a first safe point soon after a recovery. Otherwise, if the broker kept crashing
        # within the interval, each start would walk the same part of the log again, and more.
        for _ in range(self._config.limits.first_safe_point_tries):
            first = min(self._config.limits.first_safe_point_seconds, interval)
            if not self.queues.is_due() or stopping.wait(first):
                break
            self.sync_queues()
        while not stopping.is_set():
            wake.wait(interval)
            wake.clear()
            if not stopping.is_set():
                self.sync_queues()

    def sync_queues(self) -> None:
        """Sync the queues, then request the next step of a safe point that is due."""
        had_mark = self.queues.has_mark
        try:
            self.queues.sync()
        except OSError:
            # Queues are derived from the log: the next start rebuilds what they lack. Messages are
            # acknowledged by the log's syncs alone.
            self._context.stats.queue_sync_failures += 1
            return
        if not had_mark and self.queues.is_due():
            self._ask_for_mark()
        elif self.queues.has_mark:
            # It becomes safe once the log is synced up to it.
            self.wake()

    def _ask_for_mark(self) -> None:
        if self._loop is None:
            self._take_mark()
        else:
            self._on_loop(self._take_mark)

    def _on_loop(self, act: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(act)
