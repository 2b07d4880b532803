"""The subscription groups and their settings (cf. SubscriptionGroupManager).

A group's settings are created by an administrator, or when the group first appears, unless
``autoCreateSubscriptionGroup`` is off. The table is saved in ``config/subscriptionGroup.json``.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.errors import LimitReached
from broker.limits import MAX_GROUPS
from remoting.protocol import names
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.topic import DataVersion


class SubscriptionGroups:
    """The settings of all groups.

    Args:
        table: the saved settings, by group.
        data_version: the saved data version.
        auto_create: whether an unknown group is created when a client uses it.
        client_limit: the number of groups above which clients create no more; administrators can
            create up to ``MAX_GROUPS``.
    """

    __slots__ = ("_client_limit", "auto_create", "data_version", "table")

    def __init__(
        self,
        table: Mapping[str, SubscriptionGroupConfig] | None = None,
        data_version: DataVersion | None = None,
        *,
        auto_create: bool = True,
        client_limit: int = MAX_GROUPS,
    ) -> None:
        self.table = dict(table or {})
        for name in sorted(names.SYSTEM_GROUPS):
            self.table.setdefault(name, SubscriptionGroupConfig(group_name=name))
        self.data_version = data_version or DataVersion()
        self.auto_create = auto_create
        self._client_limit = client_limit

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
        if self.table.pop(name, None) is None:
            return False
        self.data_version = self.data_version.next(now_ms)
        return True

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
