"""Apache's broker opens a store that ours wrote, stopped or killed, and the other way round."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import apache

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "travelling"
COUNT = 500
SAME_NAME = {"brokerName": "broker-a"}


async def write(nameserver: str) -> list[bytes]:
    """Messages of every kind that both brokers store; their bodies."""
    bodies = [b"message %d" % n for n in range(COUNT)]
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with client.Producer(nameserver) as producer:
        results = await producer.send_many(
            [
                client.Message(TOPIC, body, tag=f"tag-{n % 3}", keys=[f"key-{n}"])
                for n, body in enumerate(bodies)
            ]
        )
        await producer.send(TOPIC, b"large " * 10_000)
    assert all(isinstance(result, client.Receipt) for result in results)
    async with client.Admin(nameserver) as admin:
        await admin.create_group("travellers")
        await admin.commit("travellers", dict.fromkeys(await admin.queues(TOPIC), 7))
    return [*bodies, b"large " * 10_000]


async def read(nameserver: str, count: int) -> list[client.ReceivedMessage[bytes]]:
    """The first ``count`` messages; every one with a right checksum."""
    messages: list[client.ReceivedMessage[bytes]] = []
    async with client.PullConsumer(nameserver, group="reader") as consumer:
        consumer.assign(await consumer.queues(TOPIC))
        for queue in consumer.assigned:
            await consumer.seek(queue, client.BEGIN)
        async with asyncio.timeout(30):
            while len(messages) < count:
                messages += await consumer.get_many(1000, timeout=1.0)
    assert all(message.check_crc() for message in messages)
    return messages


async def offsets_of(nameserver: str) -> set[int | None]:
    async with client.Admin(nameserver) as admin:
        return set((await admin.committed("travellers", TOPIC)).values())


def tags_agree(messages: list[client.ReceivedMessage[bytes]]) -> bool:
    numbered = [m for m in messages if m.body.startswith(b"message")]
    return all(m.tag == f"tag-{int(m.body.split()[1]) % 3}" for m in numbered)


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_apache_opens_ours(version: str, end: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with testing.broker(store=store, settings=SAME_NAME) as ours:
        bodies = asyncio.run(write(ours.nameserver))
        if end == "killed":
            ours.kill()
    home = tmp_path / "apache"
    home.mkdir()
    settings = [f"storePathRootDir={store}", f"storePathCommitLog={store}/commitlog"]

    with apache(version, home, settings=settings) as theirs:
        messages = asyncio.run(read(theirs.nameserver, len(bodies)))
        committed = asyncio.run(offsets_of(theirs.nameserver))

    assert Counter(message.body for message in messages) == Counter(bodies)
    assert tags_agree(messages)
    # A killed broker of either kind has written its offsets up to five seconds ago.
    assert committed == {7} or end == "killed"


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_ours_opens_what_a_killed_apache_left(version: str, tmp_path: Path) -> None:
    home = tmp_path / "apache"
    home.mkdir()
    with apache(version, home) as theirs:
        bodies = asyncio.run(write(theirs.nameserver))

    with testing.broker(store=home / "store", settings=SAME_NAME) as ours:
        messages = asyncio.run(read(ours.nameserver, len(bodies)))

    assert Counter(message.body for message in messages) == Counter(bodies)
    assert tags_agree(messages)
