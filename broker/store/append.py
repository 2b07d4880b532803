"""Appending the messages of one read together: one store into the log, one into each queue.

The caller builds the records and keeps the numbers; here is what they are stored with, in this
order: ``takes``, ``open`` each queue, ``reserve``, then ``store``, then ``publish`` each queue. All
that can fail comes before ``store``, when nothing was promised of the message yet. What is refused
goes through ``MessageStore.put``, which finds the reason. Between ``reserve`` and the last
``publish`` nothing else may append.

Only the loop's thread comes here.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.disk_state import DiskState
from broker.store.dispatch import Dispatcher, Waiting
from broker.store.stats import StoreStats
from remoting.protocol.disk.files import ENTRY_BYTES


class Appender:
    """What the messages of one read are stored with.

    Attributes:
        syncs: entries become visible when the disk has their records (SYNC_FLUSH).
    """

    __slots__ = ("_disk", "_dispatcher", "_log", "_longest_record", "_next_ms", "_stats", "syncs")

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
        self.syncs = sync

    def takes(self, size: int) -> bool:
        """Whether records of ``size`` bytes in all may be stored one behind the other."""
        return self._disk.trouble is None and size <= self._longest_record

    def open(self, queue: ConsumeQueue, count: int) -> tuple[int, int, memoryview | None]:
        """Make room for ``count`` more entries of a queue.

        Returns:
            The number of its next message, the entries there is room for, perhaps fewer, and the
            bytes they go to, which can't be unmapped while they are held; None in SYNC mode.

        Raises:
            OSError: there is no room.
        """
        if self.syncs:
            return queue.next_offset, queue.room(count), None
        if queue.max_offset != queue.next_offset:
            return queue.next_offset, 0, None
        place = queue.place(count)
        return queue.next_offset, len(place) // ENTRY_BYTES, place

    def reserve(self, size: int) -> tuple[int, int, int]:
        """The place of the next ``size`` bytes of records.

        Returns:
            Their physical offset, the one up to which more may follow, and their store time.

        Raises:
            OSError: there is no room.
        """
        position = self._log.reserve(size)
        return position, self._log.room_end, self._next_ms()

    def store(self, position: int, records: memoryview, count: int) -> None:
        """Store ``count`` records at the place reserved."""
        self._log.store(position, records)
        self._stats.puts += count
        self._stats.put_bytes += len(records)

    def publish(
        self,
        queue: ConsumeQueue,
        place: memoryview | None,
        entries: bytes,
        end: int,
    ) -> None:
        """Make stored messages visible, in SYNC mode once the disk has the log up to ``end``.

        Queues come in the order of their first records: the safe point, from which a start after a
        crash reads the log, lies before the first record that waits.
        """
        queue.next_offset += len(entries) // ENTRY_BYTES
        if place is None:
            self._dispatcher.hold(Waiting(end, queue, entries))
        else:
            queue.append_at(place, entries)
            self._dispatcher.arrived(queue, entries)
