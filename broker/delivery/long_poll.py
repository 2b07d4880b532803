"""Long polling: pulls that found no message and wait for one (cf. PullRequestHoldService).

A parked pull is removed when a message with an accepted tags code arrives in its queue at or above
its offset, at its deadline, when its connection is closed, or when the broker stops. Unless its
connection is closed, the caller then runs it again without suspension, so that it is answered in
any case.

Deadlines are kept in a timing wheel: a dictionary with one bucket for each tick of 100 ms. Parking
and removing a pull take constant time. No I/O: callers pass in ``now``, in seconds of a monotonic
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from broker.limits import LIMITS

_K = TypeVar("_K", bound=Hashable)

TICK_SECONDS: Final = 0.1
"""The resolution of deadlines; RocketMQ checks them every 5 s."""


@dataclass(slots=True, eq=False)
class ParkedPull:
    """A pull that waits for a message at ``offset`` or above in its queue.

    Args:
        topic, queue_id: the queue.
        offset: the offset that was pulled.
        deadline: when it is answered even without a message, in seconds of the monotonic clock.
        codes: the tags codes of its subscription; None accepts all.
        owner: its connection, for ``forget``.
        request: whatever the caller needs to run it again.
        weight: the memory that counts against ``max_weight``, in bytes.
        tick: the bucket of its deadline; set by ``LongPolls.park``.
    """

    topic: str
    queue_id: int
    offset: int
    deadline: float
    codes: frozenset[int] | None
    owner: Hashable
    request: object
    weight: int = 0
    tick: int = 0


class LongPolls:
    """All parked pulls of a broker.

    Args:
        now: the current time.
        limit: the most pulls that may be parked.
        max_weight: the largest sum of their weights.

    Attributes:
        queues: the parked pulls of each queue (topic and id) that has any.
    """

    __slots__ = (
        "_buckets",
        "_count",
        "_hand",
        "_limit",
        "_max_weight",
        "_owners",
        "_weight",
        "queues",
    )

    def __init__(self, now: float, *, limit: int, max_weight: int = LIMITS.parked_bytes) -> None:
        self._limit = limit
        self._max_weight = max_weight
        self._count = 0
        self._weight = 0
        self._hand = int(now / TICK_SECONDS)
        self._buckets: dict[int, dict[ParkedPull, None]] = {}
        self.queues: dict[tuple[str, int], dict[ParkedPull, None]] = {}
        self._owners: dict[Hashable, dict[ParkedPull, None]] = {}

    def __len__(self) -> int:
        return self._count

    def park(self, pull: ParkedPull) -> bool:
        """Park a pull; return False if the table is full."""
        if self._count >= self._limit or self._weight + pull.weight > self._max_weight:
            return False
        self._count += 1
        self._weight += pull.weight
        pull.tick = max(int(pull.deadline / TICK_SECONDS) + 1, self._hand + 1)
        self._buckets.setdefault(pull.tick, {})[pull] = None
        self.queues.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._owners.setdefault(pull.owner, {})[pull] = None
        return True

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, tags_code: int | None
    ) -> list[ParkedPull]:
        """Remove and return the pulls that a message in their queue wakes.

        Args:
            topic, queue_id: the queue.
            max_offset: one above the new message's offset.
            tags_code: the new message's tags code; None wakes pulls of any subscription.
        """
        waiting = self.queues.get((topic, queue_id))
        if waiting is None:
            return []
        woken = [
            pull
            for pull in waiting
            if pull.offset < max_offset
            and (pull.codes is None or tags_code is None or tags_code in pull.codes)
        ]
        for pull in woken:
            self._remove(pull)
        return woken

    def expired(self, now: float) -> list[ParkedPull]:
        """Remove and return the pulls whose deadline has passed."""
        hand = int(now / TICK_SECONDS)
        last, self._hand = self._hand, max(hand, self._hand)
        ticks: Iterable[int] = range(last + 1, hand + 1)
        if hand - last > len(self._buckets):
            # After a long pause, visit the existing buckets only, not every tick in between.
            ticks = sorted(tick for tick in self._buckets if tick <= hand)
        out: list[ParkedPull] = []
        for tick in ticks:
            for pull in list(self._buckets.get(tick, ())):
                self._remove(pull)
                out.append(pull)
        return out

    def forget(self, owner: Hashable) -> int:
        """Remove the pulls of a closed connection; return how many there were."""
        pulls = list(self._owners.get(owner, ()))
        for pull in pulls:
            self._remove(pull)
        return len(pulls)

    def take(self, is_wanted: Callable[[ParkedPull], bool]) -> list[ParkedPull]:
        """Remove and return the pulls that ``is_wanted`` chooses."""
        pulls = [pull for parked in self._owners.values() for pull in parked if is_wanted(pull)]
        for pull in pulls:
            self._remove(pull)
        return pulls

    def drain(self) -> list[ParkedPull]:
        """Remove and return all pulls, when the broker stops."""
        pulls = [pull for waiting in self._owners.values() for pull in waiting]
        self._buckets.clear()
        self.queues.clear()
        self._owners.clear()
        self._count = self._weight = 0
        return pulls

    def _remove(self, pull: ParkedPull) -> None:
        self._count -= 1
        self._weight -= pull.weight
        _discard(self._buckets, pull.tick, pull)
        _discard(self.queues, (pull.topic, pull.queue_id), pull)
        _discard(self._owners, pull.owner, pull)


def _discard(table: dict[_K, dict[ParkedPull, None]], key: _K, pull: ParkedPull) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
