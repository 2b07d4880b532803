"""The types of the store's interface: messages, results, errors, statistics.

A refused message is reported by a ``PutResult``, never by an exception; a ``StoreError`` concerns
the whole store.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Final, NamedTuple, Protocol

from broker.store.limits import MAX_NOTES
from broker.store.mapped_file import MappedFile


class PutStatus(Enum):
    """Outcome of a put (cf. PutMessageStatus)."""

    OK = auto()
    FLUSH_DISK_TIMEOUT = auto()
    MESSAGE_ILLEGAL = auto()
    PROPERTIES_SIZE_EXCEEDED = auto()
    SERVICE_NOT_AVAILABLE = auto()


@dataclass(slots=True)
class PendingMessage:
    """A message to store, without the fields that the store sets.

    Attributes:
        properties: the encoded text, at most 32767 bytes.
        tags_code: the tag's hash, stored in the consume-queue entry.
        born_host: 8 (IPv4) or 20 (IPv6) packed bytes; empty means the store's own address.
        store_host: as ``born_host``; set when another broker's record is stored again.
        due_in_ms: delay of a delayed message, from its store time. The entry then holds the time of
            delivery instead of ``tags_code``. Ignored in a batch.
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


class Ack(IntEnum):
    """How the wait for a stored message ends; the values are RocketMQ's response codes."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    """No slave is connected, or all of them lack too much."""
    FLUSH_SLAVE_TIMEOUT = 12


class PutResult(NamedTuple):
    """Outcome of a put; ``end_offset`` is the argument for ``when_durable``.

    ``message`` is the error text when ``status`` is not OK.
    """

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    store_timestamp_ms: int = 0
    end_offset: int = -1
    message: str = ""


class BatchPutResult(NamedTuple):
    """Outcome of a batch put; its messages are contiguous. ``queue_offset`` is the first one's."""

    status: PutStatus
    physical_offsets: Sequence[int] = ()
    queue_offset: int = -1
    store_timestamp_ms: int = 0
    end_offset: int = -1
    message: str = ""


class GetStatus(Enum):
    """Outcome of a get (cf. GetMessageStatus)."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    COLD = auto()
    """The get would have to wait for the disk, or for entries to be restored; see ``get_async``."""


class FileRange(NamedTuple):
    """The bytes ``[start, end)`` of one file."""

    file: MappedFile
    start: int
    end: int


class RecordFilter(Protocol):
    """Selects records by their contents.

    Attributes:
        reach: the most messages that one get looks into.
    """

    @property
    def reach(self) -> int: ...

    def select(self, records: Sequence[memoryview], most: int) -> tuple[list[memoryview], int, int]:
        """Return the first records that match.

        Args:
            records: slices of one record or of several adjacent ones.
            most: the most records to return.

        Returns:
            The matching records, adjacent ones in one slice; their number; and the number of
            records that were looked into.
        """


Run = tuple[int, int, int]
"""Adjacent records: physical offset of their beginning and of their end, and their number."""


@dataclass(slots=True)
class GetResult:
    """Result of a get.

    Attributes:
        records: slices of the log, adjacent records in one; each keeps its file's map alive.
        count: number of messages in ``records``.
        size: bytes of ``records``.
        cold: file ranges to read first, if the status is COLD.
        broken: queue offsets whose entries must be restored first, if the status is COLD.
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
    """What opening a store found and repaired.

    Attributes:
        clean: whether the store had been closed properly.
        quick: whether the clean stop's sections were valid, so that only the log's tail was walked.
        scanned_records: number of good records walked.
        damaged_records: number of damaged parts in the middle of the log that were skipped.
        end_offset: physical offset where the log ends.
        cut_bytes: bytes behind the last good record that were overwritten with zeros.
        rebuilt_entries: consume-queue entries that were written or corrected.
        cut_entries: consume-queue entries removed because the log has no message for them.
        queues: number of queues.
        seconds: duration.
        notes: messages for the broker's log, at most ``MAX_NOTES``.
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

    def note(self, text: str) -> None:
        """Add a note unless there are ``MAX_NOTES`` already."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)


class StoreError(Exception):
    """The store can't be opened or used; the text says what to do."""


class StoreBusy(StoreError):
    """The store can't do this now; a retry may succeed."""


CLOSING: Final = "the store is closing: try again when the broker is back"
"""The text of a ``StoreError`` for what comes, or still waits, while the store is closed."""

SYNC_BUCKETS_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of the sync histogram; one more bucket holds longer syncs."""


@dataclass(slots=True)
class StoreStats:
    """Counters since the store was opened.

    Attributes:
        puts: messages stored.
        put_bytes: bytes of their records.
        refused_puts: puts, of a message or a batch, that were refused.
        gets: calls of ``get``.
        got_messages: messages they returned.
        got_bytes: bytes of these messages' records.
        filtered_messages: messages that gets left out by what is in their records.
        damaged_messages: damaged records that reads met, and messages lost because their queue
            entry was damaged; each counts once.
        restored_entries: damaged queue entries that were restored from the log.
        cold_gets: gets that waited for the disk, in a thread.
        cold_bytes: bytes that these threads read.
        syncs: syncs of commit-log files.
        sync_seconds: their total duration.
        sync_buckets: their number per duration, see ``SYNC_BUCKETS_SECONDS``.
        sync_timeouts: messages whose sync took longer than ``syncFlushTimeout``.
        queue_sync_failures: failed syncs of consume queues or of the checkpoint.
    """

    puts: int = 0
    put_bytes: int = 0
    refused_puts: int = 0
    gets: int = 0
    got_messages: int = 0
    got_bytes: int = 0
    filtered_messages: int = 0
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
        """Count one sync of a commit-log file."""
        self.syncs += 1
        self.sync_seconds += seconds
        self.sync_buckets[bisect_left(SYNC_BUCKETS_SECONDS, seconds)] += 1


class OpeningGivenUp(StoreError):
    """The store is not open because its opening was aborted; see ``OpeningProgress``."""


class OpeningProgress:
    """Progress of an opening, which runs in a thread; other threads read it and may abort.

    Attributes:
        position: physical offset that the walk over the log has reached.
        end: physical offset where the log's files end.
    """

    __slots__ = ("_given_up", "end", "position")

    def __init__(self) -> None:
        self._given_up = threading.Event()
        self.position = 0
        self.end = 0

    def give_up(self) -> None:
        """Make the opening, and every later one, end soon with ``OpeningGivenUp``.

        The files are left as if the process had been killed; the next start recovers from the
        beginning.
        """
        self._given_up.set()

    def check(self) -> None:
        """Raise ``OpeningGivenUp`` if the opening was aborted.

        Recovery calls it only between steps, where being killed would do no harm either.
        """
        if self._given_up.is_set():
            raise OpeningGivenUp(
                "the store was not opened because the broker was told to stop meanwhile: the next"
                " start recovers it from the beginning"
            )
