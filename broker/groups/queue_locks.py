"""Which client of a group may consume a queue in order (cf. RebalanceLockManager).

A lock belongs to a client id and ends 60 s after it was last taken or refreshed. Taking is not all
or nothing: the answer names the queues that the client holds now. Whether a queue exists is not
asked.

Locks outlive a restart of the broker, else the first client to come back would take queues whose
owners still handle what they have in hand. A restored one ends sooner when its owner doesn't come
back: a client that could not refresh for 30 s has stopped by itself.
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
"""cf. ``rocketmq.broker.rebalance.lockMaxLiveTime``"""

RESTORED_LIVE_MS: Final = 30_000
"""What is left to a restored lock (cf. the client's ``lockMaxLiveTime``)."""


class SavedLocks(Body):
    """The locks as they lie in ``config/``: group -> client id -> (topic, broker, queue id, ms).

    Attributes:
        at_stop: saved at a clean stop: the times of the last refreshes are true.
    """

    lock_table: dict[str, dict[str, list[tuple[str, str, int, int]]]] = field(default_factory=dict)
    at_stop: bool = False


class LockTable:
    """The locks of all groups: group -> queue -> (client id, last refreshed ms).

    Attributes:
        version: rises when a queue gets another owner or none.
    """

    __slots__ = ("_count", "_groups", "_limit", "version")

    def __init__(self, *, limit: int = LIMITS.queue_locks) -> None:
        self._groups: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0
        self._limit = limit
        self.version = 0

    def __len__(self) -> int:
        return self._count

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        now_ms: int,
        *,
        by_force: bool = False,
    ) -> list[MessageQueue]:
        """Take free and expired queues, refresh held ones; those the client now holds.

        Args:
            by_force: take them from others too.

        Raises:
            LimitReached: more queues are locked than the broker keeps locks for.
        """
        held: list[MessageQueue] = []
        for queue in queues:
            entry = self._groups.get(group, {}).get(queue)
            if (
                entry is not None
                and entry[0] != client_id
                and not by_force
                and not _expired(entry[1], now_ms)
            ):
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
        """Give back the queues among ``queues`` that this client holds."""
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

    def owner(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client id that holds a queue's lock."""
        entry = self._groups.get(group, {}).get(queue)
        return None if entry is None or _expired(entry[1], now_ms) else entry[0]

    def saved(self, *, at_stop: bool = False) -> SavedLocks:
        """A copy, to be restored later."""
        table: dict[str, dict[str, list[tuple[str, str, int, int]]]] = {}
        for group, locks in self._groups.items():
            clients = table.setdefault(group, {})
            for queue, (client_id, refreshed_ms) in locks.items():
                place = (queue.topic, queue.broker_name, queue.queue_id, refreshed_ms)
                clients.setdefault(client_id, []).append(place)
        return SavedLocks(lock_table=table, at_stop=at_stop)

    def restore(self, saved: SavedLocks, now_ms: int) -> None:
        """Hold these locks again: for what is left of their lives, or after a crash, which doesn't
        tell that, for ``RESTORED_LIVE_MS``."""
        crash_ms = now_ms - LOCK_LIVE_MS + RESTORED_LIVE_MS
        for group, clients in saved.lock_table.items():
            for client_id, places in clients.items():
                for topic, broker, queue_id, refreshed_ms in places:
                    queue = MessageQueue(topic, broker, queue_id)
                    since_ms = min(refreshed_ms, now_ms) if saved.at_stop else crash_ms
                    if not _expired(since_ms, now_ms):
                        self.lock(group, client_id, [queue], since_ms)

    def sweep(self, now_ms: int) -> int:
        """Forget the locks that have ended; how many."""
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
