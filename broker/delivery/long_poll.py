"""Pulls that found nothing new and wait for a message (cf. PullRequestHoldService).

A parked pull is removed by whichever comes first: an arrival in its queue at or above its offset
whose tags code it accepts, its deadline, the end of its connection, or the end of the broker. Who
parks it runs the pull again after each of these but the third, with suspension off, so that it is
answered whatever is found.

All pulls share one wheel: a bucket per tick of 100 ms, named by the tick's number. Parking,
waking and forgetting touch one bucket and one queue each; the clock's hand passes every tick once.
No I/O here, and time comes in as ``now`` (seconds of a monotonic clock).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from broker.limits import LIMITS

_K = TypeVar("_K", bound=Hashable)

TICK_SECONDS: Final = 0.1
"""How late a timeout may be noticed (Apache looks every 5 s)."""


@dataclass(slots=True, eq=False)
class ParkedPull:
    """A pull that waits.

    Args:
        topic, queue_id, offset: it waits for a message at ``offset`` or above.
        deadline: when it is answered with nothing, in seconds of the monotonic clock.
        codes: tags codes of its subscription; None takes all.
        owner: its connection, for ``forget``.
        request: whatever is needed to run it again.
        weight: the bytes it keeps beyond what every pull does.
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
        limit: how many may be parked at a time.
        max_weight: of all of them together.

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
        """Keep a pull until something happens to it; False if the table is full."""
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
        """A message came into a queue whose next offset is now ``max_offset``: which pulls wake.

        Args:
            topic, queue_id: the queue.
            max_offset: one above the new message's offset.
            tags_code: of the new message; None wakes whatever the subscription.
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
        """The pulls whose time is over, removed."""
        out: list[ParkedPull] = []
        for tick in self._passed(int(now / TICK_SECONDS)):
            for pull in list(self._buckets.get(tick, ())):
                self._remove(pull)
                out.append(pull)
        return out

    def forget(self, owner: Hashable) -> int:
        """Drop the pulls of a connection that is gone; how many they were."""
        pulls = list(self._owners.get(owner, ()))
        for pull in pulls:
            self._remove(pull)
        return len(pulls)

    def drain(self) -> list[ParkedPull]:
        """All pulls, removed: the broker stops, and they are answered now."""
        pulls = [pull for waiting in self._owners.values() for pull in waiting]
        self._buckets.clear()
        self.queues.clear()
        self._owners.clear()
        self._count = self._weight = 0
        return pulls

    def _passed(self, hand: int) -> Iterator[int]:
        """Move the hand; the ticks it passed. A long pause costs no more than what is parked."""
        last, self._hand = self._hand, max(hand, self._hand)
        if hand - last > len(self._buckets):
            return iter(sorted(tick for tick in self._buckets if tick <= hand))
        return iter(range(last + 1, hand + 1))

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
