"""The state of the queue locks that a member wants: held or not, and what is due when. Pure.

A lock is renewed each 20 s and counts as lost when the broker refuses it, or when it could not be
renewed for 30 s; the broker itself keeps it for 60 s, so it is nobody else's before. What isn't
held is asked for again: each 100 ms while its owner may be finishing, then each second.
(cf. RebalanceImpl.lockAll, ProcessQueue.isLockExpired)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from client.limits import (
    HANDOVER_TIMEOUT,
    LOCK_LIFE,
    LOCK_RENEWAL_PERIOD,
    LOCK_RETRY,
    LOCK_RETRY_SLOW,
)
from remoting.protocol.queue import MessageQueue


@dataclass(slots=True)
class _Lease:
    wanted_since: float
    due: float
    held: bool = False
    taken_at: float = float("-inf")


class Leases:
    """The locks wanted; times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._leases: dict[MessageQueue, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._leases

    def want(self, queue: MessageQueue, now: float) -> None:
        """From now on this lock is wanted."""
        self._leases.setdefault(queue, _Lease(wanted_since=now, due=now))

    def drop(self, queue: MessageQueue) -> None:
        """It is no longer wanted."""
        self._leases.pop(queue, None)

    def holds(self, queue: MessageQueue, now: float) -> bool:
        """Whether it is surely held."""
        lease = self._leases.get(queue)
        return lease is not None and lease.held and now < lease.taken_at + LOCK_LIFE

    def due(self, now: float) -> list[MessageQueue]:
        """What to ask the broker for now; when any renewal is due, all held ones go along."""
        if not any(lease.due <= now for lease in self._leases.values()):
            return []
        renew = any(lease.held and lease.due <= now for lease in self._leases.values())
        return [
            queue
            for queue, lease in self._leases.items()
            if lease.due <= now or (renew and lease.held)
        ]

    def doubt(self, now: float) -> None:
        """The broker may have forgotten: everything is asked for now."""
        for lease in self._leases.values():
            lease.due = now

    def answered(
        self, asked: Iterable[MessageQueue], granted: Collection[MessageQueue], now: float
    ) -> dict[MessageQueue, bool]:
        """The broker's answer to a request made at ``now``; what has changed by it."""
        changes: dict[MessageQueue, bool] = {}
        for queue in asked:
            lease = self._leases.get(queue)
            if lease is None:
                continue
            if queue in granted:
                if not lease.held:
                    changes[queue] = lease.held = True
                lease.taken_at = now
                lease.due = now + LOCK_RENEWAL_PERIOD
            else:
                if lease.held:
                    changes[queue] = False
                    self._lose(lease, now)
                lease.due = now + self._pause(lease, now)
        return changes

    def failed(self, asked: Iterable[MessageQueue], now: float) -> None:
        """No answer: what is held stays held until its time is over."""
        for queue in asked:
            lease = self._leases.get(queue)
            if lease is not None:
                lease.due = now + (LOCK_RETRY_SLOW if lease.held else self._pause(lease, now))

    def expire(self, now: float) -> list[MessageQueue]:
        """What could not be renewed for too long, and counts as lost."""
        expired = [
            queue
            for queue, lease in self._leases.items()
            if lease.held and now >= lease.taken_at + LOCK_LIFE
        ]
        for queue in expired:
            self._lose(self._leases[queue], now)
        return expired

    def next_due(self) -> float:
        """When there is something to do again."""
        times = [
            min(lease.due, lease.taken_at + LOCK_LIFE) if lease.held else lease.due
            for lease in self._leases.values()
        ]
        return min(times, default=float("inf"))

    @staticmethod
    def _lose(lease: _Lease, now: float) -> None:
        lease.held = False
        lease.wanted_since = lease.due = now

    @staticmethod
    def _pause(lease: _Lease, now: float) -> float:
        drains = now - lease.wanted_since < HANDOVER_TIMEOUT
        return LOCK_RETRY if drains else LOCK_RETRY_SLOW
