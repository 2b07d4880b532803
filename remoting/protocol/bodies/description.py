"""What a broker of ours knows about one consumer group (DESCRIBE_CONSUMER_GROUP)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from remoting.protocol.bodies.body import Body, Int, Long
from remoting.protocol.bodies.heartbeat import SubscriptionData


class FindingKind(StrEnum):
    """What can be wrong with a group. Peers may name kinds that are not here."""

    SUBSCRIPTION = "subscription"
    """Members subscribe different topics, or one topic differently."""
    CONSUME_TYPE = "consumeType"
    """Some members pull, others are pushed to."""
    MESSAGE_MODEL = "messageModel"
    """Some members share the messages, others want each of them."""
    CONSUME_FROM_WHERE = "consumeFromWhere"
    """Members would begin a queue without an offset in different places."""
    STRATEGY = "strategy"
    """Members share out the queues by different rules: some have two owners, others none."""
    CLIENT_ID = "clientId"
    """Two live connections use one client id: both believe to own the same queues."""
    IDLE_MEMBERS = "idleMembers"
    """There are more members than queues."""
    UNPULLED_QUEUE = "unpulledQueue"
    """Messages wait in a queue that no live member has asked for lately."""
    BLOCKED_QUEUE = "blockedQueue"
    """A message that fails again and again stops an orderly consumer's queue."""
    OFFSET_BACKWARDS = "offsetBackwards"
    """A committed offset was below the one before it."""
    QUEUES_CHANGED = "queuesChanged"
    """A topic got another number of queues while the group consumed it."""


class GroupFinding(Body):
    """One thing that is wrong with a group. ``kind`` and ``text`` are always there."""

    kind: str = ""
    """A ``FindingKind``."""
    text: str = ""
    """A sentence: what is wrong, with whom, and what to do."""
    members: list[str] = field(default_factory=list)
    """The client ids it is about; of a conflict, two that differ."""
    docs: str = ""
    """Where it is explained: the address of a page and a section."""
    topic: str | None = None
    queue_id: Int | None = None
    since_ms: Long = 0
    """When it was first seen."""


class BlockedQueue(Body):
    """A queue that its orderly consumer can't go on with."""

    group: str = ""
    topic: str = ""
    queue_id: Int = 0
    broker: str = ""
    """The broker's name."""
    offset: Long = 0
    """Of the message that fails."""
    msg_id: str = ""
    since_ms: Long = 0
    """When it failed first."""
    error: str = ""


class BlockedQueues(Body):
    """The list that a heartbeat carries, as a body: on the wire it is the bare list."""

    queues: list[BlockedQueue] = field(default_factory=list)


class GroupMemberInfo(Body):
    """One connection that consumes in the group, with what it said itself."""

    client_id: str = ""
    client_addr: str = ""
    """``ip:port`` as the broker sees it."""
    language: str | None = None
    version: Int = 0
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    strategy: str = ""
    """How it shares out queues, by name; empty when it doesn't tell."""
    subscriptions: list[SubscriptionData] = field(default_factory=list)
    joined_ms: Long = 0
    last_heartbeat_ms: Long = 0
    ours: bool = False
    """A client of PocketMQ."""


class GroupQueueInfo(Body):
    """How a group fares with one queue of this broker."""

    topic: str = ""
    queue_id: Int = 0
    max_offset: Long = 0
    committed: Long = -1
    """-1: none."""
    lock_owner: str | None = None
    """The client id that holds the queue's lock."""
    last_pull_ms: Long = 0
    """When a member asked for its messages last, 0 if none has since the broker started."""
    last_puller: str | None = None
    """The client id of that member."""
    blocked_since: Long | None = None
    """Since when a failing message stops it, milliseconds."""
    blocked_by: str | None = None
    """The client id of the member that says so."""
    blocked: BlockedQueue | None = None
    """What that member says."""
    min_offset: Long = 0


class GroupDescriptionBody(Body):
    """Answer of DESCRIBE_CONSUMER_GROUP; empty lists for a group that is not online."""

    members: list[GroupMemberInfo] = field(default_factory=list)
    conflicts: list[GroupFinding] = field(default_factory=list)
    """How members contradict each other."""
    queues: list[GroupQueueInfo] = field(default_factory=list)
    """Of the topics that members subscribe or that the group has offsets in."""
    warnings: list[GroupFinding] = field(default_factory=list)
    """What else is wrong."""
