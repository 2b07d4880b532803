"""Requests that a consumer answers, at our broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import client
from client import blocking, serde
from tests.harness.cluster import Cluster

Received = client.ReceivedMessage[Any]


@asynccontextmanager
async def server(
    cluster: Cluster, answer: Callable[[client.Producer[Any], Received], Awaitable[None]]
) -> AsyncIterator[None]:
    """A consumer that answers."""
    async with client.Producer(cluster.nameserver, group="answering") as producer:

        async def handle(message: Received) -> None:
            await answer(producer, message)

        async with client.PushConsumer(
            cluster.nameserver,
            group="servers",
            subscribe={"T": "*"},
            handler=handle,
            start_from=client.BEGIN,
        ):
            yield


async def echo(producer: client.Producer[Any], message: Received) -> None:
    await producer.reply(message, b"re: " + message.body, properties={"number": "7"})


async def test_a_request_gets_its_reply(cluster):
    async with server(cluster, echo), client.Producer(cluster.nameserver, group="asking") as asking:
        reply = await asking.request("T", b"hello", tag="t", keys=["k"], timeout=10)
    assert reply.body == b"re: hello"
    assert reply.properties == {"number": "7"}
    assert len(reply.id) == 32
    assert reply.sent_ms > 0


async def test_many_requests_get_their_own_replies(cluster):
    async with server(cluster, echo), client.Producer(cluster.nameserver, group="asking") as asking:
        replies = await asyncio.gather(
            *(asking.request("T", b"%d" % number, timeout=15) for number in range(50))
        )
    assert [reply.body for reply in replies] == [b"re: %d" % number for number in range(50)]


async def test_large_bodies_are_compressed_both_ways(cluster):
    async with server(cluster, echo), client.Producer(cluster.nameserver, group="asking") as asking:
        reply = await asking.request("T", b"x" * 100_000, timeout=10)
    assert reply.body == b"re: " + b"x" * 100_000


async def test_values_go_through_the_producers_serde(cluster):
    async def answer(_: client.Producer[Any], message: Received) -> None:
        async with client.Producer(
            cluster.nameserver, group="answering-json", serde=serde.json
        ) as producer:
            await producer.reply(message, {"sum": sum(serde.json.loads(message.body))})

    async with (
        server(cluster, answer),
        client.Producer(cluster.nameserver, group="asking", serde=serde.json) as asking,
    ):
        reply = await asking.request("T", [1, 2, 3], timeout=10)
    assert reply.body == {"sum": 6}


async def test_without_a_reply_the_request_times_out(cluster):
    async with client.Producer(cluster.nameserver, group="asking") as asking:
        with pytest.raises(client.RequestTimeout, match=r"no reply within 0\.3 s"):
            await asking.request("T", b"hello", timeout=0.3)


async def test_a_reply_to_a_requester_that_is_gone_is_refused(cluster):
    refused: asyncio.Queue[Exception] = asyncio.Queue()

    async def answer(producer: client.Producer[Any], message: Received) -> None:
        try:
            await producer.reply(message, b"too late")
        except client.RemoteError as error:
            refused.put_nowait(error)

    async with client.Producer(cluster.nameserver, group="asking") as asking:
        with pytest.raises(client.RequestTimeout):
            await asking.request("T", b"hello", timeout=0.3)
    async with server(cluster, answer):
        error = await asyncio.wait_for(refused.get(), 10)
    assert "channel of <" in str(error)


async def test_an_ordinary_message_can_not_be_answered(cluster):
    raised: asyncio.Queue[Exception] = asyncio.Queue()

    async def answer(producer: client.Producer[Any], message: Received) -> None:
        try:
            await producer.reply(message, b"?")
        except client.UsageError as error:
            raised.put_nowait(error)

    async with server(cluster, answer), client.Producer(cluster.nameserver) as sender:
        await sender.send("T", b"hello")
        error = await asyncio.wait_for(raised.get(), 10)
    assert "the message is no request" in str(error)


async def test_a_late_reply_harms_nobody(cluster):
    answered = asyncio.Event()

    async def answer(producer: client.Producer[Any], message: Received) -> None:
        if message.body == b"slow":
            await asyncio.sleep(0.6)
        await producer.reply(message, message.body)
        if message.body == b"slow":
            answered.set()

    async with server(cluster, answer), client.Producer(cluster.nameserver) as asking:
        assert (await asking.request("T", b"quick", timeout=10)).body == b"quick"
        with pytest.raises(client.RequestTimeout):
            await asking.request("T", b"slow", timeout=0.3)
        await asyncio.wait_for(answered.wait(), 10)
        assert (await asking.request("T", b"again", timeout=10)).body == b"again"


async def test_a_blocking_producer_asks_too(cluster):
    def ask() -> bytes:
        with blocking.Producer(cluster.nameserver, group="asking") as asking:
            return asking.request("T", b"hello", timeout=10).body

    async with server(cluster, echo):
        assert await asyncio.to_thread(ask) == b"re: hello"
