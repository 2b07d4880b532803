"""What each member of a consumer group said itself.

RocketMQ keeps a group's subscriptions once, as the last heartbeat gave them. Beside that the broker
keeps every member's own words, so that it can tell who contradicts whom. A ``Profile`` is what all
members of a group have to agree in, in a form that can be compared: versions, the order of tags and
the retry topic, which clients add by themselves, are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.errors import LimitReached
from broker.groups.producers import ClientChannel
from broker.limits import MAX_BLOCKED_QUEUES, MAX_FINDING_TEXT_LENGTH, MAX_STRATEGY_LENGTH
from remoting.protocol import names
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.description import BlockedQueue, BlockedQueues
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.own_codes import BLOCKED, ON_CONFLICT, STRATEGY

LIVE_MS: Final = 65_000
"""A member that has missed two heartbeats, of 30 s each, may well be gone: nobody is refused for
contradicting it, and a queue that it pulled is nobody's."""


class Wanted(NamedTuple):
    """What a member wants of one topic."""

    topic: str
    kind: str
    expression: str

    def __str__(self) -> str:
        return f"{self.topic} ({self.expression})"


@dataclass(frozen=True, slots=True)
class Profile:
    """What the members of a group have to agree in."""

    consume_type: str
    message_model: str
    consume_from_where: str
    strategy: str
    """The name of the rebalance strategy, empty when the client doesn't tell."""
    subscriptions: frozenset[Wanted]


@dataclass(frozen=True, slots=True)
class Said:
    """What a client of ours says about itself beside the heartbeat's body.

    Args:
        on_conflict: its policy; empty: it isn't ours.
        strategy: how it shares out queues.
        blocked: the queues it can't go on with, by group.
    """

    on_conflict: str = ""
    strategy: str = ""
    blocked: Mapping[str, tuple[BlockedQueue, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Said:
        """From a heartbeat's ext fields.

        Raises:
            BodyError: the list of blocked queues can't be understood.
            LimitReached: it is too long.
        """
        policy = fields.get(ON_CONFLICT)
        if policy is None:
            return NOTHING
        text = fields.get(BLOCKED)
        return cls(
            on_conflict=policy or "warn",
            strategy=fields.get(STRATEGY, "")[:MAX_STRATEGY_LENGTH],
            blocked=_blocked(text.encode()) if text else {},
        )


NOTHING: Final = Said()


@dataclass(slots=True, kw_only=True)
class Member(ClientChannel):
    """A connection that consumes in a group, with what it said last."""

    profile: Profile
    subscriptions: dict[str, SubscriptionData]
    joined_ms: int
    ours: bool = False
    blocked: tuple[BlockedQueue, ...] = ()
    before_ms: int = 0
    """When the heartbeat before the last one came."""
    weight: int = 0
    """The bytes of its subscriptions."""

    @property
    def text(self) -> str:
        """The member as sentences name it."""
        return f"{self.client_id} ({self.address})"

    def is_live(self, now_ms: int) -> bool:
        """Whether it is heard of regularly."""
        return now_ms - self.last_update_ms <= LIVE_MS


def profile_of(data: ConsumerData, strategy: str = "") -> Profile:
    """What a heartbeat commits its sender to."""
    retry = names.retry_topic(data.group_name)
    return Profile(
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from_where=data.consume_from_where,
        strategy=strategy,
        subscriptions=frozenset(
            _wanted(one) for one in data.subscription_data_set if one.topic != retry
        ),
    )


def _wanted(subscription: SubscriptionData) -> Wanted:
    kind = subscription.expression_type or "TAG"
    expression = subscription.sub_string.strip() or "*"
    if kind == "TAG" and expression != "*":
        tags = subscription.tags_set or [tag.strip() for tag in expression.split("||")]
        expression = " || ".join(sorted(set(tags)))
    return Wanted(subscription.topic, kind, expression)


def _blocked(text: bytes) -> dict[str, tuple[BlockedQueue, ...]]:
    queues = decode(BlockedQueues, b'{"queues":%s}' % text).queues
    if len(queues) > MAX_BLOCKED_QUEUES:
        raise LimitReached(
            f"{BLOCKED} names at most {MAX_BLOCKED_QUEUES} queues, not {len(queues)}"
        )
    by_group: dict[str, tuple[BlockedQueue, ...]] = {}
    for one in queues:
        one.error = one.error[:MAX_FINDING_TEXT_LENGTH]
        one.msg_id = one.msg_id[:MAX_FINDING_TEXT_LENGTH]
        by_group[one.group] = (*by_group.get(one.group, ()), one)
    return by_group
