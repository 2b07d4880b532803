"""Apache's broker opens a copy made while its store was being written."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import JavaClient, apache
from tests.unit.broker.store.copy.copies import check, copied

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "copied"
QUEUES = 4
BEFORE = 2000
BURST = 100
SAME_NAME = {"brokerName": "broker-a"}


async def copy_under_load(nameserver: str, source: Path, target: Path) -> tuple[int, list[bytes]]:
    """How many messages the copy has of the topic, and which were acknowledged before it began."""
    acknowledged: list[bytes] = []
    copying: asyncio.Task[None] | None = None
    found = 0

    def copy() -> None:
        nonlocal found
        records = check(target, copied(source, target))
        found = sum(record.topic == TOPIC for record in records)

    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
        await admin.create_group("reader-group")
    async with client.Producer(nameserver, timeout=60) as producer:
        number, before = 0, []
        while copying is None or not copying.done():
            bodies = [b"message-%d" % n for n in range(number, number + BURST)]
            results = await producer.send_many(
                [client.Message(TOPIC, body, tag="t", keys=[body.decode()]) for body in bodies]
            )
            assert all(isinstance(result, client.Receipt) for result in results), results
            acknowledged += bodies
            number += BURST
            if copying is None and number >= BEFORE:
                before = acknowledged.copy()
                copying = asyncio.create_task(asyncio.to_thread(copy))
        await copying
    return found, before


@pytest.mark.parametrize("version", ["4.9.7"])
def test_a_java_consumer_reads_all_of_a_copy(version: str, tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    with testing.broker(store=store, settings=SAME_NAME) as ours:
        count, before = asyncio.run(copy_under_load(ours.nameserver, store, copy))
    assert count >= len(before)
    home = tmp_path / "apache"
    home.mkdir()
    settings = [f"storePathRootDir={copy}", f"storePathCommitLog={copy}/commitlog"]

    with apache(version, home, settings=settings) as theirs:
        java = JavaClient(version, "JSON", tmp_path)
        read = java.run("read", theirs.nameserver, TOPIC, str(count))

    bodies = Counter(fact[9] for fact in read)
    assert len(read) == count
    assert bodies == Counter(f"message-{n}" for n in range(count))
    assert {body.decode() for body in before} <= set(bodies)
