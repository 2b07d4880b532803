"""Our producer's transactions at Apache's brokers: commits, rollbacks, checks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import client
from client import TransactionState
from pocketmq import testing
from tests.interop.apache import Apache, apache
from tests.interop.conftest import SETTINGS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
async def test_apache_asks_about_the_transactions_of_our_store(
    version: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    sizes = {"mappedFileSizeCommitLog": str(64 * 1024 * 1024)}
    with testing.broker(store=store, settings=sizes) as ours:
        async with client.Admin(ours.nameserver) as admin:
            await admin.create_topic("Deals", queues=2)
        async with client.Producer(
            ours.nameserver, group="dealers", transaction_checker=never
        ) as producer:
            for body in (b"committed", b"rolled back", b"left"):
                transaction = producer.transaction("Deals", body)
                await transaction.start()
                if body == b"committed":
                    await transaction.commit()
                elif body == b"rolled back":
                    await transaction.rollback()
        await asyncio.to_thread(ours.kill)
    asked: asyncio.Queue[bytes] = asyncio.Queue()

    async def decide(found: client.OpenTransaction[bytes]) -> TransactionState:
        asked.put_nowait(found.message.body)
        return TransactionState.COMMIT

    places = [f"storePathRootDir={store}", f"storePathCommitLog={store}/commitlog"]
    with apache(version, tmp_path, settings=[*SETTINGS, *places]) as theirs:
        async with client.Producer(
            theirs.nameserver, group="dealers", transaction_checker=decide
        ) as producer:
            await producer.send("Deals", b"hello")
            assert await asyncio.wait_for(asked.get(), 60) == b"left"
            assert await read(theirs, 3) == [b"committed", b"hello", b"left"]


def never(found: client.OpenTransaction[Any]) -> TransactionState:
    raise AssertionError(f"asked about {found}")


async def read(there: Apache, count: int) -> list[bytes]:
    """What consumers get of the topic, once there is so much; sorted."""
    found: list[bytes] = []
    async with client.PullConsumer(
        there.nameserver, group="reading", start_from=client.BEGIN
    ) as reader:
        reader.assign(await reader.queues("Deals"))
        async with asyncio.timeout(30):
            while len(found) < count:
                found += [one.body for one in await reader.get_many(10, timeout=1)]
        found += [one.body for one in await reader.get_many(10, timeout=3)]
    return sorted(found)


async def test_commits_rollbacks_and_checks(there: Apache) -> None:
    asked: set[str] = set()
    all_asked = asyncio.Event()

    async def decide(found: client.OpenTransaction[Any]) -> TransactionState:
        asked.add(found.message.body.decode())
        if len(asked) == 2:
            all_asked.set()
        commits = found.message.keys == ("yes",)
        return TransactionState.COMMIT if commits else TransactionState.ROLLBACK

    async with client.Admin(there.nameserver) as admin:
        await admin.create_topic("Deals", queues=2)
    async with client.Producer(
        there.nameserver, group="dealers", transaction_checker=decide
    ) as producer:
        async with producer.transaction("Deals", b"committed") as committed:
            pass
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction("Deals", b"rolled back"):
                1 / 0  # noqa: B018 - the local transaction that fails
        for key in ("yes", "no"):
            async with producer.transaction("Deals", b"left: " + key.encode(), keys=[key]) as left:
                await left.defer()
        assert committed.confirmed
        async with asyncio.timeout(60):
            await all_asked.wait()
        assert await read(there, 2) == [b"committed", b"left: yes"]
    assert asked == {"left: yes", "left: no"}
