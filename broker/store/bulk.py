"""Appending the messages of one read together: one store into the log, one into each queue.

A pass goes: ``make_room`` when the next record does not fit into what is known to be free, an
addition for each record, ``flush`` at the end. All that can fail happens in ``make_room``, before
anything was promised of the message; what it refuses goes through ``MessageStore.put``, which finds
the reason. Between ``make_room`` and ``flush`` nothing else may append.

Only the loop's thread comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.disk_state import DiskState
from broker.store.dispatch import Dispatcher, Waiting
from broker.store.stats import StoreStats
from remoting.protocol.disk.consume_queue_entry import ENTRY_BYTES

_NO_ROOM: Final = -1
_PACKED_AT_ONCE: Final = 64
_PACK: Final = [Struct(">" + "qiq" * count).pack for count in range(_PACKED_AT_ONCE + 1)]
_FIELDS: Final = 3
_NOWHERE: Final = memoryview(b"")


class Run:
    """The messages that one queue gets in this pass.

    Attributes:
        queue: the queue.
        next_offset: number of its next message.
        room: entries that are known to have room.
        place: the bytes of these entries, in ASYNC mode; they can't be unmapped while it is held.
        entries: physical offset, size and tags code of each message, flat.
    """

    __slots__ = ("entries", "next_offset", "place", "queue", "room")

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.next_offset = 0
        self.room = 0
        self.place = _NOWHERE
        self.entries: list[int] = []


class Bulk:
    """The pass being made.

    Attributes:
        position: physical offset of the next record.
        limit: up to where records may go without another ``make_room``.
        store_ms: store time of the records.
        records: the bytes of the records so far.
        messages: how many they are.
    """

    __slots__ = (
        "_begin",
        "_disk",
        "_dispatcher",
        "_log",
        "_longest_record",
        "_next_ms",
        "_runs",
        "_stats",
        "_sync",
        "limit",
        "messages",
        "position",
        "records",
        "store_ms",
    )

    def __init__(
        self,
        log: CommitLog,
        dispatcher: Dispatcher,
        disk: DiskState,
        stats: StoreStats,
        next_ms: Callable[[], int],
        *,
        sync: bool,
    ) -> None:
        """``next_ms`` gives the store time of the next records."""
        self._log = log
        self._longest_record = log.longest_record
        self._dispatcher = dispatcher
        self._disk = disk
        self._stats = stats
        self._next_ms = next_ms
        self._sync = sync
        self._runs: list[Run] = []
        self._begin = 0
        self.position = 0
        self.limit = _NO_ROOM
        self.store_ms = 0
        self.records: list[bytes | memoryview] = []
        self.messages = 0

    def make_room(self, run: Run, count: int, size: int) -> bool:
        """Whether ``count`` more messages of ``size`` bytes in all may be added; may flush."""
        if self._disk.trouble is not None or size > self._longest_record:
            return False
        try:
            if run.room < count and not self._open(run, count):
                return False
            if self.position + size > self.limit:
                self._store()
                self.position = self._begin = self._log.reserve(size)
                self.limit = self._log.room_end
                self.store_ms = self._next_ms()
        except OSError:
            return False
        return True

    def _open(self, run: Run, count: int) -> bool:
        if run.room or run.entries:
            self.flush()
        queue = run.queue
        if self._sync:
            run.room = queue.room(count)
        elif queue.max_offset == queue.next_offset:
            run.place = queue.place(count)
            run.room = len(run.place) // ENTRY_BYTES
        run.next_offset = queue.next_offset
        self._runs.append(run)
        return run.room >= count

    def flush(self) -> None:
        """Store what was added and make it visible; room must be made anew afterwards."""
        if not self._runs:
            return
        self._store()
        runs, self._runs = self._runs, []
        for run in runs:
            run.room = 0
            if run.entries:
                entries, run.entries = run.entries, []
                queue = run.queue
                queue.next_offset = run.next_offset
                codes = entries[2::_FIELDS]
                if self._sync:
                    waiting = Waiting(self.position, queue, pack(entries), codes)
                    self._dispatcher.hold(waiting)
                else:
                    queue.append_at(run.place, pack(entries))
                    self._dispatcher.arrived(queue, codes)
            run.place = _NOWHERE

    def _store(self) -> None:
        self.limit = _NO_ROOM
        records = self.records
        if records:
            self._log.store(self._begin, records[0] if len(records) == 1 else b"".join(records))
            self.records = []
            self._stats.puts += self.messages
            self._stats.put_bytes += self.position - self._begin
            self.messages = 0


def pack(entries: list[int]) -> bytes:
    """Queue entries from their numbers, flat."""
    count = len(entries) // _FIELDS
    if count <= _PACKED_AT_ONCE:
        return _PACK[count](*entries)
    step = _PACKED_AT_ONCE * _FIELDS
    return b"".join([pack(entries[at : at + step]) for at in range(0, len(entries), step)])
