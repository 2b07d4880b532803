"""Apache's tools read our statistics and change our settings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import client
from pocketmq import testing
from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.bodies.stats import (
    BrokerStatsData,
    GetConsumerListByGroupResponseBody,
)
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.headers.query import ViewBrokerStatsDataRequestHeader
from tests.interop.apache import mqadmin
from tests.unit.broker.harness import heartbeat, pull_command

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

VERSION = "4.9.7"
TOPIC = "Statistics"
GROUP = "readers"
TIMEOUT = 30.0
SAMPLED_SECONDS = 25.0
"""The statistics are sampled every 10 s."""


async def messages_read(connection: Connection) -> int:
    """Return how many messages the group's statistics have."""
    header = ViewBrokerStatsDataRequestHeader(
        stats_name="GROUP_GET_NUMS", stats_key=f"{TOPIC}@{GROUP}"
    )
    request = Command.request(RequestCode.VIEW_BROKER_STATS_DATA, header)
    reply = await connection.request(request, timeout=TIMEOUT)
    return decode(BrokerStatsData, reply.body).stats_minute.sum


async def test_apaches_tools_show_our_statistics_and_settings(tmp_path: Path) -> None:
    with testing.broker() as server:

        async def tool(*arguments: str) -> str:
            return await asyncio.to_thread(
                mqadmin, VERSION, tmp_path, server.nameserver, *arguments
            )

        async with client.Admin(server.nameserver) as admin:
            await admin.create_topic(TOPIC, queues=1)
        async with client.Producer(server.nameserver, group="writers") as producer:
            for _ in range(5):
                await producer.send(client.Message(TOPIC, b"x"))
            pool = ConnectionPool()
            connection = await pool.get(server.broker)
            subscription = SubscriptionData(topic=TOPIC, sub_string="*")
            consumer = ConsumerData(group_name=GROUP, subscription_data_set=[subscription])
            joins = heartbeat("reader", producers=["others"], consumers=[consumer])
            await connection.request(joins, timeout=TIMEOUT)
            pull = pull_command(TOPIC, consumer_group=GROUP, sys_flag=5, commit_offset=2)
            assert (await connection.request(pull, timeout=TIMEOUT)).code == 0

            text = await tool("producer", "-b", server.broker)
            assert "writers" in text
            assert "clientId=reader" in text

            text = await tool(
                "updateBrokerConfig", "-b", server.broker, "-k", "fileReservedTime", "-v", "7"
            )
            assert "success" in text
            text = await tool("getBrokerConfig", "-b", server.broker)
            assert any(line.split() == ["fileReservedTime", "=", "7"] for line in text.splitlines())
            text = await tool(
                "updateBrokerConfig", "-b", server.broker, "-k", "listenPort", "-v", "1"
            )
            assert "success" not in text

            text = await tool("brokerConsumeStats", "-b", server.broker)
            rows = [line.split() for line in text.splitlines()]
            (row,) = [row for row in rows if row[:1] == [TOPIC]]
            # topic, group, broker, queue, broker offset, consumer offset, difference
            assert row[1] == GROUP
            assert row[3:7] == ["0", "5", "2", "3"]

            async with asyncio.timeout(SAMPLED_SECONDS):
                while await messages_read(connection) < 5:  # noqa: ASYNC110 - sampled there
                    await asyncio.sleep(0.2)
            text = await tool("statsAll", "-t", TOPIC)
            rows = [line.split() for line in text.splitlines()]
            (row,) = [row for row in rows if row[:1] == [TOPIC]]
            # topic, group, accumulation, rate in, rate out, messages in and out in 24 h
            assert row[1:3] == [GROUP, "3"]
            assert float(row[3]) > 0
            assert float(row[4]) > 0
            assert row[5:7] == ["5", "5"]
            text = await tool("consumerProgress", "-g", GROUP)
            (line,) = [one for one in text.splitlines() if one.startswith("Consume TPS")]
            assert float(line.split()[-1]) > 0
            await pool.close()


async def test_apaches_tool_has_our_consumer_handle_a_message(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def handle(message: client.ReceivedMessage[bytes]) -> None:
        seen.append(message.body)

    with testing.broker() as server:
        async with client.Producer(server.nameserver) as producer:
            receipt = await producer.send(client.Message(TOPIC, b"again"))
        async with client.PushConsumer(
            server.nameserver,
            group=GROUP,
            handler=handle,
            subscribe={TOPIC: "another"},
        ):
            pool = ConnectionPool()
            connection = await pool.get(server.broker)
            header = ConsumerGroupRequestHeader(consumer_group=GROUP)
            request = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            # The member's first heartbeat may still be under way.
            async with asyncio.timeout(TIMEOUT):
                while not (reply := await connection.request(request, timeout=TIMEOUT)).body:  # noqa: ASYNC110 - a broker has no event for it
                    await asyncio.sleep(0.05)
            await pool.close()
            (member,) = decode(GetConsumerListByGroupResponseBody, reply.body).consumer_id_list
            command = ("queryMsgById", "-i", receipt.offset_id or "", "-g", GROUP, "-d", member)
            text = await asyncio.to_thread(mqadmin, VERSION, tmp_path, server.nameserver, *command)
    assert "consumeResult=CR_SUCCESS" in text
    assert seen == [b"again"]
