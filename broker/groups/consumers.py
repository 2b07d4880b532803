"""Consumer groups and their members (cf. ConsumerManager, ConsumerGroupInfo). No I/O.

A group has one consume type, one message model, one start position, and one subscription per topic.
Each heartbeat overwrites them, and drops the topics that it doesn't contain. So members that
subscribe differently keep overwriting each other. All that is RocketMQ's rule; only here topics
that a PocketMQ member subscribes to are not dropped. Each member's ``Profile`` is kept as well. It
contains what all members must agree on, in a comparable form: without versions, the order of tags,
and the retry topic that clients add automatically.

Connections are opaque keys, and callers pass in the time. Calls that change a group return whether
its members must be notified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from broker.errors import LimitReached
from broker.groups.producers import CLIENT_EXPIRY_MS, ClientChannel
from broker.limits import (
    BYTES_PER_CHARACTER,
    LIMITS,
    MAX_BLOCKED_QUEUES,
    MAX_FINDING_TEXT_LENGTH,
    MAX_GROUP_SUBSCRIPTIONS,
    MAX_PULL_MARKS,
    MAX_STRATEGY_LENGTH,
    BrokerLimits,
)
from remoting.protocol import names
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.description import BlockedQueue, BlockedQueues
from remoting.protocol.bodies.heartbeat import ConsumerData, MessageModel, SubscriptionData
from remoting.protocol.bodies.stats import MemberTopics
from remoting.protocol.own_codes import BLOCKED, ON_CONFLICT, STRATEGY

if TYPE_CHECKING:
    from remoting.connection import Connection


LIVE_MS: Final = 65_000
"""A member is live for this long after its last heartbeat. Clients send one every 30 s, so a member
that missed two has probably died: it no longer keeps a contradicting client out, and its pulls no
longer count."""


class SubscriptionKey(NamedTuple):
    """A subscription in a form that can be compared between members."""

    topic: str
    kind: str
    expression: str

    def __str__(self) -> str:
        return f"{self.topic} ({self.expression})"


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings that all members of a group must agree on."""

    consume_type: str
    message_model: str
    consume_from_where: str
    strategy: str
    """The name of the rebalance strategy; empty if the client doesn't send it."""
    subscriptions: frozenset[SubscriptionKey]


@dataclass(frozen=True, slots=True)
class HeartbeatExtras:
    """What a PocketMQ client sends in addition to the heartbeat's body.

    Args:
        on_conflict: its policy on conflicts; empty for clients other than PocketMQ's.
        strategy: the name of its rebalance strategy.
        blocked: the queues that a failing message blocks, by group.
    """

    on_conflict: str = ""
    strategy: str = ""
    blocked: Mapping[str, tuple[BlockedQueue, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> HeartbeatExtras:
        """Parse a heartbeat's ext fields.

        Raises:
            BodyError: the list of blocked queues can't be parsed.
            LimitReached: the list is too long.
        """
        policy = fields.get(ON_CONFLICT)
        if policy is None:
            return NO_EXTRAS
        text = fields.get(BLOCKED)
        return cls(
            on_conflict=policy or "warn",
            strategy=fields.get(STRATEGY, "")[:MAX_STRATEGY_LENGTH],
            blocked=_blocked(text.encode()) if text else {},
        )


NO_EXTRAS: Final = HeartbeatExtras()


@dataclass(slots=True, kw_only=True)
class ConsumerMember(ClientChannel):
    """A connection that consumes in a group, with its last heartbeat."""

    profile: Profile
    subscriptions: dict[str, SubscriptionData]
    joined_ms: int
    ours: bool = False
    blocked: tuple[BlockedQueue, ...] = ()
    before_ms: int = 0
    """When the heartbeat before the last one arrived; 0 if there was only one."""
    weight: int = 0
    """The estimated memory of its subscriptions, in bytes."""

    @property
    def text(self) -> str:
        """The member's name in messages."""
        return f"{self.client_id} ({self.address})"

    def is_live(self, now_ms: int) -> bool:
        """Return whether its last heartbeat is at most ``LIVE_MS`` old."""
        return now_ms - self.last_update_ms <= LIVE_MS


def profile_of(data: ConsumerData, strategy: str = "") -> Profile:
    """Return the profile of a heartbeat's sender."""
    retry = names.retry_topic(data.group_name)
    return Profile(
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from_where=data.consume_from_where,
        strategy=strategy,
        subscriptions=frozenset(
            _subscription_key(subscription)
            for subscription in data.subscription_data_set
            if subscription.topic != retry
        ),
    )


def _subscription_key(subscription: SubscriptionData) -> SubscriptionKey:
    kind = subscription.expression_type or "TAG"
    expression = subscription.sub_string.strip() or "*"
    if kind == "TAG" and expression != "*":
        tags = subscription.tags_set or [tag.strip() for tag in expression.split("||")]
        expression = " || ".join(sorted(set(tags)))
    return SubscriptionKey(subscription.topic, kind, expression)


def _blocked(text: bytes) -> dict[str, tuple[BlockedQueue, ...]]:
    queues = decode(BlockedQueues, b'{"queues":%s}' % text).queues
    if len(queues) > MAX_BLOCKED_QUEUES:
        raise LimitReached(
            f"{BLOCKED} names at most {MAX_BLOCKED_QUEUES} queues, not {len(queues)}"
        )
    by_group: dict[str, tuple[BlockedQueue, ...]] = {}
    for queue in queues:
        queue.error = queue.error[:MAX_FINDING_TEXT_LENGTH]
        queue.msg_id = queue.msg_id[:MAX_FINDING_TEXT_LENGTH]
        by_group[queue.group] = (*by_group.get(queue.group, ()), queue)
    return by_group


CONTEST_MS: Final = 120_000
"""How long a client id counts as contested after two clients were last seen using it."""

_SUBSCRIPTION_BYTES: Final = 512
_TAG_BYTES: Final = 80

_Key = TypeVar("_Key", str, Profile)


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group with at least one member.

    ``consume_type``, ``message_model``, ``consume_from_where`` and ``subscriptions`` come from the
    last heartbeat of any member, as in RocketMQ. ``members`` has each member's own values, and
    ``profiles`` groups the members by equal profiles.
    """

    name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Connection, ConsumerMember] = field(default_factory=dict)
    profiles: dict[Profile, dict[Connection, ConsumerMember]] = field(default_factory=dict)
    ids: dict[str, dict[Connection, ConsumerMember]] = field(default_factory=dict)
    """The members by client id."""
    contested: dict[str, int] = field(default_factory=dict)
    """Client id that was seen on two live connections -> when that was last seen, in ms."""
    pulls: dict[tuple[str, int], tuple[str, float, int]] = field(default_factory=dict)
    """Topic and queue -> client id of the member that pulled it last, monotonic time and offset."""
    last_update_ms: int = 0
    weight: int = 0
    """The estimated memory of the group's own ``subscriptions``, in bytes."""

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member gets every message."""
        return self.message_model == MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """Return the members' client ids in the order in which they joined."""
        return [channel.client_id for channel in self.members.values()]

    def sharing(self, topic: str) -> list[str]:
        """Return the client ids of the members that share a topic's queues, sorted.

        All do, unless all are PocketMQ's: these leave out members that don't subscribe to it.
        """
        members = self.members.values()
        if not all(member.ours for member in members):
            return sorted(self.ids)
        return sorted({member.client_id for member in members if topic in member.subscriptions})

    def topic_sets(self) -> list[MemberTopics]:
        """Return the members by their topics; an empty list if all have the same topics."""
        # Members with the same profile have the same topics.
        topics_of = {
            profile: frozenset(next(iter(members.values())).subscriptions)
            for profile, members in self.profiles.items()
        }
        if len({*topics_of.values()}) < 2:
            return []
        sets: dict[tuple[frozenset[str], bool], list[str]] = {}
        for profile, topics in topics_of.items():
            for member in self.profiles[profile].values():
                sets.setdefault((topics, member.ours), []).append(member.client_id)
        return [
            MemberTopics(topics=sorted(topics), members=ids, ours=ours)
            for (topics, ours), ids in sets.items()
        ]

    def pulled(
        self, topic: str, queue_id: int, offset: int, connection: Connection, now: float
    ) -> None:
        """Note a pull from a queue at ``now`` (monotonic); ignored unless a member pulls."""
        member = self.members.get(connection)
        if member is None:
            return
        key = (topic, queue_id)
        if len(self.pulls) < MAX_PULL_MARKS or key in self.pulls:
            self.pulls[key] = (member.client_id, now, offset)

    def is_live(self, client_id: str, now_ms: int) -> bool:
        """Return whether a live member has this client id."""
        return any(member.is_live(now_ms) for member in self.ids.get(client_id, {}).values())

    def rival(self, member: ConsumerMember) -> ConsumerMember | None:
        """Return another live member with the same client id, or None; call after a heartbeat.

        A client that has reconnected also appears twice until its old connection is closed. Two
        clients are certain only if their heartbeats alternate: the other connection had one between
        the last two heartbeats of ``member``.
        """
        for other in self.ids[member.client_id].values():
            if other is not member and 0 < member.before_ms < other.last_update_ms:
                return other
        return None

    def of_id(self, client_id: str) -> list[ConsumerMember]:
        """Return the members that use a client id, in the order in which they joined."""
        return list(self.ids.get(client_id, {}).values())

    def is_contested(self, client_id: str, now_ms: int) -> bool:
        """Return whether two clients used this id within ``CONTEST_MS``, and one is still live."""
        since_ms = self.contested.get(client_id)
        return (
            since_ms is not None
            and now_ms - since_ms <= CONTEST_MS
            and self.is_live(client_id, now_ms)
        )

    def blocked(self, broker_name: str) -> Iterator[tuple[ConsumerMember, BlockedQueue]]:
        """Yield the queues of a broker in which a failing message blocks a member."""
        for member in self.members.values():
            for queue in member.blocked:
                if queue.broker in {"", broker_name}:
                    yield member, queue

    def _put(self, member: ConsumerMember) -> None:
        old = self.members.get(member.connection)
        _list(self.profiles, member.profile, member, None if old is None else old.profile)
        _list(self.ids, member.client_id, member, None if old is None else old.client_id)
        self.members[member.connection] = member

    def _remove(self, connection: Connection) -> ConsumerMember | None:
        member = self.members.pop(connection, None)
        if member is not None:
            _unlist(self.profiles, member.profile, connection)
            _unlist(self.ids, member.client_id, connection)
            if member.client_id not in self.ids:
                self.contested.pop(member.client_id, None)
        return member

    def _update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        changed = False
        topics: set[str] = set()
        for new in subscriptions:
            topics.add(new.topic)
            old = self.subscriptions.get(new.topic)
            if old is None:
                changed = True
            if old is None or new.sub_version > old.sub_version:
                self.subscriptions[new.topic] = new
        if len(self.subscriptions) > len(topics):
            kept = {
                topic
                for members in self.profiles.values()
                if any(member.ours for member in members.values())
                for topic in next(iter(members.values())).subscriptions
            }
            for topic in self.subscriptions.keys() - topics - kept:
                del self.subscriptions[topic]
                changed = True
        self.weight = _weight(self.subscriptions.values())
        return changed


class ConsumerTable:
    """All consumer groups that have members.

    Args:
        limits: limits of members, memberships, and the bytes of all subscriptions.

    Attributes:
        groups: the groups by name.
        on_change: called with group, member, and True if it joined or False if it left.
        weight: the estimated memory of all subscriptions, in bytes.
    """

    __slots__ = ("_count", "_joined", "_limits", "groups", "on_change", "weight")

    def __init__(self, limits: BrokerLimits = LIMITS) -> None:
        self.on_change: Callable[[str, ConsumerMember, bool], None] | None = None
        self.weight = 0
        self.groups: dict[str, ConsumerGroup] = {}
        self._joined: dict[Connection, set[str]] = {}
        self._count = 0
        self._limits = limits

    def __len__(self) -> int:
        return self._count

    def heartbeat(
        self,
        data: ConsumerData,
        channel: ClientChannel,
        now_ms: int,
        extras: HeartbeatExtras = NO_EXTRAS,
    ) -> bool:
        """Apply a consumer's heartbeat; return whether the group's members or topics changed.

        The topics of a PocketMQ member count too, because its group shares queues by topic.

        Raises:
            LimitReached: there are too many members or subscriptions; nothing changed.
        """
        group = self.groups.get(data.group_name)
        old = None if group is None else group.members.get(channel.connection)
        if old is None:
            self._check_limits(data, channel, group)
        member = member_of(data, channel, extras, old)
        self._check_weight(data, member, group, old)
        if group is None:
            group = self.groups[data.group_name] = ConsumerGroup(data.group_name)
        if old is None:
            self._count += 1
            self._joined.setdefault(channel.connection, set()).add(group.name)
        group._put(member)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        group.last_update_ms = now_ms
        before = group.weight + (0 if old is None else old.weight)
        changed = group._update_subscriptions(data.subscription_data_set)
        self.weight += group.weight + member.weight - before
        if old is None and self.on_change is not None:
            self.on_change(group.name, member, True)
        if old is None or (member.ours and old.subscriptions.keys() != member.subscriptions.keys()):
            return True
        return changed

    def unregister(self, name: str, connection: Connection) -> bool:
        """Remove a member, and the group with its last one; return False if it wasn't a member."""
        group = self.groups.get(name)
        member = None if group is None else group._remove(connection)
        if group is None or member is None:
            return False
        self._count -= 1
        self.weight -= member.weight
        joined = self._joined[connection]
        joined.discard(name)
        if not joined:
            del self._joined[connection]
        if not group.members:
            self.weight -= group.weight
            del self.groups[name]
        if self.on_change is not None:
            self.on_change(name, member, False)
        return True

    def closed(self, connection: Connection) -> list[str]:
        """Remove a closed connection from its groups; return their names."""
        names = self.joined(connection)
        for name in names:
            self.unregister(name, connection)
        return names

    def joined(self, connection: Connection) -> list[str]:
        """Return the names of the groups that a connection is in, sorted."""
        return sorted(self._joined.get(connection, ()))

    def scan(self, now_ms: int) -> tuple[list[Connection], list[str]]:
        """Remove members whose heartbeats have expired.

        Return the connections to close, and the names of the groups that lost members.
        """
        expired = [
            (name, connection)
            for name, group in self.groups.items()
            for connection, channel in group.members.items()
            if now_ms - channel.last_update_ms > CLIENT_EXPIRY_MS
        ]
        for name, connection in expired:
            self.unregister(name, connection)
        return [connection for _, connection in expired], sorted({name for name, _ in expired})

    def profile_of(self, name: str, connection: Connection) -> Profile | None:
        """Return a member's profile; None if the connection isn't a member."""
        group = self.groups.get(name)
        member = None if group is None else group.members.get(connection)
        return None if member is None else member.profile

    def connections(self, name: str) -> list[Connection]:
        """Return the connections of a group's members."""
        group = self.groups.get(name)
        return [] if group is None else list(group.members)

    def groups_of(self, topic: str) -> set[str]:
        """Return the names of the groups that subscribe to a topic now."""
        return {name for name, group in self.groups.items() if topic in group.subscriptions}

    def _check_limits(
        self, data: ConsumerData, channel: ClientChannel, group: ConsumerGroup | None
    ) -> None:
        if group is not None and len(group.members) >= self._limits.group_members:
            raise LimitReached(
                f"a group has at most {self._limits.group_members} members; "
                f"{channel.client_id} can't join {data.group_name}"
            )
        if self._count >= self._limits.memberships:
            raise LimitReached(
                f"the broker keeps at most {self._limits.memberships} memberships in consumer "
                f"groups; {channel.client_id} can't join {data.group_name}"
            )

    def _check_weight(
        self,
        data: ConsumerData,
        member: ConsumerMember,
        group: ConsumerGroup | None,
        old: ConsumerMember | None,
    ) -> None:
        if len(data.subscription_data_set) > MAX_GROUP_SUBSCRIPTIONS:
            raise LimitReached(
                f"a group subscribes at most {MAX_GROUP_SUBSCRIPTIONS} topics; "
                f"{data.group_name} asks for {len(data.subscription_data_set)}"
            )
        before = (0 if group is None else group.weight) + (0 if old is None else old.weight)
        if self.weight - before + 2 * member.weight > self._limits.subscription_bytes:
            raise LimitReached(
                f"the subscriptions of all consumer groups take {self.weight} bytes, and the "
                f"broker keeps at most {self._limits.subscription_bytes}: subscribe "
                f"{data.group_name} to fewer topics or with shorter expressions"
            )


def member_of(
    data: ConsumerData, channel: ClientChannel, extras: HeartbeatExtras, old: ConsumerMember | None
) -> ConsumerMember:
    """Build a member from its heartbeat; ``old`` is the member before it, None for a new one."""
    return ConsumerMember(
        connection=channel.connection,
        client_id=channel.client_id,
        address=channel.address,
        language=channel.language,
        version=channel.version,
        last_update_ms=channel.last_update_ms,
        profile=profile_of(data, extras.strategy),
        subscriptions={
            subscription.topic: subscription for subscription in data.subscription_data_set
        },
        joined_ms=channel.last_update_ms if old is None else old.joined_ms,
        before_ms=0 if old is None else old.last_update_ms,
        ours=bool(extras.on_conflict),
        blocked=extras.blocked.get(data.group_name, ()),
        weight=_weight(data.subscription_data_set),
    )


def _list(
    table: dict[_Key, dict[Connection, ConsumerMember]],
    key: _Key,
    member: ConsumerMember,
    before: _Key | None,
) -> None:
    """List a member under a key; an unchanged key keeps the member's position in the order."""
    if before is not None and before != key:
        _unlist(table, before, member.connection)
    table.setdefault(key, {})[member.connection] = member


def _unlist(
    table: dict[_Key, dict[Connection, ConsumerMember]], key: _Key, connection: Connection
) -> None:
    listed = table[key]
    del listed[connection]
    if not listed:
        del table[key]


def _weight(subscriptions: Iterable[SubscriptionData]) -> int:
    """Estimate the memory of subscriptions, in bytes."""
    return sum(
        _SUBSCRIPTION_BYTES
        + BYTES_PER_CHARACTER * len(subscription.sub_string)
        + _TAG_BYTES * (len(subscription.tags_set) + len(subscription.code_set))
        + sum(map(len, subscription.tags_set))
        + len(subscription.topic)
        for subscription in subscriptions
    )
