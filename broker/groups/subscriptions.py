"""The subscription groups and their settings (cf. SubscriptionGroupManager).

A group's settings are created by an administrator, or when the group first appears, unless
``autoCreateSubscriptionGroup`` is off. The table is saved in ``config/subscriptionGroup.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.errors import LimitReached
from broker.limits import MAX_FORBIDDEN, MAX_GROUPS
from remoting.protocol import names
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.topic import DataVersion

_READ: Final = 1 << 2
"""The bit of PermName.INDEX_PERM_READ."""


class SubscriptionGroups:
    """The settings of all groups.

    Args:
        table: the saved settings, by group.
        data_version: the saved data version.
        auto_create: whether an unknown group is created when a client uses it.
        forbidden: what groups may not do: group -> topic -> bits.
        client_limit: the number of groups above which clients create no more; administrators can
            create up to ``MAX_GROUPS``.
    """

    __slots__ = ("_client_limit", "auto_create", "data_version", "forbidden", "table")

    def __init__(
        self,
        table: Mapping[str, SubscriptionGroupConfig] | None = None,
        data_version: DataVersion | None = None,
        *,
        forbidden: Mapping[str, Mapping[str, int]] | None = None,
        auto_create: bool = True,
        client_limit: int = MAX_GROUPS,
    ) -> None:
        self.table = dict(table or {})
        for name in sorted(names.SYSTEM_GROUPS):
            self.table.setdefault(name, SubscriptionGroupConfig(group_name=name))
        self.data_version = data_version or DataVersion()
        self.forbidden = {group: dict(topics) for group, topics in (forbidden or {}).items()}
        self.auto_create = auto_create
        self._client_limit = client_limit

    def configure(self, *, auto_create: bool, client_limit: int) -> None:
        """Use changed settings; see the class."""
        self.auto_create = auto_create
        self._client_limit = client_limit

    def replace(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        version: DataVersion,
        forbidden: Mapping[str, Mapping[str, int]] | None,
    ) -> None:
        """Replace all groups but missing system groups, by those of the master."""
        system = names.SYSTEM_GROUPS & self.table.keys()
        self.table = {name: self.table[name] for name in system} | dict(table)
        self.forbidden = {group: dict(topics) for group, topics in (forbidden or {}).items()}
        self.data_version = version

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings, or None; creates nothing."""
        return self.table.get(name)

    def find(self, name: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """Return a group's settings, created with defaults if that is allowed; else None.

        Raises:
            LimitReached: the table is full.
        """
        config = self.table.get(name)
        if config is None and self._may_make(name):
            config = SubscriptionGroupConfig(group_name=name)
            self._insert(config, now_ms, self._client_limit)
        return config

    def put(self, config: SubscriptionGroupConfig, now_ms: int) -> None:
        """Set a group's settings.

        Raises:
            LimitReached: the table is full and the group isn't in it.
        """
        self._insert(config, now_ms, MAX_GROUPS)

    def delete(self, name: str, now_ms: int) -> bool:
        """Delete a group's settings; return False if there were none."""
        self.forbidden.pop(name, None)
        if self.table.pop(name, None) is None:
            return False
        self.data_version = self.data_version.next(now_ms)
        return True

    def may_read(self, group: str, topic: str) -> bool:
        """Return whether a group may read a topic (cf. SubscriptionGroupManager.getForbidden)."""
        return not self.forbidden or not self.forbidden.get(group, {}).get(topic, 0) & _READ

    def forbidden_copy(self) -> dict[str, dict[str, int]] | None:
        """Return a copy of ``forbidden``; None if it is empty: 4.9 doesn't have it."""
        return {group: dict(topics) for group, topics in self.forbidden.items()} or None

    def set_may_read(self, group: str, topic: str, now_ms: int, *, allowed: bool) -> None:
        """Set whether a group may read a topic.

        Raises:
            LimitReached: too many pairs of group and topic are forbidden.
            ValueError: the name of the group or topic is invalid.
        """
        bits = self.forbidden.get(group, {}).get(topic, 0)
        if not bits and not allowed:
            names.validate_group(group)
            names.validate_topic(topic)
            if sum(map(len, self.forbidden.values())) >= MAX_FORBIDDEN:
                raise LimitReached(
                    f"the broker keeps at most {MAX_FORBIDDEN} topics that groups may not read; "
                    f"allow others before {group} is kept from {topic}"
                )
        topics = self.forbidden.setdefault(group, {})
        topics[topic] = bits & ~_READ if allowed else bits | _READ
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        self.data_version = self.data_version.next(now_ms)

    def _may_make(self, name: str) -> bool:
        try:
            names.validate_group(name)
        except ValueError:
            return False
        return self.auto_create or names.is_system_group(name)

    def _insert(self, config: SubscriptionGroupConfig, now_ms: int, limit: int) -> None:
        if config.group_name not in self.table and len(self.table) >= limit:
            raise LimitReached(
                f"the broker has {len(self.table)} subscription groups and makes no more than "
                f"{limit}; delete unused ones or raise pocketmqMaxGroups before using "
                f"{config.group_name}"
            )
        self.table[config.group_name] = config
        self.data_version = self.data_version.next(now_ms)
