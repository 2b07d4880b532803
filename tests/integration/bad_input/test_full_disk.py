"""A full disk makes the broker read-only with one clear error, until there is space.

Tested on a real disk of 24 MiB if this user may mount one, and always on a simulated one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import client
from tests.integration.bad_input.disks import KINDS, Disk, disk_of, may_mount, real_disk
from tests.integration.bad_input.peer import PATIENCE

TOPIC = "full"
PADDING = b" " * 4_000


@pytest.fixture(params=KINDS)
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    """Each kind of disk in turn."""
    directory = tmp_path / "disk"
    directory.mkdir()
    async with disk_of(request.param, directory) as found:
        yield found


class Sender:
    """Sends numbers; acknowledged ones must stay readable."""

    def __init__(self, producer: client.Producer[bytes]) -> None:
        self._producer = producer
        self.acknowledged: list[int] = []
        self._next = 0

    async def send(self) -> None:
        number, self._next = self._next, self._next + 1
        await self._producer.send(TOPIC, b"%d" % number + PADDING)
        self.acknowledged.append(number)

    async def send_until_refused(self) -> client.PocketMQError:
        while True:
            try:
                await self.send()
            except client.PocketMQError as refused:
                return refused

    async def send_until_taken(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self.send()
                except client.PocketMQError:
                    await asyncio.sleep(0.05)
                else:
                    return


async def stored(nameserver: str) -> list[int]:
    """Return every number that can be read."""
    numbers: list[int] = []
    async with client.Admin(nameserver) as admin:
        stats = await admin.topic_stats(TOPIC)
    wanted = sum(offsets.max_offset - offsets.min_offset for offsets in stats.values())
    async with client.PullConsumer(nameserver, group="checker") as consumer:
        consumer.assign(stats)
        for queue in stats:
            await consumer.seek(queue, client.BEGIN)
        while len(numbers) < wanted:
            messages = await consumer.get_many(10_000, timeout=PATIENCE)
            assert messages, f"{len(numbers)} of {wanted}"
            numbers += [int(message.body) for message in messages]
    return numbers


async def test_a_full_disk_makes_the_broker_read_only_until_there_is_space(disk: Disk) -> None:
    async with client.Admin(disk.nameserver) as admin:
        await admin.create_topic(TOPIC, queues=1)
    async with client.Producer(disk.nameserver, group="p", retries=0, compress=None) as producer:
        sender = Sender(producer)
        for _ in range(100):
            await sender.send()

        await disk.fill()
        refused = await sender.send_until_refused()
        assert "no space left to write" in str(refused)
        assert "free some space and it resumes by itself" in str(refused)
        for _ in range(20):
            with pytest.raises(client.PocketMQError):
                await sender.send()
        assert await stored(disk.nameserver) == sender.acknowledged

        await disk.free()
        await sender.send_until_taken()
        for _ in range(100):
            await sender.send()
        assert await stored(disk.nameserver) == sender.acknowledged

        await disk.restart_broker()
        await sender.send_until_taken()
        assert await stored(disk.nameserver) == sender.acknowledged


async def test_a_broker_stops_and_starts_on_a_full_disk_without_a_loss(disk: Disk) -> None:
    async with client.Admin(disk.nameserver) as admin:
        await admin.create_topic(TOPIC, queues=1)
    async with client.Producer(disk.nameserver, group="p", retries=0, compress=None) as producer:
        sender = Sender(producer)
        await disk.fill()
        await sender.send_until_refused()
        await disk.restart_broker()
        assert await stored(disk.nameserver) == sender.acknowledged
        await disk.free()
        await sender.send_until_taken()
        assert await stored(disk.nameserver) == sender.acknowledged


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a disk")
@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_broker_that_was_killed_on_a_full_disk_starts_read_only(
    tmp_path: Path, mode: str
) -> None:
    async with (
        real_disk(tmp_path, flushDiskType=mode) as disk,
        client.Admin(disk.nameserver) as admin,
        client.Producer(disk.nameserver, group="p", retries=0, compress=None) as producer,
    ):
        await admin.create_topic(TOPIC, queues=1)
        sender = Sender(producer)
        for _ in range(100):
            await sender.send()
        await disk.fill()
        await sender.send_until_refused()
        # What the store could not use has been freed for others.
        await disk.fill()
        disk.kill()
        await disk.restart_killed()
        assert await stored(disk.nameserver) == sender.acknowledged
        await sender.send_until_refused()
        assert await stored(disk.nameserver) == sender.acknowledged
        await disk.free()
        await sender.send_until_taken()
        assert await stored(disk.nameserver) == sender.acknowledged
        logged = [line for line in disk.log.splitlines() if '"the store takes' in line]
        assert [json.loads(line)["level"] for line in logged] == ["error", "error", "info"]


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a disk")
async def test_keys_are_looked_up_on_a_full_disk(tmp_path: Path) -> None:
    # On a full tmpfs, reading a hole raises SIGBUS.
    async with (
        real_disk(tmp_path) as disk,
        client.Admin(disk.nameserver) as admin,
        client.Producer(disk.nameserver, group="p", retries=0) as producer,
    ):
        await admin.create_topic(TOPIC, queues=1)

        async def found(key: str) -> list[bytes]:
            return [message.body for message in await admin.find_messages(TOPIC, key)]

        await producer.send(TOPIC, b"before", keys=["before"])
        assert await found("before") == [b"before"]
        await disk.fill()
        assert await found("nobody's") == []
        await producer.send(TOPIC, b"since", keys=["since"])
        # Unless some other file has left room.
        assert await found("since") in ([], [b"since"])
        assert await found("before") == [b"before"]
        disk.kill()
        await disk.restart_killed()
        assert await found("before") in ([], [b"before"])
        await disk.free()
        assert await found("before") == [b"before"]
        assert await found("since") == [b"since"]


async def test_settings_changed_while_the_disk_is_full_are_saved_once_there_is_space(
    disk: Disk,
) -> None:
    async with client.Admin(disk.nameserver) as admin:
        await admin.create_topic(TOPIC, queues=1)
        await disk.fill()
        with pytest.raises(client.RemoteError, match="could not be written to the broker's disk"):
            await admin.create_topic("during", queues=3)
        await disk.free()
        await disk.restart_broker()
        assert len(await admin.topic_stats("during")) == 3
