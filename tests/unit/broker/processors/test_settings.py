"""UPDATE_BROKER_CONFIG: settings change at once, all of a request or none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.config import RUNTIME_KEYS, BrokerConfig
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from tests.unit.broker.harness import Bench, fields_of, pull_command
from tests.unit.broker.processors.topics import create


def update(bench: Bench, text: str) -> Command:
    return bench.must(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode()))


def shown(bench: Bench) -> set[str]:
    reply = bench.must(Command.request(RequestCode.GET_BROKER_CONFIG))
    return set(bytes(reply.body).decode().splitlines())


def test_the_answer_has_what_apaches_tools_export(bench):
    assert {"brokerRole=ASYNC_MASTER", "filterServerNums=0", "useTLS=false"} <= shown(bench)


def test_the_answer_without_settings_is_success(bench):
    assert update(bench, "").code == 0
    assert bench.changes.settings == []


def test_changed_settings_are_in_effect_saved_and_shown(bench):
    bench.topic("T")
    assert bench.send("New", queue_id=0).code == 0
    reply = update(bench, "autoCreateTopicEnable=false\nlongPollingEnable = False\n")
    assert (reply.code, reply.remark) == (0, None)
    assert bench.send("Newer").code == 17
    assert bench.changes.settings == [
        {"autoCreateTopicEnable": "false", "longPollingEnable": "false"}
    ]
    assert {"autoCreateTopicEnable=false", "longPollingEnable=false"} <= shown(bench)
    version = fields_of(bench.must(Command.request(RequestCode.GET_BROKER_CONFIG)))["version"]
    assert version == f'{{"counter":1,"timestamp":{bench.clock.now_ms()}}}'


def test_a_group_is_no_longer_created_by_its_first_pull(bench):
    bench.topic("T")
    update(bench, "autoCreateSubscriptionGroup=false")
    assert bench.must(pull_command("T", consumer_group="fresh")).code == 26


def test_the_limit_of_topics_is_the_new_one(bench):
    update(bench, "pocketmqMaxTopics=1")
    assert "pocketmqMaxTopics" in (bench.send("New").remark or "")
    assert create(bench, "ByAnAdministrator").code == 0


def test_messages_are_kept_as_long_as_the_new_setting_says(make_bench):
    bench = make_bench(file_reserved_time_hours=72)
    update(bench, "fileReservedTime=1\ndeleteWhen=05;17")
    assert bench.state.config.retention.reserved_ms == 3_600_000
    assert bench.state.config.retention.delete_hours == {5, 17}


def test_a_changed_permission_is_registered_with_all_topics(bench):
    before = bench.state.topics.data_version
    assert update(bench, "brokerPermission=4").code == 0
    assert bench.changes.topics == [(None, False)]
    assert bench.state.topics.data_version != before
    bench.topic("T", order=True)
    assert bench.send("T").remark == "the broker[127.0.0.1] sending message is forbidden"


def test_topics_are_created_once_that_is_allowed(make_bench):
    bench = make_bench(auto_create_topic_enable=False)
    assert bench.send("New").code == 17
    assert update(bench, "autoCreateTopicEnable=true").code == 0
    assert bench.changes.topics == [(None, False)], "clients need the route of TBW102"
    assert bench.send("New").code == 0


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("listenPort=1\nflushDiskType=SYNC_FLUSH", 1, "flushDiskType, listenPort"),
        ("autoCreateTopicEnabled=false", 1, "did you mean 'autoCreateTopicEnable'?"),
        ("fileReservedTime=-1", 1, "fileReservedTime=-1: must be a whole number"),
        ("brokerRole=SLAVE", 1, "a slave a larger one"),
        ("diskMaxUsedSpaceRatio=95", 1, "diskSpaceWarningLevelRatio"),
        ("rocketmqHome=/tmp", 16, "Can not update config in black list: rocketmqHome"),
        ("longPollingEnable=\\u12", 1, "\\u escape"),
        ("transactionCheckMax=0", 1, "transactionCheckMax=0"),
    ],
)
def test_nothing_is_changed_when_one_setting_is_refused(bench, text, code, remark):
    before = bench.state.config
    reply = update(bench, f"longPollingEnable=false\n{text}\n")
    assert reply.code == code
    assert remark in (reply.remark or "")
    assert bench.state.config is before
    assert bench.changes.settings == []


def test_a_body_that_is_not_utf_8_is_refused(bench):
    reply = bench.must(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"a=\xff"))
    assert (reply.code, reply.remark) == (1, "the properties text is not UTF-8 at byte 2")


def test_settings_as_they_are_and_those_without_effect_are_accepted(bench):
    reply = bench.must(Command.request(RequestCode.GET_BROKER_CONFIG))
    everything = bytes(reply.body).decode() + "sendMessageThreadPoolNums=16\n"
    assert update(bench, everything).code == 0
    assert bench.changes.settings == []
    assert bench.changes.topics == []


def test_a_change_that_cannot_be_saved_is_reported(bench):
    bench.changes.saves = False
    reply = update(bench, "longPollingEnable=false")
    assert reply.code == 1
    assert "a restart would undo it" in (reply.remark or "")


def test_every_key_that_may_change_is_a_setting():
    assert BrokerConfig.known_keys() >= RUNTIME_KEYS
    assert not RUNTIME_KEYS & BrokerConfig.KEYS_WITHOUT_EFFECT
    assert not RUNTIME_KEYS & BrokerConfig.REFUSED_KEYS.keys()


def test_the_manual_lists_the_keys_that_may_change():
    text = Path("docs/operating/settings.md").read_text().partition("## Changing settings")[2]
    listed = re.findall(r"`(\w+)`", text.partition("Any other setting")[0])
    assert set(listed) - {"HOST"} >= RUNTIME_KEYS
