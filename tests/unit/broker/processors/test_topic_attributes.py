"""Requests that change a topic's attributes."""

from __future__ import annotations

import pytest

from broker.limits import MAX_TOPIC_ATTRIBUTES_LENGTH
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.topic import (
    CreateTopicListRequestBody,
    TopicConfig,
)
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin
from tests.unit.broker.harness import Bench
from tests.unit.broker.processors.topics import create


def attributes_of(bench: Bench, topic: str = "T") -> dict[str, str]:
    header = admin.TopicRequestHeader(topic=topic)
    reply = bench.must(Command.request(RequestCode.GET_TOPIC_CONFIG, header))
    return decode(TopicConfig, reply.body).attributes


def test_an_update_without_attributes_leaves_them_alone(bench):
    bench.topic("T", attributes={"message.type": "FIFO", "cleanup.policy": "COMPACTION"})
    assert create(bench, write_queue_nums=9).code == 0
    assert bench.state.topics.get("T").write_queue_nums == 9
    assert attributes_of(bench) == {"message.type": "FIFO", "cleanup.policy": "COMPACTION"}


def test_an_update_merges_the_attributes_it_names(bench):
    assert create(bench, attributes="+message.type=FIFO,+cleanup.policy=DELETE").code == 0
    assert create(bench, attributes="+message.type=DELAY,+reserve.time=5").code == 0
    assert attributes_of(bench) == {
        "message.type": "DELAY",
        "cleanup.policy": "DELETE",
        "reserve.time": "5",
    }
    assert create(bench, attributes="-message.type,-reserve.time").code == 0
    assert attributes_of(bench) == {"cleanup.policy": "DELETE"}


@pytest.mark.parametrize("attributes", ["message.type=FIFO", "+foo=bar", "-message.type"])
def test_attributes_that_are_refused_make_no_topic(bench, attributes):
    reply = create(bench, attributes=attributes)
    assert reply.code == 1
    assert reply.remark.endswith("(attributes of topic T)")
    assert "T" not in bench.state.topics


def test_a_refused_attribute_changes_nothing_of_a_topic(bench):
    create(bench, attributes="+cleanup.policy=DELETE")
    assert create(bench, write_queue_nums=9, attributes="+cleanup.policy=COMPACTION").code == 1
    assert bench.state.topics.get("T").write_queue_nums == 2
    assert attributes_of(bench) == {"cleanup.policy": "DELETE"}


def test_mixed_topics_have_to_be_allowed(bench):
    reply = create(bench, attributes="+message.type=MIXED")
    assert (reply.code, reply.remark.split(".")[0]) == (29, "MIXED message type is not supported")
    assert "T" not in bench.state.topics


def test_mixed_topics_can_be_allowed(make_bench):
    bench = make_bench(enable_mixed_message_type=True)
    assert create(bench, attributes="+message.type=MIXED").code == 0
    assert attributes_of(bench) == {"message.type": "MIXED"}


def test_a_list_of_topics_changes_attributes_in_the_same_way(bench):
    def put(*topics: tuple[str, dict[str, str] | None]) -> int:
        configs = [TopicConfig(topic_name=name, attributes=changes) for name, changes in topics]
        body = encode(CreateTopicListRequestBody(topic_config_list=configs))
        return bench.must(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code

    assert put(("A", {"+message.type": "FIFO"}), ("B", None)) == 0
    assert put(("A", None), ("B", {"message.type": "FIFO"})) == 1
    assert put(("A", {"+reserve.time": "1"}), ("A", {"-message.type": ""})) == 0
    assert (attributes_of(bench, "A"), attributes_of(bench, "B")) == ({"reserve.time": "1"}, {})


def test_a_topics_attributes_are_bounded(bench):
    def create_with(attributes: dict[str, str]) -> int:
        config = TopicConfig(topic_name="A", attributes=attributes)
        body = CreateTopicListRequestBody(topic_config_list=[config])
        command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=encode(body))
        return bench.must(command).code

    assert create_with({"+message.type": "x" * MAX_TOPIC_ATTRIBUTES_LENGTH}) == 1
    assert "A" not in bench.state.topics
    assert create_with({"+message.type": "FIFO"}) == 0
