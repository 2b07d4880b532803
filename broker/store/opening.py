"""Opening a store's directory: lock, checks, recovery. Everything here may block."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from broker.store import clean_stop
from broker.store.commit_log import CommitLog, find_log_files
from broker.store.config import StoreConfig
from broker.store.errors import StoreError
from broker.store.files import Files, Lock
from broker.store.limits import open_maps
from broker.store.mapped_file import MappedFiles
from broker.store.paths import StorePaths
from broker.store.progress import Progress
from broker.store.queue_files import QueueSpace
from broker.store.queue_table import QueueTable
from broker.store.recovery import Recovery
from broker.store.results import RecoveryReport
from broker.store.safe_point import SafePointFile
from remoting.clock import Clock
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.errors import RecordError

LOCK_TEXT = b"lock"
_FILE_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR})


@dataclass(slots=True)
class Opened:
    """The parts of an open store."""

    lock: Lock
    log: CommitLog
    queues: QueueTable
    checkpoint: Checkpoint
    last_store_ms: int
    synced: int
    safe: SafePointFile
    report: RecoveryReport


def open_store(
    config: StoreConfig, paths: StorePaths, files: Files, clock: Clock, progress: Progress
) -> Opened:
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
    config: StoreConfig, paths: StorePaths, files: Files, lock: Lock, progress: Progress
) -> Opened:
    maps = MappedFiles(open_maps(config.max_open_files))
    space = QueueSpace(files, maps, config.queue_file_bytes)
    queues = QueueTable(space, paths.consume_queues)
    log = CommitLog(files, maps, paths.commit_log, config.mapped_file_size_commit_log)
    log.writes_all = config.flush_disk_type == "SYNC_FLUSH"
    mapped = find_log_files(files, maps, paths.commit_log, config.mapped_file_size_commit_log)
    checkpoint = _read_checkpoint(paths, files)
    safe = SafePointFile(files, paths, config)
    recovery = Recovery(
        log,
        mapped,
        queues,
        checkpoint,
        safe.read(),
        delay_levels_ms=config.delay_levels_ms,
        check_crc=config.check_crc_on_recover,
        sync=config.flush_disk_type == "SYNC_FLUSH",
        progress=progress,
    )
    clean = files.size(paths.abort) is None
    stop = None
    if clean and mapped:
        stop = clean_stop.read(files, paths, config, [file.start for file in mapped])
    report = recovery.run(clean=clean, stop=stop)
    # Only now: a start that was refused leaves the store as it was.
    safe.begin(log, synced=recovery.synced, believed=recovery.believes_safe_point)
    files.remove(paths.clean_stop)
    files.sync_directory(paths.commit_log)
    files.write(paths.abort, b"")
    files.sync_directory(paths.root)
    return Opened(
        lock, log, queues, checkpoint, recovery.last_store_ms, recovery.synced, safe, report
    )


def _read_checkpoint(paths: StorePaths, files: Files) -> Checkpoint:
    try:
        return Checkpoint.decode(files.read(paths.checkpoint) or b"")
    except RecordError:
        return Checkpoint()


def _cannot_open(paths: StorePaths, error: OSError) -> StoreError:
    where = error.filename or paths.root
    hint = "check the owner and the free space of its directory"
    if error.errno in _FILE_IN_THE_WAY:
        hint = "a file stands where a directory should be: move it away, or give another path"
    return StoreError(
        f"the store {paths.root} can't be opened ({where}: {error.strerror or error}): {hint}"
    )
