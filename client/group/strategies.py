"""The allocation strategies: which member gets which queue. Pure functions.

Every member computes its own share from the same lists, sorted the same way, without talking to the
others; all reach one result because a strategy is a pure function. So a strategy of the application
must depend on nothing but its arguments, and all members of a group have to use the same one.
(cf. AllocateMessageQueueStrategy and its implementations.)

``Sticky`` is ours: even shares over all topics together, and no queue moves without need. Shares
that are even, depend on nothing but the present members, and never move a queue between two members
who stay are impossible. (Each queue would need a fixed order of preference among all members there
may ever be, and with three queues and enough members two of the orders agree on three of them, who
then get two queues and none.) So the present owners have to be an argument that all members share.
They are: our members hold a lock for each queue at its broker, and our broker tells who holds
which. Other brokers don't; there the shares are as even, but more queues move.

Three rules give the result:

1. Every member gets n div c queues, and n mod c members get one more: first those that hold so many
   already, then by client id.
2. A member that holds too many gives away the last queue of the topic of which it holds most, and
   so on.
3. The free queues are laid out topic by topic (the first queue of every topic, then the second of
   every topic, ...) and dealt in runs to the members that hold too few, in the order of their ids.

The number of moves is the smallest that makes the shares even. Members that look at different
moments of one hand-over agree: a queue given away or taken over by these rules changes nothing in
the result for the others.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from client.errors import UsageError
from remoting.protocol.queue import MessageQueue
from remoting.settings import nearest

Rooms = Callable[[str], str | None]
"""The machine room of a broker's name or a client id; None or empty: it isn't known."""


@runtime_checkable
class Strategy(Protocol):
    """Calculates a member's share of a topic's queues."""

    @property
    def name(self) -> str:
        """How logs and RocketMQ's tools call it."""
        ...

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """The queues of ``member``.

        Args:
            member: a client id; the share of one that isn't among ``members`` is empty.
            queues: all of a topic, sorted.
            members: the client ids of all members of the group, sorted.
            group: theirs.

        Raises:
            UsageError: there is no member, no queue, or the strategy can't be used with these.
        """
        ...


class Averagely:
    """Contiguous runs of queues, the first members get one more: RocketMQ's default."""

    name: Final = "AVG"

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate`` (cf. AllocateMessageQueueAveragely)."""
        index = place(member, queues, members, group)
        if index is None:
            return []
        size, longer = divmod(len(queues), len(members))
        start = index * size + min(index, longer)
        return list(queues[start : start + size + (index < longer)])


class AveragelyByCircle:
    """The queues dealt like cards, one after the other."""

    name: Final = "AVG_BY_CIRCLE"

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate`` (cf. AllocateMessageQueueAveragelyByCircle)."""
        index = place(member, queues, members, group)
        return [] if index is None else list(queues[index :: len(members)])


class ByConfig:
    """The queues that the application names, whoever else there is.

    Nothing checks that each queue is somebody's: that is the application's business. Named queues
    that don't exist are not read, and reported by the event ``QueuesUnknown``.
    """

    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self.queues = list(dict.fromkeys(queues))

    def allocate(
        self,
        member: str,  # noqa: ARG002 - what all strategies are given
        queues: Sequence[MessageQueue],  # noqa: ARG002
        members: Sequence[str],  # noqa: ARG002
        *,
        group: str,  # noqa: ARG002
    ) -> list[MessageQueue]:
        """The configured list as it is, of all topics (cf. AllocateMessageQueueByConfig)."""
        return list(self.queues)


class ByMachineRoom:
    """The queues of brokers called ``room@name`` whose room is listed; others get no owner."""

    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self.rooms = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate`` (cf. AllocateMessageQueueByMachineRoom)."""
        index = place(member, queues, members, group)
        if index is None:
            return []
        ours = [queue for queue in queues if self._room(queue) in self.rooms]
        size, left = divmod(len(ours), len(members))
        share = ours[index * size : (index + 1) * size]
        if index < left:
            share.append(ours[index + size * len(members)])
        return share

    @staticmethod
    def _room(queue: MessageQueue) -> str | None:
        parts = queue.broker_name.split("@")
        return parts[0] if len(parts) == 2 else None


class MachineRoomNearby:
    """Queues go to members in the room of their broker; those of a room without members to all.

    Args:
        inner: how queues are shared within a room.
        room_of_broker: the room of a broker's name.
        room_of_member: the room of a client id.
    """

    def __init__(self, inner: Strategy, room_of_broker: Rooms, room_of_member: Rooms) -> None:
        self._inner = strategy_named(inner)
        self._room_of_broker = room_of_broker
        self._room_of_member = room_of_member
        self.name: Final = f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate`` (cf. AllocateMachineRoomNearby)."""
        if place(member, queues, members, group) is None:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self._room(self._room_of_broker, "broker", queue.broker_name, group)
            queues_of.setdefault(room, []).append(queue)
        members_of: dict[str, list[str]] = {}
        for one in members:
            room = self._room(self._room_of_member, "client id", one, group)
            members_of.setdefault(room, []).append(one)
        home = self._room(self._room_of_member, "client id", member, group)
        share: list[MessageQueue] = []
        if home in queues_of:
            near = queues_of[home]
            share += self._inner.allocate(member, near, members_of[home], group=group)
        for room in sorted(queues_of.keys() - members_of.keys()):
            share += self._inner.allocate(member, queues_of[room], members, group=group)
        return share

    @staticmethod
    def _room(rooms: Rooms, kind: str, name: str, group: str) -> str:
        room = rooms(name)
        if not room:
            raise UsageError(
                f"the machine room of the {kind} {name!r} is not known",
                group=group,
                hint="let MachineRoomNearby's functions give a room for every broker and client",
            )
        return room


def place(
    member: str, queues: Sequence[MessageQueue], members: Sequence[str], group: str
) -> int | None:
    """Where a member stands among all; None: it isn't one.

    Raises:
        UsageError: there is nothing, or nobody, to allocate.
    """
    for given, what in ((member, "own client id"), (queues, "queue"), (members, "member")):
        if not given:
            raise UsageError(f"there is no {what}, so nothing can be allocated", group=group)
    try:
        return members.index(member)
    except ValueError:
        return None


def strategy_named(given: str | Strategy) -> Strategy:
    """The strategy that an application means, by its name or as an object.

    Raises:
        UsageError: no such name, one that needs arguments, or no strategy at all.
    """
    if not isinstance(given, str):
        if isinstance(given, type) or not isinstance(given, Strategy):
            raise UsageError(
                f"{given!r} is no allocation strategy",
                hint="give a name such as 'AVG', or an object like client.ConsistentHash()",
            )
        return given
    made: dict[str, Callable[[], Strategy]] = {
        "averagely": Averagely,
        "averagely_by_circle": AveragelyByCircle,
        "consistent_hash": ConsistentHash,
        "sticky": Sticky,
        "AVG": Averagely,
        "AVG_BY_CIRCLE": AveragelyByCircle,
        "CONSISTENT_HASH": ConsistentHash,
        "STICKY": Sticky,
    }
    if given in made:
        return made[given]()
    if given.lower() in _WITH_ARGUMENTS:
        raise UsageError(
            f"the strategy {given!r} needs arguments",
            hint=f"give an object: client.{_WITH_ARGUMENTS[given.lower()]}",
        )
    raise UsageError(
        f"there is no allocation strategy {given!r}{nearest(given, made)}",
        hint=f"use {', '.join(name for name in made if name.isupper())}, or an object",
    )


_WITH_ARGUMENTS: Final = {
    "config": "ByConfig(queues)",
    "by_config": "ByConfig(queues)",
    "machine_room": "ByMachineRoom(rooms)",
    "by_machine_room": "ByMachineRoom(rooms)",
    "machine_room_nearby": "MachineRoomNearby(inner, room_of_broker, room_of_member)",
}


VIRTUAL_NODES: Final = 10
"""Places of one member on the ring (cf. AllocateMessageQueueConsistentHash)."""


class ConsistentHash:
    """RocketMQ's ring.

    Args:
        virtual_nodes: places of each member on the ring; all members have to use the same.
    """

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 0:
            raise UsageError(f"virtual_nodes can't be {virtual_nodes}", hint="give 1 or more")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate``."""
        if place(member, queues, members, group) is None:
            return []
        owner_of = {
            _position(f"{one}-{number}"): one
            for one in members
            for number in range(self._virtual_nodes)
        }
        ring = sorted(owner_of)
        if not ring:
            return []
        return [
            queue
            for queue in queues
            if owner_of[ring[bisect_left(ring, _position(_text(queue))) % len(ring)]] == member
        ]


def _text(queue: MessageQueue) -> str:
    """A queue as Java prints it: that is what is hashed."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _position(key: str) -> int:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


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
        """The new owner of each queue; none if there is no member."""
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
