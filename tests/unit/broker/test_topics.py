"""The topic table: topics at start, and topics that a send may create."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.config import BrokerConfig
from broker.errors import LimitReached
from broker.topics.table import TopicTable
from remoting.protocol.bodies.topic import DataVersion, TopicConfig

CONFIG = BrokerConfig(broker_name="broker-a")


def table(**changes) -> TopicTable:
    return TopicTable(replace(CONFIG, **changes))


@pytest.mark.parametrize(
    ("name", "queues", "perm"),
    [
        ("SELF_TEST_TOPIC", 1, 6),
        ("TBW102", 8, 7),
        ("BenchmarkTest", 1024, 6),
        ("DefaultCluster", 16, 7),
        ("broker-a", 1, 7),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("DefaultCluster_REPLY_TOPIC", 1, 6),
    ],
)
def test_system_topics_exist_at_boot(name, queues, perm):
    config = table().get(name)
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (queues, queues, perm)
    assert table().is_system(name)


def test_settings_enable_some_system_topics():
    topics = table(
        auto_create_topic_enable=False,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        trace_topic_enable=True,
        msg_trace_topic_name="MY_TRACE",
    )
    assert "TBW102" not in topics
    assert topics.get("DefaultCluster").perm == 1
    assert topics.get("broker-a").perm == 1
    assert topics.get("MY_TRACE").write_queue_nums == 1


@pytest.mark.parametrize("name", ["RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_anything", "TBW102"])
def test_names_of_the_broker_are_system_topics_even_if_they_do_not_exist(name):
    assert table(auto_create_topic_enable=False).is_system(name)


def test_boot_is_no_change_and_stored_topics_win():
    stored = {"TBW102": TopicConfig(topic_name="TBW102", write_queue_nums=3, perm=7)}
    topics = TopicTable(CONFIG, stored, DataVersion(5, 2))
    assert topics.data_version == DataVersion(5, 2)
    assert topics.get("TBW102").write_queue_nums == 3


@pytest.mark.parametrize(("asked", "given"), [(4, 4), (8, 8), (16, 8), (-1, 0)])
def test_a_send_creates_a_topic_with_at_most_the_templates_queues(asked, given):
    topics = table()
    config = topics.create_by_send("T", "TBW102", asked, 7)
    assert config == TopicConfig(
        topic_name="T", read_queue_nums=given, write_queue_nums=given, perm=6
    )
    assert topics.get("T") is config
    assert topics.data_version == DataVersion(7, 1)


def test_a_send_in_unit_mode_creates_a_unit_topic():
    assert table().create_by_send("T", "TBW102", 4, 7, unit=True).topic_sys_flag == 1


@pytest.mark.parametrize("template", ["NoSuchTopic", "BenchmarkTest"])
def test_a_template_has_to_exist_and_to_allow_it(template):
    topics = table()
    assert topics.create_by_send("T", template, 4, 7) is None
    assert "T" not in topics


def test_the_standard_template_is_void_when_automatic_creation_is_off():
    stored = {"TBW102": TopicConfig(topic_name="TBW102", perm=7)}
    config = BrokerConfig(broker_name="b", auto_create_topic_enable=False)
    topics = TopicTable(config, stored)
    assert topics.create_by_send("T", "TBW102", 4, 7) is None


def test_another_template_still_works_then():
    assert (
        table(auto_create_topic_enable=False).create_by_send("T", "broker-a", 4, 7).write_queue_nums
        == 1
    )


def test_fixed_topics_are_created_once():
    topics = table()
    config, made = topics.create_fixed("%RETRY%g", 1, 6, 7, sys_flag=2)
    assert made
    assert config.topic_sys_flag == 2
    again, made = topics.create_fixed("%RETRY%g", 5, 6, 8)
    assert not made
    assert again is config
    assert topics.data_version == DataVersion(7, 1)


def test_topics_can_be_replaced_and_deleted():
    topics = table()
    topics.put(TopicConfig(topic_name="T", perm=4), 1)
    assert topics.get("T").perm == 4
    assert topics.delete("T", 2)
    assert not topics.delete("T", 3)
    assert topics.data_version == DataVersion(2, 2)


def test_clients_create_up_to_their_limit_and_administrators_beyond():
    topics = table(max_topics=len(table().table))
    with pytest.raises(LimitReached, match="pocketmqMaxTopics"):
        topics.create_by_send("T", "TBW102", 4, 7)
    with pytest.raises(LimitReached, match="%RETRY%g"):
        topics.create_fixed("%RETRY%g", 1, 6, 7)
    topics.put(TopicConfig(topic_name="T"), 7)
    assert "T" in topics


def test_name_servers_say_which_topics_are_in_order():
    topics = table()
    topics.put(TopicConfig(topic_name="A", order=True), 1)
    topics.put(TopicConfig(topic_name="B"), 1)
    assert topics.set_order_topics({"B", "NotHere"}, 5)
    assert not topics.get("A").order
    assert topics.get("B").order
    assert topics.data_version == DataVersion(5, 3)
    assert not topics.set_order_topics({"B"}, 6)
    assert topics.data_version == DataVersion(5, 3)
