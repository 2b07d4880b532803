"""A pull of messages that are only on disk delays no other request."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

from broker.app import Broker
from broker.config import BrokerConfig
from broker.store.os_files import Files, Region
from tests.integration.broker.client import Client, bodies
from tests.unit.broker.harness import pull_command
from tests.unit.broker.store.stores import FailingRegion

MESSAGES = 300
BODY = 10_000


class HeldRegion(FailingRegion):
    """A region that is fetched only when the test allows it; the first log file is cold."""

    _disk: HeldFiles

    def is_cached(self, position: int, length: int) -> bool | None:
        is_first = self._path.parent.name == "commitlog" and int(self._path.name) == 0
        return not is_first and super().is_cached(position, length)

    def fetch(self, position: int, length: int) -> None:
        self._disk.asked.set()
        self._disk.let.wait(30)
        super().fetch(position, length)


class HeldFiles(Files):
    """The system's disk, slow on demand."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.let.set()
        self.asked = threading.Event()

    def open_mapped(self, path: Path, size: int, *, create: bool) -> Region:
        region = super().open_mapped(path, size, create=create)
        return HeldRegion(region, path, self)

    # What a region asks before it writes or syncs.
    def before_write(self, path: Path) -> None: ...

    def before_sync(self, path: Path) -> None: ...


def body_of(number: int) -> bytes:
    return b"%06d" % number + b"x" * BODY


def drop_from_page_cache(broker: Broker, *, spare: int = 1) -> None:
    """Drop all log files except the last ones from the page cache."""
    broker.store.flush()
    # What is mapped, if only by a broker that was stopped, stays in memory.
    gc.collect()
    files = broker.store.log.files
    for file in files[: len(files) - spare]:
        file.unmap()
        descriptor = os.open(file.path, os.O_RDWR)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


async def filled(make_broker, tmp_path: Path, connect) -> None:
    """Store messages that the next broker on this store has not written itself."""
    broker = make_broker()
    await broker.start()
    client = await connect(broker)
    for number in range(MESSAGES):
        await client.send(body=body_of(number))
    await broker.stop()


async def replay(client: Client) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < MESSAGES:
        reply = await client.pull(queue_offset=len(got))
        assert reply.code == 0
        got += bodies(reply)
    return got


async def test_a_replay_from_the_disk_gives_every_message(make_broker, connect, tmp_path):
    await filled(make_broker, tmp_path, connect)
    # To ask what is in memory makes the system read ahead; a quick disk may be done by then.
    for _ in range(20):
        broker = make_broker()
        await broker.start()
        drop_from_page_cache(broker)
        client = await connect(broker)
        assert await replay(client) == [body_of(number) for number in range(MESSAGES)]
        await broker.stop()
        if cold_gets := broker.store.stats.cold_gets:
            break
    assert cold_gets > 0


async def test_the_loop_runs_while_the_disk_is_read(make_broker, connect, tmp_path):
    await filled(make_broker, tmp_path, connect)
    files = HeldFiles()
    config: BrokerConfig = make_broker().config
    async with Broker(config, files=files) as broker:
        client, other = await connect(broker), await connect(broker)
        files.let.clear()
        cold = client.connection.request_nowait(pull_command("T"), timeout=30)
        await asyncio.get_running_loop().run_in_executor(None, files.asked.wait, 30)
        for connection in (client, other):
            for _ in range(50):
                assert (await connection.send(topic="Other")).code == 0
            assert bodies(await connection.pull(queue_offset=MESSAGES - 1)) == [
                body_of(MESSAGES - 1)
            ]
        assert not cold.done()
        files.let.set()
        assert bodies(await cold)[0] == body_of(0)


async def test_a_stop_waits_for_what_is_read_and_answers_it(make_broker, connect, tmp_path):
    await filled(make_broker, tmp_path, connect)
    files = HeldFiles()
    config: BrokerConfig = make_broker().config
    broker = Broker(config, files=files)
    await broker.start()
    client = await connect(broker)
    files.let.clear()
    cold = client.connection.request_nowait(pull_command("T"), timeout=30)
    await asyncio.get_running_loop().run_in_executor(None, files.asked.wait, 30)
    stopping = asyncio.ensure_future(broker.stop())
    await asyncio.sleep(0)
    files.let.set()
    assert bodies(await cold)[0] == body_of(0)
    await stopping
