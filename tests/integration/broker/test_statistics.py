"""The statistics of a whole broker: both paths count the same."""

from __future__ import annotations

import asyncio
import json

import pytest

from remoting.protocol.bodies import decode, relaxed_json
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.query import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from tests.integration.broker.client import Client

TIMEOUT = 10


async def minute(client: Client, name: str, key: str) -> tuple[int, float]:
    """Return the sum and the average per request over the last minute."""
    header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
    reply = await client.ask(Command.request(RequestCode.VIEW_BROKER_STATS_DATA, header))
    assert reply.code == 0, reply.remark
    found = json.loads(bytes(reply.body))["statsMinute"]
    assert found["tps"] > 0
    return found["sum"], found["avgpt"]


@pytest.mark.parametrize("slow", [False, True])
async def test_sends_and_pulls_are_counted_by_topic_and_group(make_broker, connect, slow):
    broker = make_broker()
    await broker.start()
    client = await connect(broker)
    # Only the slow path chooses a queue.
    fields = {"queue_id": -1 if slow else 0, "default_topic_queue_nums": 1}
    for _ in range(3):
        assert (await client.send("T", **fields)).code == 0
    for _ in range(2):
        assert (await client.pull("T")).code == 0
    assert (await client.pull("T", queue_offset=3)).code == 19
    await broker.processors.sampler.sample_traffic()
    size = broker.store.stats.put_bytes
    assert await minute(client, "TOPIC_PUT_NUMS", "T") == (3, 1.0)
    assert await minute(client, "TOPIC_PUT_SIZE", "T") == (size, size / 3)
    assert await minute(client, "GROUP_GET_NUMS", "T@g") == (6, 3.0)
    assert await minute(client, "GROUP_GET_SIZE", "T@g") == (2 * size, size)
    assert await minute(client, "BROKER_PUT_NUMS", "DefaultCluster") == (3, 0.0)
    assert await minute(client, "BROKER_GET_NUMS", "DefaultCluster") == (6, 0.0)


async def test_the_runtime_information_has_the_progress_of_timer_messages(broker, connect):
    client = await connect(broker)
    sampler, timers = broker.processors.sampler, broker.state.timers

    async def progress() -> dict[str, float]:
        reply = await client.ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        table = decode(KVTable, reply.body).table
        return {key: float(value) for key, value in table.items() if key.startswith("timer")}

    none = dict.fromkeys(await progress(), 0.0)
    assert none.keys() == {
        "timerReadBehind",
        "timerOffsetBehind",
        "timerCongestNum",
        "timerEnqueueTps",
        "timerDequeueTps",
    }
    assert await progress() == none
    for _ in range(3):
        assert (await client.send("T", properties="TIMER_DELAY_SEC\x0160\x02")).code == 0
    async with asyncio.timeout(TIMEOUT):
        while timers.unread:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    sampler.sample_rates()
    found = await progress()
    assert found["timerEnqueueTps"] > 0
    assert found == {**none, "timerCongestNum": 3, "timerEnqueueTps": found["timerEnqueueTps"]}


async def test_a_statistic_that_does_not_exist_is_an_error(broker, connect):
    header = ViewBrokerStatsDataRequestHeader(stats_name="TOPIC_PUT_NUMS", stats_key="U")
    client = await connect(broker)
    reply = await client.ask(Command.request(RequestCode.VIEW_BROKER_STATS_DATA, header))
    assert (reply.code, reply.remark) == (1, "The stats <TOPIC_PUT_NUMS> <U> not exist")


async def test_the_progress_of_groups_has_their_rates(broker, connect):
    client = await connect(broker)
    for _ in range(3):
        await client.send("T")
    await client.pull("T")
    broker.state.offsets.commit("g", "T", 0, 2)
    broker.state.offsets.commit("g", "Deleted", 0, 2)
    await broker.processors.sampler.sample_traffic()
    header = GetConsumeStatsRequestHeader(consumer_group="g")
    reply = await client.ask(Command.request(RequestCode.GET_CONSUME_STATS, header))
    assert relaxed_json.loads(reply.body)["consumeTps"] == 0.3
    stats = GetConsumeStatsInBrokerHeader(is_order=False)
    reply = await client.ask(Command.request(RequestCode.GET_BROKER_CONSUME_STATS, stats))
    body = relaxed_json.loads(reply.body)
    groups = {name: topics for one in body["consumeStatsList"] for name, topics in one.items()}
    assert body["brokerAddr"] == broker.address
    assert body["totalDiff"] == 1
    assert groups["CID_ONSAPI_OWNER"] == []
    (topic,) = groups["g"]
    assert topic["consumeTps"] == 0.3
    offsets = sorted(topic["offsetTable"].values(), key=lambda one: one["brokerOffset"])
    assert offsets[-1]["brokerOffset"] == 3
    assert offsets[-1]["consumerOffset"] == 2
    reply = await client.ask(
        Command.request(
            RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(is_order=True)
        )
    )
    body = relaxed_json.loads(reply.body)
    assert {name: t for one in body["consumeStatsList"] for name, t in one.items()}["g"] == []
