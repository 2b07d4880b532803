"""Settings and directories of a store; RocketMQ's keys are named beside the fields they set."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Final, Literal

from broker.store.limits import MAX_OPEN_MAPS, PAGE_BYTES, StoreLimits
from remoting.protocol.disk.files import ENTRY_BYTES
from remoting.protocol.disk.index_file import DEFAULT_ENTRIES, DEFAULT_SLOTS
from remoting.protocol.limits import MAX_MESSAGE_BYTES

FlushDiskType = Literal["ASYNC_FLUSH", "SYNC_FLUSH"]

DEFAULT_DELAY_LEVELS_MS: Final = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
)
"""``messageDelayLevel``: 1s 5s 10s 30s 1m ... 10m 20m 30m 1h 2h."""


_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """How long messages are kept, and when a disk counts as full.

    Attributes:
        reserved_ms: how long messages are kept; ``fileReservedTime``, which is in hours.
        delete_hours: hours of the day, local time, in which expired files are deleted;
            ``deleteWhen``.
        max_used_percent: on a fuller disk expired files are deleted at any hour;
            ``diskMaxUsedSpaceRatio``.
        forced_used_percent: on a fuller disk unexpired files are deleted too;
            ``diskSpaceCleanForciblyRatio``.
        full_used_percent: on a fuller disk nothing is stored; ``diskSpaceWarningLevelRatio``.
        forced_free_bytes: if not 0, replaces ``forced_used_percent``: the bound is this many free
            bytes.
        full_free_bytes: if not 0, replaces ``full_used_percent`` in the same way.
        forcibly: whether unexpired files may be deleted; ``cleanFileForciblyEnable``.
        batch: maximum number of files deleted in one run; ``deleteFileBatchMax``.
        first_delay_ms: nothing is deleted this soon after the start, so that an operator has time
            to notice a wrong setting.
        interval_ms: between two runs; ``cleanResourceInterval``.
        log_pause_ms: between removals of two log files; ``deleteCommitLogFilesInterval``.
        hold_ms: how long the space of a removed file that a reader holds counts as free;
            ``destroyMapedFileIntervalForcibly``.
        retry_ms: delay before another attempt to remove a file; ``redeleteHangedFileInterval``.
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


@dataclass(slots=True, kw_only=True)
class StoreConfig:
    """Settings of one store.

    Attributes:
        root: ``storePathRootDir``.
        commit_log_path: ``storePathCommitLog``; ``root/commitlog`` when absent.
        mapped_file_size_commit_log: bytes; ``mappedFileSizeCommitLog``. A store has to be opened
            with the size it was created with.
        mapped_file_size_consume_queue: bytes; ``mappedFileSizeConsumeQueue``, rounded up to whole
            entries of 20 bytes as RocketMQ does.
        flush_disk_type: ``flushDiskType``.
        flush_interval_commit_log_ms: ``flushIntervalCommitLog``.
        flush_commit_log_least_pages: ``flushCommitLogLeastPages``.
        flush_commit_log_thorough_interval_ms: ``flushCommitLogThoroughInterval``.
        flush_interval_consume_queue_ms: ``flushIntervalConsumeQueue``; also the interval of the
            checkpoint.
        flush_consume_queue_least_pages: ``flushConsumeQueueLeastPages``.
        flush_consume_queue_thorough_interval_ms: ``flushConsumeQueueThoroughInterval``.
        sync_flush_timeout_ms: ``syncFlushTimeout``.
        max_message_size: bytes of a body or of a batch's bodies; ``maxMessageSize``.
        store_host: numeric address and port for records and message ids.
        max_open_files: mapped files kept open, within the process's limit.
        check_crc_on_recover: ``checkCRCOnRecover``.
        delay_levels_ms: ``messageDelayLevel``, to rebuild the queues of delayed messages.
        message_index_enable: ``messageIndexEnable``: whether messages can be queried by key.
        max_hash_slots: ``maxHashSlotNum``, of an index file.
        max_index_entries: ``maxIndexNum``. Index files of another size are not used.
        retention: how long messages are kept.
        waits_for_slave: whether a message is acknowledged only once a slave has it (SYNC_MASTER).
        slave_timeout_ms: ``slaveTimeout``.
        follows: whether the store is a slave's, which takes only the log of its master.
        controlled: whether messages are visible only once they are confirmed: all replicas in sync
            have them (controller mode).
        limits: fixed limits of the store; only tests change them.
    """

    root: Path
    commit_log_path: Path | None = None
    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: int = 6_000_000
    flush_disk_type: FlushDiskType = "ASYNC_FLUSH"
    flush_interval_commit_log_ms: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval_ms: int = 10_000
    flush_interval_consume_queue_ms: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval_ms: int = 60_000
    sync_flush_timeout_ms: int = 5000
    max_message_size: int = MAX_MESSAGE_BYTES
    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    max_open_files: int = MAX_OPEN_MAPS
    check_crc_on_recover: bool = True
    delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS
    message_index_enable: bool = True
    max_hash_slots: int = DEFAULT_SLOTS
    max_index_entries: int = DEFAULT_ENTRIES
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    waits_for_slave: bool = False
    slave_timeout_ms: int = 3000
    follows: bool = False
    controlled: bool = False
    limits: StoreLimits = field(default_factory=StoreLimits)

    @property
    def syncs(self) -> bool:
        """Whether messages are acknowledged only once they are on the disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def defers(self) -> bool:
        """Whether messages become visible, and are acknowledged, only once they are confirmed.

        See ``Syncer.confirmed``.
        """
        return self.syncs or self.controlled

    @property
    def waits(self) -> bool:
        """Whether messages are acknowledged later than stored: for the disk, a slave, or both."""
        return self.defers or self.waits_for_slave

    @property
    def queue_file_bytes(self) -> int:
        """Length of a consume-queue file: whole entries."""
        return ceil(self.mapped_file_size_consume_queue / ENTRY_BYTES) * ENTRY_BYTES

    @property
    def least_flush_bytes(self) -> int:
        """Unflushed bytes of the log below which the periodic flush waits."""
        return self.flush_commit_log_least_pages * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The files and directories of one store."""

    root: Path
    commit_log: Path
    consume_queues: Path
    index: Path
    checkpoint: Path
    abort: Path
    """Exists while the store is open; if it exists at a start, the broker crashed."""
    lock: Path
    own_checkpoint: Path
    """PocketMQ's own checkpoint, beside RocketMQ's; see ``checkpoint``."""
    deleted_topics: Path
    epochs: Path
    """RocketMQ's ``epochFileCheckpoint`` (controller mode)."""
    identity: Path
    """Its ``brokerIdentity``."""

    @classmethod
    def of(cls, config: StoreConfig) -> StorePaths:
        """Return the paths of a configured store."""
        root = config.root
        return cls(
            root=root,
            commit_log=config.commit_log_path or root / "commitlog",
            consume_queues=root / "consumequeue",
            index=root / "index",
            checkpoint=root / "checkpoint",
            abort=root / "abort",
            lock=root / "lock",
            own_checkpoint=root / "pocketmq-checkpoint",
            deleted_topics=root / "config" / "deletedTopics.json",
            epochs=root / "epochFileCheckpoint",
            identity=root / "brokerIdentity",
        )
