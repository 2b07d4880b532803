"""store copy of a broker under load, and the command's output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import client
from broker.store.engine import MessageStore, StoreConfig
from broker.storetools.view import StoreView
from client import blocking
from pocketmq import testing
from pocketmq.cli import root as commands
from tests.support.sizes import size
from tests.unit.broker.store.copy.copies import check, copied

TOPIC = "copied"
QUEUES = 8
PER_SECOND = 5000
BURST = 100
COPIES = size(ci=8, soak=40)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.StandaloneServer]:
    """A broker with small files, so that they roll while they are copied."""
    settings = {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": str(1 << 20),
        "mappedFileSizeConsumeQueue": "20000",
    }
    store = tmp_path_factory.mktemp("copied") / "store"
    with testing.broker(store=store, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def store(server: testing.StandaloneServer) -> Path:
    return server.store


class Load:
    """Sends 5,000 messages a second, and records which are acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[int, int, int]] = []

    async def run(self, nameserver: str, stop: asyncio.Event) -> None:
        async with client.Admin(nameserver) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        loop = asyncio.get_running_loop()
        begun, number = loop.time(), 0
        async with client.Producer(nameserver) as producer:
            while not stop.is_set():
                burst = range(number, number + BURST)
                sent = [
                    client.Message(TOPIC, b"%d " % n + bytes(n % 700), keys=[f"k{n}"])
                    for n in burst
                ]
                for n, receipt in zip(burst, await producer.send_many(sent), strict=True):
                    assert isinstance(receipt, client.Receipt), receipt
                    self.acknowledged.append((receipt.queue.queue_id, receipt.offset, n))
                number += BURST
                await asyncio.sleep(max(0, begun + number / PER_SECOND - loop.time()))


@pytest.mark.timeout(size(ci=120, soak=900))
def test_copies_under_load_are_consistent(
    server: testing.StandaloneServer, store: Path, tmp_path: Path
) -> None:
    async def copy_again_and_again() -> None:
        load, stop = Load(), asyncio.Event()
        sending = asyncio.create_task(load.run(server.nameserver, stop))
        try:
            for number in range(COPIES):
                while len(load.acknowledged) < (number + 1) * PER_SECOND // 4:
                    await asyncio.sleep(0.01)
                    if sending.done():
                        await sending
                before = load.acknowledged.copy()
                target = tmp_path / str(number)
                report = await asyncio.to_thread(copied, store, target)
                records = await asyncio.to_thread(check, target, report)
                assert report.sound
                assert not report.notes
                assert await asyncio.to_thread(missing, target, records, before) == []
        finally:
            stop.set()
            await sending

    asyncio.run(copy_again_and_again())


def missing(root: Path, records: list[Any], sent: list[tuple[int, int, int]]) -> list[Any]:
    """Return which of ``sent`` a copy lacks, in its log and as our broker would deliver it."""
    found = {
        (record.queue_id, record.queue_offset): int(record.body.split()[0])
        for record in records
        if record.topic == TOPIC
    }
    config = StoreConfig(
        root=root, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000
    )
    opened = MessageStore(config)
    report = opened.open()
    assert report.clean
    assert not report.notes
    assert (report.cut_entries, report.rebuilt_entries, report.cut_bytes) == (0, 0, 0)
    ends = {queue: opened.queries.max_offset(TOPIC, queue) for queue in range(QUEUES)}
    opened.close()
    return [one for one in sent if found.get(one[:2]) != one[2] or one[1] >= ends.get(one[0], 0)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(commands, ["store", "copy", *map(str, arguments)])


def test_the_command_prints_what_it_copied(store: Path, tmp_path: Path) -> None:
    done = run(store, tmp_path / "a")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("copied ")
    facts = json.loads(run(store, tmp_path / "b", "--json").stdout)
    assert facts["end"] == StoreView(tmp_path / "b").log_end().position
    assert (facts["damaged"], facts["notes"]) == (0, [])


def test_damage_is_named_and_makes_the_exit_code_1(
    server: testing.StandaloneServer, store: Path, tmp_path: Path
) -> None:
    with blocking.Producer(server.nameserver) as producer:
        # After the last whole record a copy ends.
        for _ in range(2):
            producer.send(TOPIC, bytes(100))
    run(store, tmp_path / "a")
    first = min((tmp_path / "a" / "commitlog").iterdir())
    data = bytearray(first.read_bytes())
    data[90] ^= 0xFF
    first.write_bytes(data)
    done = run(tmp_path / "a", tmp_path / "b")
    assert done.exit_code == 1
    assert "damaged from 0 to" in done.stderr
    assert "the source is damaged in 1 places, and so is the copy" in done.stderr
    assert (tmp_path / "b" / "commitlog" / first.name).read_bytes() == bytes(data)


def test_a_refusal_is_a_one_line_error(store: Path, tmp_path: Path) -> None:
    done = run(store, store / "inside")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: the target")
    assert done.stderr.count("\n") == 1
