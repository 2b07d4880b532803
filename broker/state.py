"""What a broker knows while it runs: the tables, the store, and whom to tell about changes."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from broker.delivery.long_poll import LongPolls
from broker.groups.consumers import ConsumerTable
from broker.groups.findings import Findings
from broker.groups.offsets import ConsumerOffsets
from broker.groups.producers import ProducerTable
from broker.groups.queue_locks import QueueLocks
from broker.groups.subscriptions import SubscriptionGroups
from broker.topics import TopicTable
from remoting.clock import Clock
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.topic import DataVersion

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.message_store import MessageStore
    from broker.topic_spread import TopicSpread
    from remoting.connection import Connection


class Changes(Protocol):
    """Persists and registers what requests change."""

    def topics_changed(self, names: Sequence[str] | None, *, oneway: bool) -> Awaitable[bool]:
        """Topics were made, changed or deleted; whether that got to the disk, once it is known.

        Args:
            names: the topics that alone are registered; None for all.
            oneway: whether the registration is sent without waiting for an answer.
        """
        ...

    @property
    def topics_pending(self) -> Awaitable[bool] | None:
        """Ends when the newest topics have been written; None when they have."""
        ...

    def groups_changed(self) -> Awaitable[bool]:
        """Group settings were made, changed or deleted; whether that got to the disk."""
        ...


@dataclass(slots=True, kw_only=True)
class BrokerCounters:
    """Plain counts since the start, read by metrics and runtime information."""

    messages_sent: int = 0
    sends_failed: int = 0
    bytes_sent: int = 0
    messages_pulled: int = 0
    bytes_pulled: int = 0
    pulls_found: int = 0
    pulls_missed: int = 0
    pulls_parked: int = 0
    commits_backwards: int = 0
    members_refused: int = 0
    messages_delayed: int = 0
    messages_delivered_late: int = 0
    messages_sent_back: int = 0
    messages_dead_lettered: int = 0
    requests_not_supported: int = 0


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """Everything that the processors work on.

    Args:
        host: the address that clients are told, ``brokerIP1``.
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
    long_polls: LongPolls
    consumers: ConsumerTable = field(default_factory=ConsumerTable)
    producers: ProducerTable = field(default_factory=ProducerTable)
    locks: QueueLocks = field(default_factory=QueueLocks)
    findings: Findings = field(default_factory=Findings)
    spread: TopicSpread | None = None
    """Queues at other brokers; None when there are no others."""
    counters: BrokerCounters = field(default_factory=BrokerCounters)
    delay_offsets: Mapping[int, int] = field(default_factory=dict)
    """Of each delay level that has delivered some the next message; a view of what is true now."""
    config_version: DataVersion = field(default_factory=DataVersion)
    started_ms: int = 0
    offsets_lost: bool = False
    """Whether there were messages at the start, but no file of consumer offsets."""
    stopping: bool = False

    def pulled(self, group: str, topic: str, queue_id: int, connection: Connection) -> None:
        """A queue is being pulled: told with each pull that may be served, before it is."""
        online = self.consumers.groups.get(group)
        if online is not None:
            online.pulled(topic, queue_id, connection, self.clock.monotonic())

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
