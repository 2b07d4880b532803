"""Settings of subscription groups."""

from __future__ import annotations

import pytest

from broker.errors import LimitReached
from broker.groups.subscriptions import SubscriptionGroups
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.topic import DataVersion


def test_system_groups_exist_from_the_start_and_do_not_count_as_a_change():
    groups = SubscriptionGroups()
    assert groups.get("TOOLS_CONSUMER") is not None
    assert groups.get("CID_ONSAPI_OWNER") is not None
    assert groups.data_version.counter == 0


def test_an_unknown_group_is_created_on_first_use():
    groups = SubscriptionGroups()
    config = groups.find("g", 5)
    assert config == SubscriptionGroupConfig(group_name="g")
    assert groups.data_version == DataVersion(5, 1)
    assert groups.find("g", 6) is config
    assert groups.data_version == DataVersion(5, 1)


def test_automatic_group_creation_can_be_switched_off():
    groups = SubscriptionGroups(auto_create=False)
    assert groups.find("g", 5) is None
    assert groups.find("CID_RMQ_SYS_x", 5) is not None


def test_a_group_with_an_illegal_name_is_never_created():
    assert SubscriptionGroups().find("no group!", 5) is None


def test_stored_settings_win_over_the_presets():
    stored = SubscriptionGroupConfig(group_name="TOOLS_CONSUMER", consume_enable=False)
    groups = SubscriptionGroups({"TOOLS_CONSUMER": stored}, DataVersion(1, 4))
    assert groups.get("TOOLS_CONSUMER") is stored
    assert groups.data_version == DataVersion(1, 4)


def test_settings_can_be_replaced_and_deleted():
    groups = SubscriptionGroups()
    groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3), 1)
    assert groups.get("g").retry_max_times == 3
    assert groups.delete("g", 2)
    assert not groups.delete("g", 3)
    assert groups.data_version == DataVersion(2, 2)


def test_clients_create_up_to_their_limit_and_administrators_beyond():
    groups = SubscriptionGroups(client_limit=len(SubscriptionGroups().table) + 1)
    groups.find("a", 1)
    with pytest.raises(LimitReached, match="pocketmqMaxGroups"):
        groups.find("b", 1)
    groups.put(SubscriptionGroupConfig(group_name="b"), 1)
    assert groups.find("b", 1) is not None
