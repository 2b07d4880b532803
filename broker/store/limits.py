"""The named limits of the store, each with its reason. Sizes in bytes unless the name says so."""

from __future__ import annotations

import resource
from typing import Final

from remoting.protocol.limits import MAX_MESSAGE_BYTES

PAGE_BYTES: Final = 4096
"""What the flush rules count in (cf. MappedFile.OS_PAGE_SIZE)."""

PREALLOCATE_STEP_BYTES: Final = 1024 * 1024
"""What the watermark thread allocates at once: about 0.3 ms, the longest an appender waits."""

PREALLOCATE_FIRST_BYTES: Final = 4 * 1024 * 1024
"""Run-ahead of a store that has taken nothing yet: an idle broker does not write 64 MiB."""

PREALLOCATE_BYTES: Final = 64 * 1024 * 1024
"""Run-ahead of a busy store: a tenth of a second and more at the rate a disk can take."""

PREALLOCATE_PAUSE_SECONDS: Final = 0.001
"""Between two steps, so that the thread never competes with the loop for long."""

PREALLOCATE_MIN_FREE_BYTES: Final = 256 * 1024 * 1024
"""Below this nothing is allocated ahead: what is left belongs to messages and their queues."""

ALLOCATE_STEP_BYTES: Final = 8 * 1024 * 1024
"""The same where no pages are written, only blocks taken."""

WRITTEN_FROM_BYTES: Final = 8 * 1024
"""Records of a pass that are so many bytes are written, fewer are stored through the map."""

APPENDER_STEP_BYTES: Final = 256 * 1024
"""What an appender allocates when it has reached the watermark itself."""

QUEUE_STEP_BYTES: Final = 64 * 1024
"""Largest step in which a consume-queue file is allocated; the first are smaller."""

SAFE_POINT_BYTES: Final = 8 * 1024 * 1024
"""Growth of the log after which a new safe point is made: a start after a crash walks about so
much, in half a second even if messages are small."""

SAFE_POINT_QUEUE_SECONDS: Final = 0.005
"""What a safe point puts the next one off for each queue that it had to sync: each is a write to
the disk, and ten thousand of them must not come every second."""

MARK_SECONDS: Final = 0.05
"""How long a sync of the log waits for the loop to mark where it ends."""

MARK_QUEUE_SECONDS: Final = 0.0001
"""What a safe point puts the next one off for each queue there is: some 100 ns of the loop's time
that a mark takes, a thousand times."""

FIRST_TURN_SECONDS: Final = 0.05
"""Between looks whether a safe point can be made, after a start that had much to walk over."""

FIRST_TURNS: Final = 20
"""So many such looks, for it may be the disk that holds it up; then the usual interval begins."""

NO_SPACE_RETRY_SECONDS: Final = 1.0
"""How often a store that ran out of space tries whether there is space again."""

MAX_OPEN_MAPS: Final = 16_384
"""Mapped files open at once, whatever the process may open: each costs a descriptor and half a KiB,
and one of the 65,530 maps that Linux gives a process."""

MAX_OTHER_DESCRIPTORS: Final = 8_192
"""Left to connections by mapped files, or half of what there is if that is less."""

SMALL_FILE_BYTES: Final = 16 * 1024 * 1024
"""Files below it keep one descriptor instead of two: those of queues, by the thousands."""

MIN_OPEN_MAPS: Final = 16
"""Below this a pull over a few queues would map a file for each entry."""

MAX_QUEUES: Final = 200_000
"""Queues of one store: each costs a directory, a file and about 1 KiB of memory."""

MAX_PULL_MESSAGES: Final = 1024
"""Messages of one pull, whatever the caller asks (Apache's bound is 32)."""

MAX_PULL_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one pull unless its first message is larger (Apache's bound is 256 KiB)."""

MIN_SCAN_BYTES: Final = 16_000
"""Consume-queue bytes one pull looks at (cf. maxFilterMessageCount): 800 entries."""

FILES_OF_A_CLEAN_START: Final = 3
"""Last files that a start after a clean stop validates (cf. CommitLog.recoverNormally)."""

MAX_NOTES: Final = 20
"""Sentences that one opening of a store may have for the log."""

MAX_CLOCK_STEP_BACK_MS: Final = 10_000
"""Store times never go back unless the clock was set back by more than this."""

CLOSE_SECONDS: Final = 30.0
"""How long a closing store waits for each of its threads, which may sit in a slow fdatasync."""

READ_IN_MEMORY_RATIO: Final = 0.4
"""Part of the machine's memory the newest log is taken to be in (accessMessageInMemoryMaxRatio)."""

HOT_LOG_BYTES: Final = 64 * 1024 * 1024
"""What was appended last is taken to be in memory: only below it is the page cache asked."""

TRUSTED_MEMORY_RATIO: Final = 1 / 8
"""Part of the machine's memory: so much as was appended last is taken not to have left it, and to
be as it was appended, unless something of it turned out to have."""

HOT_QUEUE_ENTRIES: Final = 4096
"""The newest entries of a queue that are taken to be in memory, too: 80 KiB."""

BLOCK_BYTES: Final = 64 * 1024
"""In such steps it is known what is in the page cache: some 5 us to ask."""

ASKED_AHEAD_BYTES: Final = 1024 * 1024
"""Asked about at once of a file that is read on and on: 2 us, or 18 if nobody looked at it yet."""

MAX_RESIDENT_BLOCKS: Final = 16_384
"""Granules known to be in the page cache: 1 GiB, in some 3 MiB of objects."""

RESIDENT_SECONDS: Final = 1.0
"""How long a block that was found in the page cache is taken to stay there."""

MAX_PROBES: Final = 64
"""Questions to the page cache that one get asks: 0.3 ms. Beyond them it counts as cold."""

MAX_SPAN_BYTES: Final = 256 * 1024
"""Records within this are asked about together; of those spread further each place is, for then it
takes less to see where they lie."""

COLD_READERS: Final = 4
"""Threads that read what is not in memory: enough to keep a disk busy, few enough to leave the
loop the GIL."""

MAX_COLD_READS: Final = 4096
"""Reads that wait for one of these threads; each is a pull that its client waits for."""

FETCH_BYTES: Final = 256 * 1024
"""What such a thread holds in memory: it reads for the page cache."""

MAX_FETCH_GAP_BYTES: Final = 16 * 1024
"""Records this near to each other are fetched together, with what lies between them."""

CHECKED_SECONDS: Final = 60.0
"""How long a record that was found sound is taken to stay so while it seems to stay in memory."""

MAX_NAMED_DAMAGE: Final = 1024
"""Damaged records that are remembered, so that each is named in the log and counted once."""

MAX_RESTORE_BYTES: Final = 4 * 1024 * 1024 * 1024
"""Log that is walked to restore damaged entries of a queue: some seconds, in a thread. What lies
further from the queue's message before is left to 'pocketmq store verify --repair'."""

RESTORE_CHUNK_BYTES: Final = 256 * 1024
"""Read in one step of that walk, which leaves the GIL to others: a millisecond of small records."""

MAX_NEIGHBOURS: Final = 4096
"""Entries looked at for one that is sound, before or behind damaged ones."""

READ_AHEAD_BYTES: Final = 4 * 1024 * 1024
"""What the system is asked to read behind a cold range, for the next pull of a replay."""

MAX_RECORD_BYTES: Final = MAX_MESSAGE_BYTES + 64 * 1024
"""A whole record of a broker with default settings (cf. MessageStoreConfig.maxMessageSize)."""


def open_maps(wanted: int) -> int:
    """How many mapped files may be open at once, so that sockets keep their descriptors."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = min(soft // 2, MAX_OTHER_DESCRIPTORS)
    affordable = MAX_OPEN_MAPS if soft == resource.RLIM_INFINITY else soft - others
    return max(MIN_OPEN_MAPS, min(wanted, affordable, MAX_OPEN_MAPS))
