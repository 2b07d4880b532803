"""The message index of a store: finds messages by key. Builder, thread and queries.

Indexing must not slow down sends. So its thread checks once a second how far the log has grown, and
indexes slice by slice, with pauses, when the store is idle or the backlog is large. A query first
indexes the messages stored before it, in a thread of its own, if that is quick enough; a clean stop
indexes all messages. When the disk refuses, or an exception ends the work, messages are still
stored: only the index lags behind, and ``trouble`` has the reason.

Thread, query and clean stop take the lock of ``IndexBuilder`` for each call of ``step``, so they
share one position and hold the lock for one slice at a time. After a clean stop the position is in
the store's checkpoint, and is valid if the last file is unchanged. Otherwise it is derived from the
files, whose headers have their last message (cf. IndexService.buildIndex). After a crash only full
files are valid (``index_files``): later messages are indexed again.
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
from broker.store.results import CLOSING, StoreBusy, StoreError
from remoting.protocol import core
from remoting.protocol.disk.files import name_of
from remoting.protocol.message.record import FIXED_BYTES_V4, MAGIC_V1, MAGIC_V2, find_heads
from remoting.runtime.process_limits import memory_bytes

_HEAD: Final = Struct(">II")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})

_log = structlog.get_logger("store")


class Piece(NamedTuple):
    """Bytes of one file of the log.

    Attributes:
        position: physical offset of the first byte.
        data: the bytes.
        following: physical offset at which the next file begins.
    """

    position: int
    data: memoryview
    following: int


class LogReader:
    """Reads the log piece by piece, outside the loop's thread, which owns the log.

    It uses only the log's end and list of files, and its own map of each file. Retention may remove
    a file meanwhile; reading continues with the next one. Not thread-safe.

    Attributes:
        hot_bytes: size of the newest part of the log that is assumed to be in memory.
    """

    def __init__(self, log: CommitLog, files: Files, limits: StoreLimits) -> None:
        self._log = log
        self._disk = files
        self._opened_end = log.end
        self.hot_bytes = int(memory_bytes() * limits.trusted_memory_ratio)
        self._start = -1
        self._region: Region | None = None

    @property
    def start(self) -> int:
        """Physical offset of the first byte of the log that has not been deleted."""
        return self._log.start

    def read(self, position: int, end: int, most: int) -> Piece | None:
        """Read up to ``most`` bytes of one file from ``position`` on, or from the next file on.

        Args:
            position: physical offset where a record begins or a file ends.
            end: physical offset up to which the log may be read.
            most: maximum number of bytes.

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
                if first < max(self._opened_end, self._log.end - self.hot_bytes):
                    region.fetch(first - file.start, stop - first)
            except FileNotFoundError:
                # Removed by retention; the next file may still exist.
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
        """Unmap the file."""
        self._region = None
        self._start = -1


class IndexHits(NamedTuple):
    """Result of a search.

    Attributes:
        offsets: physical offsets of the candidates, the newest first.
        end_ms: store time of the last indexed message, ms since the epoch.
        end_offset: its physical offset.
    """

    offsets: list[int]
    end_ms: int
    end_offset: int


class IndexBuilder:
    """Indexes the log slice by slice, and tracks how far it is indexed.

    Attributes:
        lock: held by the callers of all methods but ``catch_up``, which takes it itself.
        position: physical offset up to which the log is indexed.
        loaded: whether the index files have been loaded.
        slice_bytes: size of the next slice of the log, chosen by the number of keys in the last.
    """

    def __init__(
        self,
        files: IndexFileSet,
        log: LogReader,
        limits: StoreLimits,
        *,
        note: IndexNote | None,
        safe_ms: int | None,
        enabled: bool,
    ) -> None:
        """Create the builder; see ``load``.

        Args:
            files: of the index.
            log: reads the log.
            limits: of the store.
            note: how far the last clean stop had indexed the log; None if unknown.
            safe_ms: after a crash, the index time in RocketMQ's checkpoint; otherwise None.
            enabled: whether messages are indexed; if not, what a crash has left is searched.
        """
        self._files = files
        self._enabled = enabled
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
        """Load the index files and the position, unless that is done already. Raises ``OSError``.

        They are loaded again if another process has removed or shortened a file.
        """
        if self.loaded:
            if self._files.is_whole():
                return
            _log.warning("an index file was removed or shortened: messages are indexed again")
            self.loaded = False
        note = self._note
        if note is not None and note.indexed < 0:
            self._safe_ms = 0
        # What is removed could not be made again while indexing is off.
        self._files.load(log_end, safe_ms=self._safe_ms if self._enabled else None)
        last = self._files.last
        self.position = self._log.start
        if last is not None and last.header.next_entry > 1:
            self.position = max(self.position, self._behind(last.header.end_offset, log_end))
        if (
            self._safe_ms is None
            and note is not None
            and note.last == self._last()
            and self._log.start <= note.indexed <= log_end
        ):
            self.position = note.indexed
        # The note is wrong as soon as the files change.
        self._note = None
        self.loaded = True

    def _behind(self, end_offset: int, log_end: int) -> int:
        """Return where to continue, given the last message in a file."""
        if self._safe_ms is not None:
            # A full file may lack some of that message's keys: index it again.
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
        """Index one slice before ``end``; return whether there may be more.

        Raises:
            OSError: the disk refuses; ``position`` has not moved.
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
            # No good record begins here: continue behind it if a record follows, otherwise search.
            self.position = _next_head(piece, end)
            if size := _record_size(piece.data):
                following = self._log.read(piece.position + size, end, _HEAD.size)
                if following is not None and _record_size(following.data):
                    self.position = following.position
        return self.position < end

    def catch_up(self, end: int, go_on: Callable[[], bool]) -> bool:
        """Index up to ``end`` while ``go_on()``; return whether it is done. Takes the lock.

        Raises:
            OSError: the disk refuses.
        """
        while True:
            with self.lock:
                if not self.step(end):
                    return True
            if not go_on():
                return False

    def save(self) -> IndexNote | None:
        """Sync the files; return the note for the next start. Raises ``OSError``."""
        if not self._enabled and self._safe_ms is not None:
            return IndexNote(-1, [])
        if not self.loaded:
            return self._note
        self._files.sync()
        return IndexNote(self.position, self._last())

    def close(self) -> None:
        """Unmap the log; the next step maps it again."""
        self._log.close()


def slice_for(walked: Walked, limits: StoreLimits) -> int:
    """Return the size of the next slice, so that it has about ``index_slice_keys`` keys."""
    expected = walked.used * limits.index_slice_keys // max(len(walked.batch), 1)
    return min(max(expected, limits.index_min_slice_bytes), limits.index_max_slice_bytes)


def _next_head(piece: Piece, end: int) -> int:
    """Return where the next record may begin, or the search for it has to continue."""
    begin, behind = piece.position, piece.position + len(piece.data)
    last = behind == min(piece.following, end)

    def read(at: int, length: int) -> memoryview:
        return piece.data[at - begin : at - begin + length]

    heads = find_heads(read, begin + 1, behind, end=behind, step=len(piece.data))
    # Slices overlap, so that a head across their border is found.
    return next(heads, behind if last else behind - FIXED_BYTES_V4)


def _record_size(data: memoryview) -> int:
    """Return the size of the record that begins with these bytes; 0 when none does."""
    if len(data) < _HEAD.size:
        return 0
    size, magic = _HEAD.unpack_from(data)
    return int(size) if magic in _MAGICS and size >= FIXED_BYTES_V4 else 0


class MessageIndex:
    """Finds messages by key; runs the thread that indexes them.

    Attributes:
        trouble: why messages are not indexed, as a sentence for logs; None when they are.
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
        """Create the index of a store; see ``start``.

        Args:
            context: of the store.
            log: just opened.
            note: how far the last clean stop had indexed the log; None if unknown.
            safe_ms: after a crash, the index time in RocketMQ's checkpoint; otherwise None.
            visible_end: returns the physical offset up to which messages are visible.
        """
        config, files = context.config, context.files
        self._clock = context.clock
        self._limits = config.limits
        self._directory = context.paths.index
        shape = Shape(config.max_hash_slots, config.max_index_entries)
        self._files = IndexFileSet(files, self._directory, shape, context.clock)
        reader = LogReader(log, files, config.limits)
        self._hot_bytes = reader.hot_bytes
        # If disabled, existing files can still be searched.
        self._enabled = config.message_index_enable
        self._builder = IndexBuilder(
            *(self._files, reader, config.limits),
            note=note,
            safe_ms=safe_ms,
            enabled=self._enabled,
        )
        self._visible_end = visible_end
        self._worker = StoreThread("store-index", self._run, context.disk, config.limits)
        self._pool: ThreadPoolExecutor | None = None
        self._queries = 0
        self._slices = 0
        self._closed = False
        self.trouble: str | None = None

    def safe_until_ms(self) -> int | None:
        """Return the end time of the last full file, for the checkpoint; None if not loaded."""
        return self._files.full_ms if self._builder.loaded else None

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return max(self._visible_end() - self._builder.position, 0) if self._builder.loaded else 0

    # --- the thread

    def start(self) -> None:
        """Start the thread."""
        if self._enabled:
            self._worker.start()

    def stop(self) -> bool:
        """Stop the thread and refuse queries; return False when it does not end in time."""
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
        """Index up to ``end``, with pauses; return False if that failed."""
        try:
            self._builder.catch_up(end, lambda: self._goes_on(end))
        except OSError as error:
            self._failed(
                f"the index {self._directory} can't be written"
                f" ({error.strerror or error}), so later messages are not found by their keys:"
                " remove the cause and it resumes by itself"
            )
        except Exception as error:  # noqa: BLE001 - an index is not worth a store
            self._failed(
                f"the index {self._directory} can't be updated ({error!r}), so later messages are"
                " not found by their keys: report this"
            )
        else:
            self.trouble = None
            return True
        return False

    def _goes_on(self, end: int) -> bool:
        """Pause after a slice, or after several while nothing is stored; False when stopping."""
        self._slices += 1
        if self._slices % self._limits.index_slices_in_a_row and self._visible_end() == end:
            return not self._worker.stopping.is_set()
        return not self._worker.stopping.wait(self._limits.index_pause_seconds)

    def _failed(self, reason: str) -> None:
        if self.trouble != reason:
            self.trouble = reason
            _log.error("messages are not indexed", reason=reason)

    # --- queries, on the loop's thread

    async def find(
        self, topic: str, key: str, *, max_count: int, begin_ms: int, end_ms: int
    ) -> IndexHits:
        """Find the messages that may have a key, the newest first.

        The index has only hashes, so some of the messages may have another key. Recent messages may
        be missing if indexing the backlog takes longer than ``index_query_wait_seconds``.

        Args:
            topic: under which the messages are stored.
            key: a unique id, or one of the messages' keys.
            max_count: maximum number of offsets.
            begin_ms: ms since the epoch; only messages stored in this second or later.
            end_ms: ms since the epoch; only messages stored in this second or earlier.

        Raises:
            StoreBusy: too many queries wait already.
            StoreError: the store is closing, or the index can't be read.
        """
        if self._closed:
            raise StoreError(CLOSING)
        if self._queries >= self._limits.max_index_queries:
            raise StoreBusy("too many queries by key wait: try again in a moment")
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
                raise StoreError(CLOSING) from None
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
                offsets = self._files.find(topic, key, max_count, begin_ms, end_ms)
                last = self._files.last
                if last is None:
                    return IndexHits(offsets, 0, 0)
                return IndexHits(offsets, last.header.end_ms, last.header.end_offset)
        except OSError as error:
            raise StoreError(
                f"the index {self._directory} can't be read ({error.strerror or error})"
            ) from error

    def _advance_to(self, end: int, go_on: Callable[[], bool]) -> None:
        """Index up to ``end`` without pauses, while ``go_on()``."""
        if self._enabled:
            try:
                self._builder.catch_up(end, go_on)
            except Exception as error:  # noqa: BLE001 - the thread tries again, and reports it
                _log.warning("index not completed", error=str(error))

    # --- retention and the end

    def drop_before(self, physical_offset: int) -> int:
        """Remove the files that have only messages before an offset; return their number.

        Callable in any thread; waits for one slice at most. Raises ``OSError``.
        """
        with self._builder.lock:
            self._builder.load(self._visible_end())
            self._builder.close()
            return self._files.drop_before(physical_offset)

    def finish(self) -> IndexNote | None:
        """Complete and sync the index at a clean stop; return how far it is, None if it failed.

        What can't be indexed in time, or because the disk is full, is indexed after the next start.
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
        """Unmap the log."""
        with self._builder.lock:
            self._builder.close()
