"""What goes into the store and what comes out of it: messages, results, errors, statistics.

A refused message is a ``PutResult``, never an exception; a ``StoreError`` concerns the whole store.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from broker.store.limits import MAX_NOTES
from broker.store.mapped_file import MappedFile


class PutStatus(Enum):
    """How a put ended (cf. PutMessageStatus)."""

    OK = auto()
    FLUSH_DISK_TIMEOUT = auto()
    MESSAGE_ILLEGAL = auto()
    PROPERTIES_SIZE_EXCEEDED = auto()
    SERVICE_NOT_AVAILABLE = auto()
    CREATE_MAPPED_FILE_FAILED = auto()


@dataclass(slots=True)
class PendingMessage:
    """A message on its way into the log; what the store adds itself is not here.

    Attributes:
        properties: the encoded text, at most 32767 bytes.
        tags_code: what the consume-queue entry carries: the tag's hash.
        born_host: 8 (IPv4) or 20 (IPv6) packed bytes; empty means the store's own address.
        store_host: the same; given when the record of another broker is stored again.
        due_in_ms: of a delayed message: its entry carries the time of delivery, so long after it
            is stored, instead of ``tags_code``. Only for messages that are put singly.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes = b""
    tags_code: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = b""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    store_host: bytes = b""
    due_in_ms: int | None = None


class PutResult(NamedTuple):
    """Where a message went; ``end_offset`` is what ``when_durable`` takes."""

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    store_timestamp_ms: int = 0
    end_offset: int = -1
    message: str = ""


class BatchPutResult(NamedTuple):
    """Where the messages of a batch went: consecutive, all or none."""

    status: PutStatus
    physical_offsets: Sequence[int] = ()
    queue_offset: int = -1
    store_timestamp_ms: int = 0
    end_offset: int = -1
    message: str = ""


class GetStatus(Enum):
    """How a get ended (cf. GetMessageStatus)."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    COLD = auto()
    """The disk would have to be waited for, or entries be restored; see ``get_async``."""


class FileRange(NamedTuple):
    """Bytes of one file."""

    file: MappedFile
    start: int
    end: int


Run = tuple[int, int, int]
"""Adjacent records: where they begin and end in the log, and how many they are."""


@dataclass(slots=True)
class GetResult:
    """What a get found.

    Attributes:
        records: slices of the log, adjacent records in one; each pins its file while it lives.
        count: messages in ``records``.
        size: bytes of ``records``.
        cold: where in which files what was asked for lies, if the status is COLD.
        broken: numbers of messages whose entries have to be restored first, if the status is COLD.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: Sequence[memoryview] = ()
    count: int = 0
    size: int = 0
    cold: Sequence[FileRange] = ()
    broken: Sequence[int] = ()


@dataclass(slots=True)
class RecoveryReport:
    """What opening a store found and did.

    Attributes:
        clean: whether the store had been closed properly.
        quick: whether what that stop left was enough, and only the log's tail was looked at.
        scanned_records: good records looked at.
        damaged_records: places in the middle of the log that were stepped over.
        end_offset: where the log ends now.
        cut_bytes: bytes behind the last good record that were given up.
        rebuilt_entries: consume-queue entries written anew.
        cut_entries: consume-queue entries of messages that the log does not have.
        seconds: what it took.
        notes: sentences for the log of the broker, the first few of their kind.
    """

    clean: bool = True
    quick: bool = False
    scanned_records: int = 0
    damaged_records: int = 0
    end_offset: int = 0
    cut_bytes: int = 0
    rebuilt_entries: int = 0
    cut_entries: int = 0
    queues: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        """Keep a sentence, unless there are many already."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(sentence)


class StoreError(Exception):
    """The store can't be opened or used; the text is one sentence that says what to do."""


class StoreBusy(StoreError):
    """The store can't do this now; the same may go well in a moment."""


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
            a damaged queue entry pointed to; each counts once.
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


class OpeningGivenUp(StoreError):
    """The store is not open because its opening was given up."""


class OpeningProgress:
    """Of one opening, in the thread that opens; others look at it and may give it up.

    Attributes:
        position: physical offset that the walk over the log has come to.
        end: where the log's files end.
    """

    __slots__ = ("_given_up", "end", "position")

    def __init__(self) -> None:
        self._given_up = threading.Event()
        self.position = 0
        self.end = 0

    def give_up(self) -> None:
        """Have the opening end soon."""
        self._given_up.set()

    def look(self) -> None:
        """Called between two steps, after each of which a kill would do no harm either.

        Raises:
            OpeningGivenUp: the opening was given up.
        """
        if self._given_up.is_set():
            raise OpeningGivenUp(
                "the store was not opened because the broker was told to stop meanwhile: the next"
                " start begins anew"
            )
