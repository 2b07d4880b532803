"""Clients at brokers whose quotas are used up: they wait as long as they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import client
import client.blocking
from broker.app import Broker
from broker.traffic.quotas import QuotaKind
from client.blocking import Producer as BlockingProducer
from remoting.connection import Connection
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import RETRY_AFTER
from tests.harness.cluster import Cluster

SENT = QuotaKind("topic", "messages", "send")
PULLED = QuotaKind("topic", "messages", "pull")
ACCOUNTS = """accounts:
- {accessKey: first-app, secretKey: "12345678", defaultTopicPerm: PUB}
- {accessKey: other-app, secretKey: "12345678", defaultTopicPerm: PUB}
"""


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A broker with topics that take and give 40 messages, or 500 bytes, a second."""
    settings = {
        "pocketmqMaxTopicMessagesPerSecond": "T=40",
        "pocketmqMaxTopicBytesPerSecond": "Big=500",
    }
    async with Cluster(tmp_path, **settings) as cluster:
        await cluster.start()
        yield cluster


def messages(count: int) -> list[client.Message[bytes]]:
    return [client.Message("T", b"%d" % number) for number in range(count)]


def refusals(cluster: Cluster, kind: QuotaKind) -> int:
    broker: Broker = cluster.brokers["broker-a"]
    return broker.processors.quotas.refusals[kind]


async def test_a_send_above_a_quota_waits_and_succeeds(limited: Cluster) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with client.Producer(limited.nameserver) as producer:
        await producer.send_many(messages(60))
        assert (await producer.send("Free", b"at once")).status is client.SendStatus.OK
        assert (await producer.send("T", b"later")).status is client.SendStatus.OK
    assert loop.time() - began > 20 / 40, "the debt of the first 60"
    assert refusals(limited, SENT) > 0


async def test_a_blocking_send_waits_too(limited: Cluster) -> None:
    def send() -> None:
        with BlockingProducer(limited.nameserver) as producer:
            producer.send_many(messages(50))
            producer.send("T", b"later")

    await asyncio.to_thread(send)
    assert refusals(limited, SENT) > 0


async def test_a_send_that_would_wait_too_long_fails_at_once(limited: Cluster) -> None:
    async with client.Producer(limited.nameserver, timeout=3.0) as producer:
        await producer.send("Big", bytes(4000))
        with pytest.raises(client.SystemBusy, match="quota of 500 bytes a second") as caught:
            await producer.send("Big", b"too much")
    assert isinstance(caught.value, client.SendError)
    assert caught.value.outcome is client.Outcome.NOT_SENT
    assert caught.value.retry_after > 3
    kind = QuotaKind("topic", "bytes", "send")
    assert refusals(limited, kind) == 1, "another attempt is useless"


async def test_consumers_read_at_the_rate_without_an_error(limited: Cluster) -> None:
    async with client.Producer(limited.nameserver) as producer:
        await producer.send_many(messages(60))
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = set()
    async with client.PullConsumer(
        limited.nameserver, group="g", prefetch_messages=5, pull_messages=5
    ) as consumer:
        consumer.assign(await consumer.queues("T"))
        while len(found) < 60:
            found |= {message.body for message in await consumer.get_many(5, timeout=10)}
    assert loop.time() - began > (60 - 40 - 4 * 5) / 40
    assert refusals(limited, PULLED) > 0


async def test_accounts_have_quotas_of_their_own(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(ACCOUNTS)
    settings = {
        "aclEnable": "true",
        "pocketmqAclFile": str(rules),
        "pocketmqMaxAccountMessagesPerSecond": "5;other-app=0",
    }
    async with Cluster(tmp_path, **settings) as cluster:
        await cluster.start()
        for name, passes in (("first-app", False), ("other-app", True)):
            keys = client.Credentials(name, "12345678")
            async with client.Producer(
                cluster.nameserver, credentials=keys, timeout=3.0
            ) as producer:
                await producer.send_many(messages(100))
                if passes:
                    await producer.send("Another", b"x")
                    continue
                with pytest.raises(client.SystemBusy, match=f"account {name} has used up"):
                    await producer.send("Another", b"x")
        assert "Another" in cluster.brokers["broker-a"].state.topics
        kind = QuotaKind("account", "messages", "send")
        assert refusals(cluster, kind) == 1


async def test_a_busy_broker_is_left_alone_until_the_time_it_named(fakes: Any) -> None:
    one, two = await fakes(2)
    tried: list[str] = []

    def busy_for(peer: Any, wait_ms: int) -> None:
        def answer(command: Command, connection: Connection) -> Command:
            tried.append(peer.name)
            if tried.count(peer.name) > 1:
                return peer.store(command, connection)
            extra = {RETRY_AFTER: str(wait_ms)}
            return command.reply(ResponseCode.SYSTEM_BUSY, "quota", extra=extra)

        peer.on_send(answer)

    busy_for(one, 300)
    busy_for(two, 60_000)
    loop = asyncio.get_running_loop()
    async with client.Producer(one.address) as producer:
        began = loop.time()
        await producer.send("T", b"x")
    assert loop.time() - began >= 0.3
    assert sorted(tried) == ["fake-0", "fake-0", "fake-1"]
