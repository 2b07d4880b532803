"""Unmodified Java and Go consumers filter by properties at our broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import JavaClient
from tests.interop.goclient import GoClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

EXPRESSION = "amount BETWEEN 10 AND 20 AND region IN ('eu', 'us') AND TAGS IS NOT NULL"


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    with testing.broker() as running:
        yield running


@pytest.fixture(params=["4.9.7", "5.3.3"])
def java(request: pytest.FixtureRequest, tmp_path: Path) -> JavaClient:
    return JavaClient(request.param, "JSON", tmp_path)


async def fill(nameserver: str, topic: str, first: int = 0, end: int = 60) -> list[str]:
    """Send messages, and return the bodies of those that match."""
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=2)
    messages = [
        client.Message(
            topic,
            b"%d" % number,
            tag="t" if number % 2 else None,
            properties={"amount": str(number), "region": ("asia", "eu", "us")[number % 3]},
        )
        for number in range(first, end)
    ]
    async with client.Producer(nameserver) as producer:
        for message in messages:
            await producer.send(message)
    wanted = [number for number in range(10, 21) if number % 2 and number % 3]
    return sorted(str(number) for number in wanted if first <= number < end)


def bodies(facts: list[list[str]]) -> list[str]:
    return sorted(fact[1] for fact in facts if fact[0] == "message")


@pytest.mark.parametrize("kind", ["push", "lite", "pull"])
def test_a_java_consumer_gets_what_matches(
    java: JavaClient, server: testing.StandaloneServer, kind: str
) -> None:
    topic = f"{kind}-{java.version.replace('.', '_')}"
    wanted = asyncio.run(fill(server.nameserver, topic))

    facts = java.run(
        *(kind, server.nameserver, topic, f"g-{topic}", str(len(wanted)), EXPRESSION),
        program="Filters",
    )

    assert bodies(facts) == wanted


def test_a_parked_pull_of_a_java_consumer_wakes_for_a_match(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = f"later-{java.version.replace('.', '_')}"
    asyncio.run(fill(server.nameserver, topic, 0, 5))
    arguments = ("push", server.nameserver, topic, f"g-{topic}", "1", EXPRESSION)
    with java.running(*arguments, program="Filters") as waiting:
        assert waiting.stdout is not None
        assert next(line for line in waiting.stdout if line.startswith("ready"))
        asyncio.run(fill(server.nameserver, topic, 5, 12))
        assert [line.strip() for line in waiting.stdout if line.startswith("message")] == [
            "message\t11"
        ]


def test_a_wrong_expression_of_a_java_consumer_fails_at_its_start(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = f"wrong-{java.version.replace('.', '_')}"
    asyncio.run(fill(server.nameserver, topic, 0, 1))

    facts = java.run(
        *("push", server.nameserver, topic, f"g-{topic}", "1", "amount BETWEEN 3 AND 1"),
        program="Filters",
    )

    (error,) = facts
    assert error[0] == "error"
    assert "left value(3) must less than or equal to right value(1)" in error[2]


def test_a_go_consumer_gets_what_matches(server: testing.StandaloneServer) -> None:
    wanted = asyncio.run(fill(server.nameserver, "go"))
    facts = GoClient().run("filter", server.nameserver, "go", "g-go", str(len(wanted)), EXPRESSION)
    assert bodies(facts) == wanted
