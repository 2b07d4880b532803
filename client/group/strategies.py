"""The allocation strategies, which assign queues to the members of a group.

Every member computes its own share from the same sorted lists, without communicating with the
others. All arrive at the same assignment because a strategy is a pure function. Therefore a custom
strategy must depend only on its arguments, and all members of a group must use the same strategy.
(cf. AllocateMessageQueueStrategy and its implementations.)

``Sticky`` is PocketMQ's own: even shares over all topics together, with as few queue moves as
possible. It is impossible to have shares that are even, depend only on the current members, and
never move a queue between two remaining members. (Each queue would need a fixed order of preference
over all possible members. With three queues and enough members, two of the orders agree on three
members; in a group of these, one would get two queues and another none.) So the current owners must
be an argument that is the same for all members: PocketMQ members hold a lock for each queue at its
broker, and PocketMQ brokers report the lock owners. Other brokers don't; with them the shares are
just as even, but more queues move.

For n queues and c members, three rules give the result:

1. Every member gets n div c queues, and n mod c members get one more: first those that already hold
   more than n div c, then in the order of client ids.
2. A member that holds too many repeatedly gives up the last queue of the topic of which it holds
   most.
3. The free queues are ordered across topics (the first queue of every topic, then the second of
   every topic, ...) and assigned in contiguous runs to the members that hold too few, in the order
   of their ids.

The number of moves is the minimum for even shares. Members that see different states of a hand-over
in progress compute the same result, because a queue that was given up or taken according to these
rules doesn't change the result for the others.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from client.errors import UsageError
from remoting.protocol.queue import MessageQueue
from remoting.runtime.settings import nearest

Rooms = Callable[[str], str | None]
"""Returns the machine room of a broker name or client id; None or empty: unknown."""


@runtime_checkable
class Strategy(Protocol):
    """Computes a member's share of a topic's queues."""

    @property
    def name(self) -> str:
        """The name of the strategy, as in logs and in RocketMQ's tools."""

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """Return the queues assigned to ``member``.

        Args:
            member: a client id; if it isn't one of ``members``, its share is empty.
            queues: all queues of a topic, sorted.
            members: the client ids of all members of the group, sorted.
            group: name of the group.

        Raises:
            UsageError: an argument is empty, or the strategy can't be applied to them.
        """


class Averagely:
    """Contiguous runs of queues; the first members may get one more. RocketMQ's default."""

    name: Final = "AVG"

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate`` (cf. AllocateMessageQueueAveragely)."""
        index = member_index(member, queues, members, group)
        if index is None:
            return []
        size, longer = divmod(len(queues), len(members))
        start = index * size + min(index, longer)
        return list(queues[start : start + size + (index < longer)])


class AveragelyByCircle:
    """The queues assigned round robin."""

    name: Final = "AVG_BY_CIRCLE"

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate`` (cf. AllocateMessageQueueAveragelyByCircle)."""
        index = member_index(member, queues, members, group)
        return [] if index is None else list(queues[index :: len(members)])


class ByConfig:
    """A fixed list of queues, independent of the other members.

    The application must ensure that each queue has exactly one owner. Listed queues that don't
    exist are not read, and reported by the event ``QueuesUnknown``.
    """

    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self.queues = list(dict.fromkeys(queues))

    def allocate(
        self,
        member: str,  # noqa: ARG002 - part of the interface
        queues: Sequence[MessageQueue],  # noqa: ARG002
        members: Sequence[str],  # noqa: ARG002
        *,
        group: str,  # noqa: ARG002
    ) -> list[MessageQueue]:
        """Return the configured list, of all topics (cf. AllocateMessageQueueByConfig)."""
        return list(self.queues)


class ByMachineRoom:
    """The queues of brokers named ``room@name`` whose room is listed; other queues get no owner."""

    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self.rooms = frozenset([rooms] if isinstance(rooms, str) else rooms)

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate`` (cf. AllocateMessageQueueByMachineRoom)."""
        index = member_index(member, queues, members, group)
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
    """Queues are assigned to members in their broker's machine room.

    The queues of a room without members are assigned to all members.

    Args:
        inner: the strategy applied to the queues of each room.
        room_of_broker: returns the room of a broker name.
        room_of_member: returns the room of a client id.
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
        if member_index(member, queues, members, group) is None:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self._room(self._room_of_broker, "broker", queue.broker_name, group)
            queues_of.setdefault(room, []).append(queue)
        members_of: dict[str, list[str]] = {}
        for other in members:
            room = self._room(self._room_of_member, "client id", other, group)
            members_of.setdefault(room, []).append(other)
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
                hint="make MachineRoomNearby's functions return a room for every broker and client",
            )
        return room


def member_index(
    member: str, queues: Sequence[MessageQueue], members: Sequence[str], group: str
) -> int | None:
    """Return the index of ``member`` in ``members``; None: it isn't one of them.

    Raises:
        UsageError: an argument is empty.
    """
    for given, what in ((member, "own client id"), (queues, "queue"), (members, "member")):
        if not given:
            raise UsageError(f"there is no {what}, so nothing can be allocated", group=group)
    try:
        return members.index(member)
    except ValueError:
        return None


def strategy_named(given: str | Strategy) -> Strategy:
    """Return the strategy given by name or as an object.

    Raises:
        UsageError: the name is unknown or needs arguments, or the object is not a strategy.
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
"""Default number of positions of a member on the ring (cf. AllocateMessageQueueConsistentHash)."""


class ConsistentHash:
    """RocketMQ's consistent hashing.

    Args:
        virtual_nodes: positions of each member on the ring; must be equal for all members.
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
        if member_index(member, queues, members, group) is None:
            return []
        owner_of = {
            _position(f"{owner}-{number}"): owner
            for owner in members
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
    """Return the queue's Java ``toString``, which is what RocketMQ hashes."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _position(key: str) -> int:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


Owners = Mapping[MessageQueue, str]
"""Queue -> client id of the holder of its lock; queues without a holder are absent."""


class Sticky:
    """Even shares over all topics together with as few moves as possible; see the module docs."""

    name: Final = "STICKY"

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """Return a member's share of one topic if the current owners are unknown."""
        if member_index(member, queues, members, group) is None:
            return []
        shares = self.share_out(queues, members, {})
        return [queue for queue in queues if shares[queue] == member]

    def share_out(
        self, queues: Iterable[MessageQueue], members: Iterable[str], owners: Owners
    ) -> dict[MessageQueue, str]:
        """Return the new owner of each queue; empty if there are no members."""
        everybody = sorted(set(members))
        if not everybody:
            return {}
        held: dict[str, list[MessageQueue]] = {owner: [] for owner in everybody}
        pool: list[tuple[int, MessageQueue]] = []
        # The rank of each queue among the given queues of its topic.
        ranks: dict[MessageQueue, int] = {}
        count: defaultdict[str, int] = defaultdict(int)
        for queue in sorted(set(queues)):
            ranks[queue] = rank = count[queue.topic]
            count[queue.topic] += 1
            holder = owners.get(queue)
            if holder in held:
                held[holder].append(queue)
            else:
                pool.append((rank, queue))
        sizes = _sizes(held, len(ranks))
        for owner, mine in held.items():
            surplus = _given_away(mine, len(mine) - sizes[owner])
            pool += [(ranks[queue], queue) for queue in surplus]
        pool.sort()
        unowned = iter([queue for _, queue in pool])
        shares = {queue: owner for owner, mine in held.items() for queue in mine}
        for owner, mine in held.items():
            shares.update((next(unowned), owner) for _ in range(sizes[owner] - len(mine)))
        return shares


def _sizes(held: Mapping[str, Sequence[MessageQueue]], total: int) -> dict[str, int]:
    size, longer = divmod(total, len(held))
    many = [owner for owner in held if len(held[owner]) > size]
    few = [owner for owner in held if len(held[owner]) <= size]
    more = set((many + few)[:longer])
    return {owner: size + (owner in more) for owner in held}


def _given_away(mine: list[MessageQueue], count: int) -> list[MessageQueue]:
    """Remove ``count`` queues from a sorted list, each from the topic with most queues in it."""
    surplus: list[MessageQueue] = []
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in mine:
        by_topic.setdefault(queue.topic, []).append(queue)
    for _ in range(count):
        topic = max(by_topic, key=lambda topic: len(by_topic[topic]))
        queue = by_topic[topic].pop()
        mine.remove(queue)
        surplus.append(queue)
    return surplus
