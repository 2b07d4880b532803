"""The running info that a member returns to a broker."""

from __future__ import annotations

from client.group.reports import Running, consumer_status, running_info
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.clients import ConsumerRunningInfo, ProcessQueueInfo
from remoting.protocol.bodies.group import GetConsumerStatusBody
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, encode
from remoting.protocol.frame import decode as decode_frame
from remoting.protocol.headers.group import GetConsumerStatusRequestHeader
from remoting.protocol.queue import MessageQueue

ONE, TWO = MessageQueue("T", "a", 0), MessageQueue("U", "a", 0)
RUNNING = Running(
    settings={"maxReconsumeTimes": "16"},
    queues={ONE: ProcessQueueInfo(commit_offset=7), TWO: ProcessQueueInfo(commit_offset=9)},
)


def test_running_info_has_settings_subscriptions_and_queues() -> None:
    data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
    body = running_info(
        data, RUNNING, [ONE], ordered=True, name_servers=["h:1", "h:2"], started_ms=5
    )
    info = decode(ConsumerRunningInfo, body)
    assert info.properties["PROP_NAMESERVER_ADDR"] == "h:1;h:2;"
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["PROP_CONSUMER_START_TIMESTAMP"] == "5"
    assert info.properties["maxReconsumeTimes"] == "16"
    assert [one.topic for one in info.subscription_set] == ["T"]
    assert {queue: held.commit_offset for queue, held in info.mq_table.items()} == {ONE: 7}


def received(command: Command) -> Command:
    frame = cut(encode(command))
    assert frame is not None
    return decode_frame(frame)


def test_the_status_is_of_one_topic() -> None:
    header = GetConsumerStatusRequestHeader(topic="T", group="g")
    request = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
    answer = consumer_status(received(request), RUNNING)
    assert decode(GetConsumerStatusBody, answer.body).message_queue_table == {ONE: 7}


def test_a_status_of_no_topic_is_refused() -> None:
    request = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    assert consumer_status(received(request), RUNNING).code == ResponseCode.SYSTEM_ERROR
