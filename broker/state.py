"""The state of a running broker: its tables, its store, and what saves changes."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

import structlog

from broker.delivery.long_poll import LongPolls
from broker.groups.consumers import ConsumerTable
from broker.groups.health import GroupIssues
from broker.groups.offsets import ConsumerOffsets
from broker.groups.producers import ProducerTable
from broker.groups.queue_locks import LockTable
from broker.groups.subscriptions import SubscriptionGroups
from broker.stats import BrokerCounters
from broker.topics import TopicTable
from remoting.clock import Clock
from remoting.log import RateLimitedLog
from remoting.process_limits import ConnectionRoom
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.topic import DataVersion
from remoting.protocol.message import properties

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.engine import MessageStore, PendingMessage
    from broker.topic_spread import TopicSpread
    from remoting.connection import Connection

_log = structlog.get_logger("broker")


class Changes(Protocol):
    """Persists and registers what requests change."""

    def topics_changed(self, names: Sequence[str] | None, *, oneway: bool) -> Awaitable[bool]:
        """Topics were made, changed or deleted; whether that got to the disk, once it is known.

        Args:
            names: the topics that alone are registered; None for all.
            oneway: no caller waits for the registration, so it may be merged with others.
        """
        ...

    def topic_pending(self, name: str) -> Awaitable[bool] | None:
        """Ends when what changed of a topic has been written; None when it has."""
        ...

    def groups_changed(self) -> Awaitable[bool]:
        """Group settings were made, changed or deleted; whether that got to the disk."""
        ...


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """Everything that the processors work on.

    Args:
        host: the address for clients, ``brokerIP1``.
        packed_host: the numeric address and port of the store's records and message ids.
    """

    config: BrokerConfig
    host: str
    packed_host: bytes
    store: MessageStore
    clock: Clock
    random: Random
    changes: Changes
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    locks: LockTable = field(default_factory=LockTable)
    long_polls: LongPolls = field(init=False)
    consumers: ConsumerTable = field(init=False)
    producers: ProducerTable = field(init=False)
    findings: GroupIssues = field(init=False)
    spread: TopicSpread | None = None
    """Queues at other brokers; None when there are no others."""
    counters: BrokerCounters = field(default_factory=BrokerCounters)
    dead_letter_log: RateLimitedLog = field(init=False)
    delay_offsets: Mapping[int, int] = field(default_factory=dict)
    """Of each delay level that has delivered some the next message; a view of what is true now."""
    config_version: DataVersion = field(default_factory=DataVersion)
    started_ms: int = 0
    offsets_lost: bool = False
    """Whether there were messages at the start, but no file of consumer offsets."""
    named_before: str | None = None
    """Another name, under which the store was written until this start."""
    why_not_compiled: str = ""
    """Why there is no compiled fast path; empty: there is one."""
    stopping: bool = False
    room: ConnectionRoom = field(default_factory=ConnectionRoom)

    def __post_init__(self) -> None:
        limits = self.config.limits
        self.dead_letter_log = RateLimitedLog(self.clock, _log.info)
        self.consumers = ConsumerTable(limits)
        self.producers = ProducerTable(limit=limits.memberships)
        self.findings = GroupIssues(limit=limits.findings)
        self.long_polls = LongPolls(
            self.clock.monotonic(),
            limit=self.config.max_parked_pulls,
            max_weight=limits.parked_bytes,
        )

    def given_up(self, message: PendingMessage, group: str, connection: Connection) -> None:
        """A dead letter of a group has been stored, which the client at ``connection`` gave up."""
        self.counters.messages_dead_lettered += 1
        online = self.consumers.groups.get(group)
        member = None if online is None else online.members.get(connection)
        found = properties.decode(message.properties)
        self.dead_letter_log.write(
            "message became a dead letter",
            group=group,
            topic=found.get(properties.RETRY_TOPIC, message.topic),
            member=connection.remote_text if member is None else member.client_id,
            message=found.get(properties.UNIQ_KEY, ""),
            retries=message.reconsume_times,
        )

    def group_config(self, name: str) -> SubscriptionGroupConfig | None:
        """A group's settings; made, and persisted in the background, if that is allowed.

        Raises:
            LimitReached: there are too many groups.
        """
        before = self.groups.data_version
        config = self.groups.find(name, self.clock.now_ms())
        if self.groups.data_version is not before:
            self.changes.groups_changed()
        return config
