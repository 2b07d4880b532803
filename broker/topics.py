"""The broker's topics (cf. TopicConfigManager): which exist, with how many queues, open to whom.

A topic comes into being at boot (the system topics), by an admin, by a send to an unknown name
(through a template topic, usually TBW102, whose inherit bit allows it), or with fixed settings
for a group's retries and dead letters. Each change raises the data version, by which name servers
see that there is something new. The table is the file ``config/topics.json``.

Pure: who persists and registers the changes is told by ``version``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from broker.limits import MAX_TOPICS
from broker.processors.errors import LimitReached
from remoting.protocol import names
from remoting.protocol.bodies.topic import DataVersion, TopicConfig

UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2
"""Bits of ``topicSysFlag``."""

READ_WRITE: Final = names.PERM_READ | names.PERM_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The settings that decide which topics exist at boot and what a send may make."""

    cluster_name: str
    broker_name: str
    default_queue_nums: int = 8
    auto_create: bool = True
    cluster_topic: bool = True
    broker_topic: bool = True
    trace_topic: str | None = None


def system_topics(rules: TopicRules) -> list[TopicConfig]:
    """The topics that every broker has from the start."""
    inherit = names.PERM_INHERIT
    rows = [
        (names.SELF_TEST_TOPIC, 1, READ_WRITE),
        (names.BENCHMARK_TOPIC, 1024, READ_WRITE),
        (rules.cluster_name, 16, inherit | (READ_WRITE if rules.cluster_topic else 0)),
        (rules.broker_name, 1, inherit | (READ_WRITE if rules.broker_topic else 0)),
        (names.OFFSET_MOVED_TOPIC, 1, READ_WRITE),
        (names.SCHEDULE_TOPIC, 18, READ_WRITE),
        (rules.cluster_name + names.REPLY_TOPIC_SUFFIX, 1, READ_WRITE),
    ]
    if rules.auto_create:
        rows.append((names.AUTO_CREATE_TOPIC, rules.default_queue_nums, inherit | READ_WRITE))
    if rules.trace_topic is not None:
        rows.append((rules.trace_topic, 1, READ_WRITE))
    return [
        TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        for name, queues, perm in rows
    ]


class TopicTable:
    """All topics of a broker.

    Args:
        rules: what exists at boot, what sends may make.
        table: what was stored, by name.
        data_version: of what was stored.
        client_limit: topics that may exist before clients can make no more; admins still can.
    """

    __slots__ = ("_client_limit", "data_version", "rules", "system", "table")

    def __init__(
        self,
        rules: TopicRules,
        table: Mapping[str, TopicConfig] | None = None,
        data_version: DataVersion | None = None,
        *,
        client_limit: int = MAX_TOPICS,
    ) -> None:
        self.rules = rules
        self.table = dict(table or {})
        self.data_version = data_version or DataVersion()
        self._client_limit = client_limit
        boot = system_topics(rules)
        self.system = frozenset(config.topic_name for config in boot) | names.SYSTEM_TOPICS
        for config in boot:
            self.table.setdefault(config.topic_name, config)

    def __contains__(self, name: str) -> bool:
        return name in self.table

    def get(self, name: str) -> TopicConfig | None:
        """A topic's settings, None if it doesn't exist."""
        return self.table.get(name)

    def is_system(self, name: str) -> bool:
        """Whether a topic belongs to the broker, so that nobody else may make or change it."""
        return name in self.system or names.is_system_topic(name)

    def template(self, name: str) -> TopicConfig | None:
        """The topic that unknown topics may be made from; None if this one does not allow it."""
        if name == names.AUTO_CREATE_TOPIC and not self.rules.auto_create:
            return None
        template = self.table.get(name)
        return template if template is not None and template.perm & names.PERM_INHERIT else None

    def create_by_send(
        self, name: str, template_name: str, queue_nums: int, now_ms: int, *, unit: bool = False
    ) -> TopicConfig | None:
        """Make the unknown topic a message is sent to, as its template allows; else None.

        Args:
            name: the topic.
            template_name: the header's ``defaultTopic``.
            queue_nums: the queues that the producer asks for; it gets no more than the template
                has for writing.
            now_ms: for the data version.
            unit: the header's ``unitMode``.

        Raises:
            LimitReached: the table is full.
        """
        template = self.template(template_name)
        if template is None:
            return None
        queues = max(min(queue_nums, template.write_queue_nums), 0)
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~names.PERM_INHERIT,
            topic_filter_type=template.topic_filter_type,
            topic_sys_flag=UNIT_FLAG if unit else 0,
        )
        self._insert(config, now_ms, self._client_limit)
        return config

    def create_fixed(
        self, name: str, queue_nums: int, perm: int, now_ms: int, *, sys_flag: int = 0
    ) -> tuple[TopicConfig, bool]:
        """A topic for retries or dead letters, made if missing; with it, whether it was made.

        Raises:
            LimitReached: the table is full.
        """
        config = self.table.get(name)
        if config is not None:
            return config, False
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=perm,
            topic_sys_flag=sys_flag,
        )
        self._insert(config, now_ms, self._client_limit)
        return config, True

    def put(self, config: TopicConfig, now_ms: int) -> None:
        """Set a topic's settings.

        Raises:
            LimitReached: the table is full and the topic isn't in it.
        """
        self._insert(config, now_ms, MAX_TOPICS)

    def delete(self, name: str, now_ms: int) -> bool:
        """Forget a topic's settings; False if it didn't exist."""
        if self.table.pop(name, None) is None:
            return False
        self.data_version = self.data_version.next(now_ms)
        return True

    def set_order_topics(self, ordered: Container[str], now_ms: int) -> bool:
        """Mark the topics that a name server says are in order, no others; False: no change.

        Those the broker doesn't have are not looked at (cf. updateOrderTopicConfig).
        """
        wrong = [config for name, config in self.table.items() if config.order != (name in ordered)]
        for config in wrong:
            self.table[config.topic_name] = structs.replace(config, order=not config.order)
        if wrong:
            self.data_version = self.data_version.next(now_ms)
        return bool(wrong)

    def _insert(self, config: TopicConfig, now_ms: int, limit: int) -> None:
        if config.topic_name not in self.table and len(self.table) >= limit:
            raise LimitReached(
                f"the broker has {len(self.table)} topics and makes no more than {limit}; delete "
                f"unused ones or raise pocketmqMaxTopics before using {config.topic_name}"
            )
        self.table[config.topic_name] = config
        self.data_version = self.data_version.next(now_ms)
