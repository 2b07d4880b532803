"""The tables in ``config/``: RocketMQ's file formats, saved on change, read at the start."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.config import BrokerConfig
from broker.errors import StartError
from broker.groups.queue_locks import RESTORED_LIVE_MS
from broker.saved_tables import SavedTables
from broker.store.os_files import Files
from broker.store.results import StoreError
from remoting.protocol.bodies.body import MapParts
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.heartbeat import SubscriptionData
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.queue import MessageQueue
from tests.support.archives import unpack as unpack_archive
from tests.support.clock import ManualClock
from tests.support.waiting import until


def tables(directory: Path, *, now_ms: int = 0, on_topics=None, **settings) -> SavedTables:
    config = BrokerConfig(**{"broker_name": "broker-a", **settings})
    clock = ManualClock(now_ms=now_ms, monotonic=now_ms / 1000)
    return SavedTables(config, directory, Files(), clock, on_topics)


async def test_a_change_of_topics_is_written_in_rocketmqs_form(tmp_path):
    saved = tables(tmp_path)
    saved.topics.table.clear()
    saved.topics.put(TopicConfig(topic_name="TopicTest", read_queue_nums=4, write_queue_nums=4), 5)
    assert await saved.topics_changed(None, paced=True)
    assert (tmp_path / "topics.json").read_text() == (
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":5\n\t},\n'
        '\t"topicConfigTable":{\n\t\t"TopicTest":{\n\t\t\t"order":false,\n\t\t\t"perm":6,\n'
        '\t\t\t"readQueueNums":4,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n'
        '\t\t\t"topicName":"TopicTest",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":4\n'
        "\t\t}\n\t}\n}"
    )


async def test_offsets_are_written_in_rocketmqs_form(tmp_path):
    saved = tables(tmp_path)
    saved.offsets.commit("cg", "TopicTest", 0, 365)
    saved.offsets.commit("cg", "TopicTest", 1, 399)
    await saved.flush()
    assert (tmp_path / "consumerOffset.json").read_text() == (
        '{\n\t"offsetTable":{\n\t\t"TopicTest@cg":{0:365,1:399\n\t\t}\n\t}\n}'
    )


async def test_all_tables_are_restored_after_a_restart(tmp_path):
    first = tables(tmp_path)
    assert first.lost_offsets
    first.save_all()
    first.topics.put(TopicConfig(topic_name="T", perm=4), 7)
    first.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3), 7)
    first.offsets.commit("g", "T", 2, 9)
    first.groups.set_may_read("g", "T", 8, allowed=False)
    await asyncio.gather(first.topics_changed(None, paced=True), first.groups_changed())
    await first.flush()
    second = tables(tmp_path)
    assert second.topics.table == first.topics.table
    assert second.topics.data_version == first.topics.data_version
    assert second.groups.table == first.groups.table
    assert second.groups.forbidden == {"g": {"T": 4}}
    assert second.offsets.table == {"T@g": {2: 9}}
    assert not second.lost_offsets


async def name_of(directory: Path, **settings) -> tuple[str, str | None]:
    """Return the name that a broker gets with these tables, and the previous one."""
    saved = tables(directory, **{"broker_name": "", "name_of_new_store": "fresh", **settings})
    saved.save_all()
    await saved.flush()
    return saved.config.broker_name, saved.named_before


async def test_a_broker_keeps_the_name_its_store_was_written_under(tmp_path):
    assert await name_of(tmp_path, broker_name="shop") == ("shop", None)
    assert await name_of(tmp_path) == ("shop", None)
    assert (tmp_path / "brokerName.json").read_text() == '{\n\t"brokerName":"shop"\n}'


async def test_a_new_store_is_written_under_the_name_for_new_ones(tmp_path):
    assert await name_of(tmp_path) == ("fresh", None)
    assert await name_of(tmp_path, name_of_new_store="another") == ("fresh", None)


async def test_a_store_opened_under_another_name_is_logged_once(tmp_path):
    await name_of(tmp_path, broker_name="shop")
    assert await name_of(tmp_path, broker_name="store") == ("store", "shop")
    assert await name_of(tmp_path) == ("store", None)


async def test_an_old_store_keeps_the_hosts_name_if_it_was_written_under_it(tmp_path):
    await name_of(tmp_path, broker_name="rack-7")
    for old in tmp_path.glob("brokerName*"):
        old.unlink()
    assert await name_of(tmp_path, host_name="rack-7") == ("rack-7", None)


async def test_an_old_store_of_another_host_gets_the_name_for_new_ones(tmp_path):
    await name_of(tmp_path, broker_name="0d3c52a1b7f4")
    for old in tmp_path.glob("brokerName*"):
        old.unlink()
    assert await name_of(tmp_path, host_name="rack-7") == ("fresh", None)


async def test_a_saved_name_that_is_illegal_is_logged(tmp_path):
    (tmp_path / "brokerName.json").write_text('{"brokerName": "my shop!"}')
    with pytest.raises(StartError, match=r"brokerName.json holds no broker name .* --name"):
        await name_of(tmp_path)
    assert await name_of(tmp_path, broker_name="shop") == ("shop", "my shop!")


async def test_queue_locks_survive_a_restart(tmp_path):
    queue = MessageQueue("T", "broker-a", 3)
    first = tables(tmp_path)
    first.locks.lock("g", "owner", [queue], 1_000)
    await first.flush()
    second = tables(tmp_path, now_ms=41_000)
    assert second.locks.lock("g", "another", [queue], 61_000) == []
    assert second.locks.lock("g", "another", [queue], 61_001) == [queue]


async def test_a_lock_keeps_its_time_if_the_clock_was_set_before_the_restart(tmp_path):
    queue = MessageQueue("T", "broker-a", 3)
    clock = ManualClock(now_ms=0, monotonic=7)
    first = SavedTables(BrokerConfig(broker_name="broker-a"), tmp_path, Files(), clock)
    first.locks.lock("g", "owner", [queue], 7_000)
    clock.advance(10)
    clock.jump(3_600_000)
    await first.flush()
    second = tables(tmp_path, now_ms=3_610_000)
    assert second.locks.owner("g", queue, 3_660_000) == "owner"
    assert second.locks.owner("g", queue, 3_660_001) is None


async def test_after_a_crash_a_lock_has_half_a_minute_left(tmp_path):
    queue = MessageQueue("T", "broker-a", 3)
    first = tables(tmp_path)
    first.locks.lock("g", "owner", [queue], 1_000)
    first.save_changes()
    await until((tmp_path / "queueLocks.json").exists)
    second = tables(tmp_path, now_ms=500_000)
    assert second.locks.lock("g", "another", [queue], 500_000 + RESTORED_LIVE_MS) == []
    assert second.locks.lock("g", "another", [queue], 500_001 + RESTORED_LIVE_MS) == [queue]


async def test_a_released_lock_is_not_restored(tmp_path):
    queue = MessageQueue("T", "broker-a", 3)
    saved = tables(tmp_path)
    saved.locks.lock("g", "owner", [queue], 1_000)
    saved.locks.unlock("g", "owner", [queue])
    await saved.flush()
    assert len(tables(tmp_path, now_ms=2_000).locks) == 0


async def test_the_first_start_writes_every_file(tmp_path):
    saved = tables(tmp_path)
    saved.save_all()
    await saved.flush()
    assert {path.name for path in tmp_path.iterdir()} >= {
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
    }


async def test_offsets_are_written_only_if_they_changed(tmp_path):
    saved = tables(tmp_path)
    saved.save_all()
    await saved.flush()
    path = tmp_path / "consumerOffset.json"
    os.utime(path, (1, 1))
    written = path.stat().st_mtime_ns
    saved.save_changes()
    await saved.flush()
    assert path.stat().st_mtime_ns == written
    saved.offsets.commit("g", "T", 0, 1)
    saved.save_changes()
    await saved.flush()
    assert path.stat().st_mtime_ns > written


async def test_a_commit_during_a_write_is_in_the_next_one(tmp_path):
    saved = tables(tmp_path)
    saved.offsets.commit("g", "T", 0, 1)
    saved.save_changes()
    saved.offsets.commit("g", "T", 0, 2)
    await saved.flush()
    assert tables(tmp_path).offsets.query("g", "T", 0) == 2


@pytest.mark.parametrize("paced", [True, False])
async def test_a_change_of_topics_is_pending_until_it_is_saved_and_registered(tmp_path, paced):
    calls, registered = [], asyncio.get_running_loop().create_future()

    def register(names, paced):
        calls.append((names, paced))
        return registered

    saved = tables(tmp_path, on_topics=register)
    change = saved.topics_changed(["T"], paced=paced)
    await saved.flush()
    assert saved.topic_pending("T") is change
    assert not change.done()
    registered.set_result([False])
    assert await change
    assert saved.topic_pending("T") is None
    assert calls == [(["T"], paced)]


def test_a_wrapper_has_the_topics_requested(tmp_path):
    saved = tables(tmp_path)
    assert saved.topic_wrapper(None).topic_config_table.keys() == saved.topics.table.keys()
    assert list(saved.topic_wrapper(["TBW102", "unknown"]).topic_config_table) == ["TBW102"]
    assert saved.topic_wrapper([]).topic_config_table == {}


def test_a_damaged_file_is_replaced_by_its_backup_and_logged(tmp_path):
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:')
    (tmp_path / "consumerOffset.json.bak").write_text('{"offsetTable":{"T@g":{0:7}}}')
    with capture_logs() as logs:
        saved = tables(tmp_path)
    assert saved.offsets.query("g", "T", 0) == 7
    assert "consumerOffset.json" in logs[0]["problem"]


def test_a_damaged_file_without_a_good_backup_stops_the_start(tmp_path):
    (tmp_path / "topics.json").write_text("{")
    (tmp_path / "topics.json.bak").write_text("{")
    with pytest.raises(StoreError, match=r"topics\.json"):
        tables(tmp_path)


def test_a_file_that_holds_something_else_stops_the_start(tmp_path):
    (tmp_path / "topics.json").write_text('{"topicConfigTable":[1,2]}')
    with pytest.raises(StartError, match="remove it"):
        tables(tmp_path)


def test_files_of_apaches_broker_are_read(tmp_path, golden):
    unpack_archive(golden / "store" / "clean.tar.gz", tmp_path)
    config = tmp_path / "store" / "config"
    saved = tables(config)
    written = json.loads((golden / "store" / "clean.manifest.json").read_text())["config_files"]
    assert "topics.json" in "".join(written)
    assert not saved.lost_offsets
    assert len(saved.offsets) > 0
    assert any(name.startswith("%RETRY%") for name in saved.topics.table)
    shutil.rmtree(config)
    assert tables(config).lost_offsets


async def test_progress_of_delay_levels_is_written_in_rocketmqs_form(tmp_path):
    saved = tables(tmp_path)
    assert saved.delay_offsets is None
    saved.save_delay_offsets({1: 5, 2: 1})
    await saved.flush()
    assert (tmp_path / "delayOffset.json").read_text() == '{\n\t"offsetTable":{1:5,2:1\n\t}\n}'
    assert tables(tmp_path).delay_offsets == {1: 5, 2: 1}


async def test_a_first_start_leaves_a_file_so_that_a_missing_one_means_a_lost_one(tmp_path):
    first = tables(tmp_path)
    first.save_all()
    await first.flush()
    assert tables(tmp_path).delay_offsets == {}


async def test_files_taken_from_a_running_broker_come_back_with_the_next_change(tmp_path):
    directory = tmp_path / "config"
    saved = tables(directory)
    saved.save_all()
    await saved.flush()
    shutil.rmtree(directory)
    saved.offsets.commit("g", "T", 0, 5)
    saved.topics.put(TopicConfig(topic_name="T"), 1)
    assert await saved.topics_changed(None, paced=True)
    await saved.flush()
    again = tables(directory)
    assert again.offsets.query("g", "T", 0) == 5
    assert "T" in again.topics.table


def test_fields_of_a_later_version_are_ignored(tmp_path):
    (tmp_path / "topics.json").write_text(
        '{"dataVersion":{"counter":3,"timestamp":4,"stateVersion":9},"mappings":[{"a":{1:2}}],'
        '"topicConfigTable":{"T":{"topicName":"T","attributes":{"+message.type":"FIFO"},"perm":6,'
        '"newer":{"x":[1]}}}}'
    )
    (tmp_path / "consumerOffset.json").write_text(
        '{"dataVersion":{"counter":1},"offsetTable":{"T@g":{0:7}},"resetOffsetTable":{},"new":1}'
    )
    (tmp_path / "subscriptionGroup.json").write_text(
        '{"forbiddenTable":{},"subscriptionGroupTable":{"g":{"groupName":"g","newer":true}}}'
    )
    saved = tables(tmp_path)
    assert saved.topics.table["T"].perm == 6
    assert saved.offsets.query("g", "T", 0) == 7
    assert "g" in saved.groups.table


async def test_a_new_topic_is_pending_until_it_is_on_the_disk_and_no_other_is(tmp_path):
    saved = tables(tmp_path)
    saved.topics.put(TopicConfig("Old"), 1)
    await saved.topics_changed(["Old"], paced=True)
    saved.topics.put(TopicConfig("New"), 2)
    change = saved.topics_changed(["New"], paced=True)
    assert saved.topic_pending("New") is not None
    assert saved.topic_pending("Old") is None
    assert await change
    assert saved.topic_pending("New") is None


async def test_for_a_new_topic_no_other_is_encoded(tmp_path, monkeypatch):
    texts = []
    part = MapParts.part

    def counted(self, body):
        texts.extend(body.topic_config_table)
        return part(self, body)

    monkeypatch.setattr(MapParts, "part", counted)
    saved = tables(tmp_path)
    saved.save_all()
    await saved.flush()
    before = len(texts)
    for n in range(50):
        saved.topics.put(TopicConfig(f"t{n}"), n)
        await saved.topics_changed([f"t{n}"], paced=True)
    assert texts[before:] == [f"t{n}" for n in range(50)]
    saved.topics.put(TopicConfig("t7", perm=4), 100)
    saved.topics.delete("t8", 101)
    await saved.topics_changed(None, paced=True)
    assert texts[before + 50 :] == ["t7"]
    again = tables(tmp_path).topics
    assert again.table == saved.topics.table
    assert again.data_version == saved.topics.data_version


async def test_filters_of_groups_are_written_when_they_changed(tmp_path):
    first, file = tables(tmp_path), tmp_path / "consumerFilter.json"
    first.save_filters(0, 60_000)
    await first.flush()
    assert not file.exists()
    wanted = SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92", sub_version=7)
    first.filters.register("g", [wanted], 1_000)
    first.save_filters(2_000, 60_000)
    await first.flush()
    written = file.read_bytes()
    first.save_filters(3_000, 60_000)
    await first.flush()
    assert file.read_bytes() == written
    second = tables(tmp_path, now_ms=100_000)
    assert second.filters.get("T", "g").data.client_version == 7
    second.filters.register("g", [wanted], 110_000)
    await second.flush()
    assert json.loads(file.read_bytes()) == json.loads(written)


async def test_filters_of_groups_that_left_long_ago_are_forgotten(tmp_path):
    first = tables(tmp_path)
    wanted = SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92")
    first.filters.register("g", [wanted], 1_000)
    first.filters.left("g", 2_000)
    first.save_filters(61_999, 60_000)
    assert len(first.filters) == 1
    first.save_filters(62_000, 60_000)
    await first.flush()
    assert json.loads((tmp_path / "consumerFilter.json").read_bytes()) == {"filterDataByTopic": {}}


def test_a_saved_filter_that_is_wrong_does_not_keep_the_broker_from_starting(tmp_path):
    entry = {"consumerGroup": "g", "topic": "T", "expression": "a >", "expressionType": "SQL92"}
    table = {"T": {"topic": "T", "groupFilterData": {"g": entry}}}
    (tmp_path / "consumerFilter.json").write_text(json.dumps({"filterDataByTopic": table}))
    with capture_logs() as logs:
        loaded = tables(tmp_path)
    assert loaded.filters.get("T", "g").filter is None
    assert [line["event"] for line in logs] == ["a saved filter is not used"]
