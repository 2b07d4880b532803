"""Messages are found by key with either tool, store and index."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import apache, mqadmin
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "looked-for"
COUNT = 300
SAME_NAME = {"brokerName": "broker-a"}
INDEX_TIMEOUT = 60.0
"""Apache builds its index behind the sends, and creates its file of 420 MB for the first."""


async def write(nameserver: str) -> dict[str, client.Receipt]:
    """Write messages; return them by their unique keys."""
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=4)
    async with client.Producer(nameserver) as producer:
        results = await producer.send_many(
            [
                client.Message(TOPIC, b"body %d" % n, keys=[f"key-{n}", f"third-{n % 3}"])
                for n in range(COUNT)
            ]
        )
    receipts = [result for result in results if isinstance(result, client.Receipt)]
    assert len(receipts) == COUNT
    return {f"key-{n}": receipt for n, receipt in enumerate(receipts)}


async def check(nameserver: str, receipts: dict[str, client.Receipt]) -> None:
    """Check that every message is found by key, by id and by offset id."""
    async with client.Admin(nameserver) as admin:
        assert await admin.find_messages(TOPIC, "key-x") == []
        for key, receipt in list(receipts.items())[::7]:
            (message,) = await admin.find_messages(TOPIC, key)
            assert message.body == b"body " + key.removeprefix("key-").encode()
            assert (message.id, message.offset) == (receipt.id, receipt.offset)
            assert (await admin.message(receipt.id, topic=TOPIC)).keys == message.keys
        assert len(await admin.find_messages(TOPIC, "third-1")) == 64


async def wait_until_indexed(nameserver: str) -> None:
    """Wait until a broker finds every message by its key."""
    async with client.Admin(nameserver) as admin, asyncio.timeout(INDEX_TIMEOUT):
        for n in range(COUNT):
            await until(partial(admin.find_messages, TOPIC, f"key-{n}"), INDEX_TIMEOUT)


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_apaches_tools_find_messages_in_our_broker(version: str, tmp_path: Path) -> None:
    with testing.broker() as ours:
        receipts = asyncio.run(write(ours.nameserver))
        receipt = receipts["key-7"]
        by_key = mqadmin(
            version, tmp_path, ours.nameserver, "queryMsgByKey", "-t", TOPIC, "-k", "key-7"
        )
        assert [line.split()[0] for line in by_key.splitlines() if receipt.id in line] == [
            receipt.id
        ]
        by_id = mqadmin(
            version, tmp_path, ours.nameserver, "queryMsgByUniqueKey", "-t", TOPIC, "-i", receipt.id
        )
        assert "key-7 third-1" in by_id
        # 5.x requires the topic as well.
        topic = ("-t", TOPIC) if version.startswith("5") else ()
        by_place = mqadmin(
            version, tmp_path, ours.nameserver, "queryMsgById", "-i", receipt.offset_id, *topic
        )
        assert "key-7 third-1" in by_place


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_apache_finds_messages_in_a_store_that_ours_closed(version: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with testing.broker(store=store, settings=SAME_NAME) as ours:
        receipts = asyncio.run(write(ours.nameserver))
    home = tmp_path / "apache"
    home.mkdir()
    settings = [f"storePathRootDir={store}", f"storePathCommitLog={store}/commitlog"]
    before = [path.stat().st_size for path in (store / "index").iterdir()]
    with apache(version, home, settings=settings) as theirs:
        asyncio.run(check(theirs.nameserver, receipts))
    assert before == [420_000_040]


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_ours_finds_messages_in_a_store_that_apache_left(version: str, tmp_path: Path) -> None:
    home = tmp_path / "apache"
    home.mkdir()
    with apache(version, home) as theirs:
        receipts = asyncio.run(write(theirs.nameserver))
        asyncio.run(wait_until_indexed(theirs.nameserver))
        asyncio.run(check(theirs.nameserver, receipts))

    with testing.broker(store=home / "store", settings=SAME_NAME) as ours:
        asyncio.run(check(ours.nameserver, receipts))
