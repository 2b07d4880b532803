"""A store whose oldest files are deleted: Apache's broker opens it, Apache's tools delete."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import client
from pocketmq import testing
from tests.interop.apache import apache, mqadmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "forgotten"
LOG_FILE = 2 << 20
COUNT = 600
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": str(LOG_FILE),
    "mappedFileSizeConsumeQueue": str(20 * 10),
    # No disk has so much free: of the log only the last file stays.
    "pocketmqDiskCleanFreeBytes": str(2**62),
    "cleanResourceInterval": "100",
}


def body_of(number: int) -> bytes:
    """Return a body with its number and incompressible bytes."""
    return b"%d " % number + Random(number).randbytes(20_000)


async def write(nameserver: str) -> None:
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=2)
    async with client.Producer(nameserver) as producer:
        results = await producer.send_many(
            [client.Message(TOPIC, body_of(n)) for n in range(COUNT)]
        )
    assert all(isinstance(result, client.Receipt) for result in results)


async def bounds(nameserver: str) -> dict[int, tuple[int, int]]:
    """Return the first offset and the end of each queue."""
    async with client.Admin(nameserver) as admin:
        stats = await admin.topic_stats(TOPIC)
    return {queue.queue_id: (found.min_offset, found.max_offset) for queue, found in stats.items()}


async def forgotten(nameserver: str) -> dict[int, tuple[int, int]]:
    """Return the same, once deletion in each queue is complete."""
    async with asyncio.timeout(30):
        before = await bounds(nameserver)
        while True:
            await asyncio.sleep(2.0)
            found = await bounds(nameserver)
            if found == before and all(low > 0 for low, _ in found.values()):
                return found
            before = found


async def read(nameserver: str) -> dict[int, list[int]]:
    """Return the numbers of the remaining messages, by queue."""
    found: dict[int, list[int]] = {}
    left = sum(high - low for low, high in (await bounds(nameserver)).values())
    async with client.PullConsumer(nameserver, group="reader") as consumer:
        consumer.assign(await consumer.queues(TOPIC))
        for queue in consumer.assigned:
            await consumer.seek(queue, 0)
        async with asyncio.timeout(30):
            while sum(map(len, found.values())) < left:
                for message in await consumer.get_many(1000, timeout=1.0):
                    assert message.check_crc()
                    number = int(message.body.split(maxsplit=1)[0])
                    assert message.body == body_of(number)
                    found.setdefault(message.queue.queue_id, []).append(number)
    return found


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_apache_opens_a_store_whose_oldest_files_are_deleted(version: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with testing.broker(store=store, settings=SETTINGS) as ours:
        asyncio.run(write(ours.nameserver))
        kept = asyncio.run(forgotten(ours.nameserver))
        messages = asyncio.run(read(ours.nameserver))
    home = tmp_path / "apache"
    home.mkdir()
    settings = [
        f"storePathRootDir={store}",
        f"storePathCommitLog={store}/commitlog",
        f"mappedFileSizeCommitLog={LOG_FILE}",
        f"mappedFileSizeConsumeQueue={SETTINGS['mappedFileSizeConsumeQueue']}",
    ]
    with apache(version, home, settings=settings) as theirs:
        assert asyncio.run(bounds(theirs.nameserver)) == kept
        assert asyncio.run(read(theirs.nameserver)) == messages
    assert min(map(len, messages.values())) > 10


@pytest.mark.parametrize(
    "command", ["deleteExpiredCommitLog", "cleanExpiredCQ", "cleanUnusedTopic"]
)
def test_apaches_tools_delete_expired_files_at_our_broker(command: str, tmp_path: Path) -> None:
    with testing.broker() as ours:
        output = mqadmin("4.9.7", tmp_path, ours.nameserver, command, "-b", ours.broker)
    assert "success" in output
