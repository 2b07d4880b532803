"""The index of one store: its thread, and those who ask it.

The index must cost a send nothing. So its thread looks once a second how far the log has come; it
goes on when the store is idle, or when much waits, slice by slice with pauses. A query has what
came before it indexed first, if that can be done soon, in a thread of its own; a clean stop has all
of it done. When the disk refuses, or a fault of ours ends the work, messages are stored all the
same: only the index lags behind, and says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from broker.store.checkpoint import IndexNote
from broker.store.commit_log import CommitLog
from broker.store.disk_state import StoreContext, StoreThread
from broker.store.index.builder import IndexBuilder, IndexHits, LogReader
from broker.store.index.file import IndexFileSet, Shape
from broker.store.results import StoreBusy, StoreError

_log = structlog.get_logger("store")


class MessageIndex:
    """Finds messages by their keys.

    Attributes:
        trouble: why the index can't go on, in one sentence; None when it does.
    """

    def __init__(
        self,
        context: StoreContext,
        log: CommitLog,
        *,
        note: IndexNote | None,
        safe_ms: int | None,
        visible_end: Callable[[], int],
    ) -> None:
        """An index of a log.

        Args:
            context: of the store.
            log: just opened.
            note: how far a clean stop had indexed the log, if that is known.
            safe_ms: after a crash, the checkpoint's index time.
            visible_end: physical offset up to which messages may be shown.
        """
        config, files = context.config, context.files
        self._clock = context.clock
        self._limits = config.limits
        self._directory = context.paths.index
        shape = Shape(config.max_hash_slots, config.max_index_entries)
        self._row = IndexFileSet(files, self._directory, shape, context.clock)
        reader = LogReader(log, files, config.limits)
        self._hot_bytes = reader.hot_bytes
        self._builder = IndexBuilder(self._row, reader, config.limits, note=note, safe_ms=safe_ms)
        # If messages are not indexed, the files that are there can still be searched.
        self._enabled = config.message_index_enable
        self._visible_end = visible_end
        self._worker = StoreThread("store-index", self._run, context.disk, config.limits)
        self._pool: ThreadPoolExecutor | None = None
        self._queries = 0
        self._slices = 0
        self._closed = False
        self.trouble: str | None = None

    def safe_until_ms(self) -> int | None:
        """For the checkpoint: the end time of the last full file; None when it isn't known yet."""
        return self._row.full_ms if self._builder.loaded else None

    @property
    def backlog_bytes(self) -> int:
        """Log that is not indexed yet."""
        return max(self._visible_end() - self._builder.position, 0) if self._builder.loaded else 0

    # --- the thread

    def start(self) -> None:
        """Start the thread."""
        if self._enabled:
            self._worker.start()

    def stop(self) -> bool:
        """End the thread and refuse queries; False when a slice does not end within bounds."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        return self._worker.stop()

    def _run(self) -> None:
        stopping = self._worker.stopping
        seen = self._visible_end()
        rest = 0.0
        while not stopping.wait(max(self._limits.index_look_seconds, rest)):
            end = self._visible_end()
            taken, seen = end - seen, end
            waiting = end - self._builder.position
            most = min(
                self._limits.index_max_backlog_slices * self._builder.slice_bytes, self._hot_bytes
            )
            busy = taken > self._limits.index_busy_bytes and waiting < most
            rest = 0.0
            if not busy or not self._builder.loaded:
                rest = 0.0 if self._advance(end) else self._limits.index_retry_seconds

    def _advance(self, end: int) -> bool:
        """Index up to ``end``, with pauses; False when that could not be done."""
        try:
            self._builder.catch_up(end, lambda: self._goes_on(end))
        except OSError as error:
            self._failed(
                f"the index {self._directory} can't be written"
                f" ({error.strerror or error}), so later messages are not found by their keys:"
                " once the cause is gone it goes on by itself"
            )
        except Exception as error:  # noqa: BLE001 - an index is not worth a store
            self._failed(
                f"the index {self._directory} can't go on ({error!r}), so later messages are"
                " not found by their keys: report this"
            )
        else:
            self.trouble = None
            return True
        return False

    def _goes_on(self, end: int) -> bool:
        """After a slice: pause, but not each time while nobody stores anything."""
        self._slices += 1
        if self._slices % self._limits.index_slices_in_a_row and self._visible_end() == end:
            return not self._worker.stopping.is_set()
        return not self._worker.stopping.wait(self._limits.index_pause_seconds)

    def _failed(self, sentence: str) -> None:
        if self.trouble != sentence:
            self.trouble = sentence
            _log.error("messages are not indexed", reason=sentence)

    # --- those who ask, on the loop's thread

    async def find(
        self, topic: str, key: str, *, max_count: int, begin_ms: int, end_ms: int
    ) -> IndexHits:
        """Where messages with a key may be, the newest first.

        A hash is all that is known of a key, so some of them may have another one. What was stored
        a moment ago may be missing if it takes too long to index what came before it.

        Args:
            topic: as the messages are stored under.
            key: a unique id, or one of their keys.
            max_count: at most so many.
            begin_ms: stored in this second or later.
            end_ms: stored in this second or earlier.

        Raises:
            StoreBusy: too many wait already.
            StoreError: the store is closing, or the index can't be read.
        """
        if self._closed:
            raise _closing()
        if self._queries >= self._limits.max_index_queries:
            raise StoreBusy("too many look for messages by key: try again in a moment")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="store-index-query")
        end = self._visible_end()
        self._queries += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, self._find, end, topic, key, max_count, begin_ms, end_ms
            )
        except asyncio.CancelledError:
            if self._closed:
                raise _closing() from None
            raise
        finally:
            self._queries -= 1

    def _find(
        self, end: int, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> IndexHits:
        deadline = self._clock.monotonic() + self._limits.index_query_wait_seconds
        self._advance_to(end, lambda: not self._closed and self._clock.monotonic() < deadline)
        try:
            with self._builder.lock:
                self._builder.load(end)
                return self._builder.find(topic, key, max_count, begin_ms, end_ms)
        except OSError as error:
            raise StoreError(
                f"the index {self._directory} can't be read ({error.strerror or error})"
            ) from error

    def _advance_to(self, end: int, go_on: Callable[[], bool]) -> None:
        """Index up to ``end``, without pauses, as long as ``go_on``."""
        if self._enabled:
            try:
                self._builder.catch_up(end, go_on)
            except Exception as error:  # noqa: BLE001 - the thread tries again, and reports it
                _log.warning("index not completed", error=str(error))

    # --- retention and the end

    def drop_before(self, physical_offset: int) -> int:
        """The log begins there now: remove files that know only what came before; how many.

        In any thread; waits for a slice at most. Raises ``OSError``.
        """
        with self._builder.lock:
            self._builder.load(self._visible_end())
            return self._builder.drop_before(physical_offset)

    def finish(self) -> IndexNote | None:
        """At a clean stop: complete the index and bring it to the disk; how far it is.

        The next start does what can't be done in time, or for want of space.
        """
        deadline = self._clock.monotonic() + self._limits.index_finish_seconds
        self._advance_to(self._visible_end(), lambda: self._clock.monotonic() < deadline)
        try:
            with self._builder.lock:
                return self._builder.save()
        except OSError as error:
            _log.warning("index not saved", index=str(self._directory), error=str(error))
            return None

    def close(self) -> None:
        """Let go of the log."""
        with self._builder.lock:
            self._builder.close()


def _closing() -> StoreError:
    return StoreError("the store is closing: try again when the broker is back")
