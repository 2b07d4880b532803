"""Topics, groups and statistics as administrators read and change them."""

from __future__ import annotations

import pytest

from broker.sampler import Totals
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.clients import ConsumerConnection, ProducerConnection
from remoting.protocol.bodies.group import (
    MessageRequestModeSerializeWrapper,
    RequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.stats import (
    ConsumeStats,
    GroupList,
    HARuntimeInfo,
    KVTable,
    TopicList,
    TopicStatsTable,
)
from remoting.protocol.bodies.topic import (
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin, group, query
from remoting.protocol.queue import MessageQueue
from tests.unit.broker.harness import Bench, FakeConnection, fields_of, heartbeat
from tests.unit.broker.processors.pulls import pull
from tests.unit.broker.processors.topics import create

# --- topics


def test_a_created_topic_is_saved_and_registered_alone(bench):
    assert create(bench, order=True, topic_sys_flag=1).code == 0
    assert bench.state.topics.get("T") == TopicConfig(
        topic_name="T",
        read_queue_nums=3,
        write_queue_nums=2,
        perm=6,
        topic_sys_flag=1,
        order=True,
    )
    assert bench.changes.topics == [(["T"], False)]


def test_a_topic_that_exists_is_replaced(bench):
    create(bench)
    create(bench, perm=4, topic_filter_type="MULTI_TAG")
    config = bench.state.topics.get("T")
    assert (config.perm, config.topic_filter_type) == (4, "MULTI_TAG")


@pytest.mark.parametrize("topic", ["TBW102", "DefaultCluster", "broker-a", "rmq_sys_x"])
def test_topics_of_the_broker_cannot_be_made_or_deleted(bench, topic):
    reply = create(bench, topic)
    assert (reply.code, reply.remark) == (1, f"The topic[{topic}] is conflict with system topic.")
    header = admin.TopicRequestHeader(topic=topic)
    assert bench.must(Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "bad topic!"},
        {"topic": ""},
        {"topic_filter_type": "NO_TAG"},
        {"read_queue_nums": -1},
        {"write_queue_nums": 1_000_000},
        {"perm": 99},
        {"perm": -1},
    ],
)
def test_invalid_settings_are_refused(bench, fields):
    reply = create(bench, **fields)
    assert reply.code == 1
    assert reply.remark
    assert "T" not in bench.state.topics


def test_a_topic_that_cannot_be_saved_is_an_error(bench):
    bench.changes.saves = False
    reply = create(bench)
    assert reply.code == 1
    assert "could not be written" in reply.remark


def test_several_topics_can_be_made_at_once_or_none(bench):
    def create_list(*names: str) -> int:
        body = CreateTopicListRequestBody(
            topic_config_list=[TopicConfig(topic_name=name) for name in names]
        )
        command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=encode(body))
        return bench.must(command).code

    assert create_list("A", "bad!") == 1
    assert "A" not in bench.state.topics
    assert create_list("A", "B") == 0
    assert bench.changes.topics == [(["A", "B"], False)]


def test_a_deleted_topic_loses_its_queues(bench):
    bench.topic("T")
    bench.send("T")
    header = admin.TopicRequestHeader(topic="T")
    assert bench.must(Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == 0
    assert "T" not in bench.state.topics
    assert bench.store.queries.max_offset("T", 0) == 0


def test_all_topics_are_returned_in_one_answer(bench):
    create(bench)
    reply = bench.must(Command.request(RequestCode.GET_ALL_TOPIC_CONFIG))
    body = decode(TopicConfigSerializeWrapper, reply.body)
    assert body.topic_config_table == bench.state.topics.table
    assert body.data_version == bench.state.topics.data_version


def test_one_topics_settings(bench):
    create(bench)
    header = admin.TopicRequestHeader(topic="T")
    reply = bench.must(Command.request(RequestCode.GET_TOPIC_CONFIG, header))
    body = decode(TopicConfig, reply.body)
    assert (body.topic_name, body.read_queue_nums, body.attributes) == ("T", 3, {})
    header = admin.TopicRequestHeader(topic="U")
    assert bench.must(Command.request(RequestCode.GET_TOPIC_CONFIG, header)).code == 17


def test_system_topics_can_be_listed(bench):
    reply = bench.must(Command.request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))
    listed = set(decode(TopicList, reply.body).topic_list)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"} <= listed


# --- groups


def put_group(bench: Bench, config: SubscriptionGroupConfig) -> Command:
    return bench.must(
        Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode(config))
    )


def test_a_group_is_made_and_written(bench):
    assert put_group(bench, SubscriptionGroupConfig(group_name="g", retry_max_times=5)).code == 0
    assert bench.state.groups.get("g").retry_max_times == 5
    assert bench.changes.groups == 1


@pytest.mark.parametrize(
    "config",
    [
        SubscriptionGroupConfig(group_name=""),
        SubscriptionGroupConfig(group_name="no group!"),
        SubscriptionGroupConfig(group_name="g", retry_queue_nums=-1),
        SubscriptionGroupConfig(group_name="g", retry_queue_nums=10**6),
    ],
)
def test_invalid_groups_are_refused(bench, config):
    assert put_group(bench, config).code == 1
    assert bench.state.groups.get("g") is None


def test_a_group_that_cannot_be_saved_is_an_error(bench):
    bench.changes.saves = False
    assert "could not be written" in put_group(bench, SubscriptionGroupConfig("g")).remark


def test_several_groups_can_be_made_at_once(bench):
    body = SubscriptionGroupList(
        group_config_list=[SubscriptionGroupConfig(group_name=name) for name in "ab"]
    )
    command = Command.request(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=encode(body)
    )
    assert bench.must(command).code == 0
    assert bench.state.groups.get("b") is not None


def test_all_groups_are_returned_in_one_answer_and_one_alone(bench):
    put_group(bench, SubscriptionGroupConfig(group_name="g"))
    reply = bench.must(Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    body = decode(SubscriptionGroupWrapper, reply.body)
    assert body.subscription_group_table == bench.state.groups.table
    header = group.GroupRequestHeader(group="g")
    reply = bench.must(Command.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header))
    assert decode(SubscriptionGroupConfig, reply.body).group_name == "g"


@pytest.mark.parametrize(("creates", "code"), [(True, 0), (False, 26)])
def test_the_settings_of_a_new_group_are_made_where_groups_create_themselves(
    make_bench, creates, code
):
    bench = make_bench(auto_create_subscription_group=creates)
    header = group.GroupRequestHeader(group="h")
    reply = bench.must(Command.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header))
    assert reply.code == code
    assert ("h" in bench.state.groups.table, bench.changes.groups > 0) == (creates, creates)


@pytest.mark.parametrize(
    ("fields", "left"),
    [({}, 5), ({"remove_offset": True}, -1), ({"clean_offset": True}, -1)],
)
def test_a_deleted_group_loses_its_offsets_if_that_is_requested(bench, fields, left):
    put_group(bench, SubscriptionGroupConfig(group_name="g"))
    bench.state.offsets.commit("g", "T", 0, 5)
    header = group.DeleteSubscriptionGroupRequestHeader(group_name="g", **fields)
    assert bench.must(Command.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
    assert bench.state.groups.get("g") is None
    assert bench.state.offsets.query("g", "T", 0) == left


def test_a_groups_consumers_can_be_listed(bench):
    header = group.ConsumerGroupRequestHeader(consumer_group="g")
    command = Command.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    reply = bench.must(command)
    assert (reply.code, reply.remark) == (206, "the consumer group[g] not online")
    bench.subscribe("g", "T", "a || b")
    body = decode(ConsumerConnection, bench.must(command).body)
    (connection,) = body.connection_set
    assert (connection.client_id, connection.client_addr, connection.language) == (
        "client-1",
        "10.0.0.7:5555",
        "JAVA",
    )
    assert body.subscription_table["T"].sub_string == "a || b"
    assert body.message_model == "CLUSTERING"


def test_a_groups_producers_can_be_listed(bench):
    header = group.GetProducerConnectionListRequestHeader(producer_group="pg")
    command = Command.request(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
    reply = bench.must(command)
    assert (reply.code, reply.remark) == (1, "the producer group[pg] not exist")
    bench.must(heartbeat(producers=["pg"]))
    body = decode(ProducerConnection, bench.must(command).body)
    assert [one.client_id for one in body.connection_set] == ["client-1"]


def test_consumers_of_a_topic_are_listed(bench):
    bench.subscribe("online", "T")
    bench.state.offsets.commit("offline", "T", 0, 5)
    header = admin.TopicRequestHeader(topic="T")
    reply = bench.must(Command.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header))
    assert decode(GroupList, reply.body).group_list == ["offline", "online"]


# --- figures


def test_topic_statistics_have_offsets_and_times(bench):
    bench.topic("T", queues=2)
    bench.send("T")
    header = admin.TopicRequestHeader(topic="T")
    reply = bench.must(Command.request(RequestCode.GET_TOPIC_STATS_INFO, header))
    table = decode(TopicStatsTable, reply.body).offset_table
    first = table[MessageQueue("T", "broker-a", 0)]
    assert (first.min_offset, first.max_offset) == (0, 1)
    assert first.last_update_timestamp == bench.clock.now_ms()
    assert table[MessageQueue("T", "broker-a", 1)].last_update_timestamp == 0
    header = admin.TopicRequestHeader(topic="U")
    assert bench.must(Command.request(RequestCode.GET_TOPIC_STATS_INFO, header)).code == 17


def progress(bench: Bench, **fields) -> dict[str, tuple[int, int, int]]:
    header = query.GetConsumeStatsRequestHeader(consumer_group="g", **fields)
    reply = bench.must(Command.request(RequestCode.GET_CONSUME_STATS, header))
    return {
        f"{queue.topic}-{queue.queue_id}": (
            offset.broker_offset,
            offset.consumer_offset,
            offset.last_timestamp,
        )
        for queue, offset in decode(ConsumeStats, reply.body).offset_table.items()
    }


def test_consume_statistics_have_the_groups_offsets(bench):
    bench.topic("T", queues=2)
    bench.topic("U")
    for _ in range(3):
        bench.send("T")
    bench.state.offsets.commit("g", "T", 0, 2)
    bench.state.offsets.commit("g", "U", 0, 0)
    bench.state.offsets.commit("g", "Deleted", 0, 0)
    now = bench.clock.now_ms()
    every = {"T-0": (3, 2, now), "T-1": (0, 0, 0), "U-0": (0, 0, 0)}
    assert progress(bench) == every
    assert set(progress(bench, topic="T")) == {"T-0", "T-1"}
    assert set(progress(bench, topic_list="T;U")) == set(every)


def test_consume_statistics_have_the_offset_of_the_groups_last_pull(bench):
    def pulled() -> int:
        header = query.GetConsumeStatsRequestHeader(consumer_group="g")
        reply = bench.must(Command.request(RequestCode.GET_CONSUME_STATS, header))
        (offset,) = decode(ConsumeStats, reply.body).offset_table.values()
        return offset.pull_offset

    bench.topic("T")
    bench.send("T")
    bench.state.offsets.commit("g", "T", 0, 0)
    assert pulled() == 0
    bench.subscribe("g", "T")
    pull(bench, "T", queue_offset=1)
    assert pulled() == 1
    bench.state.offsets.commit("g", "T", 0, 2)
    assert pulled() == 2


def test_a_broker_is_a_master_without_slaves(bench):
    bench.topic("T")
    bench.send("T")
    reply = bench.must(Command.request(RequestCode.GET_BROKER_HA_STATUS))
    assert decode(HARuntimeInfo, reply.body) == HARuntimeInfo(
        master=True, master_commit_log_max_offset=bench.store.log.end
    )


def test_topics_that_an_online_group_unsubscribed_are_omitted(bench):
    bench.topic("T")
    bench.topic("U")
    bench.state.offsets.commit("g", "T", 0, 0)
    bench.state.offsets.commit("g", "U", 0, 0)
    bench.subscribe("g", "U")
    assert set(progress(bench)) == {"U-0"}


def test_the_configuration_is_answered_as_text(bench):
    reply = bench.must(Command.request(RequestCode.GET_BROKER_CONFIG))
    assert b"brokerName=broker-a\n" in bytes(reply.body)
    assert fields_of(reply) == {"version": '{"counter":0,"timestamp":0}'}


RUNTIME_KEYS_OF_4_9 = """
    EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity bootTimestamp brokerVersion
    brokerVersionDesc commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset
    commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer
    earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax getMissTps getTotalTps
    getTransferedTps msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning
    msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning
    pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills
    pullThreadPoolQueueSize putLatency99 putLatency999 putMessageAverageSize
    putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes putMessageSizeTotal
    putMessageTimesTotal putTps queryThreadPoolQueueCapacity
    queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
    remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity
    sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
"""


RUNTIME_KEYS_OF_5_3 = """
    ackThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize
    brokerActive getTransferredTps litePullThreadPoolQueueCapacity
    litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
    timerCongestNum timerDequeueTps timerEnqueueTps timerOffsetBehind timerReadBehind
"""


def runtime(bench: Bench) -> dict[str, str]:
    reply = bench.must(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    return decode(KVTable, reply.body).table


def test_runtime_information_has_every_key_that_tools_request(bench):
    assert set((RUNTIME_KEYS_OF_4_9 + RUNTIME_KEYS_OF_5_3).split()) <= set(runtime(bench))


def test_runtime_information_has_the_right_values(bench):
    bench.topic("T")
    empty = runtime(bench)
    assert empty["putTps"] == "  "
    assert empty["getTotalTps"] == "0.0 0.0 0.0"
    assert empty["earliestMessageTimeStamp"] == "-1"
    bench.processors.sampler.rates.sample(0.0, 1, Totals())
    bench.send("T", b"12345")
    bench.processors.sampler.rates.sample(10.0, 1, Totals(put=1))
    bench.state.started_ms = bench.clock.now_ms() - (2 * 86_400 + 3 * 3600 + 4 * 60 + 5) * 1000
    table = runtime(bench)
    assert table["runtime"] == "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"
    assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == "1"
    assert table["putTps"] == "0.1  "
    assert table["commitLogMaxOffset"] == str(bench.store.log.end)
    assert table["earliestMessageTimeStamp"] == str(bench.clock.now_ms())
    assert table["brokerVersionDesc"] == "V4_9_7"
    use = bench.store.files.disk_use(bench.store.paths.commit_log)
    assert table["commitLogDiskRatio"] == table["consumeQueueDiskRatio"]
    assert table["commitLogDiskRatio"] == f"{use.percent / 100:.2f}"
    assert table["remainHowManyDataToFlush"].endswith(" B")
    assert "GiB" in table["commitLogDirCapacity"] or "MiB" in table["commitLogDirCapacity"]


def test_delay_offsets_are_answered(bench):
    bench.topic("T")
    for _ in range(3):
        bench.send("T", properties="DELAY\x012")
    bench.send("T", properties="DELAY\x013")
    bench.state.delay_offsets = {2: 1}
    table = runtime(bench)
    assert table["scheduleMessageOffset_2"] == "1,3"
    assert table["scheduleMessageOffset_3"] == "0,1"
    reply = bench.must(Command.request(RequestCode.GET_ALL_DELAY_OFFSET))
    assert bytes(reply.body) == b'{"offsetTable":{2:1}}'


def test_a_member_of_a_group_answers_the_delay_offsets_that_are_saved(bench):
    bench.state.group = object()
    bench.state.delay_offsets = {2: 3}
    ask = Command.request(RequestCode.GET_ALL_DELAY_OFFSET)
    assert bytes(bench.must(ask).body) == b'{"offsetTable":{}}'
    bench.changes.delay_offsets = {2: 1}
    assert bytes(bench.must(ask).body) == b'{"offsetTable":{2:1}}'


def test_request_modes_are_answered_as_5_3_3_writes_them(bench):
    ask = Command.request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert bytes(bench.must(ask).body) == b'{"messageRequestModeMap":{}}'
    modes = {"T": {"g": RequestMode("T", "g", "POP", 3)}}
    bench.state.request_modes = MessageRequestModeSerializeWrapper(modes)
    assert bytes(bench.must(ask).body) == (
        b'{"messageRequestModeMap":{"T":{"g":'
        b'{"consumerGroup":"g","mode":"POP","popShareQueueNum":3,"topic":"T"}}}}'
    )


def test_connections_of_other_clients_are_distinguished(bench):
    other = FakeConnection(6666)
    bench.subscribe("g", "T")
    bench.subscribe("g", "T", connection=other)
    header = group.ConsumerGroupRequestHeader(consumer_group="g")
    reply = bench.must(Command.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header))
    body = decode(ConsumerConnection, reply.body)
    assert [one.client_addr for one in body.connection_set] == ["10.0.0.7:5555", "10.0.0.7:6666"]
