"""Locks of queues for clients that consume in order (cf. RebalanceLockManager).

A lock belongs to a client id and expires 60 s after it was last taken or refreshed. A request for
several queues may succeed for some of them: the answer lists the queues that the client holds.
Queues need not exist.

Locks survive a restart of the broker. Otherwise the first client to reconnect could take queues
whose owners are still processing messages. After a crash restored locks expire after 30 s: a client
that could not refresh its lock for that long has stopped consuming the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import field

from broker.errors import LimitReached
from broker.limits import LIMITS
from remoting.protocol.bodies.body import Body
from remoting.protocol.queue import MessageQueue

LOCK_LIVE_MS: Final = 60_000
"""How long a lock lives without a refresh (cf. ``rocketmq.broker.rebalance.lockMaxLiveTime``)."""

RESTORED_LIVE_MS: Final = 30_000
"""How long a restored lock lives after a crash of the broker: the client's own bound
(cf. ``rocketmq.client.rebalance.lockMaxLiveTime``)."""


class SavedLocks(Body):
    """The content of ``config/queueLocks.json``.

    Attributes:
        lock_table: group -> client id -> (topic, broker, queue id, time of the last refresh in ms
            since 1970).
        at_stop: whether it was written at a clean stop, so that the times are up to date.
    """

    lock_table: dict[str, dict[str, list[tuple[str, str, int, int]]]] = field(default_factory=dict)
    at_stop: bool = False


class LockTable:
    """The locks of all groups: group -> queue -> (client id, monotonic ms of the last refresh).

    Attributes:
        version: rises when the owner of a queue changes; a refresh doesn't change it.
    """

    __slots__ = ("_closed_until_ms", "_count", "_groups", "_limit", "version")

    def __init__(self, *, limit: int = LIMITS.queue_locks) -> None:
        self._groups: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0
        self._limit = limit
        self._closed_until_ms = 0
        self.version = 0

    def __len__(self) -> int:
        return self._count

    def close(self, until_ms: int) -> None:
        """Give queues to no other clients until this monotonic time: their owners are unknown."""
        self._closed_until_ms = until_ms

    def age(self, milliseconds: int) -> None:
        """Let time pass for all locks, as if nobody had refreshed them."""
        for locks in self._groups.values():
            for queue, (client_id, refreshed_ms) in locks.items():
                locks[queue] = client_id, refreshed_ms - milliseconds
        self._closed_until_ms -= milliseconds

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        now_ms: int,
        *,
        by_force: bool = False,
    ) -> list[MessageQueue]:
        """Lock free and expired queues, and refresh own locks; return the queues now held.

        Args:
            group: the consumer group.
            client_id: the client that locks.
            queues: the queues to lock.
            now_ms: the monotonic time.
            by_force: also take queues that other clients hold.

        Raises:
            LimitReached: the table is full.
        """
        held: list[MessageQueue] = []
        for queue in queues:
            entry = self._groups.get(group, {}).get(queue)
            is_free = (entry is None or _expired(entry[1], now_ms)) and (
                now_ms >= self._closed_until_ms
            )
            if not (is_free or by_force or (entry is not None and entry[0] == client_id)):
                continue
            if entry is None:
                if self._count >= self._limit:
                    self.sweep(now_ms)
                if self._count >= self._limit:
                    raise LimitReached(
                        f"the broker keeps at most {self._limit} queue locks; group {group} has"
                        " to wait until others are given back"
                    )
                self._count += 1
            if entry is None or entry[0] != client_id:
                self.version += 1
            self._groups.setdefault(group, {})[queue] = (client_id, now_ms)
            held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the queues among ``queues`` that this client holds."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            entry = locks.get(queue)
            if entry is not None and entry[0] == client_id:
                del locks[queue]
                self._count -= 1
                self.version += 1
        if not locks:
            del self._groups[group]

    def remove_topic(self, topic: str) -> None:
        """Delete the locks of all groups in a topic's queues."""
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue in locks if queue.topic == topic]:
                self.unlock(group, locks[queue][0], [queue])

    def owner(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """Return the client id that holds a queue's lock; None if it is free or expired."""
        entry = self._groups.get(group, {}).get(queue)
        return None if entry is None or _expired(entry[1], now_ms) else entry[0]

    def copy(self) -> LockTable:
        """Return a copy, whose ``saved`` another thread may call."""
        copy = LockTable(limit=self._limit)
        copy._groups = {group: locks.copy() for group, locks in self._groups.items()}
        copy._count = self._count
        return copy

    def saved(self, epoch_ms: int = 0, *, at_stop: bool = False) -> SavedLocks:
        """Return a copy of the table for the file.

        Args:
            epoch_ms: the time since 1970 at which the monotonic clock showed 0.
            at_stop: whether the broker stops now.
        """
        table: dict[str, dict[str, list[tuple[str, str, int, int]]]] = {}
        for group, locks in self._groups.items():
            clients = table.setdefault(group, {})
            for queue, (client_id, refreshed_ms) in locks.items():
                lock = (queue.topic, queue.broker_name, queue.queue_id, epoch_ms + refreshed_ms)
                clients.setdefault(client_id, []).append(lock)
        return SavedLocks(lock_table=table, at_stop=at_stop)

    def restore(self, saved: SavedLocks, now_ms: int, epoch_ms: int = 0) -> None:
        """Restore saved locks.

        After a clean stop each has its remaining time. After a crash the times in the file may be
        outdated, because refreshes are not saved, so each gets ``RESTORED_LIVE_MS``. A saved lock
        replaces one that another client has here, as at a slave.
        """
        crash_ms = now_ms - LOCK_LIVE_MS + RESTORED_LIVE_MS
        for group, clients in saved.lock_table.items():
            for client_id, places in clients.items():
                for topic, broker, queue_id, refreshed_ms in places:
                    queue = MessageQueue(topic, broker, queue_id)
                    since_ms = min(refreshed_ms - epoch_ms, now_ms) if saved.at_stop else crash_ms
                    if not _expired(since_ms, now_ms):
                        self.lock(group, client_id, [queue], since_ms, by_force=True)

    def sweep(self, now_ms: int) -> int:
        """Delete expired locks; return how many there were."""
        before = self._count
        for group, locks in list(self._groups.items()):
            live = {
                queue: entry for queue, entry in locks.items() if not _expired(entry[1], now_ms)
            }
            self._count -= len(locks) - len(live)
            if live:
                self._groups[group] = live
            else:
                del self._groups[group]
        self.version += before - self._count
        return before - self._count


def _expired(refreshed_ms: int, now_ms: int) -> bool:
    return now_ms - refreshed_ms > LOCK_LIVE_MS
