"""A test makes its broker fail, and sees what its clients make of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

import client
from pocketmq.testing import ServerError, StandaloneServer


@pytest.fixture
async def producer(pocketmq: StandaloneServer) -> AsyncIterator[client.Producer[bytes]]:
    async with client.Producer(pocketmq.nameserver, group="test", timeout=30) as producer:
        yield producer


async def test_requests_are_refused_as_often_as_asked(
    pocketmq: StandaloneServer, producer: client.Producer[bytes], pocketmq_topic: str
) -> None:
    await producer.send(pocketmq_topic, b"before")
    pocketmq.refuse("send", code="MESSAGE_ILLEGAL", remark="closed on Mondays", times=2)
    for _ in range(2):
        with pytest.raises(client.MessageIllegal, match="closed on Mondays"):
            await producer.send(pocketmq_topic, b"refused")
    await producer.send(pocketmq_topic, b"after")
    bodies = [message.body for message in await pocketmq.aio.messages(pocketmq_topic)]
    assert bodies == [b"before", b"after"]


async def test_requests_are_refused_until_the_faults_end(
    pocketmq: StandaloneServer, producer: client.Producer[bytes], pocketmq_topic: str
) -> None:
    pocketmq.refuse("send", code="SYSTEM_BUSY")
    with pytest.raises(client.SystemBusy):
        await producer.send(pocketmq_topic, b"refused", timeout=0.5)
    pocketmq.clear_faults()
    await producer.send(pocketmq_topic, b"after")
    assert [message.body for message in pocketmq.messages(pocketmq_topic)] == [b"after"]


async def test_requests_are_served_later(
    pocketmq: StandaloneServer, producer: client.Producer[bytes], pocketmq_topic: str
) -> None:
    pocketmq.delay("send", 0.3, times=1)
    began = time.monotonic()
    await producer.send(pocketmq_topic, b"late")
    assert time.monotonic() - began >= 0.3
    assert [message.body for message in pocketmq.messages(pocketmq_topic)] == [b"late"]


async def test_a_message_whose_answer_is_lost_is_stored_and_sent_again(
    pocketmq: StandaloneServer, producer: client.Producer[bytes], pocketmq_topic: str
) -> None:
    pocketmq.lose_ack()
    receipt = await producer.send(pocketmq_topic, b"tea")
    first, second = pocketmq.messages(pocketmq_topic)
    assert (first.body, second.body) == (b"tea", b"tea")
    assert first.id == second.id == receipt.id
    assert receipt.offset == 1


async def test_clients_go_on_when_their_connections_are_dropped(
    pocketmq: StandaloneServer,
    producer: client.Producer[bytes],
    pocketmq_topic: str,
    pocketmq_group: str,
) -> None:
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        handled.put_nowait(message.body)

    async with client.PushConsumer(
        pocketmq.nameserver,
        group=pocketmq_group,
        subscribe={pocketmq_topic: "*"},
        handler=handle,
        start_from=client.FIRST,
    ):
        for body in (b"1", b"2"):
            await producer.send(pocketmq_topic, body)
            assert await asyncio.wait_for(handled.get(), 60) == body
            pocketmq.drop_connections()


async def test_a_full_disk_takes_no_messages(
    pocketmq: StandaloneServer, producer: client.Producer[bytes], pocketmq_topic: str
) -> None:
    pocketmq.fill_disk()
    with pytest.raises(client.ServiceNotAvailable, match="the store takes no messages"):
        await producer.send(pocketmq_topic, b"refused", timeout=0.5)
    pocketmq.fill_disk(full=False)
    await producer.send(pocketmq_topic, b"after")
    assert [message.body for message in pocketmq.messages(pocketmq_topic)] == [b"after"]


def test_a_request_that_does_not_exist_is_named(pocketmq: StandaloneServer) -> None:
    with pytest.raises(ServerError, match="the broker can't fail: KeyError: 'SNED'"):
        pocketmq.refuse("SNED")
