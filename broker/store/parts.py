"""The parts of an open store and how they are joined."""

from __future__ import annotations

from dataclasses import dataclass

from broker.store.append import Appender
from broker.store.cold_reads import ColdReads
from broker.store.commit_log import CommitLog
from broker.store.config import StoreConfig
from broker.store.disk_state import DiskState
from broker.store.dispatch import Dispatcher
from broker.store.files import Files, Lock
from broker.store.index.file import Shape
from broker.store.index.message_index import IndexPlaces, MessageIndex
from broker.store.log_flusher import LogFlusher
from broker.store.opening import Opened
from broker.store.paths import StorePaths
from broker.store.queue_flusher import QueueFlusher
from broker.store.queue_table import QueueTable
from broker.store.reader import Reader
from broker.store.restore import Restorer
from broker.store.retention.retention import Retention
from broker.store.run_ahead import RunAhead
from broker.store.safe_point import Marker
from broker.store.soundness import Soundness
from broker.store.stats import StoreStats
from broker.store.warmth import Warmth
from broker.store.writer import Writer
from remoting.clock import Clock


@dataclass(slots=True)
class Parts:
    """What an open store is made of."""

    lock: Lock
    log: CommitLog
    queues: QueueTable
    writer: Writer
    appender: Appender
    reader: Reader
    cold_reads: ColdReads
    log_flusher: LogFlusher
    queue_flusher: QueueFlusher
    run_ahead: RunAhead
    index: MessageIndex
    retention: Retention


def join_parts(
    opened: Opened,
    *,
    config: StoreConfig,
    paths: StorePaths,
    files: Files,
    clock: Clock,
    disk: DiskState,
    dispatcher: Dispatcher,
    stats: StoreStats,
) -> Parts:
    """Join what opening a store found with what works on it."""
    log, queues = opened.log, opened.queues
    writer = Writer(
        log, queues, dispatcher, disk, config, clock, stats, last_store_ms=opened.last_store_ms
    )

    def store_ms() -> int:
        return writer.last_store_ms

    def dispatched_ms() -> int:
        # While messages wait for the disk, their queues lag behind the log.
        return log_flusher.flushed_store_ms if len(dispatcher) else writer.last_store_ms

    def visible_end() -> int:
        return log_flusher.flushed if config.flush_disk_type == "SYNC_FLUSH" else log.end

    log_flusher = LogFlusher(
        log, disk, config, clock, stats, synced=opened.synced, store_ms=store_ms
    )
    queue_flusher = QueueFlusher(
        queues,
        log_flusher,
        files,
        disk,
        paths,
        opened.checkpoint,
        config,
        clock,
        stats,
        dispatched_ms=dispatched_ms,
        safe=opened.safe,
        marker=Marker(log, queues, dispatcher.first_waiting),
        named=lambda queue: opened.report.quick or opened.safe.number_of(queue) > 0,
    )
    log_flusher.before_sync = queue_flusher.log_is_synced_soon
    log_flusher.after_sync = queue_flusher.log_was_synced
    index = MessageIndex(
        log,
        files,
        disk,
        clock,
        IndexPlaces(paths.index, paths.index_note),
        Shape(config.max_hash_slots, config.max_index_entries),
        enabled=config.message_index_enable,
        safe_ms=None if opened.report.clean else opened.checkpoint.index_ms,
        visible_end=visible_end,
    )
    queue_flusher.index_ms = index.safe_until_ms
    retention = Retention(
        log,
        queues,
        disk,
        files,
        config.retention,
        clock,
        directories=(paths.commit_log, paths.consume_queues),
        safe_end=queue_flusher.safe.safe_end,
    )
    retention.followers.append(index.drop_before)
    warmth = Warmth(clock.monotonic)
    soundness = Soundness(log, warmth, stats)
    reader = Reader(log, queues, stats, warmth, soundness)
    restorer = Restorer(log, queues, soundness, stats, config.delay_levels_ms)
    return Parts(
        lock=opened.lock,
        log=log,
        queues=queues,
        writer=writer,
        appender=Appender(
            log,
            dispatcher,
            disk,
            stats,
            writer.next_store_ms,
            sync=config.flush_disk_type == "SYNC_FLUSH",
        ),
        reader=reader,
        cold_reads=ColdReads(reader, restorer, warmth, stats),
        log_flusher=log_flusher,
        queue_flusher=queue_flusher,
        run_ahead=RunAhead(log, files, disk),
        index=index,
        retention=retention,
    )
