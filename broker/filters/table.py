"""The SQL92 filters of consumer groups, by topic (cf. ConsumerFilterManager).

Heartbeats register the expressions. As in RocketMQ, an expression is kept for a day after its group
has left. The table is the file ``config/consumerFilter.json``, which Apache's brokers read and
write too. Callers pass the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from broker.errors import LimitReached, is_tag_type
from broker.filters.bloom import bloom_of, is_valid
from broker.filters.expressions import SqlError
from broker.filters.sql import SQL92, SqlFilter, compiled
from broker.limits import FILTER_BYTES_PER_CHARACTER, LIMITS, BrokerLimits
from remoting.protocol.bodies.group import (
    ConsumerFilterData,
    ConsumerFilterWrapper,
    FilterDataMapByTopic,
)
from remoting.protocol.bodies.heartbeat import SubscriptionData

_ENTRY_BYTES = 1024
_LOAD_MS = 30_000
"""At the start all groups count as gone for this long (cf. ConsumerFilterManager.decode)."""


@dataclass(slots=True)
class GroupFilter:
    """A group's filter of a topic.

    Attributes:
        data: the entry of the file.
        filter: the compiled expression; None if the file had a wrong one.
    """

    data: ConsumerFilterData
    filter: SqlFilter | None

    @property
    def is_dead(self) -> bool:
        """Whether the group has left, or no longer has the topic."""
        return self.data.dead_time >= self.data.born_time

    @property
    def weight(self) -> int:
        """The memory that it takes, in bytes."""
        return _weight(self.data.expression)

    def saved(self) -> ConsumerFilterData:
        """Return a copy of its data, as RocketMQ writes it."""
        return msgspec.structs.replace(self.data, dead=self.is_dead)


def compile_filter(expression_type: str | None, text: str) -> SqlFilter:
    """Compile a subscription that is not by tags. Raises ``SqlError``."""
    if expression_type != SQL92:
        raise SqlError(
            f"there are no filters of type {str(expression_type)[:64]}: use {SQL92} or TAG"
        )
    return compiled(text)


def _weight(expression: str) -> int:
    return _ENTRY_BYTES + FILTER_BYTES_PER_CHARACTER * len(expression)


class ConsumerFilters:
    """The filters of all groups.

    Args:
        limits: limit the memory of all filters.

    Attributes:
        version: the number of changes; compared with the version last written.
        weight: the memory of all filters, in bytes.
    """

    __slots__ = ("_by_topic", "_limits", "_topics", "version", "weight")

    def __init__(self, limits: BrokerLimits = LIMITS) -> None:
        self._limits = limits
        self._by_topic: dict[str, dict[str, GroupFilter]] = {}
        self._topics: dict[str, set[str]] = {}
        self.version = 0
        self.weight = 0

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def get(self, topic: str, group: str) -> GroupFilter | None:
        """Return a group's filter of a topic; None if it has none."""
        groups = self._by_topic.get(topic)
        return None if groups is None else groups.get(group)

    def restore(self, saved: ConsumerFilterWrapper, now_ms: int) -> list[str]:
        """Load saved filters, and return a sentence for each wrong expression."""
        problems = []
        for topic, by_group in saved.filter_data_by_topic.items():
            for group, data in by_group.group_filter_data.items():
                data.topic, data.consumer_group = topic, group
                if data.dead_time == 0:
                    data.dead_time = max(now_ms - _LOAD_MS, data.born_time)
                if not is_valid(data.bloom_filter_data):
                    data.bloom_filter_data = bloom_of(group, topic)
                compiled_filter = None
                try:
                    compiled_filter = compile_filter(data.expression_type, data.expression)
                except SqlError as error:
                    problems.append(f"the filter of group {group} for topic {topic}: {error}")
                self._put(GroupFilter(data, compiled_filter))
        return problems

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int
    ) -> SqlError | None:
        """Register the filters of a heartbeat; return the error of a wrong expression, if any.

        Raises:
            LimitReached: the filters would take too much memory.
        """
        wrong = None
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                try:
                    self._register(group, subscription, now_ms)
                except SqlError as error:
                    wrong = error
        for topic in self._topics.get(group, set()) - topics:
            self._die(self._by_topic[topic][group], now_ms)
        return wrong

    def left(self, group: str, now_ms: int) -> None:
        """Mark the filters of a group as dead, because it has no members any more."""
        for topic in self._topics.get(group, ()):
            self._die(self._by_topic[topic][group], now_ms)

    def clean(self, now_ms: int, keep_ms: int) -> None:
        """Delete the filters that have been dead for ``keep_ms``."""
        for entries in list(self._by_topic.values()):
            for entry in list(entries.values()):
                if entry.is_dead and now_ms - entry.data.dead_time >= keep_ms:
                    self._remove(entry)

    def remove_topic(self, topic: str) -> None:
        """Delete the filters of a topic that belong to groups that have left."""
        for entry in list(self._by_topic.get(topic, {}).values()):
            if entry.is_dead:
                self._remove(entry)

    def saved(self) -> ConsumerFilterWrapper:
        """Return a copy for the file."""
        return ConsumerFilterWrapper(
            {
                topic: FilterDataMapByTopic(
                    topic=topic,
                    group_filter_data={group: entry.saved() for group, entry in entries.items()},
                )
                for topic, entries in self._by_topic.items()
            }
        )

    def _register(self, group: str, subscription: SubscriptionData, now_ms: int) -> None:
        """Register one filter. Raises ``SqlError``; the group then has no filter of the topic."""
        old = self.get(subscription.topic, group)
        if old is not None:
            data = old.data
            is_newer = subscription.sub_version > data.client_version
            is_same = subscription.sub_string == data.expression and old.filter is not None
            if not is_newer or is_same:
                if subscription.sub_version >= data.client_version and (is_newer or old.is_dead):
                    data.client_version = subscription.sub_version
                    data.dead_time = 0 if old.is_dead else data.dead_time
                    self.version += 1
                return
            self._remove(old)
        compiled_filter = compile_filter(subscription.expression_type, subscription.sub_string)
        self._make_room(_weight(subscription.sub_string), group, subscription.topic, now_ms)
        self._put(
            GroupFilter(
                ConsumerFilterData(
                    consumer_group=group,
                    topic=subscription.topic,
                    expression=subscription.sub_string,
                    expression_type=SQL92,
                    born_time=now_ms,
                    client_version=subscription.sub_version,
                    bloom_filter_data=bloom_of(group, subscription.topic),
                ),
                compiled_filter,
            )
        )

    def _make_room(self, weight: int, group: str, topic: str, now_ms: int) -> None:
        limit = self._limits.filter_bytes
        if self.weight + weight > limit:
            self.clean(now_ms, 0)
        if self.weight + weight > limit:
            raise LimitReached(
                f"the filters of all consumer groups take {self.weight} bytes, and the broker keeps"
                f" no more than {limit}: shorten the expression of group {group} for topic {topic}"
            )

    def _put(self, entry: GroupFilter) -> None:
        data = entry.data
        self._by_topic.setdefault(data.topic, {})[data.consumer_group] = entry
        self._topics.setdefault(data.consumer_group, set()).add(data.topic)
        self.weight += entry.weight
        self.version += 1

    def _remove(self, entry: GroupFilter) -> None:
        topic, group = entry.data.topic, entry.data.consumer_group
        del self._by_topic[topic][group]
        self._topics[group].discard(topic)
        if not self._by_topic[topic]:
            del self._by_topic[topic]
        if not self._topics[group]:
            del self._topics[group]
        self.weight -= entry.weight
        self.version += 1

    def _die(self, entry: GroupFilter, now_ms: int) -> None:
        if not entry.is_dead:
            entry.data.dead_time = now_ms
            self.version += 1
