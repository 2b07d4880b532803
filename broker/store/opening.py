"""Opening a store: lock, checks, recovery, and how its parts are joined. Everything here blocks."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from broker.store.append import Appender, MessageWriter
from broker.store.checkpoint import StoreCheckpoint
from broker.store.cold_reads import ColdReads
from broker.store.commit_log import CommitLog, find_log_files
from broker.store.config import StoreConfig, StorePaths
from broker.store.consume_queue import QueueSpace
from broker.store.disk_state import StoreContext
from broker.store.dispatch import EntryDispatcher
from broker.store.index.message_index import MessageIndex
from broker.store.limits import open_maps
from broker.store.mapped_file import MappedFiles
from broker.store.os_files import Files, Lock
from broker.store.page_cache import PageCacheTracker
from broker.store.preallocate import Preallocator
from broker.store.progress import OpeningProgress
from broker.store.queries import Queries
from broker.store.queue_table import QueueTable
from broker.store.reader import StoreReader
from broker.store.record_validator import RecordValidator
from broker.store.recovery import Recovery
from broker.store.restore import Restorer
from broker.store.results import RecoveryReport, StoreError
from broker.store.retention import Retention
from broker.store.sync import LogSync, QueueSync, Syncer
from remoting.clock import Clock

LOCK_TEXT = b"lock"
_FILE_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR})


@dataclass(slots=True)
class RecoveredStore:
    """The parts of an open store."""

    lock: Lock
    log: CommitLog
    queues: QueueTable
    checkpoint: StoreCheckpoint
    last_store_ms: int
    synced: int
    report: RecoveryReport


def open_store(
    config: StoreConfig, paths: StorePaths, files: Files, clock: Clock, progress: OpeningProgress
) -> RecoveredStore:
    """Lock and recover a store, and mark it as open.

    Raises:
        StoreError: it can't be opened; the text says why and what to do.
        OpeningGivenUp: ``progress`` says so; the next opening does all of it.
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
        opened = _recover(config, paths, files, lock, progress)
        opened.report.seconds = clock.monotonic() - begun
    except OSError as error:
        lock.release()
        raise _cannot_open(paths, error) from error
    except BaseException:
        lock.release()
        raise
    return opened


def _recover(
    config: StoreConfig, paths: StorePaths, files: Files, lock: Lock, progress: OpeningProgress
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
    checkpoint = StoreCheckpoint(files, paths, config)
    checkpoint.read()
    recovery = Recovery(log, mapped, queues, checkpoint, config, progress)
    report = recovery.run(clean=files.size(paths.abort) is None)
    # Only now: a start that was refused leaves the store as it was. Before the ``abort`` file, so
    # that nothing of a clean stop is left once messages may come.
    checkpoint.begin(log, synced=recovery.synced, believed=recovery.believes_safe_point)
    files.sync_directory(paths.commit_log)
    files.write(paths.abort, b"")
    files.sync_directory(paths.root)
    return RecoveredStore(
        lock, log, queues, checkpoint, recovery.last_store_ms, recovery.synced, report
    )


def _cannot_open(paths: StorePaths, error: OSError) -> StoreError:
    where = error.filename or paths.root
    hint = "check the owner and the free space of its directory"
    if error.errno in _FILE_IN_THE_WAY:
        hint = "a file stands where a directory should be: move it away, or give another path"
    return StoreError(
        f"the store {paths.root} can't be opened ({where}: {error.strerror or error}): {hint}"
    )


@dataclass(slots=True)
class Engine:
    """What an open store is made of."""

    lock: Lock
    log: CommitLog
    queues: QueueTable
    checkpoint: StoreCheckpoint
    writer: MessageWriter
    appender: Appender
    reader: StoreReader
    queries: Queries
    cold_reads: ColdReads
    syncer: Syncer
    preallocator: Preallocator
    index: MessageIndex
    retention: Retention


def build_engine(
    opened: RecoveredStore, context: StoreContext, dispatcher: EntryDispatcher
) -> Engine:
    """Join what opening a store found with what works on it."""
    log, queues, checkpoint = opened.log, opened.queues, opened.checkpoint
    config, paths, files, clock = context.config, context.paths, context.files, context.clock
    disk, stats = context.disk, context.stats
    waits = config.flush_disk_type == "SYNC_FLUSH"
    writer = MessageWriter(context, log, queues, dispatcher, last_store_ms=opened.last_store_ms)
    log_sync = LogSync(context, log, synced=opened.synced, store_ms=lambda: writer.last_store_ms)
    clean = opened.report.clean
    index = MessageIndex(
        context,
        log,
        note=checkpoint.index_note() if clean else None,
        safe_ms=None if clean else checkpoint.times.index_ms,
        # Readers must not see what a crash could take back.
        visible_end=lambda: log_sync.flushed if waits else log.end,
    )
    queue_sync = QueueSync(
        context,
        queues,
        log_sync,
        dispatcher,
        checkpoint,
        store_ms=lambda: writer.last_store_ms,
        index_ms=index.safe_until_ms,
    )
    retention = Retention(
        log,
        queues,
        disk,
        files,
        config,
        clock,
        directories=(paths.commit_log, paths.consume_queues),
        safe_end=lambda: checkpoint.safe_end,
    )
    retention.follow(index.drop_before)
    page_cache = PageCacheTracker(log, config.limits, clock.monotonic)
    validator = RecordValidator(log, page_cache, stats, config.limits)
    reader = StoreReader(log, queues, page_cache, validator, config.limits, stats)
    queries = Queries(log, queues, page_cache, validator, config.limits)
    restorer = Restorer(log, queues, validator, stats, config)
    return Engine(
        lock=opened.lock,
        log=log,
        queues=queues,
        checkpoint=checkpoint,
        writer=writer,
        appender=Appender(context, log, dispatcher, writer.next_store_ms),
        reader=reader,
        queries=queries,
        cold_reads=ColdReads(reader, queries, restorer, page_cache, stats, config.limits),
        syncer=Syncer(context, log_sync, queue_sync, dispatcher),
        preallocator=Preallocator(context, log),
        index=index,
        retention=retention,
    )
