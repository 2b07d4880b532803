"""The limits of a store, each with its reason. Sizes are bytes unless the name says otherwise."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from remoting.protocol.limits import MAX_MESSAGE_BYTES

PAGE_BYTES: Final = 4096
"""Unit of the settings that count pages (cf. MappedFile.OS_PAGE_SIZE), and smallest allocation."""

SECTOR_BYTES: Final = 512
"""Smallest unit that a disk writes or loses."""

MAX_OPEN_MAPS: Final = 16_384
"""Mapped files open at once, even if the process may open more: each costs a descriptor, half a KiB
and one of the 65,530 maps that Linux allows a process."""

MAX_OTHER_DESCRIPTORS: Final = 8_192
"""Descriptors reserved for connections, or half of the process's limit if that is less."""

MIN_OPEN_MAPS: Final = 16
"""With fewer, a pull over a few queues would map a file for each entry."""

SMALL_FILE_BYTES: Final = 16 * 1024 * 1024
"""Smaller files keep one descriptor instead of two: there may be thousands of queue files."""

MAX_PULL_MESSAGES: Final = 1024
"""Messages of one pull, even if the caller asks for more (Apache's bound is 32)."""

MAX_PULL_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one pull unless its first message is larger (Apache's bound is 256 KiB)."""

MAX_KEY_CANDIDATES: Final = 1024
"""Index entries that one query examines: some may be of other keys with the same hash."""

MAX_KEY_MESSAGES: Final = 64
"""Messages that one query by key returns, even if it asks for more (cf. maxMsgsNumBatch)."""

MAX_NOTES: Final = 20
"""Notes that one opening of a store writes to the broker's log."""

ASKED_AHEAD_BYTES: Final = 1024 * 1024
"""Range of one ``mincore`` call for a file that is read sequentially: 2 us, the first time 18."""

FETCH_BYTES: Final = 256 * 1024
"""Buffer of a thread that reads a file into the page cache."""

MAX_RECORD_BYTES: Final = MAX_MESSAGE_BYTES + 64 * 1024
"""Largest record of a broker with default settings (cf. MessageStoreConfig.maxMessageSize)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """The limits of one store: the defaults are for production, tests use smaller ones."""

    # Appending and allocating.
    written_from_bytes: int = 8 * 1024
    """From this size on, the records of one pass are written with ``pwrite``; fewer bytes are
    stored through the map."""
    appender_step_bytes: int = 256 * 1024
    """Step in which an appender allocates when it has reached the watermark."""
    queue_step_bytes: int = 64 * 1024
    """Largest step in which a consume-queue file is allocated; the first steps are smaller."""
    preallocate_step_bytes: int = 1024 * 1024
    """Step in which the preallocator writes zeros: about 0.3 ms, the longest an appender waits."""
    allocate_step_bytes: int = 8 * 1024 * 1024
    """Step of the preallocator when it only allocates blocks and writes no zeros."""
    preallocate_first_bytes: int = 4 * 1024 * 1024
    """Run-ahead of a store that has stored nothing yet: an idle broker does not write 64 MiB."""
    preallocate_bytes: int = 64 * 1024 * 1024
    """Run-ahead of a busy store: at least a tenth of a second at a fast disk's rate."""
    preallocate_pause_seconds: float = 0.001
    """Pause between two steps, so that the thread never competes with the loop for long."""
    preallocate_min_free_bytes: int = 256 * 1024 * 1024
    """With less free space nothing is allocated ahead: messages and their queues need the rest."""
    no_space_retry_seconds: float = 1.0
    """Interval at which a store that ran out of space retries an allocation."""
    max_queues: int = 200_000
    """Queues of one store: each costs a directory, a file and about 1 KiB of memory."""
    max_clock_step_back_ms: int = 10_000
    """Store times never go back unless the clock was set back by more than this."""

    # Syncs and safe points.
    safe_point_bytes: int = 8 * 1024 * 1024
    """Growth of the log after which a new safe point is made. A start after a crash walks about
    this much, which takes half a second even if messages are small."""
    safe_point_queue_seconds: float = 0.005
    """Delay of the next safe point for each queue that this one synced: each sync is a write to the
    disk, and there must not be ten thousand of them every second."""
    queues_synced_together: int = 256
    """Queues from which on the whole file system is synced instead of three files and directories
    for each: 20,000 new queues take a second instead of ten or twenty."""
    mark_seconds: float = 0.05
    """How long a sync of the log waits for the loop to take a mark."""
    mark_queue_seconds: float = 0.0001
    """Delay of the next safe point for each queue: a thousand times the 100 ns that a queue adds to
    the time of taking a mark on the loop."""
    first_safe_point_seconds: float = 0.05
    """Pause between attempts at the first safe point, after a start that had to walk much of the
    log."""
    first_safe_point_tries: int = 20
    """Number of these attempts (a slow disk may delay the safe point); then the normal interval
    applies."""
    hung_sync_seconds: float = 5.0
    """A sync of one file of the log that takes longer means that the disk hangs, so that a group
    elects another master: by then sends have failed anyway (cf. syncFlushTimeout)."""
    close_seconds: float = 30.0
    """How long a closing store waits for each of its threads, which may be in a slow fdatasync."""

    # Recovery.
    files_of_a_clean_start: int = 3
    """Number of the last files that a start after another broker's clean stop walks (cf.
    CommitLog.recoverNormally)."""
    alone_bytes: int = 1024 * 1024
    """Bytes walked record by record before stretches of many records are examined at once."""
    stretch_bytes: int = 1024 * 1024
    """Bytes examined at once: they fit into the processor's cache."""

    # Reading.
    min_scan_bytes: int = 16_000
    """Consume-queue bytes that one pull examines (cf. maxFilterMessageCount): 800 entries."""
    max_filtered_bytes: int = 8 * 1024 * 1024
    """Bytes of records that a filter looks into for one get: to check as many takes 1 to 2 ms."""
    hot_log_bytes: int = 64 * 1024 * 1024
    """Size of the newest part of the log that is assumed to be in memory: only older bytes are
    looked up in the page cache."""
    trusted_memory_ratio: float = 1 / 8
    """Size of the newest part of the log, as a part of the machine's memory, that is assumed never
    to have left memory, and so to be as it was appended, unless a lookup finds otherwise."""
    hot_queue_entries: int = 4096
    """Number of the newest entries of a queue that are assumed to be in memory: 80 KiB."""
    block_bytes: int = 64 * 1024
    """Unit in which page-cache lookups are remembered: about 5 us to look up."""
    max_resident_blocks: int = 16_384
    """Blocks remembered as being in the page cache: 1 GiB, in some 3 MiB of objects."""
    resident_seconds: float = 1.0
    """How long a block that was found in the page cache is assumed to stay there."""
    max_probes: int = 64
    """Page-cache lookups for one get: 0.3 ms. A get that needs more counts as cold."""
    cold_readers: int = 4
    """Threads that read what is not in memory: enough to keep a disk busy, few enough to leave the
    loop the GIL."""
    max_cold_reads: int = 4096
    """Reads that wait for one of these threads; each is a pull that its client waits for."""
    max_fetch_gap_bytes: int = 16 * 1024
    """Records with at most this many bytes between them are fetched together."""
    read_ahead_bytes: int = 4 * 1024 * 1024
    """Bytes behind a cold range that the kernel is asked to read ahead, for the next pull."""
    checked_seconds: float = 60.0
    """How long a record that passed validation is assumed to stay intact while it seems to stay in
    memory."""
    max_named_damage: int = 1024
    """Damaged records that are remembered, so that each is logged and counted once."""
    max_restore_bytes: int = 4 * 1024 * 1024 * 1024
    """Bytes of the log that are walked to restore damaged entries of a queue: some seconds, in a
    thread. Entries further from the queue's previous message are left to 'pocketmq store verify
    --repair'."""
    restore_chunk_bytes: int = 256 * 1024
    """Bytes of one step of that walk: a millisecond of small records. Other threads get the GIL
    between steps."""
    max_neighbours: int = 4096
    """Entries searched for an intact one before or behind damaged ones."""

    # The index.
    index_slice_keys: int = 4096
    """Keys that the compiled core indexes at once (a slice of the log)."""
    index_min_slice_bytes: int = 512 * 1024
    """Smallest slice of the log that is read for these keys, and the size of the first slice."""
    index_max_slice_bytes: int = 4 * 1024 * 1024
    """Largest slice, even if messages are large."""
    index_plain_slice_bytes: int = 64 * 1024
    """Slice of the pure Python code: a longer one would keep the GIL from the loop."""
    index_pause_seconds: float = 0.001
    """Pause between slices, so that the thread never competes with the loop for long."""
    index_slices_in_a_row: int = 8
    """Slices without a pause while nothing is stored: some 5 ms. A pause empties the processor's
    caches, which costs a fifth of the time."""
    index_look_seconds: float = 1.0
    """Interval at which the thread checks whether there is something to index."""
    index_busy_bytes: int = 8 * 1024 * 1024
    """A store that stored more than this since the last check is busy: its index waits."""
    index_max_backlog_slices: int = 1024
    """Slices that may be left unindexed while the store is busy, within ``trusted_memory_ratio``:
    some four million keys. A query that has to index them first takes a second."""
    index_retry_seconds: float = 10.0
    """How long the thread pauses after a failed write."""
    index_finish_seconds: float = 10.0
    """Time limit for completing the index at a clean stop; the next start indexes the rest."""
    index_query_wait_seconds: float = 2.0
    """How long a query waits for earlier messages to be indexed."""
    max_index_queries: int = 64
    """Queries that may wait; each has a client that waits for its messages."""

    # Retention.
    pressed_seconds: float = 1.0
    """Interval of the checks while the disk is too full; also the shortest pause between checks."""
    queues_per_call: int = 256
    """Queues whose ``min_offset`` one callback on the loop moves: well below a millisecond."""
    queues_per_pause: int = 64
    """Queues that the retention thread examines before it pauses to release the GIL."""


def open_maps(configured: int) -> int:
    """Return how many mapped files may be open at once, leaving descriptors to sockets."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = min(soft // 2, MAX_OTHER_DESCRIPTORS)
    affordable = MAX_OPEN_MAPS if soft == resource.RLIM_INFINITY else soft - others
    return max(MIN_OPEN_MAPS, min(configured, affordable, MAX_OPEN_MAPS))
