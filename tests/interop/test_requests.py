"""Requests and replies between our client and the Java client, at our broker and at Apache's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import Apache, JavaClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

COUNT = 4
LARGE = b"x" * 100_000


@dataclass
class Place:
    """A broker, and the Java clients that are used at it.

    The one that asks is always 4.9.7: the ``request`` of 5.3.3 ends when its message is stored,
    without the reply.
    """

    nameserver: str
    asking: JavaClient
    answering: JavaClient


@pytest.fixture(scope="module", params=["ours-4.9.7", "ours-5.3.3", "apache-4.9.7", "apache-5.3.3"])
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shared_apache: Callable[[str], Apache],
) -> Iterator[Place]:
    whose, version = request.param.split("-")
    home: Path = tmp_path_factory.mktemp("home")
    asking, answering = (JavaClient(one, "JSON", home) for one in ("4.9.7", version))
    if whose == "ours":
        with testing.broker() as ours:
            yield Place(ours.nameserver, asking, answering)
    else:
        yield Place(shared_apache(version).nameserver, asking, answering)


async def made(place: Place, topic: str) -> str:
    async with client.Admin(place.nameserver) as admin:
        await admin.create_topic(topic, queues=4)
    return topic


async def test_our_consumer_answers_a_java_requester(place: Place) -> None:
    topic = await made(place, "java-asks")

    async def answer(message: client.ReceivedMessage[bytes]) -> None:
        await producer.reply(message, b"re: " + message.body, properties={"number": "7"})

    async with (
        client.Producer(place.nameserver, group="answering") as producer,
        client.PushConsumer(
            place.nameserver,
            group="answering",
            subscribe={topic: "asked"},
            handler=answer,
            start_from=client.FIRST,
        ),
    ):
        replies = await asyncio.to_thread(
            place.asking.run, "ask", place.nameserver, topic, str(COUNT), program="Requests"
        )

    assert Counter(tuple(reply) for reply in replies) == Counter(
        [
            *(("reply", f"re: {way} {n}", "7") for way in ("sync", "async") for n in range(COUNT)),
            ("reply", f"bytes:{len(LARGE) + 4}", "7"),
        ]
    )


async def test_a_java_consumer_answers_our_requester(place: Place) -> None:
    topic = await made(place, "we-ask")
    with place.answering.running(
        "answer", place.nameserver, topic, program="Requests"
    ) as answering:
        assert answering.stdout is not None
        await asyncio.to_thread(next, (line for line in answering.stdout if "ready" in line))

        async with client.Producer(place.nameserver, group="asking") as producer:
            replies = await asyncio.gather(
                *(producer.request(topic, b"%d" % n, timeout=30) for n in range(COUNT)),
                producer.request(topic, LARGE, timeout=30),
            )

    assert [reply.body for reply in replies] == [
        *(b"re: %d" % n for n in range(COUNT)),
        b"re: " + LARGE,
    ]
    assert [reply.properties for reply in replies] == [{"number": "7"}] * (COUNT + 1)


async def test_requests_that_nobody_answers_time_out(place: Place) -> None:
    topic = await made(place, "nobody")

    async with client.Producer(place.nameserver, group="asking") as producer:
        with pytest.raises(client.RequestTimeout, match="no reply within 1 s"):
            await producer.request(topic, b"alone", timeout=1)
    replies = await asyncio.to_thread(
        place.asking.run, "alone", place.nameserver, topic, program="Requests"
    )

    assert [reply[0] for reply in replies] == ["timeout"]
