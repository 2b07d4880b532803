"""Our own strategy: even shares over all topics together, and no queue moves without need.

Shares that are even, depend on nothing but the present members, and never move a queue between two
members who stay: that can't be had. (Each queue would need a fixed order of preference among all
members there may ever be, and with three queues and enough members two of the orders agree on
three of them, who then get two queues and none.) So where queues are now has to be an argument that
all members share. It is: our members hold a lock for each of their queues at its broker, and our
broker tells who holds which. Other brokers don't tell; there the shares are as even, and as many
queues move as it happens.

Three rules make the answer:

1. Every member gets n div c queues, and n mod c members one more: first those who hold so many
   already, then by client id.
2. Who holds too many gives away the last queue of the topic of which it holds most, then again.
3. What is nobody's is laid out topic by turns (the first queue of every topic, then the second of
   every topic, ...) and dealt in runs to those who hold too few, in the order of their ids.

The number of moves is the smallest that makes the shares even. And members who look at different
moments of one hand-over agree: a queue given away or taken over as the rules say changes nothing
in what they say about the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from client.rebalance.strategies import place
from remoting.protocol.queue import MessageQueue

Owners = Mapping[MessageQueue, str]
"""The client id that holds each queue's lock; queues that nobody holds are absent."""


class Sticky:
    """As few moves as possible, shares that differ by one at most over all topics together."""

    name: Final = "STICKY"

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """The share of a member while it isn't known who holds what."""
        if place(member, queues, members, group) is None:
            return []
        shares = self.share_out(queues, members, {})
        return [queue for queue in queues if shares[queue] == member]

    def share_out(
        self, queues: Iterable[MessageQueue], members: Iterable[str], owners: Owners
    ) -> dict[MessageQueue, str]:
        """Whose each queue is from now on; nobody's if there is no member."""
        everybody = sorted(set(members))
        if not everybody:
            return {}
        held: dict[str, list[MessageQueue]] = {one: [] for one in everybody}
        pool: list[tuple[int, MessageQueue]] = []
        turns = _turns(queues)
        for queue, turn in turns.items():
            owner = owners.get(queue)
            if owner in held:
                held[owner].append(queue)
            else:
                pool.append((turn, queue))
        sizes = _sizes(held, len(turns))
        for one, mine in held.items():
            pool += [(turns[queue], queue) for queue in _given_away(mine, len(mine) - sizes[one])]
        pool.sort()
        unowned = iter([queue for _, queue in pool])
        shares = {queue: one for one, mine in held.items() for queue in mine}
        for one, mine in held.items():
            shares.update((next(unowned), one) for _ in range(sizes[one] - len(mine)))
        return shares


def _turns(queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
    """Each queue's number within its topic."""
    count: defaultdict[str, int] = defaultdict(int)
    turns: dict[MessageQueue, int] = {}
    for queue in sorted(set(queues)):
        turns[queue] = count[queue.topic]
        count[queue.topic] += 1
    return turns


def _sizes(held: Mapping[str, Sequence[MessageQueue]], total: int) -> dict[str, int]:
    size, longer = divmod(total, len(held))
    many = [one for one in held if len(held[one]) > size]
    few = [one for one in held if len(held[one]) <= size]
    more = set((many + few)[:longer])
    return {one: size + (one in more) for one in held}


def _given_away(mine: list[MessageQueue], count: int) -> list[MessageQueue]:
    """Take ``count`` queues out of a sorted list, from the topics that have most."""
    given: list[MessageQueue] = []
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in mine:
        by_topic.setdefault(queue.topic, []).append(queue)
    for _ in range(count):
        topic = max(by_topic, key=lambda one: len(by_topic[one]))
        queue = by_topic[topic].pop()
        mine.remove(queue)
        given.append(queue)
    return given
