"""Who consumes what: consumer groups and their members (cf. ConsumerManager, ConsumerGroupInfo).

All members of a group are taken to be alike. Consume type, message model, where to start, and the
subscription of each topic exist once per group, and the last heartbeat wins; topics that it lacks
are dropped. That is RocketMQ's rule, hazards included: members that subscribe differently keep
overwriting each other.

Pure: connections are opaque keys, time comes in, and what has to be told to whom comes out: each
call says whether the members of the group have to be notified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.errors import LimitReached
from broker.groups.producers import CLIENT_EXPIRY_MS, ClientChannel
from broker.limits import (
    BYTES_PER_CHARACTER,
    MAX_CLIENT_GROUPS,
    MAX_GROUP_MEMBERS,
    MAX_GROUP_SUBSCRIPTIONS,
    MAX_SUBSCRIPTION_BYTES,
)
from remoting.protocol.bodies.heartbeat import ConsumerData, MessageModel, SubscriptionData

if TYPE_CHECKING:
    from remoting.connection import Connection

_SUBSCRIPTION_BYTES: Final = 512
_TAG_BYTES: Final = 80


@dataclass(slots=True)
class ConsumerGroup:
    """A group that has members now."""

    name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Connection, ClientChannel] = field(default_factory=dict)
    last_update_ms: int = 0
    weight: int = 0
    """The bytes of its subscriptions."""

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member gets every message."""
        return self.message_model == MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """The members' client ids, in the order in which they came."""
        return [channel.client_id for channel in self.members.values()]

    def _update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        changed = False
        wanted: set[str] = set()
        for new in subscriptions:
            wanted.add(new.topic)
            old = self.subscriptions.get(new.topic)
            if old is None:
                changed = True
            if old is None or new.sub_version > old.sub_version:
                self.subscriptions[new.topic] = new
        for topic in [topic for topic in self.subscriptions if topic not in wanted]:
            del self.subscriptions[topic]
            changed = True
        self.weight = _weight(self.subscriptions.values())
        return changed


class ConsumerTable:
    """All consumer groups that have members.

    Args:
        limit: memberships of all connections in all groups.
        group_limit: members of one group.
        max_weight: bytes of the subscriptions of all groups.
    """

    __slots__ = ("_count", "_group_limit", "_joined", "_limit", "_max_weight", "_weight", "groups")

    def __init__(
        self,
        *,
        limit: int = MAX_CLIENT_GROUPS,
        group_limit: int = MAX_GROUP_MEMBERS,
        max_weight: int = MAX_SUBSCRIPTION_BYTES,
    ) -> None:
        self._max_weight = max_weight
        self._weight = 0
        self.groups: dict[str, ConsumerGroup] = {}
        self._joined: dict[Connection, set[str]] = {}
        self._count = 0
        self._limit = limit
        self._group_limit = group_limit

    def __len__(self) -> int:
        return self._count

    def heartbeat(self, data: ConsumerData, channel: ClientChannel, now_ms: int) -> bool:
        """A heartbeat of a consumer; True if the group's members or topics changed.

        Raises:
            LimitReached: too many members, or too many subscriptions.
        """
        group = self.groups.get(data.group_name)
        joining = group is None or channel.connection not in group.members
        if joining:
            self._check_limits(data, channel, group)
        if len(data.subscription_data_set) > MAX_GROUP_SUBSCRIPTIONS:
            raise LimitReached(
                f"a group subscribes at most {MAX_GROUP_SUBSCRIPTIONS} topics; "
                f"{data.group_name} asks for {len(data.subscription_data_set)}"
            )
        self._check_weight(data, group)
        if group is None:
            group = self.groups[data.group_name] = ConsumerGroup(data.group_name)
        if joining:
            self._count += 1
            self._joined.setdefault(channel.connection, set()).add(group.name)
        group.members[channel.connection] = channel
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        group.last_update_ms = now_ms
        before = group.weight
        changed = group._update_subscriptions(data.subscription_data_set)
        self._weight += group.weight - before
        return changed or joining

    def unregister(self, name: str, connection: Connection) -> bool:
        """A member leaves; False if it wasn't one. A group without members is forgotten."""
        group = self.groups.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return False
        self._count -= 1
        joined = self._joined[connection]
        joined.discard(name)
        if not joined:
            del self._joined[connection]
        if not group.members:
            self._weight -= group.weight
            del self.groups[name]
        return True

    def closed(self, connection: Connection) -> list[str]:
        """A connection is gone; the groups it was a member of."""
        names = sorted(self._joined.get(connection, ()))
        for name in names:
            self.unregister(name, connection)
        return names

    def scan(self, now_ms: int) -> tuple[list[Connection], list[str]]:
        """End memberships without a heartbeat: the connections to close, the groups concerned."""
        expired = [
            (name, connection)
            for name, group in self.groups.items()
            for connection, channel in group.members.items()
            if now_ms - channel.last_update_ms > CLIENT_EXPIRY_MS
        ]
        for name, connection in expired:
            self.unregister(name, connection)
        return [connection for _, connection in expired], sorted({name for name, _ in expired})

    def connections(self, name: str) -> list[Connection]:
        """The connections of a group's members."""
        group = self.groups.get(name)
        return [] if group is None else list(group.members)

    def groups_of(self, topic: str) -> set[str]:
        """The groups that subscribe a topic now."""
        return {name for name, group in self.groups.items() if topic in group.subscriptions}

    def _check_limits(
        self, data: ConsumerData, channel: ClientChannel, group: ConsumerGroup | None
    ) -> None:
        if group is not None and len(group.members) >= self._group_limit:
            raise LimitReached(
                f"a group has at most {self._group_limit} members; {channel.client_id} can't "
                f"join {data.group_name}"
            )
        if self._count >= self._limit:
            raise LimitReached(
                f"the broker keeps at most {self._limit} memberships in consumer groups; "
                f"{channel.client_id} can't join {data.group_name}"
            )

    def _check_weight(self, data: ConsumerData, group: ConsumerGroup | None) -> None:
        known = 0 if group is None else group.weight
        if self._weight - known + _weight(data.subscription_data_set) > self._max_weight:
            raise LimitReached(
                f"the subscriptions of all consumer groups take {self._weight} bytes, and the "
                f"broker keeps at most {self._max_weight}: subscribe {data.group_name} to fewer "
                "topics or with shorter expressions"
            )


def _weight(subscriptions: Iterable[SubscriptionData]) -> int:
    """What subscriptions take in memory, roughly."""
    return sum(
        _SUBSCRIPTION_BYTES
        + BYTES_PER_CHARACTER * len(subscription.sub_string)
        + _TAG_BYTES * (len(subscription.tags_set) + len(subscription.code_set))
        + sum(map(len, subscription.tags_set))
        + len(subscription.topic)
        for subscription in subscriptions
    )
