"""The limits of a store, each with its reason. Sizes are bytes unless the name says otherwise."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from remoting.protocol.limits import MAX_MESSAGE_BYTES

PAGE_BYTES: Final = 4096
"""The unit of the flush rules (cf. MappedFile.OS_PAGE_SIZE), and of room for index slots."""

MAX_OPEN_MAPS: Final = 16_384
"""Mapped files open at once, whatever the process may open: each costs a descriptor and half a KiB,
and one of the 65,530 maps that Linux gives a process."""

MAX_OTHER_DESCRIPTORS: Final = 8_192
"""Descriptors that mapped files leave to connections, or half of what there is if that is less."""

MIN_OPEN_MAPS: Final = 16
"""With fewer, a pull over a few queues would map a file for each entry."""

SMALL_FILE_BYTES: Final = 16 * 1024 * 1024
"""Files below it keep one descriptor instead of two: those of queues, by the thousands."""

MAX_PULL_MESSAGES: Final = 1024
"""Messages of one pull, whatever the caller asks (Apache's bound is 32)."""

MAX_PULL_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one pull unless its first message is larger (Apache's bound is 256 KiB)."""

MAX_KEY_CANDIDATES: Final = 1024
"""Index entries that one query looks at: some may be of other keys with the same hash."""

MAX_KEY_MESSAGES: Final = 64
"""Messages that one query by key returns, whatever it asks for (cf. maxMsgsNumBatch)."""

MAX_NOTES: Final = 20
"""Sentences that one opening of a store adds to the log."""

ASKED_AHEAD_BYTES: Final = 1024 * 1024
"""The page cache is asked about so much at once of a file that is read sequentially: 2 us, or 18
the first time."""

FETCH_BYTES: Final = 256 * 1024
"""Buffer of a thread that reads a file into the page cache."""

MAX_RECORD_BYTES: Final = MAX_MESSAGE_BYTES + 64 * 1024
"""A whole record of a broker with default settings (cf. MessageStoreConfig.maxMessageSize)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """The limits of one store: the defaults are for production, tests use smaller ones."""

    # Appending and allocating.
    written_from_bytes: int = 8 * 1024
    """Records of a pass that are so many bytes are written, fewer are stored through the map."""
    appender_step_bytes: int = 256 * 1024
    """What an appender allocates when it has reached the watermark itself."""
    queue_step_bytes: int = 64 * 1024
    """Largest step in which a consume-queue file is allocated; the first are smaller."""
    preallocate_step_bytes: int = 1024 * 1024
    """What the preallocator zeroes at once: about 0.3 ms, the longest an appender waits."""
    allocate_step_bytes: int = 8 * 1024 * 1024
    """The same where no pages are written, only blocks are taken."""
    preallocate_first_bytes: int = 4 * 1024 * 1024
    """Run-ahead of a store that has stored nothing yet: an idle broker does not write 64 MiB."""
    preallocate_bytes: int = 64 * 1024 * 1024
    """Run-ahead of a busy store: a tenth of a second and more at the rate a disk can take."""
    preallocate_pause_seconds: float = 0.001
    """Between two steps, so that the thread never competes with the loop for long."""
    preallocate_min_free_bytes: int = 256 * 1024 * 1024
    """With less free space nothing is allocated ahead: messages and their queues need the rest."""
    no_space_retry_seconds: float = 1.0
    """How often a store that ran out of space tries whether there is space again."""
    max_queues: int = 200_000
    """Queues of one store: each costs a directory, a file and about 1 KiB of memory."""
    max_clock_step_back_ms: int = 10_000
    """Store times never go back unless the clock was set back by more than this."""

    # Syncs and safe points.
    safe_point_bytes: int = 8 * 1024 * 1024
    """Growth of the log after which a new safe point is made: a start after a crash walks about so
    much, in half a second even if messages are small."""
    safe_point_queue_seconds: float = 0.005
    """Delay of the next safe point for each queue that this one had to sync: each is a write to
    the disk, and ten thousand of them must not come every second."""
    mark_seconds: float = 0.05
    """How long a sync of the log waits for the loop to mark where it ends."""
    mark_queue_seconds: float = 0.0001
    """Delay of the next safe point for each queue: a thousand times the 100 ns that its part of a
    mark takes on the loop."""
    first_turn_seconds: float = 0.05
    """Pause between attempts at a safe point, after a start that had to walk over much."""
    first_turns: int = 20
    """Number of such attempts, for the disk may be what delays it; then the usual interval
    begins."""
    close_seconds: float = 30.0
    """How long a closing store waits for each of its threads, which may sit in a slow fdatasync."""

    # Recovery.
    files_of_a_clean_start: int = 3
    """Last files that a start after a clean stop validates (cf. CommitLog.recoverNormally)."""
    alone_bytes: int = 1024 * 1024
    """Walked record by record before it is worth looking at many records at once."""
    stretch_bytes: int = 1024 * 1024
    """Looked at at once: it stays in the processor's cache meanwhile."""

    # Reading.
    min_scan_bytes: int = 16_000
    """Consume-queue bytes one pull looks at (cf. maxFilterMessageCount): 800 entries."""
    read_in_memory_ratio: float = 0.4
    """Part of the machine's memory that the newest log is assumed to occupy
    (accessMessageInMemoryMaxRatio)."""
    hot_log_bytes: int = 64 * 1024 * 1024
    """The newest log is assumed to be in memory: only older bytes are looked up in the page
    cache."""
    trusted_memory_ratio: float = 1 / 8
    """Part of the machine's memory: the newest log of that size is assumed not to have left memory,
    and to be as it was appended, unless some of it turned out to have left."""
    hot_queue_entries: int = 4096
    """The newest entries of a queue that are assumed to be in memory, too: 80 KiB."""
    block_bytes: int = 64 * 1024
    """Unit of what is known about the page cache: about 5 us to ask."""
    max_resident_blocks: int = 16_384
    """Blocks known to be in the page cache: 1 GiB, in some 3 MiB of objects."""
    resident_seconds: float = 1.0
    """How long a block that was found in the page cache is assumed to stay there."""
    max_probes: int = 64
    """Lookups in the page cache for one get: 0.3 ms. A get that needs more counts as cold."""
    max_span_bytes: int = 256 * 1024
    """Records within this are looked up together; those spread further each by itself, because it
    takes less time to see where they are."""
    cold_readers: int = 4
    """Threads that read what is not in memory: enough to keep a disk busy, few enough to leave the
    loop the GIL."""
    max_cold_reads: int = 4096
    """Reads that wait for one of these threads; each is a pull that its client waits for."""
    max_fetch_gap_bytes: int = 16 * 1024
    """Records this near to each other are fetched together, with the bytes between them."""
    read_ahead_bytes: int = 4 * 1024 * 1024
    """What the system is asked to read behind a cold range, for the next pull of a replay."""
    checked_seconds: float = 60.0
    """How long a record that was found sound is assumed to stay so while it seems to stay in
    memory."""
    max_named_damage: int = 1024
    """Damaged records that are remembered, so that each is logged and counted once."""
    max_restore_bytes: int = 4 * 1024 * 1024 * 1024
    """Log that is walked to restore damaged entries of a queue: some seconds, in a thread. Entries
    further from the queue's message before are left to 'pocketmq store verify --repair'."""
    restore_chunk_bytes: int = 256 * 1024
    """Read in one step of that walk, which leaves the GIL to others: a millisecond of small
    records."""
    max_neighbours: int = 4096
    """Entries searched for a sound one before or behind damaged ones."""

    # The index.
    index_slice_keys: int = 4096
    """Keys that are indexed at once by the compiled core."""
    index_min_slice_bytes: int = 512 * 1024
    """The least of the log that is read for so many keys, and the size of the first slice."""
    index_max_slice_bytes: int = 4 * 1024 * 1024
    """The most, however large messages are."""
    index_plain_slice_bytes: int = 64 * 1024
    """What the Python path reads at once: a longer slice would keep the loop from the GIL."""
    index_pause_seconds: float = 0.001
    """Between two slices, so that the thread never competes with the loop for long."""
    index_slices_in_a_row: int = 8
    """Slices without a pause while nothing is stored: some 5 ms. A pause empties the processor's
    caches, which costs a fifth of the time."""
    index_look_seconds: float = 1.0
    """How often the thread looks whether there is something to do."""
    index_busy_bytes: int = 8 * 1024 * 1024
    """A store that took more than this since the last look is busy: its index waits."""
    index_max_backlog_slices: int = 1024
    """What may wait for its index while the store is busy, within ``trusted_memory_ratio``: some
    four million keys. A query that has to index them first takes a second."""
    index_retry_seconds: float = 10.0
    """How long the thread rests when the disk refused what it wrote."""
    index_finish_seconds: float = 10.0
    """Time to complete the index at a clean stop; the next start does the rest."""
    index_query_wait_seconds: float = 2.0
    """How long a query waits for earlier messages to be indexed."""
    max_index_queries: int = 64
    """Queries that wait for their turn; each is a client that looks for a message."""

    # Retention.
    pressed_seconds: float = 1.0
    """How soon a disk that is too full is looked at again, and the shortest pause there is."""
    queues_a_turn: int = 256
    """Queues whose beginning the loop moves at once: well below a millisecond."""
    queues_a_breath: int = 64
    """After so many queues the thread leaves the GIL to others."""


def open_maps(wanted: int) -> int:
    """How many mapped files may be open at once, so that sockets keep their descriptors."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = min(soft // 2, MAX_OTHER_DESCRIPTORS)
    affordable = MAX_OPEN_MAPS if soft == resource.RLIM_INFINITY else soft - others
    return max(MIN_OPEN_MAPS, min(wanted, affordable, MAX_OPEN_MAPS))
