"""The index of one store: its builder, its thread, and its queries.

The index must cost a send nothing. So its thread looks once a second how far the log has come; it
goes on when the store is idle, or when much waits, slice by slice with pauses. A query has what
came before it indexed first, if that can be done soon, in a thread of its own; a clean stop has all
of it done. When the disk refuses, or a fault of ours ends the work, messages are stored all the
same: only the index lags behind, and ``trouble`` has the reason.

Thread, query and clean stop take the lock of ``IndexBuilder`` and call ``step`` as often as they
need; so all of them work on the same position, and hold the lock for one slice. After a clean stop
the store's checkpoint has the position, valid as long as the last file is unchanged; otherwise the
files have it, since each has its last message (cf. IndexService.buildIndex). After a crash only
full files are valid (``index_files``): what came after them is indexed again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from struct import Struct
from typing import Final, NamedTuple

import structlog

from broker.store.checkpoint import IndexNote
from broker.store.commit_log import CommitLog
from broker.store.disk_state import StoreContext, StoreThread
from broker.store.index_files import IndexFileSet, Shape
from broker.store.index_keys import Walked, compiled_walk, walk
from broker.store.limits import MAX_RECORD_BYTES, StoreLimits
from broker.store.os_files import Files, Region
from broker.store.results import StoreBusy, StoreError
from remoting.process_limits import memory_bytes
from remoting.protocol import core
from remoting.protocol.disk.files import name_of
from remoting.protocol.message.record import FIXED_BYTES_V4, MAGIC_V1, MAGIC_V2

_HEAD: Final = Struct(">II")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})

_log = structlog.get_logger("store")


class Piece(NamedTuple):
    """Bytes of the log from a physical offset on.

    Attributes:
        data: at most as many as were asked for; none at the end of a file.
        following: physical offset at which the next file begins.
    """

    position: int
    data: memoryview
    following: int


class LogReader:
    """Reads the log piece by piece, for one other thread than the loop's, to which it belongs.

    It takes the log's end, the names of the files and a map of its own of each; so it may be behind
    retention, which removes files, and goes on with those that are there.
    """

    def __init__(self, log: CommitLog, files: Files, limits: StoreLimits) -> None:
        self._log = log
        self._disk = files
        self._opened_end = log.end
        self._hot_bytes = int(memory_bytes() * limits.trusted_memory_ratio)
        self._start = -1
        self._region: Region | None = None

    @property
    def hot_bytes(self) -> int:
        """So much of the log, its end, is taken to be in memory."""
        return self._hot_bytes

    @property
    def start(self) -> int:
        """Physical offset of the first byte that is there."""
        return self._log.start

    def read(self, position: int, end: int, most: int) -> Piece | None:
        """Up to ``most`` bytes of one file from ``position`` on, or from where there are some.

        Args:
            position: where a record begins, or a file ends.
            end: physical offset up to which the log may be read.
            most: bytes.

        Returns:
            None when the log has nothing there.

        Raises:
            OSError: the file can't be read.
        """
        for file in self._log.files:
            behind = file.start + file.size
            first = max(position, file.start)
            if first >= behind:
                continue
            stop = min(end, behind, first + most)
            if first >= stop:
                return None
            try:
                region = self._open(file.start, file.size)
                if first < max(self._opened_end, self._log.end - self._hot_bytes):
                    region.fetch(first - file.start, stop - first)
            except FileNotFoundError:
                # Retention was here; what comes next is still there.
                continue
            return Piece(first, region.view[first - file.start : stop - file.start], behind)
        return None

    def _open(self, start: int, size: int) -> Region:
        if self._region is None or self._start != start:
            self.close()
            path = self._log.directory / name_of(start)
            self._region = self._disk.open_mapped(path, size, create=False)
            self._start = start
        return self._region

    def close(self) -> None:
        """Let go of the map."""
        self._region = None
        self._start = -1


class IndexHits(NamedTuple):
    """What a search gave.

    Attributes:
        offsets: physical offsets of what may be the messages, the newest first.
        end_ms: store time of the last message that is indexed.
        end_offset: its physical offset.
    """

    offsets: list[int]
    end_ms: int
    end_offset: int


class IndexBuilder:
    """How far the index is, and bringing it further.

    Attributes:
        lock: callers of all methods hold it.
        position: physical offset up to which the log is indexed.
        loaded: whether the files have been looked at.
        slice_bytes: of the log, which have as many keys as are indexed at once.
    """

    def __init__(
        self,
        files: IndexFileSet,
        log: LogReader,
        limits: StoreLimits,
        *,
        note: IndexNote | None,
        safe_ms: int | None,
    ) -> None:
        """An index of a log.

        Args:
            files: of the index.
            log: reads the log.
            limits: of the store.
            note: of a clean stop.
            safe_ms: after a crash, the checkpoint's index time.
        """
        self._files = files
        self._log = log
        self._note = note
        self._safe_ms = safe_ms
        self._limits = limits
        self._walk = compiled_walk if core.KIND == "compiled" else walk
        self.slice_bytes = limits.index_min_slice_bytes
        self.lock = threading.Lock()
        self.position = 0
        self.loaded = False

    def load(self, log_end: int) -> None:
        """Find out how far the index is, unless that is known. Raises ``OSError``.

        It is loaded again after a file was removed or shortened by another process.
        """
        if self.loaded:
            if self._files.is_whole():
                return
            _log.warning("an index file was removed or shortened: messages are indexed anew")
            self.loaded = False
        self._files.load(log_end, safe_ms=self._safe_ms)
        last = self._files.last
        self.position = self._log.start
        if last is not None and last.header.next_entry > 1:
            self.position = max(self.position, self._behind(last.header.end_offset, log_end))
        note = self._note
        if (
            self._safe_ms is None
            and note is not None
            and note.last == self._last()
            and self._log.start <= note.indexed <= log_end
        ):
            self.position = note.indexed
        # It is wrong as soon as the files change.
        self._note = None
        self.loaded = True

    def _behind(self, end_offset: int, log_end: int) -> int:
        """Where to go on behind the last message that a file knows."""
        if self._safe_ms is not None:
            # A full file may have only some of its keys.
            return end_offset
        head = self._log.read(end_offset, log_end, _HEAD.size)
        if head is None or head.position != end_offset or len(head.data) < _HEAD.size:
            return end_offset
        size, _ = _HEAD.unpack(head.data)
        return end_offset + int(size) if end_offset + size <= log_end else end_offset

    def _last(self) -> list[object]:
        last = self._files.last
        return [] if last is None else [last.path.name, last.header.next_entry]

    def step(self, end: int) -> bool:
        """Index one slice of what lies before ``end``; whether there may be more.

        Raises:
            OSError: the disk refuses; what was indexed is.
        """
        self.load(end)
        plain = self._walk is walk
        most = self._limits.index_plain_slice_bytes if plain else self.slice_bytes
        piece = self._log.read(self.position, end, most)
        if piece is None:
            self.position = max(self.position, end)
            return False
        walked = self._walk(piece.data, piece.position)
        if not walked.used:
            size = _record_size(piece.data)
            if len(piece.data) < size <= MAX_RECORD_BYTES:
                piece = self._log.read(piece.position, end, size) or piece
            walked = walk(piece.data, piece.position)
        self._files.add(walked.batch)
        self.slice_bytes = slice_for(walked, self._limits)
        if walked.used:
            self.position = piece.position + walked.used
        else:
            # No good record begins here: go on in the next file, unless it is damage that recovery
            # has stepped over, and a record follows.
            self.position = min(piece.following, end)
            if size := _record_size(piece.data):
                following = self._log.read(piece.position + size, end, _HEAD.size)
                if following is not None and _record_size(following.data):
                    self.position = following.position
        return self.position < end

    def catch_up(self, end: int, go_on: Callable[[], bool]) -> bool:
        """Index up to ``end`` as long as ``go_on``; whether that is done. Takes the lock itself.

        Raises:
            OSError: the disk refuses.
        """
        while True:
            with self.lock:
                if not self.step(end):
                    return True
            if not go_on():
                return False

    def find(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> IndexHits:
        """See ``IndexFileSet.find``. Raises ``OSError``."""
        offsets = self._files.find(topic, key, max_count, begin_ms, end_ms)
        last = self._files.last
        if last is None:
            return IndexHits(offsets, 0, 0)
        return IndexHits(offsets, last.header.end_ms, last.header.end_offset)

    def drop_before(self, physical_offset: int) -> int:
        """See ``IndexFileSet.drop_before``. Raises ``OSError``."""
        self._log.close()
        return self._files.drop_before(physical_offset)

    def save(self) -> IndexNote | None:
        """Bring all to the disk; where the next start goes on. Raises ``OSError``."""
        if not self.loaded:
            return self._note
        self._files.sync()
        return IndexNote(self.position, self._last())

    def close(self) -> None:
        """Let go of the log."""
        self._log.close()


def slice_for(walked: Walked, limits: StoreLimits) -> int:
    """Bytes that hold as many keys as are worth a slice, going by those just found."""
    expected = walked.used * limits.index_slice_keys // max(len(walked.batch), 1)
    return min(max(expected, limits.index_min_slice_bytes), limits.index_max_slice_bytes)


def _record_size(data: memoryview) -> int:
    """Size of the record that begins with these bytes; 0 when none does."""
    if len(data) < _HEAD.size:
        return 0
    size, magic = _HEAD.unpack_from(data)
    return int(size) if magic in _MAGICS and size >= FIXED_BYTES_V4 else 0


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
        self._files = IndexFileSet(files, self._directory, shape, context.clock)
        reader = LogReader(log, files, config.limits)
        self._hot_bytes = reader.hot_bytes
        self._builder = IndexBuilder(self._files, reader, config.limits, note=note, safe_ms=safe_ms)
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
        return self._files.full_ms if self._builder.loaded else None

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
        """After a slice: pause, but only after several while nothing is stored."""
        self._slices += 1
        if self._slices % self._limits.index_slices_in_a_row and self._visible_end() == end:
            return not self._worker.stopping.is_set()
        return not self._worker.stopping.wait(self._limits.index_pause_seconds)

    def _failed(self, sentence: str) -> None:
        if self.trouble != sentence:
            self.trouble = sentence
            _log.error("messages are not indexed", reason=sentence)

    # --- queries, on the loop's thread

    async def find(
        self, topic: str, key: str, *, max_count: int, begin_ms: int, end_ms: int
    ) -> IndexHits:
        """Where messages with a key may be, the newest first.

        A hash is all that is known of a key, so some of them may have another one. What was stored
        a moment ago may be missing if it takes too long to index what came before it.

        Args:
            topic: as the messages are stored under.
            key: a unique id, or one of their keys.
            max_count: at most.
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
