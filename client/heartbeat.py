"""Who uses an instance, and what its heartbeats say about them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from client.errors import UsageError
from remoting.protocol.bodies import encode, relaxed_json
from remoting.protocol.bodies.description import BlockedQueue
from remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import BLOCKED, ON_CONFLICT, STRATEGY

Subscriptions = Callable[[], list[SubscriptionData]]


class Membership(Protocol):
    """A consumer that shares its group's queues with the other members."""

    @property
    def group(self) -> str:
        """Its group."""
        ...

    @property
    def on_conflict(self) -> str:
        """What a broker of ours does when it contradicts other members as it joins."""
        ...

    @property
    def strategy_name(self) -> str:
        """How it shares out queues."""
        ...

    def consumer_data(self) -> ConsumerData:
        """What heartbeats say of it."""
        ...

    def blocked(self) -> list[BlockedQueue]:
        """Queues that a failing message stops."""
        ...

    def asked(self, command: Command) -> Command | None:
        """What a broker asks of the group's members. None: no answer."""
        ...

    def route_changed(self, topic: str) -> None:
        """A topic has other queues or brokers now."""
        ...

    def connected(self, address: str) -> None:
        """There is a new connection to a broker, which may have forgotten everything."""
        ...


class Members:
    """The groups of one client's producers and consumers.

    Several consumers that choose their queues themselves may be in one group: the heartbeat names
    it once, with all their subscriptions. Those that share queues with others can't: brokers know
    members by the client id, and one client id gets one share.
    """

    def __init__(self) -> None:
        self._producers: Counter[str] = Counter()
        self._consumers: dict[str, list[Subscriptions]] = {}
        self._memberships: dict[str, Membership] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nobody to tell of."""
        return not self._producers and not self._consumers and not self._memberships

    @property
    def consuming(self) -> bool:
        """Whether anybody reads: then slaves are told too."""
        return bool(self._consumers or self._memberships)

    @property
    def memberships(self) -> list[Membership]:
        """Those who share queues with others."""
        return list(self._memberships.values())

    def membership(self, group: str) -> Membership | None:
        """The one of a group."""
        return self._memberships.get(group)

    def add_producer(self, group: str) -> None:
        """A producer joins."""
        self._producers[group] += 1

    def remove_producer(self, group: str) -> bool:
        """A producer leaves; True when it was its group's last."""
        self._producers[group] -= 1
        if self._producers[group] > 0:
            return False
        del self._producers[group]
        return True

    def add_consumer(self, group: str, subscriptions: Subscriptions) -> None:
        """A consumer joins; ``subscriptions`` gives what it reads at the moment."""
        self._consumers.setdefault(group, []).append(subscriptions)

    def remove_consumer(self, group: str, subscriptions: Subscriptions) -> bool:
        """A consumer leaves; True when it was its group's last."""
        members = self._consumers[group]
        members.remove(subscriptions)
        if members:
            return False
        del self._consumers[group]
        return group not in self._memberships

    def check_free(self, group: str) -> None:
        """Raises UsageError when the group has a membership already."""
        if group in self._memberships:
            raise UsageError(
                "this instance has a consumer that shares the group's queues already",
                group=group,
                hint="give the second one an instance of its own: brokers know members by the "
                "client id, which all parts of an instance have in common",
            )

    def join(self, member: Membership) -> None:
        """A member joins. Raises UsageError when the group has one already."""
        self.check_free(member.group)
        self._memberships[member.group] = member

    def leave(self, member: Membership) -> None:
        """A member leaves."""
        if self._memberships.get(member.group) is member:
            del self._memberships[member.group]

    def heartbeats(self, client_id: str) -> list[Heartbeat]:
        """What brokers are told: of everybody who doesn't share queues, and of each who does.

        Groups that read nothing yet are left out: an empty list of topics would take away the
        subscriptions of the other members.
        """
        consumers = [
            ConsumerData(
                group_name=group,
                consume_type=ConsumeType.CONSUME_ACTIVELY,
                message_model=MessageModel.CLUSTERING,
                subscription_data_set=subscriptions,
            )
            for group, members in self._consumers.items()
            if group not in self._memberships and (subscriptions := _merged(members))
        ]
        # Who is a member already stays one: only the heartbeat with which it joins is refused.
        told = [about(client_id, member, "warn") for member in self._memberships.values()]
        if self._producers or consumers or not told:
            data = HeartbeatData(
                client_id=client_id,
                producer_data_set=[ProducerData(group_name=group) for group in self._producers],
                consumer_data_set=consumers,
            )
            told.insert(0, Heartbeat(encode(data)))
        return told


class Heartbeat(NamedTuple):
    """One request's body, and the ext fields that brokers of ours understand."""

    body: bytes
    fields: tuple[tuple[str, str], ...] = ()


def about(client_id: str, member: Membership, on_conflict: str) -> Heartbeat:
    """The heartbeat of one member alone; its ext fields are about nobody else."""
    fields = [(ON_CONFLICT, on_conflict), (STRATEGY, member.strategy_name)]
    blocked = member.blocked()
    if blocked:
        fields.append((BLOCKED, relaxed_json.dumps(blocked, standard=True).decode()))
    data = HeartbeatData(client_id=client_id, consumer_data_set=[member.consumer_data()])
    return Heartbeat(encode(data), tuple(fields))


def group_of(command: Command) -> str | None:
    """The group that a broker's request to a client is about."""
    fields = command.fields
    return fields.get("consumerGroup") or fields.get("group")


GROUP_REQUESTS = frozenset(
    {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
    }
)
"""What brokers ask of a group's members."""


def _merged(members: list[Subscriptions]) -> list[SubscriptionData]:
    """The subscriptions of all members, the latest of each topic."""
    by_topic: dict[str, SubscriptionData] = {}
    for subscriptions in members:
        for subscription in subscriptions():
            by_topic[subscription.topic] = subscription
    return list(by_topic.values())
