"""What the store counts: plain numbers that the metrics page reads."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

SYNC_BUCKETS_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds of the histogram of syncs; one more bucket holds what took longer."""


@dataclass(slots=True)
class StoreStats:
    """Counters since the store was opened.

    Attributes:
        puts: messages stored.
        put_bytes: bytes of their records.
        refused_puts: calls that stored nothing.
        gets: calls of ``get``.
        got_messages: messages they returned.
        got_bytes: bytes of those.
        damaged_messages: records that were met and are not what was stored, and messages that only
            a damaged queue entry told of; each counts once.
        restored_entries: damaged queue entries that the log had the messages of.
        cold_gets: calls of ``get`` that had to wait for the disk, in a thread.
        cold_bytes: bytes these threads read.
        syncs: of the commit log.
        sync_seconds: what they took together.
        sync_buckets: how many took how long, see ``SYNC_BUCKETS_SECONDS``.
        sync_timeouts: messages whose sync took longer than ``syncFlushTimeout``.
        queue_sync_failures: failed syncs of consume queues or of the checkpoint.
    """

    puts: int = 0
    put_bytes: int = 0
    refused_puts: int = 0
    gets: int = 0
    got_messages: int = 0
    got_bytes: int = 0
    damaged_messages: int = 0
    restored_entries: int = 0
    cold_gets: int = 0
    cold_bytes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_buckets: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BUCKETS_SECONDS) + 1))
    sync_timeouts: int = 0
    queue_sync_failures: int = 0

    def count_sync(self, seconds: float) -> None:
        """One sync of the commit log is done."""
        self.syncs += 1
        self.sync_seconds += seconds
        self.sync_buckets[bisect_left(SYNC_BUCKETS_SECONDS, seconds)] += 1
