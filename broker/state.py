"""The state of a running broker, shared by its processors: settings, store and tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

import structlog

from broker.delivery.long_poll import LongPolls
from broker.delivery.transactions import TransactionEngine
from broker.filters.table import ConsumerFilters
from broker.groups.consumers import ConsumerTable
from broker.groups.health import GroupIssues
from broker.groups.offsets import ConsumerOffsets
from broker.groups.producers import ProducerTable
from broker.groups.queue_locks import LockTable
from broker.groups.subscriptions import SubscriptionGroups
from broker.topics.table import READ_WRITE, TopicTable
from broker.traffic.counts import DEAD, BrokerCounters, Traffic, add, key_of
from remoting.addresses import address_text
from remoting.protocol.bodies.group import (
    MessageRequestModeSerializeWrapper,
    SubscriptionGroupConfig,
)
from remoting.protocol.bodies.topic import DataVersion, TopicConfig
from remoting.protocol.message import properties
from remoting.protocol.message.record import host_of
from remoting.protocol.message.view import RecordView
from remoting.protocol.queue import MessageQueue
from remoting.runtime.clock import Clock, monotonic_ms
from remoting.runtime.log import RateLimitedLog
from remoting.runtime.process_limits import ConnectionRoom

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.delivery.timer_wheel import TimerWheel
    from broker.replication.master import ReplicationServer
    from broker.replication.membership import GroupMembership
    from broker.replication.slave import LogReplica
    from broker.store.engine import MessageStore, PendingMessage
    from broker.store.results import Ack
    from broker.topics.spread import TopicSpread
    from remoting.connection import Connection
    from remoting.security.server_tls import ServerTls

_log = structlog.get_logger("broker")


class Changes(Protocol):
    """Saves and registers the changes that requests make to the tables.

    Attributes:
        delay_offsets: see ``BrokerState.delay_offsets``, as last saved; None for not yet.
    """

    delay_offsets: dict[int, int] | None

    def topics_changed(self, names: Sequence[str] | None, *, paced: bool) -> Awaitable[bool]:
        """Save and register topics after some were created, changed or deleted.

        Args:
            names: the topics to register; None for all.
            paced: whether the registration may be delayed, to be merged with others.

        Return an awaitable that ends when the change is written, and the name servers have it or
        don't answer. Its result is whether the change reached the disk.
        """
        ...

    def topic_pending(self, name: str) -> Awaitable[bool] | None:
        """Return an awaitable for the pending change of a topic, as above; None for no change."""
        ...

    def topic_dropped(self) -> Awaitable[bool]:
        """Save the tables of offsets, locks and filters without a deleted topic.

        Return an awaitable whose result is whether they reached the disk.
        """
        ...

    def settings_changed(self, values: Mapping[str, str]) -> Awaitable[bool]:
        """Save settings that a request has changed; the result is as for the groups."""
        ...

    def groups_changed(self) -> Awaitable[bool]:
        """Save the groups' settings; the result is whether they reached the disk."""
        ...


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """Everything that the processors work on.

    Args:
        host: the host that clients connect to; see ``BrokerConfig.advertised_host``.
        packed_host: numeric address and port, as they appear in records and message ids.
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
    filters: ConsumerFilters = field(default_factory=ConsumerFilters)
    long_polls: LongPolls = field(init=False)
    consumers: ConsumerTable = field(init=False)
    producers: ProducerTable = field(init=False)
    findings: GroupIssues = field(init=False)
    spread: TopicSpread | None = None
    """Queues of topics at all brokers; None without name servers."""
    counters: BrokerCounters = field(default_factory=BrokerCounters)
    traffic: Traffic = field(init=False)
    dead_letter_log: RateLimitedLog = field(init=False)
    delay_offsets: Mapping[int, int] = field(default_factory=dict)
    """Delay level -> queue offset of its next message; a live view."""
    request_modes: MessageRequestModeSerializeWrapper | None = None
    """Which groups pop, as a master of Apache's told, for slaves of Apache's."""
    timers: TimerWheel | None = None
    """The waiting timer messages; None without ``timerWheelEnable``."""
    transactions: TransactionEngine = field(init=False)
    config_version: DataVersion = field(default_factory=DataVersion)
    started_ms: int = 0
    offsets_lost: bool = False
    """Whether the store had messages at the start, but the file of consumer offsets was missing."""
    named_before: str | None = None
    """The broker name in the store before this start, if it was another one."""
    why_not_compiled: str = ""
    """Why the compiled fast path isn't used; empty if it is."""
    tls: ServerTls | None = None
    """The certificate for connections with TLS; None for no TLS."""
    slaves: ReplicationServer | None = None
    """The slaves of a master with ``haListenPort``; else None."""
    replica: LogReplica | None = None
    """A slave's connection to its master; None for a master."""
    group: GroupMembership | None = None
    """The broker's part in a group with a controller; else None."""
    taken_by: Callable[[], str | None] = lambda: None
    """Returns the address of another broker under this name and id."""
    connections: Callable[[], Iterable[Connection]] = tuple
    """Returns the open connections of clients."""
    stopping: bool = False
    sealed: bool = False
    """Whether a slave copies the tables to be the master: offsets may not change."""
    room: ConnectionRoom = field(default_factory=ConnectionRoom)

    def __post_init__(self) -> None:
        limits = self.config.limits
        self.traffic = Traffic(limit=limits.traffic_items, started_ms=self.monotonic_ms)
        self.dead_letter_log = RateLimitedLog(self.clock, _log.info)
        self.consumers = ConsumerTable(limits)
        self.producers = ProducerTable(limit=limits.memberships)
        self.findings = GroupIssues(self.clock, limit=limits.findings)
        self.transactions = TransactionEngine(
            self.store,
            self.clock,
            self.counters,
            self.offsets,
            lambda: self.config,
            self.create_topic,
        )
        self.long_polls = LongPolls(
            self.clock.monotonic(),
            limit=self.config.max_parked_pulls,
            max_weight=limits.parked_bytes,
        )

    def configure(self, config: BrokerConfig) -> bool:
        """Use changed settings; return whether the topics have to be registered again."""
        now_ms = self.clock.now_ms()
        self.config = config
        self.config_version = self.config_version.next(now_ms)
        self.groups.configure(
            auto_create=config.auto_create_subscription_group, client_limit=config.max_groups
        )
        self.store.retention.configure(config.retention)
        self.transactions.configure()
        return self.topics.configure(config, now_ms)

    @property
    def takes_commits(self) -> bool:
        """Whether the offset that a pull commits is stored."""
        return not (self.stopping or self.sealed)

    @property
    def monotonic_ms(self) -> int:
        """The monotonic time in ms: for leases and expiries."""
        return monotonic_ms(self.clock)

    @property
    def address(self) -> str:
        """The broker's address, with a numeric host: ``ip:port``."""
        return address_text(host_of(self.packed_host))

    def record_dead_letter(
        self, message: PendingMessage, group: str, connection: Connection
    ) -> None:
        """Count and log a dead letter of a group, stored for the client at ``connection``."""
        self.counters.messages_dead_lettered += 1
        online = self.consumers.groups.get(group)
        member = None if online is None else online.members.get(connection)
        texts = properties.decode(message.properties)
        topic = texts.get(properties.RETRY_TOPIC, message.topic)
        # The property is the client's text.
        counted = topic if topic in self.topics else message.topic
        add(self.traffic.count(DEAD, key_of(counted, group)), 1, len(message.body))
        self.dead_letter_log.write(
            "message became a dead letter",
            group=group,
            topic=topic,
            member=connection.remote_text if member is None else member.client_id,
            message=texts.get(properties.UNIQ_KEY, ""),
            retries=message.reconsume_times,
        )

    def group_config(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings, or None if it has none and may not be created.

        A new group is saved in the background.

        Raises:
            LimitReached: there are too many groups.
        """
        before = self.groups.data_version
        config = self.groups.find(name, self.clock.now_ms())
        if self.groups.data_version is not before:
            self.changes.groups_changed()
        return config

    def create_topic(self, name: str, queues: int = 1, *, sys_flag: int = 0) -> TopicConfig:
        """Return one of the broker's topics, for retries and the like; create it if needed.

        Raises:
            LimitReached: there are too many topics.
        """
        topic, created = self.topics.create_fixed(
            name, queues, READ_WRITE, self.clock.now_ms(), sys_flag=sys_flag
        )
        if created:
            self.changes.topics_changed([name], paced=True)
        return topic

    def message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return the name of a queue of this broker."""
        return MessageQueue(topic, self.config.broker_name, queue_id)

    async def record_at(self, owner: object, offset: int) -> RecordView | None:
        """Return the message at a physical offset; ``owner`` limits reads in threads."""
        data = await self.store.cold_reads.record_at(owner, offset)
        return None if data is None else RecordView(data)

    def acked(self, end_offset: int) -> asyncio.Future[Ack]:
        """Return a future for the safety of the log up to an offset."""
        done: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self.store.when_durable(
            end_offset, lambda ack: None if done.done() else done.set_result(ack)
        )
        return done
