"""Workers: names, ports and stores, and the restart delay of a dead one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from pocketmq.server.workers import (
    FIRST_DELAY,
    LONGEST_DELAY,
    STEADY_AFTER,
    WorkerPlan,
    facts_of,
    next_delay,
    plans,
    unopened_stores,
)
from remoting.runtime.settings import ConfigError

CONFIG = BrokerConfig(
    broker_name="b", listen_port=10911, store_path_root_dir=Path("/data"), ha_listen_port=10912
)


def test_each_worker_has_a_name_a_port_and_a_store_of_its_own() -> None:
    first, second = plans(CONFIG, 2, settings={"flushDiskType": "SYNC_FLUSH"})
    assert first.settings == {
        "flushDiskType": "SYNC_FLUSH",
        "brokerName": "b-0",
        "storePathRootDir": "/data/b-0",
        "listenPort": "10911",
        "haListenPort": "10912",
    }
    assert second.name == "b-1"
    assert second.settings["listenPort"] == "10921"
    assert second.settings["haListenPort"] == "10922"
    assert second.settings["storePathRootDir"] == "/data/b-1"


def test_each_worker_advertises_a_port_of_its_own_and_keeps_its_own_at_a_restart() -> None:
    second = plans(replace(CONFIG, advertised_port=31911), 2, settings={})[1]
    assert second.settings["pocketmqAdvertisedPort"] == "31921"
    assert "--set=listenPort=10921" in second.command({"broker": "127.0.0.1:31921"})


def test_each_worker_of_a_slave_copies_the_masters_worker_of_its_number() -> None:
    config = replace(CONFIG, ha_master_address="10.0.0.2:10912")
    assert [plan.settings["haMasterAddress"] for plan in plans(config, 2, settings={})] == [
        "10.0.0.2:10912",
        "10.0.0.2:10922",
    ]


def test_a_separate_commit_log_directory_is_not_shared_either() -> None:
    config = BrokerConfig(broker_name="b", store_path_commit_log=Path("/fast"))
    assert [plan.settings["storePathCommitLog"] for plan in plans(config, 2, settings={})] == [
        "/fast/b-0",
        "/fast/b-1",
    ]


def test_an_audit_log_is_not_shared_either() -> None:
    config = BrokerConfig(broker_name="b", audit_log="/var/log/pocketmq/audit.log")
    assert [plan.settings["pocketmqAuditLog"] for plan in plans(config, 2, settings={})] == [
        "/var/log/pocketmq/audit-0.log",
        "/var/log/pocketmq/audit-1.log",
    ]


def stores(root: Path, *names: str) -> BrokerConfig:
    for name in names:
        (root / name / "config").mkdir(parents=True)
    return BrokerConfig(name_of_new_store="host", store_path_root_dir=root)


def test_workers_without_a_name_keep_that_of_their_stores(tmp_path: Path) -> None:
    def names(config: BrokerConfig) -> list[str]:
        return [plan.name for plan in plans(config, 2, settings={})]

    assert names(stores(tmp_path)) == ["host-0", "host-1"]
    config = stores(tmp_path, "rack-7-0", "rack-7-1", "rack-7-2", "namesrv")
    assert names(config) == ["rack-7-0", "rack-7-1"]
    assert names(replace(config, broker_name="new")) == ["new-0", "new-1"]
    with pytest.raises(
        ConfigError, match=r"several brokers \(other, rack-7\): choose one with --name"
    ):
        names(stores(tmp_path, "other-0"))


def test_stores_of_another_name_or_number_are_logged(tmp_path: Path) -> None:
    def left(name: str, workers: int) -> list[str]:
        return unopened_stores(plans(replace(config, broker_name=name), workers, settings={}))

    config = stores(tmp_path, "a-0", "a-1", "a-2", "b-0")
    assert left("a", 3) == []
    assert left("a", 2) == ["a-2"]
    assert left("c", 3) == ["a-0", "a-1", "a-2", "b-0"]


@pytest.mark.parametrize(("first", "ports"), [(9500, ["9500", "9501"]), (0, ["0", "0"])])
def test_each_worker_serves_its_own_metrics(first: int, ports: list[str]) -> None:
    made = plans(CONFIG, 2, settings={}, metrics_port=first)
    assert [plan.options[-1] for plan in made] == ports


def test_a_worker_that_comes_back_has_its_old_ports() -> None:
    plan = WorkerPlan(name="b-0", settings={"listenPort": "0"}, options=["--json"])
    assert "--set=listenPort=0" in plan.command({})
    command = plan.command({"broker": "127.0.0.1:4711", "metrics": "127.0.0.1:4712"})
    assert "--set=listenPort=4711" in command
    assert command[command.index("--metrics-port") + 1] == "4712"
    assert command[-1] == "--until-stdin-closes"


def test_the_delay_doubles_up_to_a_bound_and_restarts_after_steady_service() -> None:
    delays = [next_delay(0, 0)]
    while delays[-1] < LONGEST_DELAY:
        delays.append(next_delay(delays[-1], 1))
    assert delays[:3] == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY]
    assert next_delay(LONGEST_DELAY, 1) == LONGEST_DELAY
    assert next_delay(LONGEST_DELAY, STEADY_AFTER) == FIRST_DELAY


@pytest.mark.parametrize(
    "line",
    [
        "ready: broker 127.0.0.1:1, metrics 127.0.0.1:2\n",
        '{"event":"ready","broker":"127.0.0.1:1","metrics":"127.0.0.1:2","pid":7}\n',
    ],
)
def test_the_ready_line_of_either_form_is_understood(line: str) -> None:
    assert facts_of(line) == {"broker": "127.0.0.1:1", "metrics": "127.0.0.1:2"}


@pytest.mark.parametrize("line", ["", "something else\n", "[1]\n", '{"event":"other"}\n', "{\n"])
def test_any_other_line_is_none(line: str) -> None:
    assert facts_of(line) == {}
