"""Requests that a consumer answers, at our broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import client
from client import blocking, serde
from client.network.context import Replies
from remoting.connection import Connection
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import ReplyMessageRequestHeader, SendMessageRequestHeaderV2
from remoting.protocol.message import properties
from remoting.protocol.message.record import COMPRESSED
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


async def test_a_request_needs_an_end(cluster):
    async with client.Producer(cluster.nameserver, group="asking") as asking:
        with pytest.raises(client.UsageError, match="the timeout of a request can't be inf"):
            await asking.request("T", b"hello", timeout=float("inf"))


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


async def test_a_producer_that_is_not_started_asks_nothing():
    with pytest.raises(client.UsageError, match="not started"):
        await client.Producer("127.0.0.1:1").request("T", b"hello")


async def test_a_blocking_producer_asks_too(cluster):
    def ask() -> bytes:
        with blocking.Producer(cluster.nameserver, group="asking") as asking:
            return asking.request("T", b"hello", timeout=10).body

    async with server(cluster, echo):
        assert await asyncio.to_thread(ask) == b"re: hello"


# --- a scripted broker


@pytest.fixture
def pushing(fake: Any) -> Callable[..., None]:
    """Makes a scripted broker push these replies whenever it gets a request."""

    def push(*replies: Callable[[str], Command]) -> None:
        def store(command: Command, connection: Connection) -> Command:
            header = command.read(SendMessageRequestHeaderV2)
            asked = properties.decode((header.properties or "").encode())
            for reply in replies:
                connection.send_oneway(reply(asked[properties.CORRELATION_ID]))
            return fake.store(command, connection)

        fake.on_send(store)

    return push


def pushed(correlation_id: str, body: bytes = b"hi", sys_flag: int = 0) -> Command:
    """A reply as a broker passes it on."""
    return Command.request(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        ReplyMessageRequestHeader(
            producer_group="g",
            topic="c_REPLY_TOPIC",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp=1,
            flag=0,
            properties=properties.encode({properties.CORRELATION_ID: correlation_id}).decode(),
            reconsume_times=0,
            unit_mode=False,
            born_host="127.0.0.1:1",
            store_host="127.0.0.1:2",
            store_timestamp=2,
        ),
        body=body,
        oneway=True,
    )


def bare(correlation_id: str) -> Command:
    text = properties.encode({properties.CORRELATION_ID: correlation_id}).decode()
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return Command.request(code, extra={"properties": text}, oneway=True)


async def test_a_request_that_the_broker_refuses_fails_at_once(fake):
    fake.on_send(lambda command, _: command.reply(ResponseCode.NO_PERMISSION, "no"))
    async with client.Producer(fake.address) as asking, asyncio.timeout(20):
        with pytest.raises(client.SendError, match="no"):
            await asking.request("T", b"hello", timeout=600)


async def test_replies_to_others_and_second_replies_are_passed_over(fake, pushing):
    pushing(lambda _: pushed("another"), pushed, lambda one: pushed(one, b"again"))
    async with client.Producer(fake.address) as asking:
        assert (await asking.request("T", b"hello", timeout=20)).body == b"hi"
        assert (await asking.request("T", b"hello", timeout=20)).body == b"hi"


@pytest.mark.parametrize(
    "damaged",
    [
        lambda one: pushed(one, b"not zlib", COMPRESSED),
        bare,
        lambda one: pushed(one, b"{"),
    ],
    ids=["compression", "header", "value"],
)
async def test_a_reply_that_can_not_be_read_says_so(fake, pushing, damaged):
    pushing(damaged)
    async with client.Producer(fake.address, serde=serde.json) as asking:
        with pytest.raises(client.UnreadableMessage, match="the reply can't be read"):
            await asking.request("T", {}, timeout=20)


async def test_requests_that_wait_are_limited():
    replies = Replies(limit=1)
    replies.expect("a")
    with pytest.raises(client.UsageError, match="1 requests wait for their reply already"):
        replies.expect("b")
    replies.forget("a")
    replies.expect("b")
