"""Apache's broker takes over a store of ours, stopped or killed; ours takes it back afterwards.

The store contains bodies of every compression, keys, tags, batches, IPv6 hosts, delayed messages,
retried ones, ones that wait for a retry, dead letters, topics, groups and their offsets.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import pytest

import client
from broker.store.engine import MessageStore, PendingMessage, PutStatus, StoreConfig
from pocketmq import testing
from remoting.protocol.message.record import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from tests.interop import carried
from tests.interop.apache import JavaClient, apache
from tests.interop.carried import Fact, body_sha256
from tests.support.tour import only_block, recipes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KINDS, WORK, LATE, GROUP = "kinds", "work", "late", "workers"
RETRIES, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
TOPICS = (KINDS, WORK, LATE, RETRIES, DEAD)
HERE = {
    "brokerName": "broker-a",
    "messageDelayLevel": "1s 3s 1h",
    # Otherwise what was delivered is written down when it is synced, up to ten seconds later.
    "flushDiskType": "SYNC_FLUSH",
    "flushConsumerOffsetInterval": "200",
    "flushDelayOffsetInterval": "200",
}
THERE = [
    # Apache's brokers deliver at once what waits longer than its level says.
    "messageDelayLevel=1s 1s 1s",
    "flushConsumerOffsetInterval=200",
    "flushDelayOffsetInterval=200",
]
SIX = bytes.fromhex("20010db8000000000000000000000001") + (54321).to_bytes(4)
FOUR = bytes([10, 1, 2, 3]) + (54321).to_bytes(4)
AT_ONCE, LATER = 1, 3
"""Delayed messages that our broker delivers, and ones that still wait when it stops."""


def put_from_ipv6_hosts(store: Path) -> None:
    """Put messages with IPv6 hosts: either host, both, and with a compressed body."""
    log = MessageStore(StoreConfig(root=store, mapped_file_size_commit_log=64 * 1024 * 1024))
    log.open()
    for born, kept, flag in (
        (SIX, FOUR, BORN_HOST_V6),
        (FOUR, SIX, STORE_HOST_V6),
        (SIX, SIX, BORN_HOST_V6 | STORE_HOST_V6 | COMPRESSED),
    ):
        body = zlib.compress(b"six" * 100) if flag & COMPRESSED else b"six"
        message = PendingMessage(KINDS, 0, body, b"KEYS\x01six", sys_flag=flag & COMPRESSED)
        message.born_host, message.store_host, message.born_timestamp_ms = born, kept, 1_600_000_000
        assert log.put(message).status is PutStatus.OK
    log.close()


async def fill(nameserver: str) -> None:
    """Send messages without a group, let a group consume, and send delayed ones."""
    async with client.Admin(nameserver) as admin:
        for topic in (KINDS, WORK, LATE):
            await admin.create_topic(topic, queues=4 if topic == KINDS else 2)
        await admin.create_group(GROUP)
    for kind in ("zlib", "lz4", "zstd"):
        async with client.Producer(nameserver, compress=kind) as producer:
            await producer.send(KINDS, kind.encode() * 20_000, tag=kind, keys=[f"large-{kind}"])
    async with client.Producer(nameserver, group="filling") as producer:
        for n in range(8):
            await producer.send(KINDS, b"plain %d" % n)
            await producer.send(
                client.Message(
                    KINDS,
                    "rich \u4e2d".encode(),
                    tag=f"tag-{n % 2}",
                    keys=[f"key-{n}", "shared"],
                    properties={"number": str(n), "odd": "\u00e9 = \u0003"},
                    flag=-n,
                )
            )
        many = await producer.send_many(client.Message(KINDS, b"one of many") for _ in range(500))
        assert all(isinstance(receipt, client.Receipt) for receipt in many)
        batch = [client.Message(KINDS, b"batch %d" % n, keys=[f"batch-{n}"]) for n in range(5)]
        await producer.send_batch(batch)
        await work(nameserver, producer)
        for n in range(AT_ONCE + LATER):
            level = 1 if n < AT_ONCE else 3
            await producer.send(LATE, b"late %d" % n, keys=[f"late-{n}"], delay_level=level)


async def work(nameserver: str, producer: client.Producer[bytes]) -> None:
    """Six messages for the group: one fails twice, one waits for its retry, one's comes when nobody
    is there, one is dead; then four more."""
    await producer.send_many(client.Message(WORK, b"work %d" % n) for n in range(6))
    calls: list[bytes] = []
    enough = asyncio.Event()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        calls.append(message.body)
        if len(calls) == 7:
            enough.set()
        if message.body == b"work 1":
            raise client.RetryLater(10 if message.retries else 1)
        if message.body == b"work 2":
            raise client.DeadLetter
        if message.body == b"work 3":
            raise client.RetryLater(10)
        if message.body == b"work 4":
            await enough.wait()
            raise client.RetryLater(5)

    async with client.PushConsumer(
        nameserver, group=GROUP, subscribe={WORK: "*"}, handler=handle, start_from=client.FIRST
    ):
        await asyncio.wait_for(enough.wait(), carried.PATIENCE)
    await producer.send_many(client.Message(WORK, b"later work %d" % n) for n in range(4))


async def offsets(nameserver: str, broker: str) -> dict[str, dict[int, int]]:
    async with client.Admin(nameserver) as admin:
        return await admin.all_offsets(broker)


def left_by_ours(store: Path, end: str) -> set[Fact]:
    """Let our broker fill a store and stop; return the messages that were readable."""
    put_from_ipv6_hosts(store)
    with testing.broker(store=store, settings=HERE) as ours:
        asyncio.run(fill(ours.nameserver))
        wait_until(lambda: carried.delivered(store) == {1: AT_ONCE + 1, 2: 1}, "not delivered")
        now = asyncio.run(offsets(ours.nameserver, ours.broker))
        wait_until(lambda: carried.committed(store) == now, "offsets aren't written")
        facts = asyncio.run(carried.read(ours.nameserver, *TOPICS))
        if end == "killed":
            ours.kill()
    return facts


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_apache_continues_with_our_store_and_our_broker_again(
    version: str, end: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    facts = left_by_ours(store, end)
    recipe = recipes()["operating.md#moving-a-store-to-apache-rocketmq-and-back"]
    shown = only_block(recipe, "properties").replace("/var/lib/pocketmq", str(store))
    with apache(version, tmp_path, settings=[*THERE, *shown.splitlines()]) as theirs:
        lines = JavaClient(version, "JSON", tmp_path).run(
            theirs.nameserver,
            *("consume", WORK, GROUP, "7", "/", "await", LATE, str(AT_ONCE + LATER)),
            *("/", "find", KINDS, "key-3", "/", "find", KINDS, "shared", "/", "find", KINDS, "six"),
            *("/", "send", KINDS, "there", "8", "/", "read", *TOPICS),
            program="Stores",
        )
        if end == "killed":
            # What is delivered there is counted later; a killed broker's heir would repeat it.
            counted = {1: AT_ONCE + 1, 2: 1, 3: LATER + 2}
            wait_until(lambda: carried.delivered(store) == counted, "it isn't counted")
            done = {f"{WORK}@{GROUP}": 10, f"{RETRIES}@{GROUP}": 4}
            wait_until(
                lambda: (
                    {key: sum(carried.committed(store).get(key, {}).values()) for key in done}
                    == done
                ),
                "offsets aren't written",
            )
    there = carried.said_by_java(lines)

    check_there(facts, there, lines)
    if end == "killed":
        with testing.broker(store=store, settings=HERE) as ours:
            asyncio.run(check_back_here(ours.nameserver, there))


def check_there(facts: set[Fact], there: set[Fact], lines: list[list[str]]) -> None:
    """Check that the Java client reads all, delayed messages have come and the group continues."""
    assert facts <= there
    assert carried.number(there, KINDS) == carried.number(facts, KINDS) + 8
    assert sorted(fact.body_sha256 for fact in carried.of(there, LATE)) == body_sha256(
        *(b"late %d" % n for n in range(AT_ONCE + LATER))
    )
    assert sorted(fields[1:] for fields in lines if fields[0] == "consumed") == sorted(
        [
            *([WORK, "0", f"later work {n}"] for n in range(4)),
            *([WORK, retries, f"work {n}"] for n, retries in ((1, "2"), (3, "1"), (4, "1"))),
        ]
    )
    (dead,) = carried.of(there, DEAD)
    assert (dead.body_sha256, dead.retries) == (body_sha256(b"work 2")[0], 1)
    found = [fields[1:] for fields in lines if fields[0] == "found"]
    assert found.count(["key-3", "rich \u4e2d"]) == 1
    assert found.count(["shared", "rich \u4e2d"]) == 8
    assert sum(key == "six" for key, _ in found) == 3
    carried.assert_dense(there)


async def check_back_here(nameserver: str, there: set[Fact]) -> None:
    """Check that our broker has everything, the group is finished and offsets continue."""
    async with client.Admin(nameserver) as admin, client.Producer(nameserver) as producer:
        assert await carried.read(nameserver, *TOPICS) == there
        assert (await admin.lag(GROUP)).total == 0
        for queue, offsets in (await admin.topic_stats(KINDS)).items():
            receipt = await producer.send(client.Message(KINDS, b"back", queue=queue))
            assert receipt.offset == offsets.max_offset
        (message,) = await admin.find_messages(KINDS, "batch-2")
        assert message.body == b"batch 2"
    after = await carried.read(nameserver, *TOPICS)
    assert len(after) == len(there) + 4
    carried.assert_dense(after)
