"""Invalid or excessive input is answered or dropped, and the broker continues."""

from __future__ import annotations

import asyncio

import pytest

from remoting.counters import CloseReason
from remoting.errors import ConnectionLost
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from tests.integration.broker.client import TIMEOUT, bodies
from tests.unit.broker.harness import send_command

BAD_REQUESTS = [
    Command(RequestCode.SEND_MESSAGE_V2),
    Command(RequestCode.SEND_MESSAGE_V2, pairs=(("a", "pg"), ("b", "T"), ("d", "four"))),
    Command(RequestCode.PULL_MESSAGE, pairs=(("topic", "T"), ("queueOffset", "99" * 20))),
    Command(RequestCode.GET_MAX_OFFSET),
    Command(RequestCode.HEART_BEAT, body=b"\xff\xfe"),
    Command(RequestCode.HEART_BEAT, body=b"[" * 100_000),
    Command(RequestCode.LOCK_BATCH_MQ, body=b"{" * 1000),
    Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":5}{'),
    send_command("T", b"\x00" * 50, code=RequestCode.SEND_BATCH_MESSAGE, batch=True),
    send_command("T", b"\x7f" * 50, code=RequestCode.SEND_BATCH_MESSAGE, batch=True),
    send_command("../../etc/passwd"),
    send_command("T", bytes(5 * 1024 * 1024)),
]


@pytest.mark.parametrize("request_", BAD_REQUESTS, ids=range(len(BAD_REQUESTS)))
async def test_bad_requests_are_answered_and_the_connection_continues(broker, connect, request_):
    client = await connect(broker)
    assert (await client.send()).code == 0
    reply = await client.ask(request_)
    assert reply.code in {1, 13}
    assert reply.remark
    assert (await client.send()).code == 0
    assert len(bodies(await client.pull())) == 2


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x08\x09\x00\x00\x04abcd",
        b"\xff\xff\xff\xff" + bytes(20),
        b"\x7f\xff\xff\xff\x00\x00\x00\x10" + bytes(20),
        b"\x00\x00\x00\x04\x00\xff\xff\xff",
        b"\x00\x00\x00\x0c\x00\x00\x00\x08\xff\xfe\xfd\xfc{}{}",
    ],
)
async def test_garbage_drops_the_connection_and_the_broker_continues(broker, connect, junk):
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(junk)
    assert await asyncio.wait_for(reader.read(), TIMEOUT) == b""
    writer.close()
    assert broker.counters.dropped[CloseReason.BAD_FRAME] == 1
    assert (await (await connect(broker)).send()).code == 0


async def test_too_many_connections_are_turned_away(make_broker, connect):
    broker = make_broker(max_connections=2)
    await broker.start()
    clients = [await connect(broker), await connect(broker)]
    third = await connect(broker)
    with pytest.raises(ConnectionLost):
        await third.send()
    assert broker.counters.connections_refused == 1
    assert (await clients[0].send()).code == 0


async def test_a_full_table_of_topics_refuses_and_continues(make_broker, connect):
    broker = make_broker(max_topics=10)
    await broker.start()
    client = await connect(broker)
    codes = [(await client.send(f"T{n}")).code for n in range(5)]
    assert set(codes) == {0, 1}
    assert (await client.send("T0")).code == 0
