"""The broker's topics and their settings (cf. TopicConfigManager).

System topics are created at the start. Other topics are created by an administrator, by a send to
an unknown topic (from a template topic, usually TBW102, whose inherit bit allows it), or with fixed
settings for a group's retries and dead letters. Each change raises the data version, by which name
servers detect changes. The table is saved in ``config/topics.json``.

A topic may have attributes (cf. AttributeParser, AttributeUtil). A request contains ``+name=value``
to set an attribute and ``-name`` to remove one; other attributes don't change. ``cleanup.policy``
and ``queue.type`` can be set only when the topic is created. Error texts begin like those of
RocketMQ 5.3.3.

No I/O: callers save and register the changes.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Final

from msgspec import structs

from broker.config import BrokerConfig
from broker.errors import LimitReached
from broker.limits import MAX_TOPICS
from remoting.protocol import names
from remoting.protocol.bodies.topic import DataVersion, TopicConfig

UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2
"""Bits of ``topicSysFlag``."""

READ_WRITE: Final = names.PERM_READ | names.PERM_WRITE


MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"

_RESERVE_TIME: Final = "reserve.time"
_VALUES: Final = {
    "cleanup.policy": ("DELETE", "COMPACTION"),
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED),
    "queue.type": ("SimpleCQ", "BatchCQ"),
}
_KNOWN: Final = (*_VALUES, _RESERVE_TIME)
_CHANGEABLE: Final = frozenset({MESSAGE_TYPE, _RESERVE_TIME})

_LONG: Final = re.compile(r"[+-]?[0-9]+")
_MAX_LONG: Final = 2**63 - 1
_FORMAT: Final = "write +name=value to set an attribute, -name to remove one"


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the topics that the broker creates at the start."""
    inherit = names.PERM_INHERIT
    rows = [
        (names.SELF_TEST_TOPIC, 1, READ_WRITE),
        (names.BENCHMARK_TOPIC, 1024, READ_WRITE),
        (config.cluster_name, 16, inherit | (READ_WRITE if config.cluster_topic_enable else 0)),
        (config.broker_name, 1, inherit | (READ_WRITE if config.broker_topic_enable else 0)),
        (names.OFFSET_MOVED_TOPIC, 1, READ_WRITE),
        (names.SCHEDULE_TOPIC, 18, READ_WRITE),
        (config.cluster_name + names.REPLY_TOPIC_SUFFIX, 1, READ_WRITE),
    ]
    if config.auto_create_topic_enable:
        rows.append(
            (names.AUTO_CREATE_TOPIC, config.default_topic_queue_nums, inherit | READ_WRITE)
        )
    if config.trace_topic_enable:
        rows.append((config.msg_trace_topic_name, 1, READ_WRITE))
    return [
        TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        for name, queues, perm in rows
    ]


class TopicTable:
    """All topics of a broker.

    Args:
        config: the broker's settings.
        table: the saved topics, by name.
        data_version: the saved data version.

    Attributes:
        table: the topics by name.
        data_version: changes with each change of the table.
        system: names of the topics that only the broker may create or change.
    """

    __slots__ = ("_config", "data_version", "system", "table")

    def __init__(
        self,
        config: BrokerConfig,
        table: Mapping[str, TopicConfig] | None = None,
        data_version: DataVersion | None = None,
    ) -> None:
        self._config = config
        self.data_version = data_version or DataVersion()
        boot = {topic.topic_name: topic for topic in system_topics(config)}
        self.system = boot.keys() | names.SYSTEM_TOPICS
        self.table = dict(table or {})
        for name, topic in boot.items():
            self.table.setdefault(name, topic)

    def configure(self, config: BrokerConfig, now_ms: int) -> bool:
        """Use changed settings; return whether the topics have to be registered again.

        That is so if a system topic was created, or ``brokerPermission`` has changed.
        """
        created = {
            topic.topic_name: topic
            for topic in system_topics(config)
            if topic.topic_name not in self.table
        }
        is_new = config.broker_permission != self._config.broker_permission or bool(created)
        self._config = config
        self.system |= created.keys()
        self.table.update(created)
        if is_new:
            self.data_version = self.data_version.next(now_ms)
        return is_new

    def replace(self, table: Mapping[str, TopicConfig], version: DataVersion) -> None:
        """Replace all topics but missing system topics, by those of the master."""
        system = {name: self.table[name] for name in self.system & self.table.keys()}
        self.table = {**system, **table}
        self.data_version = version

    def __contains__(self, name: str) -> bool:
        return name in self.table

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic's settings; None if it doesn't exist."""
        return self.table.get(name)

    def is_system(self, name: str) -> bool:
        """Return whether only the broker may create or change this topic."""
        return name in self.system or names.is_system_topic(name)

    def template(self, name: str) -> TopicConfig | None:
        """Return this topic if unknown topics may be created from it as a template, else None."""
        if name == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            return None
        template = self.table.get(name)
        return template if template is not None and template.perm & names.PERM_INHERIT else None

    def create_by_send(
        self, name: str, template_name: str, queue_nums: int, now_ms: int, *, unit: bool = False
    ) -> TopicConfig | None:
        """Create the unknown topic of a send from its template; None if that isn't allowed.

        Args:
            name: the topic.
            template_name: the header's ``defaultTopic``.
            queue_nums: the number of queues that the producer asks for; limited to the template's
                number of write queues.
            now_ms: the time, for the data version.
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
        self._insert(config, now_ms, self._config.max_topics)
        return config

    def create_fixed(
        self, name: str, queue_nums: int, perm: int, now_ms: int, *, sys_flag: int = 0
    ) -> tuple[TopicConfig, bool]:
        """Return a topic for retries or dead letters, and whether it was created by this call.

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
        self._insert(config, now_ms, self._config.max_topics)
        return config, True

    def put(self, config: TopicConfig, now_ms: int) -> None:
        """Set a topic's settings.

        Raises:
            LimitReached: the table is full and the topic isn't in it.
        """
        self._insert(config, now_ms, MAX_TOPICS)

    def delete(self, name: str, now_ms: int) -> bool:
        """Delete a topic's settings; return False if it didn't exist."""
        if self.table.pop(name, None) is None:
            return False
        self.data_version = self.data_version.next(now_ms)
        return True

    def set_order_topics(self, ordered: Container[str], now_ms: int) -> bool:
        """Mark exactly these topics as ordered; return whether a topic changed.

        Topics that the broker doesn't have are ignored (cf. updateOrderTopicConfig).
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


def parse_changes(text: str | None) -> dict[str, str]:
    """Parse the attribute changes in the header of UPDATE_AND_CREATE_TOPIC.

    Args:
        text: ``+name=value`` and ``-name``, separated by commas; None or empty for no changes.

    Returns:
        The value by signed name; empty for a removal.

    Raises:
        ValueError: the format is wrong, or a change appears twice; the text is for the client.
    """
    changes: dict[str, str] = {}
    # Java's split drops empty parts at the end, so "+a=b," is one change and "+a=" has no value.
    entries = (text or "").rstrip(",")
    for entry in entries.split(",") if entries else ():
        name, *values = entry.rstrip("=").split("=")
        sign, kind = ("+", "add/alter") if "=" in entry else ("-", "delete")
        if sign not in name or (sign == "+" and not values):
            raise ValueError(f"{kind} attribute format is wrong: {name}; {_FORMAT}")
        if name in changes:
            raise ValueError(f"key duplication: {name}")
        changes[name] = values[0] if values else ""
    return changes


def altered(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's attributes after changes.

    Args:
        current: its attributes now; None if the request creates the topic.
        changes: values by signed name, from ``parse_changes``; the value of a removal is ignored.

    Raises:
        ValueError: a change isn't allowed; the text is for the client.
    """
    added: dict[str, str] = {}
    removed: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or "+" in name or "-" in name:
            raise ValueError(f"kv string format wrong. key: {signed}; {_FORMAT}")
        if name in added or name in removed:
            raise ValueError(f"alter duplication key. key: {name}")
        if current is None and sign != "+":
            raise ValueError(f"only add attribute is supported while creating topic. key: {name}")
        if sign == "+":
            added[name] = value
        elif sign != "-":
            raise ValueError(f"wrong format key: {name}; {_FORMAT}")
        elif current is None or name not in current:
            raise ValueError(f"attempt to delete a nonexistent key: {name}")
        else:
            removed.add(name)
    for name in (*added, *removed):
        if name not in _KNOWN:
            raise ValueError(f"unsupported key: {name}; there are {', '.join(_KNOWN)}")
        if current is not None and name not in _CHANGEABLE:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {name}")
    for name, value in added.items():
        _check_value(name, value)
    kept = {name: value for name, value in (current or {}).items() if name not in removed}
    return kept | added


def _check_value(name: str, value: str) -> None:
    allowed = _VALUES.get(name)
    if allowed is None:
        if _LONG.fullmatch(value) is None or not -1 <= int(value) <= _MAX_LONG:
            raise ValueError(f"value is not in range(-1, {_MAX_LONG}): {name}={value}")
    elif value not in allowed:
        raise ValueError(f"value is not in set: [{', '.join(allowed)}]: {name}={value}")
