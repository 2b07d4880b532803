"""Bodies and files written by Java, decoded and encoded to the same text."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from remoting.protocol.bodies import (
    clients,
    decode,
    encode,
    group,
    heartbeat,
    registration,
    relaxed_json,
    route,
    stats,
    topic,
)
from remoting.protocol.queue import MessageQueue

MODULES = (
    clients,
    group,
    heartbeat,
    registration,
    route,
    stats,
    topic,
)
CLASSES: dict[str, type[msgspec.Struct]] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct)
}
TEXTS = [
    line.split(" ", 2)
    for line in Path(__file__).with_name("java_texts.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]

CONFIG_CLASSES: dict[str, type[msgspec.Struct]] = {
    "topics.json": topic.TopicConfigSerializeWrapper,
    "subscriptionGroup.json": group.SubscriptionGroupWrapper,
    "consumerOffset.json": group.ConsumerOffsetSerializeWrapper,
    "delayOffset.json": group.DelayOffsetSerializeWrapper,
}

TOPICS_FILE = """{
	"dataVersion":{
		"counter":3,
		"timestamp":1600000000000
	},
	"topicConfigTable":{
		"TopicTest":{
			"order":false,
			"perm":6,
			"readQueueNums":4,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"TopicTest",
			"topicSysFlag":0,
			"writeQueueNums":4
		}
	}
}"""
CONSUMER_OFFSETS_FILE = """{
	"offsetTable":{
		"TopicTest@cg":{0:365,1:399
		}
	}
}"""
CLIENT_OFFSETS_FILE = """{
	"offsetTable":{{
			"brokerName":"broker-a",
			"queueId":0,
			"topic":"T"
		}:12
	}
}"""
DELAY_OFFSETS_FILE = """{
	"offsetTable":{}
}"""
FILES = {
    "topics": (topic.TopicConfigSerializeWrapper, TOPICS_FILE),
    "consumer offsets": (group.ConsumerOffsetSerializeWrapper, CONSUMER_OFFSETS_FILE),
    "client offsets": (group.ResetOffsetBody, CLIENT_OFFSETS_FILE),
    "delay offsets": (group.DelayOffsetSerializeWrapper, DELAY_OFFSETS_FILE),
}


def test_the_list_of_texts_is_whole() -> None:
    assert len(TEXTS) == 38


@pytest.mark.parametrize(("name", "form", "text"), TEXTS, ids=[f"{n}-{f}" for n, f, _ in TEXTS])
def test_a_body_is_written_as_java_writes_it(name: str, form: str, text: str) -> None:
    body = decode(CLASSES[name], text.encode())
    assert encode(body, standard=form == "standard").decode() == text


@pytest.mark.parametrize(("name", "form", "text"), TEXTS, ids=[f"{n}-{f}" for n, f, _ in TEXTS])
def test_a_body_keeps_all_its_members_in_each_form(name: str, form: str, text: str) -> None:
    body = decode(CLASSES[name], text.encode())
    assert decode(CLASSES[name], encode(body, standard=True)) == body
    assert decode(CLASSES[name], encode(body, pretty=True)) == body
    json.loads(encode(body, standard=True))  # which any reader of JSON understands


@pytest.mark.parametrize("what", FILES)
def test_a_file_is_written_as_java_writes_it(what: str) -> None:
    kind, text = FILES[what]
    assert encode(decode(kind, text.encode()), pretty=True).decode() == text


def config_files(golden: Path) -> list[tuple[str, str]]:
    files: list[tuple[str, str]] = []
    for path in sorted((golden / "store").glob("*.manifest.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files += manifest.get("config_files", {}).items()
    return files


def test_captured_configuration_files_are_written_as_they_were(golden: Path) -> None:
    seen = set()
    for name, text in config_files(golden):
        kind = CONFIG_CLASSES.get(name.removesuffix(".bak"))
        if kind is None:
            continue
        seen.add(name)
        assert encode(decode(kind, text.encode()), pretty=True).decode() == text, name
    assert seen >= CONFIG_CLASSES.keys()


def test_files_without_a_class_keep_their_text_as_well(golden: Path) -> None:
    seen = 0
    for name, text in config_files(golden):
        tree = relaxed_json.loads(text.encode())
        assert relaxed_json.dumps(tree, pretty="\n" in text).decode() == text, name
        seen += 1
    assert seen > 20


def test_a_map_by_queue_is_read_as_a_dict_of_queues() -> None:
    body = decode(group.ResetOffsetBody, CLIENT_OFFSETS_FILE.encode())
    assert body.offset_table == {MessageQueue("T", "broker-a", 0): 12}


def test_more_than_one_queue_stays_on_the_line_of_the_one_before() -> None:
    table = {MessageQueue("T", "a", 0): 1, MessageQueue("T", "a", 1): 2}
    text = encode(group.ResetOffsetBody(table), pretty=True).decode()
    assert "\t\t}:1,{\n\t\t\t" in text


def test_lists_in_files_have_a_line_for_each_element() -> None:
    text = encode(stats.TopicList(["a", "b"]), pretty=True).decode()
    assert text == '{\n\t"topicList":[\n\t\t"a",\n\t\t"b"\n\t]\n}'


def test_a_new_version_has_a_counter_and_a_time() -> None:
    version = topic.DataVersion(5, 7).next(1600)
    assert (version.timestamp, version.counter, version.state_version) == (1600, 8, None)


def test_defaults_are_those_of_java() -> None:
    assert encode(topic.TopicConfig("T")) == (
        b'{"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T","topicSysFlag":0,"writeQueueNums":16}'
    )
    assert encode(group.SubscriptionGroupConfig("g")) == (
        b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"groupName":"g","notifyConsumerIdsChangedEnable":true,'
        b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )
