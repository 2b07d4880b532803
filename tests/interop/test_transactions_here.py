"""Unmodified Java clients' transactions at our broker: commits, rollbacks, checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import JavaClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[testing.StandaloneServer]:
    settings = {
        "transactionTimeOut": "300",
        "transactionCheckInterval": "300",
        # A Java producer starts slowly.
        "transactionCheckMax": "1000",
    }
    with testing.broker(settings=settings) as running:
        yield running


@pytest.fixture(params=["4.9.7-JSON", "4.9.7-ROCKETMQ", "5.3.3-JSON"])
def java(request: pytest.FixtureRequest, tmp_path: Path) -> JavaClient:
    version, serialize = request.param.split("-")
    return JavaClient(version, serialize, tmp_path)


async def stored(nameserver: str, topic: str, count: int) -> list[str]:
    """The bodies of the messages that a consumer gets, once there are so many; sorted."""
    async with client.PullConsumer(nameserver, group="reading", start_from=client.BEGIN) as reader:
        reader.assign(await reader.queues(topic))
        found: list[str] = []
        while len(found) < count and (more := await reader.get_many(100, timeout=30)):
            found += [one.body.decode() for one in more]
        found += [one.body.decode() for one in await reader.get_many(100, timeout=0.5)]
        return sorted(found)


async def test_a_java_producer_commits_rolls_back_and_is_asked(
    java: JavaClient, server: testing.StandaloneServer
) -> None:
    topic = f"deals-{java.version.replace('.', '_')}-{java.serialize}"
    group = f"dealers-{topic}"
    async with client.Admin(server.nameserver) as admin:
        await admin.create_topic(topic, queues=4)

    java.run(server.nameserver, "deal", topic, group, program="Stores")
    assert await stored(server.nameserver, topic, 2) == ["COMMIT_MESSAGE 0", "COMMIT_MESSAGE 1"]

    asked = java.run(server.nameserver, "settle", group, program="Stores")
    assert sorted(fact[1] for fact in asked) == ["UNKNOW 0", "UNKNOW 1"]
    assert await stored(server.nameserver, topic, 4) == [
        *("COMMIT_MESSAGE 0", "COMMIT_MESSAGE 1"),
        *("UNKNOW 0", "UNKNOW 1"),
    ]
