"""The unmodified Go client at our broker, also signed and over TLS: transactions and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import client
from pocketmq import testing
from tests.interop.goclient import GoClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


ACCOUNTS = {
    "operator": {"admin": True},
    "go-client": {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "SUB"},
}


@pytest.fixture(scope="module", params=["unsigned", "signed", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[testing.StandaloneServer]:
    settings = {
        "transactionTimeOut": "300",
        "transactionCheckInterval": "300",
        "transactionCheckMax": "1000",
        # A handler that can't reply tries again soon.
        "messageDelayLevel": "1s 1s 1s",
    }
    accounts = None if request.param == "unsigned" else ACCOUNTS
    tls = request.param == "tls"
    with testing.broker(settings=settings, accounts=accounts, tls=tls) as running:
        yield running


@pytest.fixture
def keys(server: testing.StandaloneServer) -> client.Credentials | None:
    return server.credentials.get("go-client")


@pytest.fixture
def go(server: testing.StandaloneServer, keys: client.Credentials | None) -> GoClient:
    return GoClient(keys, tls=server.tls is not None)


async def made(server: testing.StandaloneServer, topic: str) -> str:
    operator = server.credentials.get("operator")
    async with client.Admin(server.nameserver, credentials=operator, tls=server.tls) as admin:
        await admin.create_topic(topic, queues=4)
    return topic


async def test_a_go_producer_commits_rolls_back_and_is_asked(
    go: GoClient, server: testing.StandaloneServer, keys: client.Credentials | None
) -> None:
    topic = await made(server, "go-deals")

    asked = await asyncio.to_thread(go.run, "deal", server.nameserver, topic)

    assert sorted(asked) == [["asked", "unknown 0"], ["asked", "unknown 1"]]
    async with client.PullConsumer(
        server.nameserver,
        group="reading",
        start_from=client.BEGIN,
        credentials=keys,
        tls=server.tls,
    ) as reader:
        reader.assign(await reader.queues(topic))
        stored: list[bytes] = []
        while len(stored) < 4 and (more := await reader.get_many(100, timeout=30)):
            stored += [one.body for one in more]
        stored += [one.body for one in await reader.get_many(100, timeout=0.5)]
    assert sorted(stored) == [b"commit 0", b"commit 1", b"unknown 0", b"unknown 1"]


async def test_our_consumer_answers_a_go_requester(
    go: GoClient, server: testing.StandaloneServer, keys: client.Credentials | None
) -> None:
    topic = await made(server, "go-asks")

    async def answer(message: client.ReceivedMessage[bytes]) -> None:
        # Refused at first: this client sends its heartbeat after its first request.
        await producer.reply(message, b"re: " + message.body, properties={"number": "7"})

    async with (
        client.Producer(
            server.nameserver, group="answering", credentials=keys, tls=server.tls
        ) as producer,
        client.PushConsumer(
            server.nameserver,
            group="answering",
            subscribe={topic: "*"},
            handler=answer,
            start_from=client.FIRST,
            credentials=keys,
            tls=server.tls,
        ),
    ):
        replies = await asyncio.to_thread(go.run, "ask", server.nameserver, topic)

    assert replies == [["reply", f"re: go {number}", "7"] for number in range(2)]


async def test_a_go_consumer_answers_our_requester(
    go: GoClient, server: testing.StandaloneServer, keys: client.Credentials | None
) -> None:
    topic = await made(server, "we-ask-go")
    with go.running("answer", server.nameserver, topic) as answering:
        assert answering.stdout is not None
        await asyncio.to_thread(next, (line for line in answering.stdout if "ready" in line))

        async with client.Producer(
            server.nameserver, group="asking", credentials=keys, tls=server.tls
        ) as producer:
            replies = [await producer.request(topic, b"%d" % n, timeout=30) for n in range(2)]

    assert [reply.body for reply in replies] == [b"re: 0", b"re: 1"]
    assert [reply.properties for reply in replies] == [{"number": "7"}] * 2


@pytest.mark.parametrize("server", ["signed"], indirect=True)
async def test_a_go_client_without_keys_is_refused(server: testing.StandaloneServer) -> None:
    topic = await made(server, "go-refused")
    with pytest.raises(AssertionError, match="No accessKey is configured"):
        await asyncio.to_thread(GoClient().run, "deal", server.nameserver, topic)
