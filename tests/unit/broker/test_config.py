"""A broker's settings."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from broker.config import BrokerConfig, name_of_host
from broker.store.config import RetentionConfig
from remoting.runtime.settings import ConfigError


def config(**keys: str) -> BrokerConfig:
    return BrokerConfig.from_sources(None, {}, keys)


def test_the_stock_broker_conf_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "# comment\nbrokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\n"
        "deleteWhen = 04\nfileReservedTime = 48\nbrokerRole = ASYNC_MASTER\n"
        "flushDiskType = SYNC_FLUSH\n"
    )
    read = BrokerConfig.from_sources(file)
    assert (read.cluster_name, read.broker_name, read.broker_id) == (
        "DefaultCluster",
        "broker-a",
        0,
    )
    assert read.sync_flush
    assert read.retention.reserved_ms == 48 * 3600 * 1000
    assert read.retention.delete_hours == {4}
    assert read.ignored_keys == ()


@pytest.mark.parametrize(
    ("host", "acl", "is_open"),
    [
        ("127.0.0.1", "false", False),
        ("localhost", "false", False),
        ("::1", "false", False),
        ("0.0.0.0", "false", True),
        ("10.0.0.1", "false", True),
        ("::", "false", True),
        ("0.0.0.0", "true", False),
    ],
)
def test_a_broker_beyond_loopback_without_accounts_is_open(
    host: str, acl: str, is_open: bool
) -> None:
    assert config(pocketmqBindHost=host, aclEnable=acl).open_to_network is is_open


def test_defaults_are_rocketmqs() -> None:
    read = config()
    assert (read.broker_name, read.name_of_new_store) == ("", socket.gethostname())
    assert read.listen_port == 10911
    assert read.store_path_root_dir == Path.home() / "store"
    assert (read.default_topic_queue_nums, read.broker_permission) == (8, 6)
    assert (read.register_name_server_period_ms, read.register_broker_timeout_ms) == (30_000, 6_000)
    assert (read.max_message_size, read.mapped_file_size_commit_log) == (4 << 20, 1 << 30)
    assert not read.sync_flush
    assert read.namesrv_addr == ()


def test_own_settings_have_a_prefix_that_the_environment_does_not_double() -> None:
    read = BrokerConfig.from_sources(None, {"POCKETMQ_MAX_TOPICS": "5"}, {"pocketmqMaxGroups": "6"})
    assert (read.max_topics, read.max_groups) == (5, 6)


def test_the_defaults_of_retention_are_rocketmqs() -> None:
    assert config().retention == RetentionConfig()


def test_retention_is_set_by_rocketmqs_keys_and_by_free_bytes() -> None:
    read = config(
        deleteWhen="4; 16",
        diskMaxUsedSpaceRatio="60",
        cleanResourceInterval="500",
        pocketmqDiskCleanFreeBytes="2000",
        pocketmqDiskFullFreeBytes="1000",
    ).retention
    assert read.delete_hours == {4, 16}
    assert read.max_used_percent == 60
    assert (read.interval_ms, read.first_delay_ms) == (500, 3000)
    assert (read.forced_free_bytes, read.full_free_bytes) == (2000, 1000)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (
            {"diskMaxUsedSpaceRatio": "86", "diskSpaceCleanForciblyRatio": "84"},
            ["diskMaxUsedSpaceRatio=86", "diskSpaceCleanForciblyRatio=84"],
        ),
        ({"diskMaxUsedSpaceRatio": "91"}, ["UsedSpaceRatio=91", "WarningLevelRatio=90"]),
        ({"diskSpaceCleanForciblyRatio": "74"}, ["MaxUsedSpaceRatio=75", "CleanForciblyRatio=74"]),
        (
            {"diskSpaceCleanForciblyRatio": "95", "diskSpaceWarningLevelRatio": "94"},
            ["diskSpaceCleanForciblyRatio=95", "diskSpaceWarningLevelRatio=94"],
        ),
        (
            {"diskMaxUsedSpaceRatio": "95", "cleanFileForciblyEnable": "false"},
            ["diskMaxUsedSpaceRatio=95", "diskSpaceWarningLevelRatio=90"],
        ),
        (
            {"pocketmqDiskFullFreeBytes": "2", "pocketmqDiskCleanFreeBytes": "1"},
            ["pocketmqDiskFullFreeBytes=2", "pocketmqDiskCleanFreeBytes=1"],
        ),
    ],
)
def test_bounds_of_the_disk_that_contradict_each_other_are_refused_by_name(
    keys: dict[str, str], named: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**keys)
    assert all(name in str(refused.value) for name in named)


@pytest.mark.parametrize(
    "keys",
    [
        {"diskMaxUsedSpaceRatio": "85", "diskSpaceWarningLevelRatio": "85"},
        {"diskMaxUsedSpaceRatio": "88"},
        {"diskMaxUsedSpaceRatio": "88", "cleanFileForciblyEnable": "false"},
        {"diskMaxUsedSpaceRatio": "95", "pocketmqDiskCleanFreeBytes": "9"}
        | {"diskSpaceWarningLevelRatio": "96"},
        {"diskSpaceCleanForciblyRatio": "99", "pocketmqDiskFullFreeBytes": "9"},
    ],
)
def test_bounds_that_are_equal_replaced_or_off_contradict_nothing(keys: dict[str, str]) -> None:
    config(**keys)


@pytest.mark.parametrize("percent", ["5", "9", "96", "-1"])
def test_a_disk_ratio_that_rocketmq_would_change_is_refused(percent: str) -> None:
    with pytest.raises(ConfigError, match=r"diskMaxUsedSpaceRatio.* whole number from 10 to 95"):
        config(diskMaxUsedSpaceRatio=percent)


@pytest.mark.parametrize("hours", ["24", "4,16", "", ";", "-1", "four"])
def test_hours_that_no_day_has_are_refused(hours: str) -> None:
    with pytest.raises(ConfigError, match=r"deleteWhen.* must be hours of the day from 0 to 23"):
        config(deleteWhen=hours)


def test_it_binds_the_loopback_by_default() -> None:
    assert (config().bind_host, config().advertised_host) == ("127.0.0.1", "127.0.0.1")


def test_broker_ip1_is_what_is_advertised() -> None:
    assert config(brokerIP1="10.1.2.3", pocketmqBindHost="0.0.0.0").advertised_host == "10.1.2.3"


def test_a_broker_that_listens_everywhere_advertises_an_address_of_the_machine() -> None:
    assert config(pocketmqBindHost="0.0.0.0").advertised_host not in {"0.0.0.0", ""}
    assert config(pocketmqBindHost="::").advertised_host not in {"::", ""}
    assert config(pocketmqBindHost="my.host").advertised_host == "my.host"


def test_without_any_route_it_advertises_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_route(*_: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", no_route)
    assert config(pocketmqBindHost="0.0.0.0").advertised_host == "127.0.0.1"


def test_a_host_name_that_is_no_broker_name_is_not_taken() -> None:
    assert name_of_host("my host!") == "broker-a"
    assert config().name_of_new_store == name_of_host(socket.gethostname())


def test_consume_queue_files_hold_whole_entries() -> None:
    assert config(mappedFileSizeConsumeQueue="2001").mapped_file_size_consume_queue == 2020


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("brokerRole", "SLAVE", "a slave a larger one"),
        ("brokerRole", "SYNC_MASTER", "set haListenPort"),
        ("brokerId", "1", "a slave a larger one"),
        ("authorizationEnabled", "true", "use aclEnable=true"),
        ("enableDLegerCommitLog", "true", "replicates to slaves"),
        ("inSyncReplicas", "2", "waits for one slave"),
        ("minInSyncReplicas", "2", "waits for one slave"),
        ("totalReplicas", "3", "without it there is one"),
        ("allAckInSyncStateSet", "true", "waits for one slave"),
        ("controllerAddr", "c:9878", "needs enableControllerMode"),
        ("enableControllerMode", "true", "needs controllerAddr"),
        ("pocketmqSlaveAddresses", "10.1.2", "pocketmqSlaveAddresses"),
        ("timerPrecisionMs", "100", "1000 ms"),
        ("timerMaxDelaySec", "3456001", "whole number from"),
        ("enableCompaction", "true", "doesn't compact"),
        ("messageStorePlugIn", "com.example.Plugin", "plug-in"),
        ("enableConsumeQueueExt", "true", "extension files"),
        ("enableCalcFilterBitMap", "true", "Bloom filter"),
        ("storePathCommitLog", "/a,/b", "one directory"),
        ("maxMessageSize", "999999999", "whole number from"),
        ("listenPort", "70000", "from 0 to 65535"),
        ("brokerName", "../../etc", "letters, digits"),
        ("listenPrt", "1", "did you mean 'listenPort'"),
    ],
)
def test_what_would_be_dangerous_to_ignore_is_refused(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(**{key: value})


GROUP = {
    "enableControllerMode": "true",
    "controllerAddr": "c1:9878;c2:9878",
    "brokerName": "broker-a",
    "haListenPort": "10912",
}


def test_all_replicas_in_sync_acknowledge_and_they_are_two_at_least() -> None:
    read = config(**GROUP)
    assert (read.all_in_sync_acknowledge, read.least_in_sync) == (True, 2)
    assert read.controller_addr == ("c1:9878", "c2:9878")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("brokerName", "", "which the brokers of a group share"),
        ("brokerRole", "SYNC_MASTER", "leaves brokerRole and brokerId to the controller"),
        ("brokerId", "1", "leaves brokerRole and brokerId to the controller"),
        ("haMasterAddress", "a:10912", "remove haMasterAddress"),
        ("inSyncReplicas", "2", "waits for all replicas in sync"),
    ],
)
def test_settings_that_contradict_a_controller_are_refused(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(**{**GROUP, key: value})


def test_a_group_acknowledges_with_no_more_replicas_than_it_needs_to_take_messages() -> None:
    with pytest.raises(ConfigError, match="inSyncReplicas=3 while sends are taken with"):
        config(**GROUP, allAckInSyncStateSet="false", inSyncReplicas="3")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inSyncReplicas", "1"),
        ("minInSyncReplicas", "1"),
        ("totalReplicas", "1"),
        ("allAckInSyncStateSet", "false"),
        ("timerPrecisionMs", "1000"),
        ("enableCompaction", "False"),
        ("rejectTransactionMessage", "true"),
    ],
)
def test_a_setting_that_matches_the_behaviour_is_accepted(key: str, value: str) -> None:
    read = config(**{key: value})
    assert read.ignored_keys == ()
    assert read.updated({key: value}) == read


def test_every_key_is_of_one_kind() -> None:
    with_effect = set(config().as_properties()) | {"brokerIP1", "brokerIP2", "haListenPort"}
    assert not with_effect & BrokerConfig.KEYS_WITHOUT_EFFECT
    assert not with_effect & BrokerConfig.REFUSED_KEYS.keys()
    assert not BrokerConfig.KEYS_WITHOUT_EFFECT & BrokerConfig.REFUSED_KEYS.keys()


def test_settings_written_are_read_back(tmp_path: Path) -> None:
    written = config(namesrvAddr="a:1;b:2", storePathCommitLog="/x/log", listenPort="0")
    file = tmp_path / "broker.conf"
    file.write_bytes(written.as_text())
    assert BrokerConfig.from_sources(file) == written


def test_replication_is_limited_only_if_flow_control_is_on() -> None:
    assert config(maxHaTransferByteInSecond="5000").slave_rate is None
    assert config(haFlowControlEnable="true").slave_rate == 100 * 1024 * 1024
    limited = config(haFlowControlEnable="true", maxHaTransferByteInSecond="5000")
    assert limited.slave_rate == 5000


def test_a_slave_needs_a_way_to_its_master() -> None:
    with pytest.raises(ConfigError, match="set namesrvAddr, or haMasterAddress"):
        config(brokerRole="SLAVE", brokerId="1").check()
    config(brokerRole="SLAVE", brokerId="1", haMasterAddress="10.0.0.1:10912").check()
