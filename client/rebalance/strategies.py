"""Who gets which queue: the allocation strategies of RocketMQ, and the choice by name.

Every member calculates its own share, from the same lists sorted the same way, and nobody tells
anybody: all come to one answer because a strategy is a pure function. So a strategy of the
application's own must not depend on anything but its arguments, and all members of a group have to
use the same one. (cf. AllocateMessageQueueStrategy and its implementations.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    """The queues of brokers called ``room@name`` whose room is listed; others are nobody's."""

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
        room_of_broker, room_of_member: the room of a broker's name, and of a client id.
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
    from client.rebalance.ring import ConsistentHash  # noqa: PLC0415 - it builds on this module
    from client.rebalance.sticky import Sticky  # noqa: PLC0415 - as above

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
