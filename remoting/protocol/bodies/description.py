"""A broker's description of one consumer group (DESCRIBE_CONSUMER_GROUP, PocketMQ's own)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long
from remoting.protocol.bodies.heartbeat import SubscriptionData


class FindingKind(StrEnum):
    """The kinds of problems of a group. Peers may send kinds that are not listed here."""

    SUBSCRIPTION = "subscription"
    """Members subscribe to different topics, or to one topic with different expressions."""
    CONSUME_TYPE = "consumeType"
    """Some members are pull consumers, others push consumers."""
    MESSAGE_MODEL = "messageModel"
    """Some members use clustering, others broadcasting."""
    CONSUME_FROM_WHERE = "consumeFromWhere"
    """Members would begin a queue without a committed offset at different offsets."""
    STRATEGY = "strategy"
    """Members use different allocation strategies: some queues have two owners, others none."""
    CLIENT_ID = "clientId"
    """Two connections use one client id: both consume the same queues."""
    IDLE_MEMBERS = "idleMembers"
    """There are more members than queues."""
    UNPULLED_QUEUE = "unpulledQueue"
    """A queue has messages, but no live member has pulled from it recently."""
    BLOCKED_QUEUE = "blockedQueue"
    """A message that keeps failing blocks an orderly consumer's queue."""
    OFFSET_BACKWARDS = "offsetBackwards"
    """A committed offset was lower than the previous one."""
    QUEUES_CHANGED = "queuesChanged"
    """A topic's number of queues changed while the group consumed it."""


class GroupFinding(Body):
    """One problem of a group. ``kind`` and ``text`` are always set."""

    kind: str = ""
    """A ``FindingKind``."""
    text: str = ""
    """A message for the user: what is wrong, which members it concerns, and what to do."""
    members: list[str] = field(default_factory=list)
    """The client ids of the members it concerns; of a conflict, two that differ."""
    docs: str = ""
    """The URL of the documentation's section about it."""
    topic: str | None = None
    queue_id: Int | None = None
    since_ms: Long = 0
    """When it was first detected, ms since 1970."""


class BlockedQueue(Body):
    """A queue whose orderly consumer is blocked by a failing message."""

    group: str = ""
    topic: str = ""
    queue_id: Int = 0
    broker: str = ""
    """The broker's name."""
    offset: Long = 0
    """The queue offset of the failing message."""
    msg_id: str = ""
    since_ms: Long = 0
    """When the message first failed, ms since 1970."""
    error: str = ""


class BlockedQueues(Body):
    """The blocked queues of a heartbeat. On the wire it is only the list."""

    queues: list[BlockedQueue] = field(default_factory=list)


class GroupMemberInfo(Body):
    """One connection that consumes in the group, with the data of its heartbeat."""

    client_id: str = ""
    client_addr: str = ""
    """``ip:port`` as seen by the broker."""
    language: str | None = None
    version: Int = 0
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    strategy: str = ""
    """The name of its allocation strategy; empty if it does not send one."""
    subscriptions: list[SubscriptionData] = field(default_factory=list)
    joined_ms: Long = 0
    last_heartbeat_ms: Long = 0
    ours: bool = False
    """Whether it is a PocketMQ client."""


class GroupQueueInfo(Body):
    """A group's progress in one queue of this broker."""

    topic: str = ""
    queue_id: Int = 0
    max_offset: Long = 0
    committed: Long = -1
    """The committed offset, -1 for none."""
    lock_owner: str | None = None
    """The client id that holds the queue's lock."""
    last_pull_ms: Long = 0
    """When a member last pulled from it, ms since 1970; 0 if none has since the broker started."""
    last_puller: str | None = None
    """The client id of the member that last pulled from it."""
    blocked_since: Long | None = None
    """When a failing message began to block it, ms since 1970; None if it is not blocked."""
    blocked_by: str | None = None
    """The client id of the member that reported it."""
    blocked: BlockedQueue | None = None
    """The report of that member."""
    min_offset: Long = 0


class GroupDescriptionBody(Body):
    """Answer to DESCRIBE_CONSUMER_GROUP; empty lists for a group that is not online."""

    members: list[GroupMemberInfo] = field(default_factory=list)
    conflicts: list[GroupFinding] = field(default_factory=list)
    """The conflicts between members."""
    queues: list[GroupQueueInfo] = field(default_factory=list)
    """The queues of topics that members subscribe to or that the group has offsets in."""
    warnings: list[GroupFinding] = field(default_factory=list)
    """Problems that are not conflicts."""
