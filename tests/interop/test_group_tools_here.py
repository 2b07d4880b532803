"""Apache's tools inspect an online group at our broker, and move its offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import client
from pocketmq import testing
from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.clients import ConsumerRunningInfo, ProcessQueueInfo
from remoting.protocol.bodies.group import ResetOffsetBody
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.protocol.codes import Language, RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.queue import MessageQueue
from tests.interop.apache import mqadmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

VERSION = "4.9.7"
GROUP, TOPIC, CLIENT = "tooled", "Tooled", "10.0.0.9@77"
TIMEOUT = 10.0
PROPERTIES = {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY", "PROP_CLIENT_VERSION": "V4_9_7"}


@dataclass
class Member:
    """A consumer of one group as the broker sees it; it consumes nothing."""

    queue: MessageQueue
    connection: Connection | None = None
    asked: list[int] = field(default_factory=list)
    reset: asyncio.Future[dict[MessageQueue, int]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    async def ask(self, command: Command) -> Command:
        assert self.connection is not None
        return await self.connection.request(command, timeout=TIMEOUT)

    def answer(self, command: Command, _: Connection) -> Command | None:
        self.asked.append(command.code)
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            info = ConsumerRunningInfo(
                properties={
                    "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                    "PROP_CLIENT_VERSION": "V4_9_7",
                },
                subscription_set=[SubscriptionData(topic=TOPIC, sub_string="*")],
                mq_table={self.queue: ProcessQueueInfo(commit_offset=41)},
            )
            return command.reply(body=encode(info))
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self.reset.set_result(decode(ResetOffsetBody, command.body).offset_table)
        return None


@pytest.fixture(scope="module")
def nameserver() -> Iterator[str]:
    with testing.broker() as server:
        yield server.nameserver


@pytest.fixture
async def member(nameserver: str) -> AsyncIterator[Member]:
    """A member that has committed 3 of 5 messages of the topic's only queue."""
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=1)
        (queue,) = await admin.queues(TOPIC)
        (broker,) = await admin.brokers()
    async with client.Producer(nameserver) as producer:
        await producer.send_many([client.Message(TOPIC, b"x") for _ in range(5)])
    member = Member(MessageQueue(queue.topic, queue.broker_name, queue.queue_id))
    pool = ConnectionPool(member.answer)
    member.connection = await pool.get(broker.address)
    consumer = ConsumerData(
        group_name=GROUP, subscription_data_set=[SubscriptionData(topic=TOPIC, sub_string="*")]
    )
    body = encode(HeartbeatData(client_id=CLIENT, consumer_data_set=[consumer]))
    heartbeat = Command.request(RequestCode.HEART_BEAT, body=body)
    heartbeat.language = Language.JAVA
    commit = UpdateConsumerOffsetRequestHeader(
        consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=3
    )
    for command in (heartbeat, Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)):
        assert (await member.ask(command)).code == 0
    yield member
    await pool.close()


async def test_the_tools_see_the_member_and_reach_it(
    nameserver: str, member: Member, tmp_path: Path
) -> None:
    def tool(*arguments: str) -> str:
        return mqadmin(VERSION, tmp_path, nameserver, *arguments)

    text = await asyncio.to_thread(tool, "consumerConnection", "-g", GROUP)
    assert CLIENT in text
    text = await asyncio.to_thread(tool, "consumerStatus", "-g", GROUP, "-i", CLIENT)
    assert RequestCode.GET_CONSUMER_RUNNING_INFO in member.asked
    assert "41" in text
    force = ("-s", "0", "-f", "true")
    await asyncio.to_thread(tool, "resetOffsetByTime", "-g", GROUP, "-t", TOPIC, *force)
    assert await asyncio.wait_for(member.reset, TIMEOUT) == {member.queue: 0}
    await asyncio.to_thread(tool, "cloneGroupOffset", "-s", GROUP, "-d", "cloned", "-t", TOPIC)
    cloned = QueryConsumerOffsetRequestHeader(consumer_group="cloned", topic=TOPIC, queue_id=0)
    reply = await member.ask(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, cloned))
    assert reply.fields["offset"] == "3"


async def test_the_tool_finds_nothing_wrong_with_a_busy_consumer_of_ours(
    nameserver: str, tmp_path: Path
) -> None:
    """A queue with messages in memory counts as blocked if it was not consumed for a minute."""
    running, leave = asyncio.Event(), asyncio.Event()

    async def hold(message: client.ReceivedMessage[bytes]) -> None:
        running.set()
        await leave.wait()

    async with client.Producer(nameserver) as producer:
        await producer.send_many([client.Message("Busy", b"x") for _ in range(20)])
    async with client.PushConsumer(
        nameserver,
        group="busy",
        subscribe={"Busy": "*"},
        handler=hold,
        concurrency=1,
        start_from=client.FIRST,
    ) as consumer:
        await asyncio.wait_for(running.wait(), TIMEOUT)
        text = await asyncio.to_thread(
            mqadmin, VERSION, tmp_path, nameserver, "consumerStatus", "-g", "busy"
        )
        leave.set()
    assert consumer.client_id in text
    assert "Rebalance OK" in text
    assert "blocked" not in text
