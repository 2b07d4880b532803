"""Quotas: what one address, connection, account or topic may use of a broker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from broker.traffic.quotas import QuotaKind, QuotaRates
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.message import batch
from tests.harness.certificates import self_signed
from tests.integration.broker.client import TIMEOUT
from tests.integration.remoting.peers import ended
from tests.support.clock import ManualClock
from tests.support.waiting import until
from tests.unit.broker.harness import fields_of

FLOODER = ("127.0.0.2", 0)


@pytest.mark.parametrize("accepts_tls", [False, True])
async def test_a_flood_from_one_address_leaves_the_clients_of_another_alone(
    make_broker, connect, tmp_path, accepts_tls
):
    settings = {}
    if accepts_tls:
        pair = self_signed(tmp_path)
        settings = {"tls_server_cert": pair.cert, "tls_server_key": pair.key}
    broker = make_broker(max_connections_per_address=3, max_connections=6, **settings)
    await broker.start()
    client = await connect(broker)
    async with AsyncExitStack() as stack, asyncio.timeout(TIMEOUT):
        for number in range(10):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", broker.port, local_addr=FLOODER
            )
            stack.callback(writer.close)
            # At a port with TLS, the first byte makes it a connection.
            writer.write(b"\0")
            if number >= 3:
                assert await ended(reader)
        assert broker.counters.connections_refused_address == 7
        assert (await client.send()).code == 0
        assert (await (await connect(broker)).send()).code == 0
    await until(lambda: broker.counters.connections_closed == 3)
    _, writer = await asyncio.open_connection("127.0.0.1", broker.port, local_addr=FLOODER)
    writer.close()
    assert (await client.send()).code == 0
    assert broker.counters.connections_refused_address == 7


async def test_requests_above_the_limit_of_a_connection_wait_and_succeed(make_broker, connect):
    broker = make_broker(max_requests_in_flight=2, flush_disk_type="SYNC_FLUSH")
    await broker.start()
    client, other = await connect(broker), await connect(broker)
    assert (await client.send()).code == 0
    async with asyncio.TaskGroup() as group:
        sends = [group.create_task(client.send(body=b"%d" % n)) for n in range(20)]
        assert (await other.send()).code == 0
    assert {send.result().code for send in sends} == {0}
    assert broker.counters.requests_paused > 0
    assert broker.counters.requests_in_progress == 0


def change(key: str, value: str) -> Command:
    return Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={value}\n".encode())


async def test_a_quota_set_at_run_time_holds_for_connections_in_use(make_broker, connect):
    broker = make_broker(clock=(clock := ManualClock()))
    await broker.start()
    client, operator = await connect(broker), await connect(broker)
    assert {(await client.send()).code for _ in range(50)} == {0}
    pulls = [await client.pull(max_msg_nums=9) for _ in range(5)]
    assert {pull.code for pull in pulls} == {0}

    assert (await operator.ask(change("pocketmqMaxTopicMessagesPerSecond", "T=10"))).code == 0
    assert [(await client.send()).code for _ in range(12)] == [0] * 10 + [2] * 2
    assert [(await client.pull(max_msg_nums=9)).code for _ in range(3)] == [0, 0, 2]
    assert {(await client.send("Other")).code for _ in range(50)} == {0}
    refused = await client.send()
    clock.advance(int(fields_of(refused)["pmqRetryAfterMs"]) / 1000)
    assert (await client.send()).code == 0

    assert (await operator.ask(change("pocketmqMaxTopicMessagesPerSecond", "0"))).code == 0
    assert {(await client.send()).code for _ in range(50)} == {0}
    assert (await client.pull()).code == 0


async def test_pulls_that_one_message_wakes_share_the_quota_of_their_group(make_broker, connect):
    rates = QuotaRates(0, {"T": 1})
    broker = make_broker(clock=(clock := ManualClock()), max_topic_messages_per_second=rates)
    await broker.start()
    client, other = await connect(broker), await connect(broker)
    assert (await client.send()).code == 0
    clock.advance(1)
    held = [await client.hold(), await other.hold()]
    assert (await client.send()).code == 0
    assert sorted([(await answer).code for answer in held]) == [0, 2]
    assert broker.processors.quotas.refusals[QuotaKind("topic", "messages", "pull")] == 1


@pytest.mark.parametrize("unit", ["messages", "bytes"])
async def test_batches_and_large_messages_delay_what_follows(make_broker, connect, unit):
    rates = QuotaRates(0, {"T": 10 if unit == "messages" else 1000})
    settings = {f"max_topic_{unit}_per_second": rates}
    broker = make_broker(clock=(clock := ManualClock()), **settings)
    await broker.start()
    client = await connect(broker)
    for _ in range(2):
        # The first one is on the slow path, because it creates the topic.
        assert (await client.send()).code == 0
        body = batch.encode([(0, bytes(100), b"")] * 30)
        sent = await client.send(body=body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
        assert sent.code == 0
        assert (await client.send(code=RequestCode.SEND_MESSAGE_V2)).code == 2
        wait = int(fields_of(await client.send())["pmqRetryAfterMs"]) / 1000
        assert 2 <= wait <= 10
        clock.advance(wait)
        assert (await client.send()).code == 0
        clock.advance(2)
